"""The clocks of workers: what counts as work, as computing, and as waiting for a core."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine import tally as work_clock
from xloader.engine.tally import Tally, WorkClock
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
    monkeypatch.setattr(work_clock, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(WorkClock, "core_seconds", lambda _: clocks.core)
    return clocks


def test_tasks_of_each_kind_are_timed_apart(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall += 1.0
    # The time until a task is found counts for the kind of the task before.
    clock.begin("load")
    clocks.wall, clocks.cpu, clocks.core = clocks.wall + 10.0, 8.0, 1.5
    clock.begin("finish")
    clocks.wall += 2.0
    clock.end()
    assert clock.take() == {
        "own": (1.0, 0.0, 0.0),
        "load": (10.0, 3.0, 0.5),
        "finish": (2.0, 0.0, 0.0),
    }
    assert clock.take() == {}


def test_pauses_without_work_are_left_out(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall += 10.0
    clock.skip(4.0)
    clock.skip(2.0)
    clock.end()
    assert clock.take() == {"own": (4.0, 0.0, 0.0)}
    clocks.wall += 10.0
    clock.end()
    assert clock.take() == {"own": (10.0, 0.0, 0.0)}


def test_clocks_are_not_read_after_each_of_many_short_tasks(clocks: Clocks) -> None:
    clock = WorkClock()
    clocks.wall += 0.004
    clock.begin("own")
    clock.end()
    assert clock.take() == {}
    # A long pause alone is no reason to read them.
    clocks.wall += 100.0
    clock.skip(100.0)
    clock.end()
    assert clock.take() == {}
    # Nothing is lost.
    clocks.wall += 0.008
    clock.end()
    assert clock.take()["own"] == pytest.approx((0.012, 0.0, 0.0))


def test_a_spell_stands_for_the_pause_before_it(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_clock, "_PAUSE_SECONDS", 3.0)
    clock = WorkClock()
    clocks.wall, clocks.cpu = 101.0, 5.5
    clock.end()
    assert clock.take() == {"own": (1.0, 0.5, 0.0)}
    # Nobody reads the clocks meanwhile, whatever the tasks are.
    for kind in ("load", "finish", "load"):
        clocks.wall, clocks.cpu = clocks.wall + 2.0, clocks.cpu + 1.0
        clock.skip(1.0)
        clock.begin(kind)
    clock.end()
    assert clock.take() == {}
    clocks.wall, clocks.cpu, clocks.core = clocks.wall + 1.0, clocks.cpu + 0.5, 1.25
    clock.end()
    assert clock.take() == {"load": pytest.approx((4.0, 2.0, 1.0))}


@pytest.mark.parametrize("text", ["", "1", "a b c", None])
def test_a_system_that_does_not_count_waits(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "schedstat"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(work_clock, "_STATISTICS", str(place))
    assert WorkClock().core_seconds() == 0.0


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


def test_the_tasks_of_a_run_are_timed_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_clock, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(work_clock, "_EVERY_SECONDS", 0.0)
    mapped = samples().map(lambda frame: frame + 1)
    with mapped.loader(batch_size=4, output="numpy", threads=2) as loader:
        begun = time.perf_counter()
        tally = tally_of(loader)
        seconds = time.perf_counter() - begun
    # The worker's clock starts before the task's, and stops after it. A task of another kind ends
    # the time of each but the last.
    work = tally.work
    assert work["load"].seconds >= tally.fetch_seconds + tally.decode_seconds > 0.0
    assert work["finish"].seconds > 0.0 < work["own"].cpu_seconds
    # Two threads, and that of the loop.
    assert 0.0 < sum(spent.seconds for spent in work.values()) <= 3 * seconds
