"""The chunks of a variable in the order in which a job reads them, and the parts that it merges.

Chunks at the same place of the kept dimensions follow each other, so that their statistics are
complete before the next place begins. A *piece* is a chunk; or, for differences along time, a pair
of chunks of which one holds the earlier and one the later elements::

    kept place     0             1
    chunks         0  1  2  3    4  5  6  7       time along each place
    pieces         00 01 11 ...  44 45 55 ...     with a lead shorter than a chunk
    trees          one of place 0, one of place 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Footprint
from xloader.recipe.recipe import Recipe

NO_DELTAS = (0,)
"""Without differences, a piece is one chunk."""


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
        deltas: Sequence[tuple[int, Ints]] = (),
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

    def num_leaves(self, tree: int) -> int:
        """Number of pieces of a tree."""
        return int(self.edges[tree + 1] - self.edges[tree])

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
    chunks: Ints, along: Ints, grid: tuple[int, ...], clock: int, deltas: Sequence[tuple[int, Ints]]
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
    if footprint is None:
        return np.arange(math.prod(grid), dtype=np.int64)
    windowed = footprint.windows.dims
    (group,) = (g for g in footprint.groups if variable in [d.variable for d in g.demands])
    index = np.unravel_index(footprint.needed(group), group.shape)
    numbers = np.zeros(1, np.int64)
    offsets = np.zeros(len(index[0]), np.int64)
    stride = math.prod(grid)
    for dim, size in zip(dims, grid, strict=True):
        stride //= size
        if dim in windowed:
            offsets = offsets + index[windowed.index(dim)] * stride
        else:
            more = np.arange(size, dtype=np.int64) * stride
            numbers = (numbers[:, None] + more).reshape(-1)
    return np.unique(offsets[:, None] + numbers)
