"""The machine's limit: every chunk decoded and every byte copied once, and nothing else.

The reference adds two times. First all cores read and decode as many chunks as the plan reads, with
the bare codec, into a ring of buffers as large as the loader's pool. Then all cores copy as many
bytes as the epoch delivers, from that ring into as many batches as the loader has. The pieces are
like those that samples take of chunks. Neighbours are copied first, so that no cache misses arise
from a shuffle.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
from numpy.typing import NDArray

from benchmarks.layouts import Layout
from benchmarks.ours import Plan

Decoder = Callable[[Any, Any], object]
"""Decompresses bytes into a buffer of the right size."""

T = TypeVar("T")

_DECODERS: Final[dict[str, Decoder]] = {
    "zstd": numcodecs.zstd.decompress,
    "blosc": numcodecs.blosc.decompress,
}
_ABSENT: Final = 2**64 - 1
_CRC_NBYTES: Final = 4


@dataclass(frozen=True)
class Limit:
    """The shortest possible time for an epoch.

    Parameters
    ----------
    read_seconds, copy_seconds : float
    num_decoded : int
        Number of chunks that were decoded.
    """

    read_seconds: float
    copy_seconds: float
    num_decoded: int

    @property
    def seconds(self) -> float:
        """Seconds for reading and for copying together."""
        return self.read_seconds + self.copy_seconds


@dataclass(frozen=True)
class StoredChunk:
    """The place of a chunk's bytes on disk.

    Parameters
    ----------
    path : str
        The file that holds the chunk.
    offset, nbytes : int
    """

    path: str
    offset: int
    nbytes: int


def play(layout: Layout, place: str, plan: Plan) -> Generator[Limit | None, int, None]:
    """In each turn, receive the number of chunks to read, read and copy, and yield the `Limit`."""
    num_cores = count_cores()
    chunks = find_chunks(Path(place), layout.store.variables)
    decode = find_decoder(Path(place) / layout.store.variables[0])
    ring = np.ones(max(plan.pool_nbytes, 2 * layout.store.chunk_nbytes), np.uint8)
    pieces = find_pieces(layout, ring)
    batches = make_batches(layout, pieces, max(plan.num_batches, num_cores))
    num_reads = yield None
    while True:
        begin = time.perf_counter()
        wanted = list(itertools.islice(itertools.cycle(chunks), num_reads))
        num_decoded = decode_all(wanted, decode, ring, layout.store.chunk_nbytes, num_cores)
        middle = time.perf_counter()
        copy_pieces(pieces, batches, layout.delivered_nbytes, num_cores)
        end = time.perf_counter()
        num_reads = yield Limit(middle - begin, end - middle, num_decoded)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    is_told = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if is_told else os.cpu_count() or 1


def find_chunks(path: Path, variables: tuple[str, ...]) -> list[StoredChunk]:
    """List every chunk of a Zarr v3 store on disk.

    Shard indexes give the places of chunks in shards.
    """
    chunks: list[StoredChunk] = []
    for name in variables:
        metadata = json.loads((path / name / "zarr.json").read_text())
        files = sorted(file for file in (path / name / "c").rglob("*") if file.is_file())
        (codec, *_) = metadata["codecs"]
        is_sharded = codec["name"] == "sharding_indexed"
        for file in files:
            if is_sharded:
                outer = metadata["chunk_grid"]["configuration"]["chunk_shape"]
                inner = codec["configuration"]["chunk_shape"]
                num = math.prod(o // i for o, i in zip(outer, inner, strict=True))
                chunks += _chunks_of_shard(file, num)
            else:
                chunks.append(StoredChunk(str(file), 0, file.stat().st_size))
    return chunks


def _chunks_of_shard(file: Path, num_chunks: int) -> Iterator[StoredChunk]:
    index_nbytes = num_chunks * 16 + _CRC_NBYTES
    with file.open("rb") as shard:
        shard.seek(-index_nbytes, os.SEEK_END)
        index = shard.read(index_nbytes - _CRC_NBYTES)
    for offset, nbytes in struct.iter_unpack("<QQ", index):
        if offset != _ABSENT:
            yield StoredChunk(str(file), offset, nbytes)


def find_decoder(path: Path) -> Decoder:
    """Return the function that decompresses an array's chunks directly into a given buffer."""
    codecs = json.loads((path / "zarr.json").read_text())["codecs"]
    if codecs[0]["name"] == "sharding_indexed":
        codecs = codecs[0]["configuration"]["codecs"]
    names = [codec["name"] for codec in codecs]
    if len(names) != 2 or names[0] != "bytes" or names[1] not in _DECODERS:
        raise NotImplementedError(f"no bare codec for chunks kept as {names}")
    return _DECODERS[names[1]]


def decode_all(
    chunks: list[StoredChunk],
    decode: Decoder,
    ring: NDArray[np.uint8],
    chunk_nbytes: int,
    num_cores: int,
) -> int:
    """Read and decode chunks into a ring of buffers; return the number of decoded chunks."""
    num_slots = ring.size // chunk_nbytes
    slots = ring[: num_slots * chunk_nbytes].reshape(num_slots, chunk_nbytes)
    most_nbytes = max(chunk.nbytes for chunk in chunks)
    # In CPython, `next` on a count is atomic, so no two threads get the same number.
    coming = itertools.count()

    def work(_: int) -> int:
        stored = np.empty(most_nbytes, np.uint8)
        num_decoded = 0
        while (number := next(coming)) < len(chunks):
            chunk = chunks[number]
            file = os.open(chunk.path, os.O_RDONLY)
            os.preadv(file, [stored[: chunk.nbytes].data], chunk.offset)
            os.close(file)
            decode(stored[: chunk.nbytes], slots[number % num_slots])
            num_decoded += 1
        return num_decoded

    return sum(_on_all_cores(work, num_cores))


def find_pieces(layout: Layout, ring: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the ring as a view of pieces, each like the part of a chunk that a sample takes.

    A piece is the part of a window that lies in one chunk. Along time the pieces follow each other.
    Along the other dimensions there are as many pieces as fit into a chunk.

    Returns
    -------
    numpy.ndarray
        A view of shape (places along time, along lat, along lon, time, lat, lon of a piece). Its
        dtype is that of the stored chunks.
    """
    dtype = np.dtype(np.int16 if layout.store.is_packed else np.float32)
    times, lats, lons = map(min, layout.window_sizes, layout.store.chunks)
    _, chunk_lats, chunk_lons = layout.store.chunks
    num_rows = ring.size // (times * chunk_lats * chunk_lons * dtype.itemsize)
    nbytes = num_rows * times * chunk_lats * chunk_lons * dtype.itemsize
    rows = ring[:nbytes].view(dtype).reshape(num_rows, times, chunk_lats, chunk_lons)
    pieces = np.lib.stride_tricks.sliding_window_view(rows, (times, lats, lons), axis=(1, 2, 3))
    return pieces[:, 0, ::lats, ::lons]


def copy_pieces(
    pieces: NDArray[Any], batches: Sequence[NDArray[Any]], nbytes: int, num_cores: int
) -> None:
    """Copy ``nbytes`` bytes of neighbouring pieces into batches, from the start of the ring on."""
    per_copy = len(batches[0])
    coming = itertools.count()

    def work(core: int) -> None:
        left = nbytes // num_cores
        own = itertools.cycle(batches[core::num_cores])
        while left > 0:
            batch = next(own)
            first = next(coming) * per_copy % (len(pieces) - per_copy + 1)
            np.copyto(batch, pieces[first : first + per_copy])
            left -= batch.nbytes

    _on_all_cores(work, num_cores)


def make_batches(layout: Layout, pieces: NDArray[Any], num_batches: int) -> list[NDArray[Any]]:
    """Return buffers of about the size of a batch, each filled by whole places along time."""
    dtype = np.dtype(layout.dtype)
    place_nbytes = dtype.itemsize * math.prod(pieces.shape[1:])
    batch_nbytes = layout.batch_size * layout.sample_nbytes
    per_copy = min(max(batch_nbytes // place_nbytes, 1), len(pieces))
    # Writing ones touches every page before the clock starts.
    return [np.ones((per_copy, *pieces.shape[1:]), dtype) for _ in range(num_batches)]


def _on_all_cores(work: Callable[[int], T], num_cores: int) -> list[T]:
    with ThreadPoolExecutor(num_cores) as cores:
        return list(cores.map(work, range(num_cores)))
