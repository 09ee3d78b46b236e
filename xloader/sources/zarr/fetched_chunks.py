"""Chunks of Zarr arrays between the store and the caller's memory: fetched, then decoded.

By default chunks are fetched while they are decoded, and only a part of them is in memory at a
time. After ``hold``, the stored bytes of all of them are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from xloader.sources.base import Outcome, Read
from xloader.sources.zarr.chunk_errors import ChunkErrors
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decode import SCRATCH
from xloader.sources.zarr.missing_chunks import Missing
from xloader.sources.zarr.shards import ShardPart
from xloader.sources.zarr.stored_array import StoredArray


class _Chunks:
    """Base class of chunks of one array that xloader decodes itself.

    Parameters
    ----------
    array : StoredArray
        The array that the chunks belong to.
    reads : sequence of Read
        One or more reads.
    chunk_errors : ChunkErrors
        Turns a failure into an error that names the chunk.
    missing : Missing
        Handles absent chunks.

    Attributes
    ----------
    nbytes : int
        Memory that is held until the chunks are decoded, in bytes.
    """

    def __init__(
        self, array: StoredArray, reads: Sequence[Read], chunk_errors: ChunkErrors, missing: Missing
    ) -> None:
        self._array = array
        self._reads = reads
        self._chunk_errors = chunk_errors
        self._missing = missing
        self._seconds = 0.0
        self.nbytes = 0

    def _put(self, read: Read, data: Bytes | None, out: NDArray[Any]) -> bool:
        """Decode one chunk into ``out``, or write the fill value; True if the chunk exists."""
        if data is None:
            self._missing.note(read, self._array.key(read.chunk), self._array.watch)
            self._array.fill(out)
            return False
        try:
            self._array.decode(data, read.chunk, read.cut, out, SCRATCH)
        except Exception as error:
            self._chunk_errors.tell(error, read, self._array, is_decoding=True)
        return True


class SingleChunks(_Chunks):
    """Chunks that are each stored as an object of their own."""

    _held: list[Bytes | None] | None = None

    def hold(self) -> None:
        """Fetch the stored bytes of all the chunks, and keep them until they are decoded."""
        self._held = [self._get(read) for read in self._reads]
        self.nbytes = sum(data.nbytes for data in self._held if data is not None)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks; see `Fetched.decode`."""
        num_missing = 0
        for number, (read, out) in enumerate(zip(self._reads, outs, strict=True)):
            # The bytes are bound to no name, so that they are freed before the next ones arrive.
            num_missing += not self._put(read, self._take(number), out)
        self._array.watch.note_read()
        return Outcome(num_missing, len(self._reads), self._seconds)

    def _take(self, number: int) -> Bytes | None:
        """The bytes of a chunk: fetched now, or held before and released here."""
        if self._held is None:
            return self._get(self._reads[number])
        data, self._held[number] = self._held[number], None
        return data

    def _get(self, read: Read) -> Bytes | None:
        begin = perf_counter()
        try:
            data = self._array.get(read.chunk)
        except Exception as error:
            self._chunk_errors.tell(error, read, self._array, is_decoding=False)
        self._seconds += perf_counter() - begin
        return data


class ShardChunks(_Chunks):
    """Chunks of one shard."""

    _held: list[ShardPart] | None = None

    def hold(self) -> None:
        """Fetch the stored bytes of all the chunks, and keep them until they are decoded."""
        self._held = list(self._get())
        self.nbytes = sum(part.nbytes for part in self._held)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks; see `Fetched.decode`."""
        num_missing = num_requests = 0
        for part in self._get() if self._held is None else _let_go(self._held):
            num_requests += part.num_requests
            for number, data in part.chunks:
                num_missing += not self._put(self._reads[number], data, outs[number])
                del data
            # The decoded part is freed before the next one arrives.
            del part
        self._array.watch.note_read()
        return Outcome(num_missing, num_requests, self._seconds)

    def _get(self) -> Iterator[ShardPart]:
        """The parts as they arrive from the store. The time that each takes is counted."""
        parts = self._array.get_of_shard([read.chunk for read in self._reads])
        while True:
            begin = perf_counter()
            try:
                part = next(parts, None)
            except Exception as error:
                self._chunk_errors.tell(error, self._reads[0], self._array, is_decoding=False)
            self._seconds += perf_counter() - begin
            if part is None:
                return
            yield part
            del part


def _let_go(parts: list[ShardPart]) -> Iterator[ShardPart]:
    """The parts one after the other; each is released once the next is asked for."""
    parts.reverse()
    while parts:
        yield parts.pop()
