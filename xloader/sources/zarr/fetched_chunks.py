"""Chunks of Zarr arrays between the store and the caller's memory: fetched, then decoded.

By default chunks are fetched while they are decoded, and only some of them are in memory at a
time. After ``hold``, the stored bytes of all of them are in memory. Absent chunks are counted, and
errors of chunks that cannot be read name them.
"""

from __future__ import annotations

import gzip
import lzma
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final, Literal, NoReturn

from numpy.typing import NDArray

from xloader.core.messages import warn_caller
from xloader.errors import (
    ChunkError,
    ChunkWarning,
    CorruptChunkError,
    MissingChunkError,
    SourceAccessError,
    XloaderError,
    show_attempts,
)
from xloader.sources.base import Fetched, Outcome, Read, StoredChunks
from xloader.sources.retries import current, is_transient, status_of
from xloader.sources.stores.bounded_reads import DamagedObjectError
from xloader.sources.stores.redaction import DENIED_REMEDY, Secrets, cause_of, is_denied, told_of
from xloader.sources.zarr.codec_chain import SCRATCH, Bytes
from xloader.sources.zarr.compiled_decoding import decoder
from xloader.sources.zarr.object_readers import ObjectPiece
from xloader.sources.zarr.shards import FetchedPiece, ShardRange
from xloader.sources.zarr.stored_array import StoredArray

OnMissing = Literal["warn", "raise", "fill"]


_OF_CODECS: Final = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(zlib.error, lzma.LZMAError, gzip.BadGzipFile),
)
"""Errors that codecs raise for damaged bytes. The libraries of stores raise others."""


@dataclass(eq=False, repr=False)
class ReadFaults:
    """Counts absent chunks, and turns errors of failed reads into errors that name the chunk.

    A pickled copy counts from zero.
    """

    store: str
    secrets: Secrets
    on_missing: OnMissing
    num_missing: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[object, ...]:
        return ReadFaults, (self.store, self.secrets, self.on_missing)

    def note_missing(self, read: Read, array: StoredArray) -> None:
        """Count an absent chunk, after a check that its array did not change."""
        array.watch.look_for_missing(
            is_news=self.on_missing == "raise" or not self.num_missing,
            is_meant=self.on_missing == "fill",
        )
        with self._lock:
            self.num_missing += 1
            is_first = self.num_missing == 1
        key = array.key(read.chunk)
        if self.on_missing == "raise":
            raise MissingChunkError(
                "a chunk is absent from the store",
                remedy='restore it, or open with on_missing="fill" to read the fill value',
                **read.place(self.store, key),
            )
        if self.on_missing == "warn" and is_first:
            warn_caller(
                f"chunk {read.chunk} of variable {read.variable!r} (key {key!r}) is absent from "
                f"{self.store} and is read as the fill value. Other absent chunks are read in the "
                "same way, and counted without a warning. xarray and zarr leave out chunks of the "
                'fill value alone, such as NaN over land. Pass on_missing="fill" if chunks are '
                'absent on purpose, or on_missing="raise" to get an error instead.',
                ChunkWarning,
            )

    def tell(
        self, error: Exception, read: Read, array: StoredArray, *, is_decoding: bool
    ) -> NoReturn:
        """Raise the error for a failed read.

        A `MemoryError` and xloader's own errors, except `SourceAccessError`, are raised unchanged.
        """
        if isinstance(error, MemoryError):
            raise error
        if isinstance(error, XloaderError) and not isinstance(error, SourceAccessError):
            raise error
        # The shard may have been written again, with another index.
        array.forget(read.chunk)
        place = read.place(self.store, array.key(read.chunk))
        if isinstance(error, SourceAccessError):
            what = f"a chunk could not be read: {error.what}"
            raise ChunkError(what, remedy=error.remedy, **place) from error
        cause = cause_of(error, self.secrets)
        is_of_codecs = is_decoding and isinstance(error, _OF_CODECS)
        # A server answers 416 where an object ends before the part that was asked for.
        is_too_short = status_of(error) == 416
        is_damaged = is_of_codecs or is_too_short or isinstance(error, DamagedObjectError)
        if is_damaged or isinstance(error, FileNotFoundError | NotADirectoryError):
            # If the store does not answer, the error of the chunk is raised below.
            with suppress(SourceAccessError):
                array.watch.look()
        if not is_damaged:
            what, remedy = _store_fault(error)
            raise ChunkError(what, remedy=remedy, **place) from cause
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({told_of(error, self.secrets)})",
            remedy="fetch or write this chunk again",
            **place,
        ) from cause


def _store_fault(error: Exception) -> tuple[str, str]:
    """A description of why the store did not give a chunk, and the remedy for the user."""
    # The text of a store's own error may contain a signed URL, so only its class is shown.
    reason, status = type(error).__name__, status_of(error)
    if status is not None:
        reason += f", HTTP status {status}"
    if is_denied(error):
        return f"the store refuses access to a chunk ({reason})", DENIED_REMEDY
    if is_transient(error):
        return (
            f"a chunk could not be read in {show_attempts(current().num_tried)} ({reason})",
            "try again once the store answers, or pass a larger max_retries= to xloader.open",
        )
    remedy = "check that the store answers, and that the object is complete"
    return f"a chunk could not be read ({reason})", remedy


@dataclass(eq=False, repr=False)
class _Chunks:
    """Base class of chunks that xloader decodes itself."""

    _arrays: Sequence[StoredArray]
    _reads: Sequence[Read]
    _faults: ReadFaults
    nbytes: int = 0
    _held: list[FetchedPiece] | None = None
    _seconds: float = 0.0
    _awaited: int = 0
    _named_reads: Sequence[Read] | None = None
    # Whether chunks took memory that is not counted, as filters and lists of elements do.
    _is_copied: bool = False

    @property
    def stored(self) -> StoredChunks | None:
        """The chunks as they are stored, after `hold`."""
        return None if self._held is None else self

    def data(self) -> list[Bytes | None]:
        """The stored bytes of each chunk; see `StoredChunks.data`."""
        stored = dict(chunk for piece in self._held or () for chunk in piece.chunks)
        return [stored[number] for number in range(len(self._reads))]

    def some(self, numbers: Sequence[int]) -> Fetched:
        """Some of the chunks that are held; see `StoredChunks.some`."""
        data = self.data()
        arrays = [self._arrays[number] for number in numbers]
        reads = [self._reads[number] for number in numbers]
        chunks = [(at, data[number]) for at, number in enumerate(numbers)]
        nbytes = sum(stored.nbytes for _, stored in chunks if stored is not None)
        held = [FetchedPiece(chunks, 0, nbytes)]
        return replace(self, _arrays=arrays, _reads=reads, nbytes=nbytes, _held=held)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks; see `Fetched.decode`."""
        num_missing = num_requests = stored_nbytes = 0
        is_held = self.nbytes > 0
        # Fetched now, or held before and released here.
        arriving = self._timed(self._fetch()) if self._held is None else _let_go(self._held)
        for piece in arriving:
            num_requests += piece.num_requests
            stored_nbytes = max(stored_nbytes, piece.nbytes)
            num_missing += self._put(piece.chunks, outs)
            # The decoded piece is freed before the next one arrives.
            del piece
        for array in set(self._arrays):
            array.watch.note_read()
        scratch_nbytes = None
        if not self._is_copied:
            scratch_nbytes = SCRATCH.decoding_nbytes + (0 if is_held else stored_nbytes)
        return Outcome(num_missing, num_requests, self._seconds, scratch_nbytes)

    def hold(self) -> None:
        """Fetch the stored bytes of all the chunks, and keep them until they are decoded."""
        self._held = list(self._timed(self._fetch()))
        self.nbytes = sum(piece.nbytes for piece in self._held)

    def _fetch(self) -> Iterator[FetchedPiece]:
        """The chunks as they arrive from the store."""
        raise NotImplementedError

    def _timed(self, pieces: Iterator[FetchedPiece]) -> Iterator[FetchedPiece]:
        """The pieces as they arrive from the store. The time that each takes is counted."""
        # Where several stores are joined, the reads are told there under other names.
        reads = current().reads
        self._named_reads = reads if len(reads) == len(self._reads) else None
        while True:
            begin = perf_counter()
            try:
                piece = next(pieces, None)
            except Exception as error:
                read, array = self._reads[self._awaited], self._arrays[self._awaited]
                self._faults.tell(error, read, array, is_decoding=False)
            self._seconds += perf_counter() - begin
            if piece is None:
                return
            yield piece
            del piece

    def _arriving(
        self, wanted: Sequence[tuple[ObjectPiece, int]], room_nbytes: int
    ) -> Iterator[tuple[int, list[Bytes | None]]]:
        """Read pieces of objects, each given with the number of its first read.

        Yield how many pieces had been read before, and the bytes of the next ones.
        """
        pieces, num_begun = [piece for piece, _ in wanted], 0
        numbers = [number for _, number in wanted]
        reads = None if self._named_reads is None else [self._named_reads[n] for n in numbers]
        arriving = self._arrays[0].objects.get_pieces(pieces, room_nbytes)
        while num_begun < len(pieces):
            self._awaited = numbers[num_begun]
            if reads is not None:
                current().reads = reads[num_begun:]
            buffers = next(arriving)
            num_buffers = len(buffers)
            yield num_begun, buffers
            # The bytes are freed before the next ones arrive.
            del buffers
            num_begun += num_buffers

    def _put(self, chunks: Sequence[tuple[int, Bytes | None]], outs: Sequence[NDArray[Any]]) -> int:
        """Decode chunks, or write the fill value of absent ones. Return how many are absent."""
        there = [(number, data) for number, data in chunks if data is not None]
        absent = [number for number, data in chunks if data is None]
        for number in absent:
            self._faults.note_missing(self._reads[number], self._arrays[number])
            self._arrays[number].fill(outs[number])
        for number, data in self._left(there, outs):
            read, array = self._reads[number], self._arrays[number]
            are_slices = all(isinstance(elements, slice) for elements in read.cut)
            self._is_copied |= not (array.chain(read.chunk).simple and are_slices)
            try:
                array.decode(data, read.chunk, read.cut, outs[number], SCRATCH)
            except Exception as error:
                self._faults.tell(error, read, array, is_decoding=True)
        return len(absent)

    def _left(
        self, chunks: list[tuple[int, Bytes]], outs: Sequence[NDArray[Any]]
    ) -> list[tuple[int, Bytes]]:
        """Decode chunks with one compiled call, and return those that it did not decode."""
        compiled = decoder()
        if compiled is None or not chunks:
            return chunks
        arrays, reads = self._arrays, self._reads
        decoded = compiled.decode(
            [
                (data, arrays[number].chain(reads[number].chunk), reads[number].cut, outs[number])
                for number, data in chunks
            ]
        )
        return [chunk for chunk, is_decoded in zip(chunks, decoded, strict=True) if not is_decoded]


class SingleChunks(_Chunks):
    """Chunks that are each stored as an object of their own, of one store."""

    def _fetch(self) -> Iterator[FetchedPiece]:
        pairs = [(a, read.chunk) for a, read in zip(self._arrays, self._reads, strict=True)]
        chains = [array.chain(chunk) for array, chunk in pairs]
        pieces = [
            (ObjectPiece(array.key(chunk), 0, None, chain.stored_nbytes), at)
            for at, ((array, chunk), chain) in enumerate(zip(pairs, chains, strict=True))
        ]
        for num_begun, buffers in self._arriving(pieces, sum(chain.nbytes for chain in chains)):
            nbytes = sum(data.nbytes for data in buffers if data is not None)
            yield FetchedPiece(list(enumerate(buffers, num_begun)), len(buffers), nbytes)
            del buffers


class ShardChunks(_Chunks):
    """Chunks of shards of one store. Their ranges are fetched together."""

    def _fetch(self) -> Iterator[FetchedPiece]:
        shards: dict[tuple[StoredArray, tuple[int, ...]], list[int]] = {}
        for number, (array, read) in enumerate(zip(self._arrays, self._reads, strict=True)):
            shards.setdefault((array, array.grid.object_of(read.chunk)), []).append(number)
        ranges: list[ShardRange] = []
        for numbers in shards.values():
            # Errors name the first of the reads that are waited for.
            self._awaited = numbers[0]
            if self._named_reads is not None:
                current().reads = [self._named_reads[number] for number in numbers]
            chunks_here = [(number, self._reads[number].chunk) for number in numbers]
            pieces_here, ranges_here = self._arrays[numbers[0]].locate(chunks_here)
            yield from pieces_here
            ranges += ranges_here
            # A shard that was fetched whole is freed before others arrive.
            del pieces_here
        pieces = [(span.piece, span.first_number) for span in ranges]
        for num_begun, buffers in self._arriving(pieces, sum(span.nbytes for span in ranges)):
            chunks: list[tuple[int, Bytes | None]] = []
            for span, data in zip(ranges[num_begun:], buffers, strict=False):
                self._awaited = span.first_number
                chunks += span.chunks(data)
                del data
            nbytes = sum(data.nbytes for data in buffers if data is not None)
            yield FetchedPiece(chunks, len(buffers), nbytes)
            del buffers, chunks


def _let_go(pieces: list[FetchedPiece]) -> Iterator[FetchedPiece]:
    """The pieces one after the other; each is released once the next is asked for."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()
