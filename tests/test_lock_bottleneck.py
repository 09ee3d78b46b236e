"""When the report names Python's lock as the bottleneck, and what it then advises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine import run, tally
from xloader.engine.native_executor import NativeExecutor
from xloader.engine.tally import Gauge, Tally, WorkClock, WorkTime
from xloader.loader import progress
from xloader.loader.reports.advice import advise
from xloader.loader.reports.bottleneck import EpochEffort
from xloader.loader.reports.report import Report
from xloader.planning.plan import Budget
from xloader.testing import write_store

MIB = 2**20

GUARD = 30.0
"""Seconds after which waiting for another thread fails."""


Seconds = tuple[float, float, float]
"""Seconds at work, on a core, and waiting for a core."""

NONE = (0.0, 0.0, 0.0)


def effort(
    own: Seconds,
    load: Seconds = NONE,
    finish: Seconds = NONE,
    *,
    awaited: float = 2.0,
    wait_seconds: float = 10.0,
    counts: dict[str, Any] | None = None,
    **others: Any,
) -> EpochEffort:
    """Make an epoch of 10 s with 2 threads, on 4 cores of which the process uses 1.2.

    ``awaited`` threads work while the consumer waits. Chunks have 1 MiB, and there are 1000 samples
    of 4 MB.
    """
    stages = {"gather_seconds": own[0], "decode_seconds": load[0], "finish_seconds": finish[0]}
    counted = Tally(
        wait_seconds=wait_seconds,
        work={"own": WorkTime(*own), "load": WorkTime(*load), "finish": WorkTime(*finish)},
        workers=Gauge(awaited_seconds=awaited * wait_seconds, unasked_seconds=2.0),
        **{**stages, **(counts or {})},
    )
    budget = Budget(512 * MIB, MIB, 4, others.pop("chunk", MIB), 1)
    given = {
        "num_threads": 2, "num_asked": 2, "seconds": 10.0, "num_samples": 1000,
        "delivered_nbytes": 4 * 10**9, "cpu_seconds": 12.0, "num_cores": 4,
    }  # fmt: skip
    return EpochEffort(counted, budget, **{**given, **others})


def locked(**others: Any) -> EpochEffort:
    """Make an epoch of two threads that decode, and wait for the lock 8 of their 20 seconds."""
    given: dict[str, Any] = {"own": (5.0, 3.0, 0.0), "load": (15.0, 9.0, 0.0), **others}
    return effort(given.pop("own"), given.pop("load"), **given)


# When it is the lock


def test_threads_that_neither_compute_nor_wait_for_a_core_wait_for_the_lock() -> None:
    assert locked().bottleneck == "lock"
    assert locked().lock_wait_seconds == pytest.approx(8.0)
    assert locked().lock_share == pytest.approx(0.4)
    assert locked().core_wait_seconds == 0.0


@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        ("just long enough", {"own": (5.0, 3.5, 0.0), "load": (15.0, 10.5, 0.0)}, "lock"),
        ("not long enough", {"own": (5.0, 3.6, 0.0), "load": (15.0, 10.6, 0.0)}, "decode"),
        ("for a core that others take", {"own": (5.0, 3, 2), "load": (15.0, 9, 6)}, "unclear"),
        ("sleeping, and waking late", {"own": (5.0, 3.5, 1.5), "load": (15.0, 3, 6)}, "decode"),
        ("for a core now and then", {"own": (5.0, 3, 1), "load": (15.0, 11, 4)}, "decode"),
        ("for both", {"own": (5.0, 2.0, 1.0), "load": (15.0, 6.0, 3.0)}, "lock"),
        ("for a disk", {"own": (5.0, 5.0, 0.0)}, "decode"),
        ("for a disk, after a pause for a core", {"own": (5.0, 3.0, 5.0)}, "decode"),
        ("one thread at work", {"awaited": 1.0}, "unclear"),
        ("one thread at work, and a half", {"awaited": 1.3}, "decode"),
        ("the consumer is slow", {"wait_seconds": 0.5}, "consumer"),
        ("all cores are in use", {"cpu_seconds": 37.0}, "decode"),
        ("nobody computes, so nobody holds it", {"cpu_seconds": 4.0}, "decode"),
        ("Python without the lock", {"has_lock": False}, "decode"),
        ("nothing was measured", {"own": NONE, "load": NONE}, "fetch"),
    ],
)
def test_waits_that_may_be_for_the_lock(case: str, changes: dict[str, Any], named: str) -> None:
    assert locked(**changes).bottleneck == named, case


@pytest.mark.parametrize("kind", ["load", "finish"])
@pytest.mark.parametrize(
    ("case", "own", "others", "is_locked"),
    [
        ("loops in Python: own code waits as well", (1.0, 0.1, 0.0), (19.0, 9.5, 0.0), True),
        ("sleeping: own code does not wait", (1.0, 1.0, 0.0), (19.0, 9.5, 0.0), False),
        ("sleeping, hardly computing", (1.0, 0.1, 0.0), (19.0, 0.5, 0.0), False),
        ("computing without the lock", (1.0, 0.9, 0.0), (19.0, 19.0, 0.0), False),
        ("waiting for cores", (1.0, 0.1, 0.9), (19.0, 14.0, 5.0), False),
    ],
)
def test_stores_and_functions_of_the_user_may_wait_for_anything(
    case: str, own: Seconds, others: Seconds, is_locked: bool, kind: str
) -> None:
    named = {"load": "decode", "finish": "transform"}[kind]
    assert effort(own, **{kind: others}).bottleneck == ("lock" if is_locked else named), case


def test_others_wait_as_long_for_their_computing_as_own_code() -> None:
    # Own code waits 1 s for each second on a core. The others wait 12 s and 2 s.
    own = (4.0, 2.0, 0.0)
    assert effort(own, finish=(17.0, 5.0, 0.0)).lock_wait_seconds == 2.0 + 5.0
    assert effort(own, finish=(17.0, 15.0, 0.0)).lock_wait_seconds == 2.0 + 2.0
    assert effort(own, (17.0, 5.0, 0.0), (17.0, 15.0, 0.0)).lock_wait_seconds == 2.0 + 5.0 + 2.0


def test_fetches_ahead_come_first_where_threads_are_idle() -> None:
    ahead = {"num_ahead": 400, "ahead_nbytes": 400 * MIB, "ahead_seconds": 20.0}
    idle = locked(own=(1.0, 0.5, 0.0), load=(5.0, 2.5, 0.0), awaited=0.6, counts=ahead)
    assert idle.is_locked
    assert idle.bottleneck == "fetch"
    assert locked(counts=ahead).bottleneck == "lock"


# What is advised


def test_many_small_chunks() -> None:
    small = locked(chunk=64 << 10, counts={"num_reads": 20_000})
    assert advise(small) == (
        "Lock-bound: waiting for Python's lock takes 40% of the threads' time at work. "
        "More threads would not help; larger chunks than 64.0 KiB (2,000 are read per second) or "
        "worker processes (processes=2) would."
    )
    large = "would not help; worker processes (processes=2) would."
    assert advise(locked()).endswith(large)
    assert advise(locked(chunk=64 << 10, is_direct=False)).endswith(large)


def test_functions_that_hold_the_lock() -> None:
    text = advise(effort((1.0, 0.1, 0.0), finish=(19.0, 9.5, 0.0)))
    named = "NumPy on whole batches instead of loops in Python and per='sample'"
    assert f"; {named} or worker processes" in text


def test_gathering() -> None:
    text = advise(effort((20.0, 12.0, 0.0), num_samples=10**7))
    assert "; larger windows than 400 B per sample or worker processes" in text
    assert "; fewer fields or worker processes" in advise(effort((20.0, 12.0, 0.0)))


@pytest.mark.parametrize("gather_seconds", [3.0, 10.0])
def test_a_compiled_gather_that_is_missing(gather_seconds: float) -> None:
    counts = {"decode_seconds": 20.0 - gather_seconds, "gather_seconds": gather_seconds}
    text = advise(locked(counts=counts, why_numpy="XLOADER_COMPILED=0 is set"))
    named = "; the compiled gather, which needs no lock (missing: XLOADER_COMPILED=0 is set) or"
    assert (named in text) == (gather_seconds == 10.0)
    few = advise(locked(counts=counts, why_numpy="no C compiler", chunk=64 << 10))
    assert ("no C compiler), larger chunks than" in few) == (gather_seconds == 10.0)
    assert "compiled" not in advise(locked(counts=counts))


def test_a_consumer_that_may_hold_the_lock() -> None:
    hint = " Python code of the consumer may hold the lock too."
    assert not advise(locked()).endswith(hint)
    half = locked(wait_seconds=6.0)
    assert half.bottleneck == "lock"
    assert advise(half).endswith(hint)
    busy = locked(wait_seconds=0.5)
    assert busy.bottleneck == "consumer"
    assert advise(busy).startswith(
        "The threads wait for Python's lock 40% of their time at work: "
        "Python code of the consumer may hold it, and with processes=1 the loader would not need "
        "it. The training loop is what you wait for, 95% of the time"
    )
    assert "lock" not in advise(replace(busy, has_lock=False))


# Real epochs, by clocks that stand nearly still except in functions of the user


class Clocks:
    """Clocks by which functions are on a core for 40 % of the time, and the process for all of it.

    They take the place of the module ``time``, and run a thousand times as slowly. So the result
    does not depend on the machine.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.monotonic = time.monotonic

    def perf_counter(self) -> float:
        return self.seconds + 1e-3 * time.perf_counter()

    process_time = perf_counter

    def thread_time(self) -> float:
        # Hardly at all outside of functions, where threads are idle as long as the machine likes.
        return 0.4 * self.seconds + 1e-6 * time.perf_counter()


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(tally, "_PAUSE_SECONDS", 0.0)
    for module in (run, tally, progress):
        monkeypatch.setattr(module, "time", clocks)
    monkeypatch.setattr(WorkClock, "core_seconds", lambda _: 0.0)
    monkeypatch.setattr(progress, "usable_cores", lambda: 4)
    return clocks


def loader_of(function: Callable[[], object], num_threads: int) -> xloader.Loader:
    """Make a loader of 12 batches that calls a function for each of them, on its threads."""

    def transform(frame: xr.Dataset) -> xr.Dataset:
        # Functions are tried on a single sample first.
        if frame.sizes["sample"] > 1:
            function()
        return frame

    values = np.arange(48 * 32, dtype=np.float32).reshape(48, 32)
    store = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (8, 32)})
    samples = xloader.open(store).window(time=1).map(transform)
    # All batches may be under way at once: none is left over without another to run beside.
    return samples.loader(batch_size=4, output="numpy", threads=num_threads, prefetch=12)


def report_of_loops(clocks: Clocks, num_threads: int) -> Report:
    """Make an epoch in which all threads run a function of 1 s at the same time."""

    def pass_time() -> None:
        assert loader._run is not None
        end = time.monotonic() + GUARD
        while not loader._run._is_awaited and time.monotonic() < end:
            time.sleep(0.001)
        clocks.seconds += 1.0

    # The executor has clocks of its own.
    class Executor(NativeExecutor):
        def figures(self) -> Any:
            figures, *others = super().figures()
            awaited_ns = int(1e9 * num_threads * clocks.seconds)
            return figures._replace(awaited_ns=awaited_ns), *others

        def next_work(self, done: Any) -> Any:
            item = super().next_work(done)
            return item and item._replace(waited_ns=item.waited_ns // 1000)

    together = threading.Barrier(num_threads, pass_time, timeout=GUARD)
    with (
        mock.patch.object(run, "NativeExecutor", Executor),
        loader_of(together.wait, num_threads) as loader,
    ):
        for _ in loader:
            pass
        return loader.report()


def test_a_loop_in_python_on_several_threads(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    report = report_of_loops(clocks, 2)
    assert report.bottleneck == "lock"
    # The last batches are counted only if the threads have gone on before the report.
    assert 0.6 * 8 <= report.lock_wait_seconds <= 0.6 * 12.5
    assert "NumPy on whole batches" in report.advice
    assert "lock. Lock-bound:" in str(report)
    assert f"{report.lock_wait_seconds:.2f} s for Python's lock" in str(report)


def test_python_without_the_lock(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    report = report_of_loops(clocks, 2)
    assert report.bottleneck == "transform"
    assert report.lock_wait_seconds == 0.0


def test_functions_that_sleep_do_not_hold_the_lock() -> None:
    with loader_of(lambda: time.sleep(0.05), 2) as loader:
        for _ in loader:
            pass
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("xloader.loader.reports.bottleneck.SHORT_SECONDS", 0.0)
            assert loader.report().bottleneck == "transform"
