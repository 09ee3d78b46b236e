"""Other libraries that read the same stores sequentially and do nothing else."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import zarr

from benchmarks.layouts import StoreSpec
from benchmarks.measure import Effort, Speed
from benchmarks.reference import count_cores

Read = Callable[[str, tuple[slice, ...]], Any]
"""Reads a part of a variable into memory."""

Call = tuple[int, int]
"""The smallest number of chunks in a call, and the number of threads that make calls."""

Calls = Callable[[int], tuple[Call, ...]]
"""The kinds of call to try on a number of cores."""


def play(
    way: str, spec: StoreSpec, place: str, effort: Effort
) -> Generator[Speed | None, Any, None]:
    """Choose the fastest kind of call; then read for some seconds in each turn.

    Each turn continues where the last one stopped. A turn ends early if it has read the whole
    store.
    """
    opened, calls = WAYS[way]
    read = opened(place, spec)
    readers = [_Reader(read, spec, *call) for call in dict.fromkeys(calls(count_cores()))]
    trial = effort.seconds / len(readers)
    best = max(readers, key=lambda reader: reader.run(trial).gb_per_second)
    yield None
    while True:
        yield best.run(effort.seconds)


class _Reader:
    """Reads a store from start to end, again and again, some chunks per call.

    Parameters
    ----------
    read : callable
    spec : StoreSpec
    num_chunks : int
        The smallest number of chunks in a call.
    num_threads : int
    """

    def __init__(self, read: Read, spec: StoreSpec, num_chunks: int, num_threads: int) -> None:
        parts = list(itertools.product(spec.variables, cut_parts(spec, num_chunks)))
        self._read = read
        self._nbytes = spec.nbytes
        self._itemsize = spec.itemsize
        self._num_threads = num_threads
        self._coming = itertools.cycle(parts)
        self._lock = threading.Lock()

    def run(self, seconds: float) -> Speed:
        """Read for that many seconds, or until the whole store is read."""
        begin = time.perf_counter()
        left = [self._nbytes]

        def work(_: int) -> int:
            nbytes = 0
            while time.perf_counter() - begin < seconds:
                with self._lock:
                    if left[0] <= 0:
                        break
                    name, part = next(self._coming)
                    left[0] -= self._itemsize * math.prod(s.stop - s.start for s in part)
                nbytes += self._read(name, part).nbytes
            return nbytes

        if self._num_threads == 1:
            return Speed(work(0), time.perf_counter() - begin)
        with ThreadPoolExecutor(self._num_threads) as threads:
            nbytes = sum(threads.map(work, range(self._num_threads)))
        return Speed(nbytes, time.perf_counter() - begin)


def cut_parts(spec: StoreSpec, num_chunks: int) -> Iterator[tuple[slice, ...]]:
    """Cut a variable into parts of whole stored objects, each of at least ``num_chunks`` chunks."""
    sizes = list(spec.shards or spec.chunks)
    # Parts grow from the last dimension on, so that each is contiguous in the store.
    for dim in reversed(range(len(sizes))):
        num_inside = math.prod(n // chunk for n, chunk in zip(sizes, spec.chunks, strict=True))
        times = -(-num_chunks // num_inside)
        sizes[dim] = min(times * sizes[dim], spec.shape[dim])
    starts = (range(0, n, size) for n, size in zip(spec.shape, sizes, strict=True))
    for start in itertools.product(*starts):
        yield tuple(
            slice(first, min(first + size, n))
            for first, size, n in zip(start, sizes, spec.shape, strict=True)
        )


def _zarr(place: str, spec: StoreSpec) -> Read:
    arrays: dict[str, Any] = {
        name: zarr.open_array(f"{place}/{name}", mode="r") for name in spec.variables
    }
    return lambda name, part: arrays[name][part]


def _zarrs(place: str, spec: StoreSpec) -> Read:
    import zarrs  # noqa: F401 - the import registers the codec pipeline

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return _zarr(place, spec)


def _tensorstore(place: str, spec: StoreSpec) -> Read:
    import tensorstore

    arrays = {
        name: tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{place}/{name}/"}},
            read=True,
        ).result()
        for name in spec.variables
    }
    return lambda name, part: arrays[name][part].read().result()


def _shared_out(num_cores: int) -> tuple[Call, ...]:
    """Calls that keep all cores busy: a single large one, or several at the same time."""
    return (15 * num_cores // 2 + num_cores % 2, 1), (15, max(num_cores // 2, 1))


WAYS: Final[dict[str, tuple[Callable[[str, StoreSpec], Read], Calls]]] = {
    "zarr, 1 thread": (_zarr, lambda _: ((1, 1), (15, 1))),
    "zarr, 2 threads": (_zarr, lambda _: ((1, 2), (15, 2))),
    "zarrs": (_zarrs, _shared_out),
    "tensorstore": (_tensorstore, lambda num: ((1, num), (2 * num, 1), *_shared_out(num))),
}
"""Each library by name, and the kinds of call to try; the fastest kind counts."""
