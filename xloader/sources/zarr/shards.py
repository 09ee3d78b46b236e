"""Reading of chunks out of shards: stored objects that hold many chunks and an index of them.

Chunks of one shard that lie close together are fetched with one request.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, mul
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import MOST_INDEX_NBYTES
from xloader.sources.retries import Attempts, current
from xloader.sources.stores.bounded_reads import MOST_OBJECT_NBYTES, DamagedObjectError
from xloader.sources.zarr.codec_chain import SPARE_NBYTES, Bytes, Chain, Scratch, Sharding
from xloader.sources.zarr.object_readers import ObjectPiece, Objects, Span

Index: TypeAlias = NDArray[np.uint64]
"""Offset and size of each chunk of a shard in bytes, of shape ``(*chunks_per_shard, 2)``."""

Name: TypeAlias = Hashable
"""Identifies a shard among those of all stores."""

_CACHES: Final[dict[int, IndexCache]] = {}
"""The cache of each process, by process id."""

MOST_GAP_NBYTES: Final = 64 * 2**10
"""The widest gap between two chunks, in bytes, that is fetched along with them in one request."""

MOST_RANGE_NBYTES: Final = 16 * 2**20
"""The most bytes that are fetched with one request, unless one chunk is larger."""

MOST_CHUNK_NBYTES: Final = 2**32
"""The most bytes of a stored chunk whose codecs are not known. An index may be damaged."""

ABSENT: Final = 2**64 - 1
"""The value of both offset and size, in an index, of a chunk that the shard does not hold."""

_PAST_CHUNKS: Final = "the index of the shard points past the end of the shard's chunks"


class IndexCache:
    """Cache of shard indexes that drops the least recently used ones when it is full.

    If several threads need the same absent index, one reads it and the others wait for it.
    """

    def __init__(self, most_nbytes: int = MOST_INDEX_NBYTES) -> None:
        self._most_nbytes = most_nbytes
        self.nbytes = 0
        self._kept: OrderedDict[Name, Index] = OrderedDict()
        self._coming: dict[Name, tuple[Future[Index | None], Attempts]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_process(cls) -> IndexCache:
        """The cache of this process, which all sources share."""
        # A forked child gets a new cache: a lock held at the fork is never released there.
        return _CACHES.setdefault(os.getpid(), cls())

    def __contains__(self, name: Name) -> bool:
        return name in self._kept

    def get(self, name: Name, read: Callable[[], Index | None]) -> tuple[Index | None, int]:
        """Find an index, or read it.

        The absence of an index is not remembered: it is read again at the next call. If the
        reading thread fails, all threads that wait for the index get the same error.
        """
        attempts = current()
        while True:
            try:
                return self._get(name, read, attempts)
            except _ReaderStoppedError:
                # Only the reading thread was to stop. This one reads the index itself.
                continue

    def _get(
        self, name: Name, read: Callable[[], Index | None], attempts: Attempts
    ) -> tuple[Index | None, int]:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name], 0
            coming, reader = self._coming.get(name, (None, attempts))
            if coming is None or reader.is_given_up:
                future: Future[Index | None] = Future()
                coming, self._coming[name] = None, (future, attempts)
                attempts.on_given_up = partial(_stop, future)
        if coming is not None:
            return attempts.wait_for(reader.key, coming.result), 0
        try:
            index = read()
            self._arrive(name, future, index)
            if not future.done():
                future.set_result(index)
        except BaseException as error:
            self._arrive(name, future, None)
            if not isinstance(error, Exception):
                _stop(future)
            elif not future.done():
                future.set_exception(error)
            raise
        finally:
            attempts.on_given_up = None
        return index, 1

    def put(self, name: Name, index: Index) -> None:
        """Keep an index that was read together with its whole shard."""
        with self._lock:
            self._keep(name, index)

    def forget(self, name: Name) -> None:
        """Drop an index, so that it is read again when it is next needed."""
        with self._lock:
            dropped = self._kept.pop(name, None)
            self.nbytes -= 0 if dropped is None else dropped.nbytes

    def _arrive(self, name: Name, future: Future[Index | None], index: Index | None) -> None:
        with self._lock:
            if self._coming.get(name, (None,))[0] is future:
                del self._coming[name]
            if index is not None:
                self._keep(name, index)

    def _keep(self, name: Name, index: Index) -> None:
        if index.nbytes > self._most_nbytes or name in self._kept:
            return
        self._kept[name] = index
        self.nbytes += index.nbytes
        while self.nbytes > self._most_nbytes:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes


class _ReaderStoppedError(Exception):
    """Raised in waiting threads if the thread that read an index was stopped or given up."""


def _stop(coming: Future[Index | None]) -> None:
    # The index may arrive at the same moment.
    with suppress(InvalidStateError):
        coming.set_exception(_ReaderStoppedError())


@dataclass(frozen=True)
class Shard:
    """One stored object that holds many chunks."""

    key: str
    first: tuple[int, ...]
    sharding: Sharding


class FetchedPiece(NamedTuple):
    """Some chunks that were fetched together.

    `chunks`: by their place among the chunks asked for; None where one is absent.
    """

    chunks: list[tuple[int, Bytes | None]]
    num_requests: int
    nbytes: int = 0


Numbered = tuple[int, tuple[int, ...]]
"""A chunk's position among the chunks asked for, and its index in the array."""

Placed = tuple[int, int, int]
"""The first byte of a chunk in its shard, the byte after its last, and its position among the
chunks asked for."""


class ShardRange(NamedTuple):
    """A range of a shard that is fetched with one request."""

    piece: ObjectPiece
    guard_nbytes: int
    members: list[Placed]

    @property
    def nbytes(self) -> int:
        """Size of the range in bytes."""
        _, start, stop, _ = self.piece
        assert stop is not None, "the end of a range is known"
        return stop - start

    @property
    def first_number(self) -> int:
        """Position of its first chunk among the chunks asked for."""
        _, _, number = self.members[0]
        return number

    def chunks(self, data: Bytes | None) -> list[tuple[int, Bytes | None]]:
        """The chunks, as in `FetchedPiece`.

        `data`: the bytes of the range; None if the shard is absent.
        """
        if data is None:
            return [(number, None) for *_, number in self.members]
        if self.guard_nbytes and data.size < self.nbytes:
            raise DamagedObjectError(_PAST_CHUNKS)
        begin = self.piece.start
        # A chunk gets too few bytes if those of the range end before it does.
        return [(number, data[start - begin : end - begin]) for start, end, number in self.members]


Located = tuple[list[FetchedPiece], list[ShardRange]]
"""Chunks of one shard: those that were fetched while they were looked for, and where others lie."""


def coalesce(
    chunks: Sequence[Placed], most_gap: int = MOST_GAP_NBYTES, most_nbytes: int = MOST_RANGE_NBYTES
) -> list[tuple[Span, list[Placed]]]:
    """Join chunks that lie close together in their shard."""
    groups: list[list[Placed]] = []
    first = last = 0
    for chunk in sorted(chunks):
        start, end, _ = chunk
        if not groups or start - last > most_gap or max(last, end) - first > most_nbytes:
            first = last = start
            groups.append([])
        last = max(last, end)
        groups[-1].append(chunk)
    return [((group[0][0], max(map(itemgetter(1), group))), group) for group in groups]


class ShardReader:
    """Fetches the chunks of an array's shards.

    `chain`: None if it is unknown.
    """

    def __init__(self, objects: Objects, chain: Chain | None, indexes: IndexCache) -> None:
        self._objects = objects
        self._indexes = indexes
        self._owner = object()
        self._nbytes = MOST_OBJECT_NBYTES if chain is None else chain.nbytes
        self._fewest_nbytes = chain.stored_nbytes if chain and chain.is_fixed_size else 1
        self._most_nbytes = MOST_CHUNK_NBYTES if chain is None else chain.stored_nbytes

    def index(self, shard: Shard) -> tuple[Index | None, int]:
        """The index of a shard, and the number of requests that this call made for it.

        The index holds offset and size of each chunk in bytes, and has the shape
        ``(*chunks_per_shard, 2)``. It is None if the shard is absent.
        """
        return self._indexes.get((self._owner, shard.key), lambda: self._read_index(shard))

    def forget(self, key: str) -> None:
        """Drop the index of a shard, so that it is read again when it is next needed."""
        self._indexes.forget((self._owner, key))

    def is_there(self, shard: Shard, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store, by the index of its shard."""
        index, _ = self.index(shard)
        there, _ = self._find(shard, index, [(0, chunk)])
        return bool(there)

    def locate(
        self, shard: Shard, chunks: Sequence[Numbered], num_within: Callable[[], int]
    ) -> Located:
        """Find chunks of one shard by its index.

        A small shard is fetched whole if all its chunks are wanted, its index is not in the cache,
        and it holds little else.
        """
        is_small = self._nbytes * shard.sharding.num_chunks <= MOST_RANGE_NBYTES
        is_new = is_small and (self._owner, shard.key) not in self._indexes
        if is_new and len({chunk for _, chunk in chunks}) == num_within():
            whole = self._read_whole(shard, chunks)
            if whole is not None:
                return [whole], []
        index, num_requests = self.index(shard)
        there, absent = self._find(shard, index, chunks)
        pieces = [FetchedPiece(absent, num_requests)] if absent or num_requests else []
        # Without a checksum, damage to the index may go unnoticed. But an index at the end follows
        # all chunks, so an entry whose chunk reaches into the index is damaged.
        is_unsure = not (shard.sharding.is_checked or shard.sharding.is_at_start)
        guard = shard.sharding.index_chain.stored_nbytes if is_unsure else 0
        ranges = [
            ShardRange(ObjectPiece(shard.key, start, end + guard), guard, members)
            for (start, end), members in coalesce(there)
        ]
        return pieces, ranges

    def _read_whole(self, shard: Shard, chunks: Sequence[Numbered]) -> FetchedPiece | None:
        """The chunks of a shard that is read as a whole; None if it is too large for that."""
        nbytes = shard.sharding.index_chain.stored_nbytes
        most = nbytes + 2 * self._nbytes * shard.sharding.num_chunks + SPARE_NBYTES
        try:
            data = self._objects.get(shard.key, most)
        except DamagedObjectError:
            # That is no damage: padding may follow the chunks, or what was there before them.
            return None
        if data is None:
            return FetchedPiece([(number, None) for number, _ in chunks], 1)
        is_at_start = shard.sharding.is_at_start
        index = _parse(shard.sharding, data[:nbytes] if is_at_start else data[-nbytes:])
        self._indexes.put((self._owner, shard.key), index)
        there, absent = self._find(shard, index, chunks)
        last = data.size if is_at_start else data.size - nbytes
        if any(end > last for _, end, _ in there):
            raise DamagedObjectError(_PAST_CHUNKS)
        present = [(number, data[start:end]) for start, end, number in there]
        return FetchedPiece([*absent, *present], 1, data.nbytes)

    def _read_index(self, shard: Shard) -> Index | None:
        nbytes = shard.sharding.index_chain.stored_nbytes
        if shard.sharding.is_at_start:
            ((data,),) = self._objects.get_pieces([ObjectPiece(shard.key, 0, nbytes)], nbytes)
        else:
            data = self._objects.get_last(shard.key, nbytes)
        return None if data is None else _parse(shard.sharding, data)

    def _find(
        self, shard: Shard, index: Index | None, chunks: Sequence[Numbered]
    ) -> tuple[list[Placed], list[tuple[int, Bytes | None]]]:
        """Where chunks lie in their shard, and those that are absent as in `FetchedPiece`."""
        if index is None:
            return [], [(number, None) for number, _ in chunks]
        sharding = shard.sharding
        first = sharding.index_chain.stored_nbytes if sharding.is_at_start else 0
        fewest, most = self._fewest_nbytes, self._most_nbytes
        # Numbers of Python, because those of a few chunks take less time than one call of NumPy.
        strides, entries = sharding.strides, index.reshape(-1).data
        origin = sum(map(mul, shard.first, strides))
        there: list[Placed] = []
        absent: list[tuple[int, Bytes | None]] = []
        for number, chunk in chunks:
            row = 2 * (sum(map(mul, chunk, strides)) - origin)
            offset, nbytes = entries[row], entries[row + 1]
            if first <= offset <= MOST_OBJECT_NBYTES and fewest <= nbytes <= most:
                there.append((offset, offset + nbytes, number))
            elif offset == nbytes == ABSENT:
                absent.append((number, None))
            else:
                raise DamagedObjectError(
                    f"the index of the shard gives chunk {chunk} {nbytes} bytes at byte {offset}"
                )
        return there, absent


def _parse(sharding: Sharding, data: Bytes) -> Index:
    try:
        index = sharding.index_chain.decode(data, Scratch())
    except Exception as error:
        raise DamagedObjectError(f"the index of the shard does not decode: {error}") from error
    # A copy, because a view in the cache would keep the whole shard in memory.
    return index.astype(np.uint64, copy=True)
