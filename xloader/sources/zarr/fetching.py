"""Chunks between the store and the caller's memory: fetched, then decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from xloader.sources.base import Outcome, Read
from xloader.sources.zarr.arrays import StoredArray
from xloader.sources.zarr.blame import Blame
from xloader.sources.zarr.decoding import SCRATCH
from xloader.sources.zarr.missing import Missing
from xloader.sources.zarr.shards import Part


class Chunks:
    """Chunks that we decode ourselves: of one shard, or each an object of its own.

    They are got as they are decoded, so that no more is held than one part of them, or all
    at once by `hold`.

    Parameters
    ----------
    array : StoredArray
        The array that has them.
    reads : sequence of Read
        One or more.
    blame : Blame
        Says whose error it is.
    missing : Missing
        What is done about those that are absent.
    """

    def __init__(
        self, array: StoredArray, reads: Sequence[Read], blame: Blame, missing: Missing
    ) -> None:
        self._array = array
        self._reads = reads
        self._blame = blame
        self._missing = missing
        self._seconds = 0.0
        self._parts = self._get()
        self.nbytes = 0

    def hold(self) -> None:
        """Get all that is stored of the chunks, and keep it until it is decoded."""
        parts = list(self._parts)
        self.nbytes = sum(part.nbytes for part in parts)
        self._parts = _given_up(parts)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks; see `Fetched.decode`."""
        num_missing = num_requests = 0
        for part in self._parts:
            num_requests += part.num_requests
            for number, data in part.chunks:
                read, out = self._reads[number], outs[number]
                if data is None:
                    self._missing.note(read, self._array.key(read.chunk))
                    self._array.fill(out)
                    num_missing += 1
                    continue
                try:
                    self._array.decode(data, read.cut, out, SCRATCH)
                except Exception as error:
                    self._blame.tell(error, read, self._array, is_decoding=True)
        return Outcome(num_missing, num_requests, self._seconds)

    def _get(self) -> Iterator[Part]:
        """The parts as they come from the store, the time that each takes counted."""
        parts = self._array.fetch([read.chunk for read in self._reads])
        while True:
            begin = time.perf_counter()
            try:
                part = next(parts, None)
            except Exception as error:
                self._blame.tell(error, self._reads[0], self._array, is_decoding=False)
            self._seconds += time.perf_counter() - begin
            if part is None:
                return
            yield part


def _given_up(parts: list[Part]) -> Iterator[Part]:
    """Each part in turn, which nobody holds any longer once the next one is asked for."""
    parts.reverse()
    while parts:
        yield parts.pop()
