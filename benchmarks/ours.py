"""xloader's turn: epochs of one loader."""

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


@dataclass(frozen=True)
class Plan:
    """What is known before anything is read.

    Parameters
    ----------
    seconds : float
        For the plan and its explanation; the best of three.
    num_tiles : int
        How many the plan puts in order.
    memory_nbytes, pool_nbytes : int
        The loader's memory, and of it what is for decoded chunks.
    num_batches : int
        Batches in memory at a time.
    num_reads : int
        Chunks that the first epoch will read.
    """

    seconds: float
    num_tiles: int
    memory_nbytes: int
    pool_nbytes: int
    num_batches: int
    num_reads: int


@dataclass(frozen=True)
class Epoch:
    """What one epoch has cost.

    Parameters
    ----------
    used : Usage
    first_seconds : float
        Until the first batch came.
    num_samples, delivered_nbytes : int
    num_reads, amplification, mixing, full_mixing
        As the loader's report has them.
    peak_nbytes : int
        The most memory, over that after ``explain()``, in this and all epochs before it.
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


def play(layout: Layout, place: str) -> Generator[Any, Any, None]:
    """Plan, and give the `Plan`; then for each turn run an epoch, and give the `Epoch`."""
    seconds = []
    for _ in range(3):
        samples = xloader.open(store_at(place)).window(layout.window, stride=layout.stride)
        begin = time.perf_counter()
        loader = samples.loader(
            batch_size=layout.batch_size, memory=layout.memory_nbytes, output="numpy"
        )
        expected = loader.explain()
        seconds.append(time.perf_counter() - begin)
    peak = PeakMemory()
    with loader:
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
