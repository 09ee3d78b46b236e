"""xloader's part in the benchmark: epochs of one loader."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import xloader
from benchmarks.layouts import DIMS, Layout
from benchmarks.measure import PeakMemory, Usage
from benchmarks.stores import store_at
from xloader.loader.planned_loader import PlannedLoader


@dataclass(frozen=True)
class Plan:
    """The plan's figures, known before any value is read.

    Parameters
    ----------
    seconds : float
        Seconds to plan and explain; the best of three.
    num_tiles : int
        Number of tiles that the plan puts in order.
    memory_nbytes, pool_nbytes : int
        The loader's memory, and the part of it for decoded chunks.
    num_batches : int
        Number of batches in memory at the same time.
    num_reads : int
        Number of chunks that the first epoch will read.
    """

    seconds: float
    num_tiles: int
    memory_nbytes: int
    pool_nbytes: int
    num_batches: int
    num_reads: int


@dataclass(frozen=True)
class Epoch:
    """The measured cost of one epoch.

    Parameters
    ----------
    used : Usage
    first_seconds : float
        Seconds until the first batch.
    num_samples, delivered_nbytes : int
    num_reads, amplification, mixing, full_mixing
        The values of the loader's report.
    peak_nbytes : int
        The largest memory in this and all earlier epochs, minus the memory after ``explain()``.
    """

    used: Usage
    first_seconds: float
    num_samples: int
    delivered_nbytes: int
    num_reads: int
    amplification: float
    mixing: float
    full_mixing: float
    peak_nbytes: int


def samples_of(layout: Layout, place: str) -> xloader.Samples:
    """The samples of a layout, whose store is at a place."""
    opened = xloader.open(store_at(place), **layout.open_options)
    return opened.window(layout.window, stride=layout.stride)


def play(layout: Layout, place: str) -> Generator[Any, Any, None]:
    """Yield the `Plan`; then run one epoch in each turn and yield its `Epoch`."""
    seconds = []
    for _ in range(3):
        samples = samples_of(layout, place)
        begin = time.perf_counter()
        loader = samples.loader(
            batch_size=layout.batch_size, memory=layout.memory_nbytes, output="numpy"
        )
        expected = loader.explain()
        seconds.append(time.perf_counter() - begin)
    peak = PeakMemory()
    with loader:
        assert isinstance(loader, PlannedLoader)
        yield Plan(
            seconds=min(seconds),
            num_tiles=math.prod(
                -(-size // expected.tile.get(dim, size))
                for dim, size in zip(DIMS, layout.store.shape, strict=True)
            ),
            memory_nbytes=layout.memory_nbytes,
            pool_nbytes=min(loader.plan.pool_nbytes(1), layout.store.nbytes),
            num_batches=loader.plan.budget.num_batches,
            num_reads=expected.num_reads,
        )
        while True:
            yield _run_epoch(loader, peak)


def _run_epoch(loader: xloader.Loader, peak: PeakMemory) -> Epoch:
    begin = Usage.now()
    batches = iter(loader)
    nbytes = sum(array.nbytes for array in next(batches))
    first = Usage.now() - begin
    for batch in batches:
        nbytes += sum(array.nbytes for array in batch)
    used = Usage.now() - begin
    report = loader.report()
    return Epoch(
        used=used,
        first_seconds=first.seconds,
        num_samples=report.num_samples,
        delivered_nbytes=nbytes,
        num_reads=report.num_reads,
        amplification=report.read_amplification,
        mixing=report.mixing,
        full_mixing=report.full_mixing,
        peak_nbytes=peak.nbytes,
    )
