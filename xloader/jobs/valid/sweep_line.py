"""The sweep over the chunks of a recipe: which windows count, and which chunks are read when.

Blocks are sorted by the first window that each reaches into along one dimension, the *sweep*. After
each wave of blocks, the windows before the first one of the next wave are complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint, Group
from xloader.jobs.valid.window_sums import StartLine
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

_PIECE_SIZE = 1 << 20
"""Number of samples that are handled in one call."""

_FEW = 16
"""With fewer than one window in so many, only the positions of a subset's windows count."""

_MOST_BLOCKS = 1 << 12
"""Most blocks that are read before complete windows become bits."""


@dataclass(frozen=True, eq=False)
class Places:
    """The windows whose elements are counted: all, or those at the positions of a subset."""

    dims: tuple[str, ...]
    order: tuple[int, ...]
    lines: tuple[StartLine, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of positions along each dimension."""
        return tuple(map(len, self.lines))


@dataclass(frozen=True)
class Wave:
    """Blocks that are read together."""

    blocks: list[tuple[Group, list[tuple[int, ...]]]]
    end: int
    complete: int


@dataclass(frozen=True, eq=False)
class SweepLine:
    """All blocks that are needed, by the first window along the sweep that each reaches into."""

    groups: tuple[Group, ...]
    group: Ints
    block: Ints
    lo: Ints
    hi: Ints
    num_windows: int

    @classmethod
    def of(cls, footprint: Footprint, places: Places) -> SweepLine:
        """Sort the blocks that the samples of a footprint need."""
        columns = []
        dim = places.order[0]
        for number, group in enumerate(footprint.groups):
            blocks = footprint.needed(group)
            lo = hi = np.zeros(len(blocks), np.int64)
            reached = _reached(group, dim, places.lines[0])
            if reached is not None:
                index = np.unravel_index(blocks, group.shape)[dim]
                lo, hi = reached[0][index], reached[1][index]
            columns.append(np.stack([np.full(len(blocks), number), blocks, lo, hi]))
        rows = np.concatenate(columns, axis=1)
        rows = rows[:, np.argsort(rows[2], kind="stable")]
        group_of, block, lo, hi = rows
        return cls(footprint.groups, group_of, block, lo, hi, len(places.lines[0]))

    @cached_property
    def sizes(self) -> Ints:
        """Decoded bytes of the chunks that are read for each block."""
        sizes = np.zeros(len(self.lo), np.int64)
        for number, group in enumerate(self.groups):
            is_own = self.group == number
            sizes[is_own] = group.read_nbytes(self.block[is_own])
        return sizes

    def take(self, chosen: slice | Ints) -> SweepLine:
        """The line of some of the blocks, in the same order."""
        return replace(
            self,
            group=self.group[chosen],
            block=self.block[chosen],
            lo=self.lo[chosen],
            hi=self.hi[chosen],
        )

    def apart(self, places: Places) -> tuple[SweepLine, SweepLine]:
        """The blocks without the sweep dimension, which complete no windows; and the others."""
        lacks = np.array([group.axes[places.order[0]] is None for group in self.groups])
        is_static = lacks[self.group]
        static = replace(self.take(np.flatnonzero(is_static)), num_windows=0)
        return static, self.take(np.flatnonzero(~is_static))

    def waves(self, most_along: int) -> Iterator[Wave]:
        """Yield blocks to read together, in order."""
        begin, size = 0, len(self.lo)
        while begin < size:
            # Windows below the first one that this wave reaches into are complete.
            ends = np.maximum.accumulate(self.hi[begin : begin + _MOST_BLOCKS])
            fitting = np.searchsorted(ends, self.lo[begin] + most_along, side="right")
            end = begin + max(int(fitting), 1)
            own = slice(begin, end)
            blocks = []
            for number, group in enumerate(self.groups):
                numbers = self.block[own][self.group[own] == number]
                rows = np.stack(np.unravel_index(numbers, group.shape), axis=-1)
                blocks.append((group, [tuple(row) for row in rows.tolist()]))
            complete = int(self.lo[end]) if end < size else self.num_windows
            yield Wave([pair for pair in blocks if pair[1]], int(ends[end - begin - 1]), complete)
            begin = end


def _reached(group: Group, dim: int, line: StartLine) -> tuple[Ints, Ints] | None:
    """Per block along a dimension, the range of windows it reaches into; None without the dim."""
    axis = group.axes[dim]
    if axis is None:
        return None
    ranges = [
        line.touching(axis.edges[:-1], axis.edges[1:], span)
        for access in group.accesses
        if (span := access[dim]) is not None
    ]
    lo = np.min([own[0] for own in ranges], axis=0)
    return lo, np.maximum(np.max([own[1] for own in ranges], axis=0), lo)


def choose_places(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], footprint: Footprint | None
) -> tuple[Places, int]:
    """The windows to count, swept along the dimension where fewest are under way.

    Also returns the most windows along the sweep that one block reaches into.
    """
    windows, subset = recipe.require_windows(), recipe.subset
    lines = [StartLine(windows, dim) for dim in range(len(windows.dims))]
    if subset is not None and _FEW * len(subset) < len(windows):
        kept = [np.zeros(0, np.int64)] * len(lines)
        for begin in range(0, len(subset), _PIECE_SIZE):
            ids = np.arange(begin, min(begin + _PIECE_SIZE, len(subset)))
            columns = recipe.positions_of(ids).T
            kept = [np.union1d(old, new) for old, new in zip(kept, columns, strict=True)]
        lines = [StartLine(windows, dim, own) for dim, own in enumerate(kept)]
    costs, spans = [], []
    for dim, line in enumerate(lines):
        found = [_reached(group, dim, line) for group in footprint.groups] if footprint else []
        longest = max((int((r[1] - r[0]).max(initial=0)) for r in found if r), default=0)
        spans.append(longest)
        costs.append(
            sum(
                math.prod(
                    longest if d == dim else len(lines[d])
                    for d, access in enumerate(part.accesses)
                    if access is not None
                )
                for layout in layouts
                for part in layout.parts
            )
        )
    sweep = costs.index(min(costs))
    order = (sweep, *(dim for dim in range(len(lines)) if dim != sweep))
    dims = tuple(windows.dims[dim] for dim in order)
    return Places(dims, order, tuple(lines[dim] for dim in order)), spans[sweep]
