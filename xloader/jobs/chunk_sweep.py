"""Reads chunks once each, on threads, and hands the values of each to a function.

Chunks at the same place of the dimensions that a job keeps follow each other, so that what is made
of them is complete before the next place begins. A *piece* is a chunk; or, for differences along
time, a pair of chunks of which one holds the earlier and one the later elements::

    kept place     0             1
    chunks         0  1  2  3    4  5  6  7       time along each place
    pieces         00 01 11 ...  44 45 55 ...     with a lead shorter than a chunk
    trees          one of place 0, one of place 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Footprint, Group
from xloader.core.windows import Windows
from xloader.engine.assembly import stored_variables
from xloader.engine.block_reader import BlockReader, Bundle
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.errors import CorruptChunkError, MemoryBudgetError
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import layout_of
from xloader.recipe.recipe import Field, Recipe
from xloader.sources.retries import Attempts

_NUM_REQUESTS: Final = 16
"""Threads that read from a store whose reads mostly wait."""

NUM_BLOCKS: Final = 1024
"""So many chunks are listed for reading at a time: the list takes 3 KiB for each."""


def check_memory(
    what: str, memory_nbytes: int, least_nbytes: int, remedy: str, num_sharing: int = 1
) -> None:
    """Refuse a memory that is too small for something."""
    if least_nbytes > memory_nbytes:
        raise MemoryBudgetError(
            f"the memory is too small for {what}",
            given=f"memory={memory_nbytes} bytes",
            minimum_nbytes=least_nbytes,
            remedy=remedy,
            num_sharing=num_sharing,
        )


@dataclass(frozen=True, slots=True)
class ChunkValues:
    """The selected values of one chunk."""

    variable: str
    begins: tuple[int, ...]
    values: NDArray[Any]


class ChunkSweep:
    """A reader of the chunks of a recipe. Use it in a ``with`` statement."""

    def __init__(
        self, recipe: Recipe, footprint: Footprint, most_nbytes: int, num_threads: int
    ) -> None:
        stored = stored_variables(recipe, footprint)
        # A bundle takes several times its decoded bytes while it is worked on.
        if any(map(recipe.source.is_waiting, stored)):
            num_threads = max(num_threads, _NUM_REQUESTS)
        self._num_threads = max(min(num_threads, most_nbytes // footprint.max_chunk_nbytes), 1)
        share, policy = most_nbytes // self._num_threads, recipe.retry_policy
        self._reader = BlockReader(recipe.source, stored, share, policy)
        self._stored = stored
        self._max_retries = policy.max_retries
        self._threads = TaskThreads(policy, recipe.source.name)
        self.num_reads = 0

    def __enter__(self) -> ChunkSweep:
        self._reader.change_watch.begin()
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        self._threads.close()
        if error_type is None:
            self._reader.change_watch.check(is_last=True)

    def read(
        self,
        group: Group,
        blocks: Sequence[tuple[int, ...]],
        use: Callable[[ChunkValues], None],
        share: tuple[int, int] = (0, 1),
    ) -> list[ThreadTask]:
        """The tasks that read the chunks of some blocks; pass them to `do`."""
        tasks = []
        bundles = self._reader.bundles(group, blocks, self._num_threads)
        for bundle in bundles if share[1] == 1 else _one_share(bundles, share):
            self.num_reads += bundle.num_reads
            task = partial(self._read_bundle, group, blocks, bundle, use)
            tasks.append(ThreadTask(bundle.reads, task))
        return tasks

    def do(self, tasks: Sequence[ThreadTask], most_threads: int | None = None) -> None:
        """Do some tasks, and return when all are done."""
        if tasks:
            self._threads.do(tasks, most_threads or self._num_threads)

    def _read_bundle(
        self,
        group: Group,
        blocks: Sequence[tuple[int, ...]],
        bundle: Bundle,
        use: Callable[[ChunkValues], None],
        _: Attempts,
    ) -> None:
        outs, begins = [], []
        for read, (number, _part, place) in zip(bundle.reads, bundle.places, strict=True):
            variable = self._stored[read.variable]
            # A variable without dimensions has an ellipsis as its place.
            parts = [part for part in place if isinstance(part, slice)]
            outs.append(np.empty([part.stop - part.start for part in parts], variable.dtype))
            first = [
                part.start if dim is None else _begin_of(group, dim, blocks[number])
                for part, dim in zip(parts, variable.windowed, strict=True)
            ]
            begins.append(tuple(first))
        try:
            self._reader.fetch(bundle).decode(outs)
        except CorruptChunkError:
            # As in an epoch: the bytes may have been cut short on a network.
            if not bundle.is_waiting or not self._max_retries:
                raise
            self._reader.fetch(bundle).decode(outs)
        for read, first_elements, values in zip(bundle.reads, begins, outs, strict=True):
            use(ChunkValues(read.variable, first_elements, values))


def _one_share(bundles: Sequence[Bundle], share: tuple[int, int]) -> Iterator[Bundle]:
    """One of some equal shares of the reads of some bundles, as bundles."""
    total, first = sum(len(bundle.reads) for bundle in bundles), 0
    begin, end = (total * number // share[1] for number in (share[0], share[0] + 1))
    for bundle in bundles:
        lo, hi = max(begin - first, 0), min(end - first, len(bundle.reads))
        first += len(bundle.reads)
        if lo < hi:
            yield bundle.some(range(lo, hi))


def _begin_of(group: Group, dim: int, block: tuple[int, ...]) -> int:
    axis = group.axes[dim]
    assert axis is not None
    return axis.span_of(block[dim])[0]


def whole_recipe(recipe: Recipe, names: Iterable[str], fields: tuple[Field, ...] = ()) -> Recipe:
    """The recipe with one window over everything that is selected of some variables."""
    dims = tuple(dict.fromkeys(dim for name in names for dim in recipe.dims_of(name)))
    if fields:
        # The window of a field without dimensions lies along some other one.
        dims = dims or tuple(recipe.dim_sizes)[:1]
    sizes = tuple(recipe.dim_sizes[dim] for dim in dims)
    windows = Windows(dims, sizes, sizes, sizes, (1,) * len(sizes))
    return replace(
        recipe, windows=windows, fields=fields, steps=(), subset=None, slab=None, num_taken=None
    )


def one_sample(recipe: Recipe, name: str) -> tuple[Recipe, Footprint]:
    """One sample that takes all selected elements of a variable, and the chunks that it needs."""
    whole = whole_recipe(recipe, (name,), (Field(name, (name,), has_channels=False),))
    return whole, make_footprint(whole, (layout_of(whole, whole.fields[0]),))


def sweep_values(
    recipe: Recipe,
    name: str,
    most_nbytes: int,
    num_threads: int,
    use: Callable[[ChunkValues], None],
) -> int:
    """Read all chunks of a variable once; the number of reads."""
    whole, footprint = one_sample(recipe, name)
    with ChunkSweep(whole, footprint, most_nbytes, num_threads) as sweep:
        for group in footprint.groups:
            needed = footprint.needed(group)
            for begin in range(0, len(needed), NUM_BLOCKS):
                index = np.unravel_index(needed[begin : begin + NUM_BLOCKS], group.shape)
                blocks = [tuple(row) for row in np.stack(index, axis=-1).tolist()]
                sweep.do(sweep.read(group, blocks, use))
        return sweep.num_reads


def group_of(whole: Recipe, name: str) -> Group:
    """The chunks of one variable, as a group of its own."""
    layout = layout_of(whole, Field(name, (name,), has_channels=False))
    return make_footprint(whole, (layout,)).groups[0]


Deltas = Sequence[tuple[int, NDArray[np.bool_]]]
"""How many blocks later elements lie beyond earlier ones, and for which blocks that is."""


@dataclass(frozen=True, eq=False)
class ChunkOrder:
    """The chunks of a variable that samples need, in order, and their pieces.

    `chunks`: they are sorted by their place along the kept axes. `places`: number of each tree's
    block along the kept axes, ascending.
    """

    variable: str
    axes: tuple[Axis, ...]
    kept: tuple[int, ...]
    chunks: Ints
    first: Ints
    second: Ints
    places: Ints
    edges: Ints

    @classmethod
    def of(
        cls,
        variable: str,
        axes: tuple[Axis, ...],
        kept: tuple[int, ...],
        needed: Ints,
        clock: int | None = None,
        deltas: Deltas = (),
    ) -> ChunkOrder:
        """Order the chunks of a variable.

        `needed`: numbers of the chunks, ascending.
        """
        grid = tuple(axis.num_blocks for axis in axes)
        index = np.unravel_index(needed, grid) if grid else ()
        # Along the clock last: then few values wait for their later partners.
        reduced = [axis for axis in range(len(grid)) if axis not in kept and axis != clock]
        reduced += [] if clock is None or clock in kept else [clock]
        place = _ravel([index[axis] for axis in kept], [grid[axis] for axis in kept], len(needed))
        within = _ravel([index[a] for a in reduced], [grid[a] for a in reduced], len(needed))
        rank = np.lexsort((within, place))
        chunks, place = needed[rank], place[rank]
        first = second = np.arange(len(chunks))
        if deltas:
            assert clock is not None
            first, second = _pairs(chunks, index[clock][rank], grid, clock, deltas)
        trees, begins = np.unique(place[first], return_index=True)
        edges = np.append(begins, len(first)).astype(np.int64)
        return cls(variable, axes, kept, chunks, first, second, trees, edges)

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""
        return len(self.first)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(axis.num_blocks for axis in self.axes)

    @cached_property
    def _by_second(self) -> tuple[Ints, Ints]:
        rank = np.argsort(self.second, kind="stable")
        return rank, self.second[rank]

    def pieces_of(self, at: int) -> list[int]:
        """The pieces that the chunk at a place of ``chunks`` belongs to."""
        if self.first is self.second:
            return [at]
        lo, hi = np.searchsorted(self.first, [at, at + 1]).tolist()
        rank, seconds = self._by_second
        begin, end = np.searchsorted(seconds, [at, at + 1]).tolist()
        later = [piece for piece in rank[begin:end].tolist() if not lo <= piece < hi]
        return [*range(lo, hi), *later]

    def tree_of(self, piece: int) -> int:
        """Number of the tree that a piece belongs to."""
        return int(np.searchsorted(self.edges, piece, side="right")) - 1

    def blocks(self, at: Ints) -> Ints:
        """The block along each axis of the chunks at some places, shape ``(n, num_axes)``."""
        if not self.grid:
            return np.zeros((len(at), 0), np.int64)
        return np.stack(np.unravel_index(self.chunks[at], self.grid), axis=-1).astype(np.int64)

    def most_open(self) -> int:
        """Most pieces of which one chunk has been read and the other not, in order."""
        if self.first is self.second:
            return 0
        steps = np.bincount(np.minimum(self.first, self.second), minlength=len(self.chunks) + 1)
        steps -= np.bincount(np.maximum(self.first, self.second), minlength=len(self.chunks) + 1)
        return int(np.cumsum(steps).max(initial=0))


def _ravel(index: list[Ints], sizes: list[int], num: int) -> Ints:
    if not index:
        return np.zeros(num, np.int64)
    return np.asarray(np.ravel_multi_index(tuple(index), tuple(sizes)), np.int64)


def _pairs(
    chunks: Ints, along: Ints, grid: tuple[int, ...], clock: int, deltas: Deltas
) -> tuple[Ints, Ints]:
    """The places of the chunks of each pair that holds differences."""
    stride = math.prod(grid[clock + 1 :])
    rank = np.argsort(chunks, kind="stable")
    ordered = chunks[rank]
    rows = []
    for number, (delta, occurs) in enumerate(deltas):
        firsts = np.flatnonzero(occurs[along])
        wanted = chunks[firsts] + delta * stride
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        is_there = ordered[at] == wanted
        firsts, seconds = firsts[is_there], rank[at[is_there]]
        rows.append(np.stack([firsts, np.full(len(firsts), number), seconds]))
    first, number, second = np.concatenate(rows, axis=1)
    order = np.lexsort((number, first))
    return np.asarray(first[order], np.int64), np.asarray(second[order], np.int64)


def needed_chunks(recipe: Recipe, footprint: Footprint | None, variable: str) -> Ints:
    """Numbers of the chunks of a variable that samples need, in C order of blocks, ascending.

    `footprint`: the chunks that they need; None for all.
    """
    dims = recipe.variable(variable).dims
    grid = tuple(axis.num_blocks for axis in recipe.axes_of(variable))
    if footprint is None or not dims:
        return np.arange(math.prod(grid), dtype=np.int64)
    windowed = footprint.windows.dims
    (group,) = (g for g in footprint.groups if variable in [d.variable for d in g.demands])
    index = np.unravel_index(footprint.needed(group), group.shape)
    others = [np.arange(n) for dim, n in zip(dims, grid, strict=True) if dim not in windowed]
    # All blocks along the other dimensions, for each needed combination along the windowed ones.
    places, *along = np.ix_(np.arange(len(index[0])), *others)
    blocks = [index[windowed.index(d)][places] if d in windowed else along.pop(0) for d in dims]
    return np.unique(np.ravel_multi_index(tuple(blocks), grid)).astype(np.int64)
