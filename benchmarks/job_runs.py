"""Jobs over a whole store, each in a process of its own: statistics and copies with other chunks.

xloader's jobs, and what a user would write with xarray and dask.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xarray as xr
from dask.base import compute
from zarr.storage import LocalStore

import xloader
from benchmarks.layouts import StoreSpec
from benchmarks.measure import PeakMemory, Usage
from xloader.testing import CountingStore

Turns = Generator[Any, Any, None]

COUNT: Final = "count"
"""Sent with a turn in which reads are counted and time does not matter."""


@dataclass(frozen=True)
class JobRun:
    """The cost of a job.

    Parameters
    ----------
    seconds : float
    peak_nbytes : int
        The largest memory in this and all earlier turns, minus the memory at the start.
    num_reads : int or None
        Reads of chunks of the store's variables, if they were counted.
    """

    seconds: float
    peak_nbytes: int
    num_reads: int | None = None


def repeat(
    job: Callable[[Any], object], place: Path, spec: StoreSpec, target: Path | None = None
) -> Turns:
    """Run a job in each turn, and yield its `JobRun`. The job takes a path or a store.

    The target of the turn before is removed first, which does not count as work.
    """
    peak = PeakMemory()
    told = yield None
    while True:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)
        store = CountingStore(LocalStore(place, read_only=True)) if told == COUNT else None
        begin = Usage.now()
        job(place if store is None else store)
        used = Usage.now() - begin
        num_reads = None
        if store is not None:
            counted = store.reads.items()
            num_reads = sum(n for key, n in counted if key.split("/")[0] in spec.variables)
        told = yield JobRun(used.seconds, peak.nbytes, num_reads)


def play_stats(place: Path, spec: StoreSpec, options: dict[str, Any]) -> Turns:
    """Statistics of all windows of one step by xloader."""
    return repeat(lambda store: xloader.open(store).window(time=1).stats(**options), place, spec)


def play_dask_stats(place: Path, spec: StoreSpec, num_cores: int) -> Turns:
    """Mean, standard deviation, minimum and maximum by dask, in one pass."""

    def job(store: Any) -> None:
        with dask_threads(num_cores):
            ds = xr.open_zarr(store, chunks={}, consolidated=False)
            compute(ds.mean(), ds.std(), ds.min(), ds.max())  # type: ignore[no-untyped-call]

    return repeat(job, place, spec)


@contextmanager
def dask_threads(num_cores: int) -> Iterator[None]:
    """Have dask compute on as many threads as there are cores."""
    import dask

    with dask.config.set(scheduler="threads", num_workers=num_cores):
        yield


def play_materialize(
    place: Path, spec: StoreSpec, target: Path, window: dict[str, int], options: dict[str, Any]
) -> Turns:
    """Write the store with other chunks by xloader."""

    def job(store: Any) -> None:
        xloader.open(store).window(window).materialize(target, **options)

    return repeat(job, place, spec, target)


def play_dask_copy(
    place: Path, spec: StoreSpec, target: Path, chunks: dict[str, int], num_cores: int
) -> Turns:
    """Write the store with other chunks by ``ds.chunk(chunks).to_zarr(target)``."""

    def job(store: Any) -> None:
        with dask_threads(num_cores):
            ds = xr.open_zarr(store, chunks={}, consolidated=False)
            # The chunks of the store would contradict those of dask.
            ds.drop_encoding().chunk(chunks).to_zarr(target, zarr_format=3, consolidated=False)

    return repeat(job, place, spec, target)
