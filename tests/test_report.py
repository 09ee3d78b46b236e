"""The speed in a report: the estimate, the rules of its advice, and real epochs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import MemoryStore

import xloader
from xloader.engine.tally import Gauge, Tally, WorkTime
from xloader.jobs.advice.read_speed import show_gb_per_s
from xloader.loader.reports.advice import (
    advise,
    helpful_processes,
    show_given_memory,
    show_rate,
)
from xloader.loader.reports.bottleneck import EpochEffort
from xloader.planning.plan import Budget
from xloader.testing import LatencyStore, write_store

MIB = 2**20


def gauge(awaited: float, unasked: float = 0.0, peak: int = 0) -> Gauge:
    return Gauge(peak=peak, awaited_seconds=awaited, unasked_seconds=unasked)


def effort(tally: Tally, seconds: float = 10.0, **others: Any) -> EpochEffort:
    """Make an epoch of 10 s on 2 threads: 4 GB in 1000 samples, 1 MiB chunks, 512 MiB of memory."""
    budget = Budget(512 * MIB, MIB, 4, others.pop("chunk", MIB), 1)
    given = {"num_threads": 2, "num_asked": 2, "num_samples": 1000, "delivered_nbytes": 4 * 10**9}
    return EpochEffort(tally, budget, seconds=seconds, **{**given, **others})


def busy(**seconds: float) -> Tally:
    """Make a tally of a consumer that always waits, with the threads' busy seconds."""
    tally = Tally(wait_seconds=10.0, **{f"{stage}_seconds": s for stage, s in seconds.items()})
    return replace(tally, workers=gauge(sum(seconds.values())))


def fetching(nbytes: int, num_threads_busy: float = 0.2) -> Tally:
    """Make a tally of a consumer that always waits, with 400 fetches ahead of 50 ms each."""
    return Tally(
        wait_seconds=10.0, num_ahead=400, ahead_nbytes=400 * nbytes, ahead_seconds=20.0,
        decode_seconds=10 * num_threads_busy, workers=gauge(10 * num_threads_busy),
        fetches=gauge(20.0, peak=4),
    )  # fmt: skip


# The estimate


@pytest.mark.parametrize(
    ("tally", "seconds"),
    [
        # Who waits all the time has no headroom: the threads idle half of it, for whatever reason.
        (busy(decode=10.0), 10.0),
        # A slow consumer leaves what threads did not use.
        (Tally(decode_seconds=5.0, workers=gauge(0.0, 5.0)), 5 / 2),
        # Waiting took 4 s with 1 of 2 threads busy on average. Besides it, 1 s at full speed is
        # assumed.
        (Tally(wait_seconds=4.0, workers=gauge(4.0, 3.0)), 4 + 3 / ((4 + 2) / 5)),
        # Fetches ahead bound it where they are slower than the threads.
        (Tally(workers=gauge(0.0, 1.0), fetches=gauge(0.0, 40.0, 8), num_ahead=10), 40 / 8),
        (Tally(workers=gauge(0.0, 16.0), fetches=gauge(0.0, 40.0, 8), num_ahead=10), 16 / 2),
        # Work for later batches counts already, but the time of these batches does not yet.
        (Tally(workers=gauge(0.0, 50.0)), 10.0),
    ],
)
def test_the_least_time_of_an_epoch(tally: Tally, seconds: float) -> None:
    assert effort(tally).least_seconds == pytest.approx(seconds)
    assert effort(tally).headroom == pytest.approx(10.0 / seconds)


def test_nothing_divides_by_nothing() -> None:
    nothing = effort(Tally(), seconds=0.0, num_samples=0, delivered_nbytes=0)
    assert (nothing.headroom, nothing.bottleneck) == (1.0, "consumer")
    assert set(nothing.shares.values()) == {0.0}
    assert advise(nothing) == "Nothing has been delivered yet."
    assert effort(Tally(), num_threads=1).headroom == 1.0


# The rules

ADVICE: dict[str, tuple[EpochEffort, str, str]] = {
    "a store that fails": (
        # Pauses and failures take the time, so larger chunks would not help.
        effort(replace(busy(fetch=16.0), num_requests=60, num_retries=40)),
        "fetch",
        "The store is unreliable: 67% of the requests were retries",
    ),
    "a store that seldom fails": (
        effort(replace(busy(fetch=16.0), num_requests=60, num_retries=1)),
        "fetch",
        "Storage-bound",
    ),
    "bytes in flight": (
        effort(fetching(16 * MIB)),
        "fetch",
        (
            "Storage-bound: fetches take 50 ms each, 2.0 at a time. "
            "1/16 of the memory is for chunks in flight, and holds 2 of them; "
            'memory="2048MiB" would hold 8.'
        ),
    ),
    "bytes in flight for the largest number of requests and no more": (
        effort(fetching(MIB // 2 + MIB // 4)),
        "fetch",
        'holds 43 of them; memory="768MiB" would hold 64.',
    ),
    "as many fetches as there may be": (
        effort(fetching(MIB // 2)),
        "fetch",
        "chunks, shards, or a nearer store would help.",
    ),
    "threads that wait for a store": (
        effort(replace(busy(fetch=14.0, decode=4.0), num_requests=2000)),
        "fetch",
        (
            "Storage-bound: waiting for the store takes 70% of the threads' time, 7.00 ms per "
            "request. More threads would wait at the same time: raise threads=."
        ),
    ),
    "decoding": (
        effort(busy(decode=15.6)),
        "decode",
        (
            "CPU-bound: decoding takes 78% of the threads' time. "
            "More cores (threads=), or a faster codec such as lz4 or blosc, would help."
        ),
    ),
    "reading through xarray": (
        effort(busy(decode=15.6), is_direct=False),
        "decode",
        "Reading through xarray takes 78% of the threads' time",
    ),
    "decoding beside fetches": (effort(fetching(MIB, num_threads_busy=1.8)), "decode", ""),
    "gathering": (
        effort(busy(gather=12.0)),
        "gather",
        "CPU-bound: gathering rows takes 60% of the threads' time. More cores",
    ),
    "gathering small samples": (
        effort(busy(gather=12.0), num_samples=10**7),
        "gather",
        "larger windows than 400 B per sample",
    ),
    "finding rows, which is to gather": (
        effort(busy(decode=6.0, gather=4.0, walk=4.0)),
        "gather",
        "",
    ),
    "transforms": (
        effort(busy(finish=18.0)),
        "transform",
        "CPU-bound: transforms take 90% of the threads' time. More cores",
    ),
    "a consumer that waits for little": (
        effort(Tally(wait_seconds=0.5, decode_seconds=5.0, workers=gauge(1.0, 4.0))),
        "consumer",
        (
            "The training loop is what you wait for, 95% of the time: the loader could deliver "
            "1.60 GB/s, 400 samples/s, 4.0 times as fast as now."
        ),
    ),
    "a loader as slow as its consumer": (
        effort(Tally(wait_seconds=0.5, decode_seconds=20.0, workers=gauge(1.0, 19.0))),
        "consumer",
        (
            "The training loop is what you wait for, 95% of the time, and the loader needs as "
            "long: the epoch gets faster only if both do."
        ),
    ),
    # The consumer waits for 3 of 10 s, and faster loading saves no more than 3 s.
    "a consumer that takes longer than the loader, as after a slow start": (
        effort(Tally(wait_seconds=3.0, decode_seconds=6.0, workers=gauge(6.0, 1.0))),
        "consumer",
        "",
    ),
    "a consumer that takes less long": (
        effort(Tally(wait_seconds=3.0, decode_seconds=20.0, workers=gauge(6.0, 14.0))),
        "decode",
        "",
    ),
    # Without fetches ahead, idle threads do not point to the store.
    "idle threads": (effort(busy(decode=2.0)), "unclear", ""),
    "threads that wait for cores of others": (
        effort(
            replace(busy(decode=16.0), work={"load": WorkTime(20.0, 12.0, 8.0), "own": WorkTime()})
        ),
        "unclear",
        (
            "Hard to tell: threads waited 40% of their time at work for a core, while this process "
            "had cores left. Other programs seem to use them."
        ),
    ),
    "idle threads that fetch": (effort(busy(fetch=2.0)), "fetch", ""),
}


@pytest.mark.parametrize(("made", "bottleneck", "words"), ADVICE.values(), ids=ADVICE)
def test_the_bottleneck_and_what_would_help(made: EpochEffort, bottleneck: str, words: str) -> None:
    assert made.bottleneck == bottleneck
    text = advise(made)
    # Whole sentences are the whole advice.
    assert text == words if words[:1].isupper() and words.endswith(".") else words in text
    assert ("codec" in text) == (bottleneck == "decode" and made.is_direct)
    assert ("a copy in Zarr" in text) == (bottleneck == "decode" and not made.is_direct)
    assert ("fewer functions" in text) == (bottleneck == "transform")
    assert ("larger windows" in text) == ("larger windows" in words)


@pytest.mark.parametrize("stage", ["fetch", "decode", "gather", "finish"])
def test_the_stage_that_takes_most_of_the_threads_is_the_bottleneck(stage: str) -> None:
    seconds = {"fetch": 4.0, "decode": 4.0, "gather": 4.0, "finish": 4.0, stage: 5.0}
    named = "transform" if stage == "finish" else stage
    assert effort(busy(**seconds)).bottleneck == named
    assert effort(busy(**seconds)).shares[named] == pytest.approx(0.25)


def test_what_is_too_short_or_too_idle_to_tell_is_no_advice() -> None:
    for tally in (busy(gather=0.9), fetching(MIB), Tally(workers=gauge(0.0, 0.1))):
        short = effort(tally, seconds=0.95)
        assert short.bottleneck == "unclear"
        assert advise(short).startswith("Too short to tell: 0.95 s.")
    assert effort(busy(gather=12.0)).bottleneck == "gather"
    idle = effort(busy(gather=11.9))
    assert idle.bottleneck == "unclear"
    assert advise(idle).startswith("Hard to tell: 1.2 of 2 threads worked while")
    samples = xloader.open(dataset()).window(time=1)
    short = report_of(samples, least=1e9)
    assert "unclear. Too short to tell" in str(short)
    assert "unclear. Too short to tell" in short._repr_html_()
    several = report_of(xloader.interleave({"a": (samples, 1.0), "b": (samples, 1.0)}), least=1e9)
    assert "unclear. Too short to tell" in str(several)


@pytest.mark.parametrize("stage", ["fetch", "decode"])
def test_too_little_memory_comes_before_all_else(stage: str) -> None:
    tight = effort(busy(**{stage: 15.0}), read_amplification=2.1, num_asked=8)
    assert "Too little memory: each chunk is read 2.1 times." in advise(tight)
    assert 'memory="512.0MiB"' in advise(tight)
    assert "Too little" not in advise(replace(tight, read_amplification=1.2))
    # It is no remedy for slow gathering.
    assert "Too little" not in advise(effort(busy(gather=15.0), read_amplification=2.1))


def test_chunks_that_leave_threads_without_work() -> None:
    large = effort(busy(decode=15.0), chunk=200 * MIB, num_asked=8)
    assert (
        'Chunks too large: at 200.0 MiB per chunk, memory="512.0MiB" lets 2 of 8 threads work. '
        'With smaller chunks, or memory="25600MiB", all could work.'
    ) in advise(large)
    # Not rounded to 25.1 GiB, in which seven of them would fit.
    assert 'or memory="25728MiB", all' in advise(
        effort(busy(decode=15.0), chunk=201 * MIB, num_asked=8)
    )
    assert "too large" not in advise(replace(large, num_asked=2))
    # Fetches ahead do not need threads.
    assert "too large" not in advise(effort(fetching(MIB), num_asked=8))


@pytest.mark.parametrize("stage", ["decode", "gather", "finish"])
def test_more_threads_are_no_remedy_where_all_cores_are_busy(stage: str) -> None:
    both = {"num_cores": 2, "chunk": 200 * MIB, "num_asked": 8}
    full = advise(effort(busy(**{stage: 19.0}), cpu_seconds=19.0, **both))
    assert ". More than 2 cores, " in full
    assert "threads=" not in full
    assert "too large" not in full
    assert "too large" in advise(effort(busy(**{stage: 19.0}), cpu_seconds=15.0, **both))


# Real epochs: one stage is far slower than all others


def dataset(num_steps: int = 48) -> xr.Dataset:
    values = np.arange(num_steps * 32, dtype=np.float32).reshape(num_steps, 32)
    return xr.Dataset({"a": (("time", "x"), values)})


def report_of(samples: Any, sleep: float = 0.0, least: float = 0.0, **options: Any) -> Any:
    """Make an epoch, and its report as if one of ``least`` seconds were long enough for advice."""
    given = {"batch_size": 4, "output": "numpy", "threads": 2, **options}
    with samples.loader(**given) as loader:
        for _ in loader:
            if sleep:
                time.sleep(sleep)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("advice", "bottleneck"):
                patch.setattr(f"xloader.loader.reports.{name}.SHORT_SECONDS", least)
            return loader.report()


def test_a_distant_store_holds_an_epoch_up() -> None:
    store = LatencyStore(write_store(dataset(24), {"a": (1, 32)}), 0.05)
    report = report_of(xloader.open(store).window(time=1), memory="16kB")
    assert report.bottleneck == "fetch"
    assert report.num_ahead == report.num_reads == 24
    assert report.ahead_seconds >= 24 * 0.05
    assert report.busy_seconds["fetch"] == 0.0
    assert report.advice.startswith("Storage-bound: fetches take")
    assert "24 fetches of" in str(report)


def test_a_slow_consumer_holds_an_epoch_up() -> None:
    samples = xloader.open(write_store(dataset(), {"a": (8, 32)})).window(time=1)
    report = report_of(samples, sleep=0.05)
    assert report.bottleneck == "consumer"
    assert report.headroom > 2
    assert report.advice.startswith("The training loop is what you wait for")
    assert f"{report.headroom:.1f} times as fast" in str(report)


def test_slow_reading_through_xarray_holds_an_epoch_up() -> None:
    def slow(block: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return block

    made = xr.apply_ufunc(slow, dataset(24).chunk(time=1), dask="parallelized")
    report = report_of(xloader.open(made).window(time=1))
    assert report.bottleneck == "decode"
    assert report.advice.startswith("Reading through xarray takes")


class SlowStore(MemoryStore):
    """A store whose reads block the reading thread."""

    def get_sync(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return super().get_sync(*args, **kwargs)


def test_a_slow_store_that_is_read_on_the_threads() -> None:
    inner = write_store(dataset(24), {"a": (1, 32)})
    assert isinstance(inner, MemoryStore)
    samples = xloader.open(SlowStore(inner._store_dict)).window(time=1)
    report = report_of(samples)
    assert report.bottleneck == "fetch"
    assert report.num_ahead == 0
    assert report.busy_seconds["fetch"] >= 24 * 0.02
    assert report.advice.endswith("raise threads=.")


def test_large_chunks_in_little_memory_take_threads_away() -> None:
    samples = xloader.open(write_store(dataset(), {"a": (16, 32)})).window(time=1)
    with samples.loader(batch_size=4, output="numpy", threads=8, memory="16kB") as loader:
        for _ in loader:
            pass
        report = loader.report()
    assert report.num_threads == 2


def test_a_report_counts_by_its_own_names() -> None:
    report = report_of(xloader.open(dataset()).window(time=1))
    figures = report.to_dict()
    assert {"least_seconds", "bottleneck", "advice", "lock_wait_seconds"} <= set(figures)
    assert list(report.busy_seconds) == ["fetch", "decode", "gather", "transform"]
    assert 0 < report.least_seconds <= report.seconds
    assert report.headroom == pytest.approx(report.seconds / report.least_seconds)
    for word in ("threads", "cores", "bottleneck", report.bottleneck, "samples/s"):
        assert word in str(report)
        assert word in report._repr_html_()


def test_all_gauges_come_to_rest() -> None:
    """Every thread and fetch that a gauge counts in is counted out again."""
    store = LatencyStore(write_store(dataset(24), {"a": (1, 32)}), 0.0)
    with xloader.open(store).window(time=1).loader(batch_size=4, output="numpy") as loader:
        for _ in loader:
            assert loader._progress is not None
            tally = loader._progress.tally
            assert not tally.is_awaited
    assert tally.workers.awaited_seconds > 0 < tally.fetches.awaited_seconds
    assert tally.workers.unasked_seconds > 0 < tally.walk_seconds
    assert tally.fetches.num == 0
    assert 0 < tally.fetches.peak <= 24
    assert 0 <= tally.workers.num <= tally.workers.peak


def test_numbers_are_written_as_they_can_be_given_and_with_three_digits_at_most() -> None:
    sizes = [(3 << 29, "1.5GiB"), (1152 << 10, "1152KiB"), (100_000, "100kB")]
    for num_bytes, text in sizes:
        assert show_given_memory(num_bytes) == f'memory="{text}"'
    assert (show_rate(3.14e9), show_rate(1.2e6)) == ("3.14 GB/s", "1.2 MB/s")
    assert (show_gb_per_s(1.234), show_gb_per_s(0.01234)) == ("1.23 GB/s", "0.012 GB/s")
    # Half of the cores are advised as processes, but at least two.
    assert [helpful_processes(cores) for cores in (2, 16)] == [2, 8]
