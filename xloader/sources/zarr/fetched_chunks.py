"""Chunks between the store and the caller's memory: fetched, then decoded.

They are fetched as they are decoded, one part of them in memory at a time, or all at once by
``hold``.
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
    """Chunks of one array that we decode ourselves.

    Parameters
    ----------
    array : StoredArray
        The array that has them.
    reads : sequence of Read
        One or more.
    chunk_errors : ChunkErrors
        Says whose error it is.
    missing : Missing
        What is done about those that are absent.
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
        """Decode one chunk into its place, or fill that: whether the chunk is there."""
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
    """Chunks that are each an object of their own."""

    _held: list[Bytes | None] | None = None

    def hold(self) -> None:
        """Get all that is stored of the chunks, and keep it until it is decoded."""
        self._held = [self._get(read) for read in self._reads]
        self.nbytes = sum(data.nbytes for data in self._held if data is not None)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks; see `Fetched.decode`."""
        num_missing = 0
        for number, (read, out) in enumerate(zip(self._reads, outs, strict=True)):
            # No name is bound to the bytes, so that they are gone before the next ones come.
            num_missing += not self._put(read, self._take(number), out)
        self._array.watch.note_read()
        return Outcome(num_missing, len(self._reads), self._seconds)

    def _take(self, number: int) -> Bytes | None:
        """The bytes of a chunk: held here no longer, or got now."""
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
        """Get all that is stored of the chunks, and keep it until it is decoded."""
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
            # What was decoded is gone before more comes.
            del part
        self._array.watch.note_read()
        return Outcome(num_missing, num_requests, self._seconds)

    def _get(self) -> Iterator[ShardPart]:
        """The parts as they come from the store, the time that each takes counted."""
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
    """Each part in turn, which nobody holds any longer once the next one is asked for."""
    parts.reverse()
    while parts:
        yield parts.pop()
