"""Shards: many chunks in one stored object, found by an index that lies in it.

Chunks of one shard that lie close together are fetched with one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.sources.zarr.codec_chain import Chain, Sharding
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decode import Scratch
from xloader.sources.zarr.object_readers import Objects, Span
from xloader.sources.zarr.shard_indexes import Index, IndexCache

MOST_GAP_NBYTES: Final = 64 * 2**10
"""Bytes between two chunks that are rather fetched than left out."""

MOST_RANGE_NBYTES: Final = 16 * 2**20
"""The most that is fetched with one request, unless one chunk is larger."""

MOST_SHARD_NBYTES: Final = 2**43
"""No shard is larger: an index that points further is damaged, and no file can be read there."""

ABSENT: Final = 2**64 - 1
"""Offset and size of a chunk that a shard does not hold."""


class DamagedShardError(ValueError):
    """A shard whose index cannot be. It never leaves the source, which names the chunk."""


@dataclass(frozen=True)
class Shard:
    """One stored object that holds many chunks.

    Parameters
    ----------
    key : str
        Its key in the store.
    first : tuple of int
        Index of its first chunk in the array.
    sharding : Sharding
        How its chunks are found.
    """

    key: str
    first: tuple[int, ...]
    sharding: Sharding


@dataclass(frozen=True)
class ShardPart:
    """Some chunks of a shard, as they come in.

    Parameters
    ----------
    chunks : list of (int, bytes or None)
        Which of the chunks asked for, and its bytes as stored; None where it is absent.
    num_requests : int
        Requests that it took.
    nbytes : int
        Memory that it holds, in bytes.
    """

    chunks: list[tuple[int, Bytes | None]]
    num_requests: int
    nbytes: int = 0


def coalesce(
    spans: Sequence[Span],
    most_gap: int = MOST_GAP_NBYTES,
    most_nbytes: int = MOST_RANGE_NBYTES,
) -> list[tuple[Span, list[int]]]:
    """Join spans that lie close together.

    Parameters
    ----------
    spans : sequence of (int, int)
        Any order; they may overlap.
    most_gap : int
        Bytes between two spans that are still joined.
    most_nbytes : int
        The longest that a joined span may get.

    Returns
    -------
    list of ((int, int), list of int)
        Each joined span, in rising order, and which of the given ones lie in it.

    Examples
    --------
    >>> coalesce([(90, 95), (0, 10), (12, 20)], most_gap=5)
    [((0, 20), [1, 2]), ((90, 95), [0])]
    """
    joined: list[tuple[Span, list[int]]] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[number]
        if joined:
            (first, last), numbers = joined[-1]
            end = max(last, stop)
            if start - last <= most_gap and end - first <= most_nbytes:
                numbers.append(number)
                joined[-1] = (first, end), numbers
                continue
        joined.append(((start, stop), [number]))
    return joined


class ShardReader:
    """Fetches the chunks of an array's shards.

    Parameters
    ----------
    objects : Objects
        Where the shards are stored.
    chain : Chain or None
        The chain of the array's chunks, which bounds their stored sizes; None where it is not
        known.
    indexes : IndexCache
        Where indexes are kept.
    """

    def __init__(self, objects: Objects, chain: Chain | None, indexes: IndexCache) -> None:
        self._objects = objects
        self._indexes = indexes
        self._owner = object()
        self._nbytes = MOST_SHARD_NBYTES if chain is None else chain.nbytes
        self._fewest_nbytes = chain.stored_nbytes if chain and chain.is_fixed_size else 1
        self._most_nbytes = MOST_SHARD_NBYTES if chain is None else chain.stored_nbytes

    def index(self, shard: Shard) -> tuple[Index | None, int]:
        """The index of a shard, and the number of requests made for it.

        Returns
        -------
        array of uint64 or None
            Offset and size of each chunk, of shape ``(*chunks_per_shard, 2)``; None where the
            shard is absent.

        Raises
        ------
        DamagedShardError
            If there is a shard, and its index does not decode.
        """
        return self._indexes.get((self._owner, shard.key), lambda: self._read_index(shard))

    def forget(self, key: str) -> None:
        """Read the index of a shard again, the next time that it is needed."""
        self._indexes.forget((self._owner, key))

    def is_there(self, shard: Shard, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store, as the index of its shard has it."""
        index, _ = self.index(shard)
        return index is not None and self._spans(shard, index, [chunk]) != [None]

    def read(
        self, shard: Shard, chunks: Sequence[tuple[int, ...]], num_within: Callable[[], int]
    ) -> Iterator[ShardPart]:
        """Fetch chunks of one shard.

        Parameters
        ----------
        shard : Shard
            The shard.
        chunks : sequence of tuple of int
            Which chunks, by their indexes in the array.
        num_within : callable
            Says how many chunks of the shard lie within the array.

        Yields
        ------
        Part
            Together they hold every chunk once.

        Raises
        ------
        DamagedShardError
            If the index is damaged, or points to where no chunk can be.
        """
        is_small = self._nbytes * shard.sharding.num_chunks <= MOST_RANGE_NBYTES
        is_new = is_small and (self._owner, shard.key) not in self._indexes
        if is_new and len(set(chunks)) == num_within():
            yield self._read_whole(shard, chunks)
            return
        index, num_requests = self.index(shard)
        spans = [None] * len(chunks) if index is None else self._spans(shard, index, chunks)
        absent = [number for number, span in enumerate(spans) if span is None]
        if absent or num_requests:
            yield ShardPart([(number, None) for number in absent], num_requests)
        there = [(number, span) for number, span in enumerate(spans) if span is not None]
        if not there:
            return
        joined = coalesce([span for _, span in there])
        guard = _guard_nbytes(shard.sharding)
        ranges = self._objects.get_ranges(
            shard.key, [(start, stop + guard) for (start, stop), _ in joined]
        )
        for span, members in joined:
            # No name is bound to the bytes, so that they are gone before the next ones come.
            yield self._part(next(ranges), span, guard, [there[member] for member in members])

    def _part(
        self, data: Bytes | None, asked: Span, guard: int, found: list[tuple[int, Span]]
    ) -> ShardPart:
        """The chunks that lie in what came of one request."""
        start, stop = asked
        if data is None:
            return ShardPart([(number, None) for number, _ in found], 1)
        if guard and data.size < stop - start + guard:
            raise DamagedShardError("the index of the shard points past the shard's chunks")
        return ShardPart(
            [(number, _cut(data, span, start)) for number, span in found], 1, data.nbytes
        )

    def _read_whole(self, shard: Shard, chunks: Sequence[tuple[int, ...]]) -> ShardPart:
        data = self._objects.get(shard.key)
        if data is None:
            return ShardPart([(number, None) for number in range(len(chunks))], 1)
        nbytes = shard.sharding.index_stored_nbytes
        is_at_start = shard.sharding.is_at_start
        index = _parse(shard.sharding, data[:nbytes] if is_at_start else data[-nbytes:])
        self._indexes.put((self._owner, shard.key), index)
        end = data.size if is_at_start else data.size - nbytes
        spans = self._spans(shard, index, chunks)
        if any(span is not None and span[1] > end for span in spans):
            raise DamagedShardError("the index of the shard points past the shard's chunks")
        found = [None if span is None else _cut(data, span, 0) for span in spans]
        return ShardPart(list(enumerate(found)), 1, data.nbytes)

    def _read_index(self, shard: Shard) -> Index | None:
        nbytes = shard.sharding.index_stored_nbytes
        if shard.sharding.is_at_start:
            (data,) = self._objects.get_ranges(shard.key, [(0, nbytes)])
        else:
            data = self._objects.get_last(shard.key, nbytes)
        return None if data is None else _parse(shard.sharding, data)

    def _spans(
        self, shard: Shard, index: Index, chunks: Sequence[tuple[int, ...]]
    ) -> list[Span | None]:
        """Where chunks lie in their shard; None for those that are absent."""
        sharding = shard.sharding
        first = sharding.index_stored_nbytes if sharding.is_at_start else 0
        entries = index.reshape(-1, 2)
        spans: list[Span | None] = []
        for chunk in chunks:
            place = tuple(i - begin for i, begin in zip(chunk, shard.first, strict=True))
            offset, nbytes = entries[sharding.number_of(place)].tolist()
            if offset == nbytes == ABSENT:
                spans.append(None)
                continue
            is_inside = first <= offset <= MOST_SHARD_NBYTES
            if not is_inside or not self._fewest_nbytes <= nbytes <= self._most_nbytes:
                raise DamagedShardError(
                    f"the index of the shard has chunk {chunk} at {offset} with {nbytes} bytes"
                )
            spans.append((offset, offset + nbytes))
        return spans


def _parse(sharding: Sharding, data: Bytes) -> Index:
    try:
        index = sharding.index_chain.decode(data, Scratch())
    except Exception as error:
        raise DamagedShardError(f"the index of the shard does not decode: {error}") from error
    # A copy, so that what is kept does not hold a whole shard.
    return index.astype(np.uint64, copy=True)


def _guard_nbytes(sharding: Sharding) -> int:
    """Bytes that must lie behind every chunk."""
    # Damage to an unchecked index may go unseen, but chunks never lie within the index.
    is_unsure = not (sharding.is_checked or sharding.is_at_start)
    return sharding.index_stored_nbytes if is_unsure else 0


def _cut(data: Bytes, span: Span, origin: int) -> Bytes:
    """A chunk's bytes out of fetched ones that begin at ``origin``: cut short as they are."""
    return data[span[0] - origin : span[1] - origin]
