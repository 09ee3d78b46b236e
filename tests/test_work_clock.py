"""The clocks of workers: what counts as work, as computing, and as waiting for a core."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine import work_clock
from xloader.engine.tally import Tally
from xloader.engine.work_clock import WorkClock, WorkTime
from xloader.testing import write_store

IS_COUNTED = Path("/proc/thread-self/schedstat").exists()


@dataclass
class Clocks:
    """Clocks that stand still unless they are set. They take the place of the module ``time``."""

    wall: float = 100.0
    cpu: float = 5.0
    core: float = 1.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(work_clock, "time", clocks)
    monkeypatch.setattr(WorkClock, "_core_seconds", lambda _: clocks.core)
    return clocks


def in_thread(task: Callable[[], object]) -> None:
    thread = threading.Thread(target=task)
    thread.start()
    thread.join()


def test_a_lap_is_the_time_since_the_last_one(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall, clocks.cpu, clocks.core = 110.0, 8.0, 1.5
    assert clock.lap() == (10.0, 3.0, 0.5)
    clocks.wall += 1.0
    lap = clock.lap()
    assert lap == (1.0, 0.0, 0.0)
    assert lap is not None
    assert lap.other_seconds == 1.0


def test_pauses_without_work_are_left_out(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall += 10.0
    clock.skip(4.0)
    clock.skip(2.0)
    assert clock.lap() == (4.0, 0.0, 0.0)
    clocks.wall += 10.0
    assert clock.lap() == (10.0, 0.0, 0.0)


def test_clocks_are_not_read_after_each_of_many_short_tasks(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall += 0.004
    assert clock.lap() is None
    assert clock.lap(is_due=True) == pytest.approx((0.004, 0.0, 0.0))
    clocks.wall += 0.004
    assert clock.lap() is None
    # Nothing is lost: the next lap includes it. A long pause alone is no reason to read them.
    clocks.wall += 100.0
    clock.skip(100.0)
    assert clock.lap() is None
    clocks.wall += 0.008
    assert clock.lap() == pytest.approx((0.012, 0.0, 0.0))


def test_waiting_for_anything_else_is_what_is_left() -> None:
    assert WorkTime(10.0, 3.0, 2.0).other_seconds == 5.0
    # Waits for a core after a pause are counted, but the pause is not.
    assert WorkTime(1.0, 0.5, 2.0).other_seconds == 0.0
    assert WorkTime(1.0, 2.0, 3.0).plus(WorkTime(10.0, 20.0, 30.0)) == (11.0, 22.0, 33.0)


@pytest.mark.skipif(not IS_COUNTED, reason="this system does not count waits for a core")
def test_a_thread_reads_its_own_waits_for_a_core() -> None:
    found = []

    def read() -> None:
        clock = WorkClock()
        with Path("/proc/thread-self/schedstat").open() as file:
            before = int(file.read().split()[1]) * 1e-9
        found.append(clock._core_seconds() - before)
        clock.close()
        # A closed clock still ticks.
        found.append(clock._core_seconds())

    in_thread(read)
    # The thread may have waited once more between both readings, but did not lose any.
    assert found[0] >= 0.0
    assert found[1] == 0.0


@pytest.mark.parametrize("text", ["", "1", "a b c"])
def test_a_system_that_does_not_count_waits(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "schedstat"
    place.write_text(text)
    monkeypatch.setattr(work_clock, "_STATISTICS", str(place))
    assert WorkClock()._core_seconds() == 0.0
    monkeypatch.setattr(work_clock, "_STATISTICS", str(tmp_path / "absent"))
    assert WorkClock()._core_seconds() == 0.0


def open_statistics() -> int:
    """Count the descriptors of the system's statistics that this process holds."""
    names = []
    for path in Path("/proc/self/fd").iterdir():
        # Other threads, and the listing itself, close theirs meanwhile.
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(path))
    return sum(name.endswith("/schedstat") for name in names)


@pytest.mark.skipif(not IS_COUNTED, reason="this system does not count waits for a core")
def test_threads_close_their_clocks() -> None:
    before = open_statistics()
    with samples().loader(batch_size=4, output="numpy", threads=2) as loader:
        # Each of the threads has opened one, or will.
        for number, _ in enumerate(loader):
            assert number or open_statistics() > before
    assert open_statistics() == before


def samples() -> xloader.Samples:
    values = np.arange(48 * 32, dtype=np.float32).reshape(48, 32)
    store = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (8, 32)})
    return xloader.open(store).window(time=1)


def tally_of(loader: xloader.Loader) -> Tally:
    for _ in loader:
        pass
    assert loader._progress is not None
    return loader._progress.tally


def test_time_in_functions_of_the_user_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_clock, "_EVERY_SECONDS", 0.0)
    with samples().map(lambda frame: frame + 1).loader(batch_size=4, output="numpy") as loader:
        tally = tally_of(loader)
    own, finish = tally.own_time, tally.finish_time
    # The worker's clock starts before the batch's, and stops after it.
    assert finish.seconds >= tally.finish_seconds > 0.0
    known = tally.fetch_seconds + tally.decode_seconds + tally.gather_seconds + tally.walk_seconds
    assert own.seconds >= known > 0.0
    assert own.seconds >= own.cpu_seconds > 0.0
