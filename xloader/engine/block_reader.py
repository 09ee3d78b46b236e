"""Reading blocks: which chunks belong to a block, and where in memory each is decoded to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Group
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.block_layout import BlockLayout, BlockSlot, Stored, block_layout
from xloader.engine.change_watch import ChangeWatch
from xloader.sources.base import Fetched, Read, SmallKey, Source, StoredChunks
from xloader.sources.chunk_sizes import Cut
from xloader.sources.store_watch import Watch


@dataclass(eq=False, slots=True)
class Bundle:
    """Chunks that are read together, and the state of that read.

    Parameters
    ----------
    reads : list of Read
        The chunks to read.
    places : list of (int, int, tuple)
        Per read, the number of its block, its number among the chunks of that block, and the index
        of its values in the variable's part of it.
    nbytes : int
        Decoded bytes that are used.
    room_nbytes : int
        Upper limit of the decoded bytes of the whole chunks.
    is_waiting : bool
        Whether its bytes are fetched ahead.
    fetched : Fetched, optional
        The bytes that were fetched ahead.
    fetch_seconds : float
        Time spent on fetching ahead.
    error : BaseException, optional
        The reason why it cannot be decoded.
    num_requests : int
        Requests made for it so far.
    num_hung : int
        Number of attempts at it whose threads were given up.
    is_refetched : bool
        Whether its bytes were fetched a second time, because they did not decode.
    is_computed : bool
        Whether its values are computed, and nothing is read.
    """

    reads: list[Read]
    places: list[tuple[int, int, tuple[Any, ...]]]
    nbytes: int
    room_nbytes: int
    is_waiting: bool
    fetched: Fetched | None = None
    fetch_seconds: float = 0.0
    error: BaseException | None = None
    num_requests: int = 0
    num_hung: int = 0
    is_refetched: bool = False
    is_computed: bool = False

    @property
    def num_reads(self) -> int:
        """Number of its chunks that are read: 0 if they are computed."""
        return 0 if self.is_computed else len(self.reads)

    @property
    def is_ready(self) -> bool:
        """Whether it can be decoded, or its error told, without waiting for a fetch."""
        return not self.is_waiting or self.fetched is not None or self.error is not None

    @property
    def held_nbytes(self) -> int:
        """Memory that the fetched bytes take until they are decoded."""
        return 0 if self.fetched is None else self.fetched.nbytes

    def outs_in(self, slots: Sequence[Mapping[str, BlockSlot]]) -> list[NDArray[Any]]:
        """The arrays that its reads are decoded into, given where variables of each block lie."""
        pairs = zip(self.reads, self.places, strict=True)
        return [slots[number][read.variable].part(at) for read, (number, _, at) in pairs]

    def append(self, other: Bundle) -> None:
        """Add the reads of another bundle that was not fetched either."""
        self.reads += other.reads
        self.places += other.places
        self.nbytes += other.nbytes
        self.room_nbytes += other.room_nbytes

    def some(self, numbers: Sequence[int]) -> Bundle:
        """A bundle of some of its chunks, as if they had never been read."""
        count, total = len(numbers), len(self.reads)
        return Bundle(
            [self.reads[number] for number in numbers],
            [self.places[number] for number in numbers],
            self.nbytes * count // total,
            self.room_nbytes * count // total,
            self.is_waiting,
            is_computed=self.is_computed,
        )

    def held(self, numbers: Sequence[int], stored: StoredChunks) -> Bundle:
        """A bundle of some of its chunks, whose bytes are held."""
        bundle = self.some(numbers)
        bundle.fetched = stored.some(numbers)
        return bundle

    def singles(self) -> list[Bundle]:
        """The same chunks as bundles of one chunk each, as if they had never been read."""
        return [self.some([number]) for number in range(len(self.reads))]


_SMALL_NBYTES, MOST_SMALL_NBYTES = 1 << 20, 1 << 22
"""Chunks that may be read with any others are read together up to so many decoded bytes: up to the
first bound where the threads would not all get a share otherwise."""

_PART_NBYTES = 1 << 18
"""Small chunks are listed in parts of up to this many decoded bytes, which are then joined."""

_MOST_CHOICES = 1 << 12
"""Most choices along a dimension, and most layouts, that are remembered."""

_Choice = tuple[int, slice | Ints, slice, int]
"""Along one dimension: the index of a stored chunk, the elements taken of it, their place in the
block, and their number."""


class _ChunkPart(NamedTuple):
    """A chunk of a block: its index, what is taken of it, and its place and size in the block."""

    chunk: tuple[int, ...]
    cut: Cut
    place: tuple[Any, ...]
    size: int


class _ChunkLists:
    """Lists the chunks in blocks of variables that are chunked alike."""

    def __init__(self, axes: tuple[Axis, ...], windowed: tuple[int | None, ...]) -> None:
        self._axes = axes
        self._windowed = windowed
        self._known: list[dict[int, list[_Choice]]] = [{} for _ in axes]

    def parts(self, block: tuple[int, ...]) -> list[_ChunkPart]:
        """The chunks of a block, given its index along each windowed dimension."""
        choices = [
            known.get(index) or self._look(dim, index)
            for dim, (known, at) in enumerate(zip(self._known, self._windowed, strict=True))
            for index in (-1 if at is None else block[at],)
        ]
        if not choices:
            # Without the ellipsis, indexing such a variable would give a scalar.
            return [_ChunkPart((), (), (...,), 1)]
        found = []
        for picked in itertools.product(*choices):
            chunk, cut, place, sizes = zip(*picked, strict=True)
            found.append(_ChunkPart(chunk, cut, place, math.prod(sizes)))
        return found

    def _look(self, dim: int, index: int) -> list[_Choice]:
        """The choices along a dimension, for one of its blocks; for all of them if it is -1."""
        axis, known = self._axes[dim], self._known[dim]
        if index >= 0:
            found = [_choice(axis, index, 0)]
        else:
            found = [_choice(axis, own, int(axis.edges[own])) for own in range(axis.num_blocks)]
        if len(known) >= _MOST_CHOICES:
            # A new dictionary, because other threads may be looking into this one.
            self._known[dim] = known = {}
        known[index] = found
        return found


class BlockReader:
    """Reader of blocks: it lists the chunks of each, and fetches them.

    Parameters
    ----------
    source : Source
        The source that is read.
    stored : mapping of str to Stored
        How each variable that samples need is stored.
    most_nbytes : int
        Upper limit of the decoded bytes of a bundle. Only a single chunk may be larger.
    retry_policy : RetryPolicy, optional
        How long looks at the store are waited for.

    Attributes
    ----------
    source : Source
        As given.
    change_watch : ChangeWatch
        Checks whether the store is still as it was when it was opened.
    """

    def __init__(
        self,
        source: Source,
        stored: Mapping[str, Stored],
        most_nbytes: int,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self._most_nbytes = most_nbytes
        self.source = source
        self._stored = stored
        self._is_waiting = {name: source.is_waiting(name) for name in stored}
        self._is_computed = {name: source.variables[name].is_computed for name in stored}
        self._layouts: dict[tuple[str, tuple[int, ...]], BlockLayout] = {}
        alike = {(own.axes, own.windowed) for own in stored.values()}
        lists = {key: _ChunkLists(*key) for key in alike}
        self._chunk_lists = {n: lists[own.axes, own.windowed] for n, own in stored.items()}
        self.change_watch = ChangeWatch(source, stored, retry_policy)

    @property
    def name(self) -> str:
        """Name of the source, for messages."""
        return self.source.name

    def is_read(self, variable: str) -> bool:
        """Whether chunks of a variable are read. Otherwise they are computed."""
        return not self._is_computed[variable]

    def watches(self) -> Sequence[Watch]:
        """The watches of all variables."""
        return self.source.watches(self._stored)

    @property
    def is_waiting(self) -> bool:
        """Whether any variable is fetched ahead."""
        return any(self._is_waiting.values())

    def stored(self, variable: str) -> Stored:
        """How a variable is stored."""
        return self._stored[variable]

    def layout(self, group: Group, block: tuple[int, ...]) -> BlockLayout:
        """How the values of a block lie in memory.

        Parameters
        ----------
        group : Group
            The group of the block.
        block : tuple of int
            Index of the block along each windowed dimension.
        """
        sizes = tuple(
            1 if axis is None else axis.size_of(index)
            for axis, index in zip(group.axes, block, strict=True)
        )
        key = group.demands[0].variable, sizes
        try:
            return self._layouts[key]
        except KeyError:
            if len(self._layouts) >= _MOST_CHOICES:
                self._layouts = {}
            stored = {demand.variable: self._stored[demand.variable] for demand in group.demands}
            found = self._layouts[key] = block_layout(stored, sizes)
            return found

    def bundles(
        self, group: Group, blocks: Sequence[tuple[int, ...]], num_shares: int = 1
    ) -> list[Bundle]:
        """The bundles that read all chunks of some blocks.

        Chunks are bundled if the source reads them with less effort together, as those of one
        shard.

        Parameters
        ----------
        group : Group
            The group of the blocks.
        blocks : sequence of (tuple of int)
            Index of each block along each windowed dimension.
        num_shares : int
            Number of threads that should each get some of the small chunks.
        """
        bundles: dict[Hashable, list[Bundle]] = {}
        demands = [
            (own.variable, own.max_chunk_nbytes, self._stored[own.variable].dtype.itemsize)
            for own in group.demands
        ]
        for number, block in enumerate(blocks):
            listed: dict[_ChunkLists, list[_ChunkPart]] = {}
            numbers = itertools.count()
            for name, room_nbytes, itemsize in demands:
                chunk_lists = self._chunk_lists[name]
                if chunk_lists not in listed:
                    listed[chunk_lists] = chunk_lists.parts(block)
                for chunk, cut, place, size in listed[chunk_lists]:
                    key = self.source.bundle_of(name, chunk)
                    most_nbytes = self._most_nbytes
                    if key is None:
                        most_nbytes = min(most_nbytes, _PART_NBYTES)
                    parts = bundles.setdefault(key, [])
                    if not parts or parts[-1].room_nbytes + room_nbytes > most_nbytes:
                        is_waiting, is_computed = self._is_waiting[name], self._is_computed[name]
                        parts.append(Bundle([], [], 0, 0, is_waiting, is_computed=is_computed))
                    part = parts[-1]
                    part.reads.append(Read(name, chunk, cut))
                    part.places.append((number, next(numbers), place))
                    part.nbytes += size * itemsize
                    part.room_nbytes += room_nbytes
        return self._joined(bundles, num_shares)

    def chunk(self, group: Group, block: tuple[int, ...], part: int) -> Bundle:
        """The bundle of one chunk of a block, by its number there.

        Chunks are numbered variable by variable, in the order of the group's demands.
        """
        number = part
        for demand in group.demands:
            if part < demand.num_chunks_per_block:
                name = demand.variable
                chunk, cut, place, size = self._chunk_lists[name].parts(block)[part]
                nbytes = size * self._stored[name].dtype.itemsize
                return Bundle(
                    [Read(name, chunk, cut)],
                    [(0, number, place)],
                    nbytes,
                    demand.max_chunk_nbytes,
                    self._is_waiting[name],
                    is_computed=self._is_computed[name],
                )
            part -= demand.num_chunks_per_block
        raise AssertionError("a block has so many chunks")

    def _joined(
        self, bundles: Mapping[Hashable, Sequence[Bundle]], num_shares: int
    ) -> list[Bundle]:
        """All bundles, with small ones joined to larger ones."""
        small = [part for key, parts in bundles.items() if _is_small(key) for part in parts]
        share = sum(part.room_nbytes for part in small) // num_shares
        most_nbytes = min(max(share, _SMALL_NBYTES), MOST_SMALL_NBYTES, self._most_nbytes)
        joined: list[Bundle] = []
        for part in small:
            last = joined[-1] if joined else None
            if last is None or last.room_nbytes + part.room_nbytes > most_nbytes:
                joined.append(part)
            else:
                last.append(part)
        others = (p for key, parts in bundles.items() if not _is_small(key) for p in parts)
        return [*joined, *others]

    def fetch(self, bundle: Bundle) -> Fetched:
        """Fetch a bundle.

        If its source does not fetch ahead, the chunks are only read when they are decoded.
        """
        return self.source.fetch(bundle.reads)


def _is_small(key: Hashable) -> bool:
    """Whether a bundle with this key may be read with others."""
    return key is None or isinstance(key, SmallKey)


def _choice(axis: Axis, index: int, begin: int) -> _Choice:
    chunk, cut, size = axis.stored_part(index)
    return chunk, cut, slice(begin, begin + size), size
