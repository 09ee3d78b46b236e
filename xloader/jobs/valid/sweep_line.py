"""The sweep over the chunks of a recipe: which windows count, and which chunks are read when.

Blocks are sorted by the first window that each reaches into along one dimension, the *sweep*. Once
some blocks are read, the windows before the first one of the next block are complete.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.element_ranges import Span
from xloader.core.footprint import Footprint, Group
from xloader.core.windows import Windows
from xloader.jobs.valid.batch_sweep import nearest
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe


@dataclass(frozen=True, eq=False)
class StartLine:
    """The first elements of windows along one dimension, of all windows or of some.

    `positions`: the positions that count, ascending; by default all.
    """

    windows: Windows
    dim: int
    positions: Ints | None = None

    def __len__(self) -> int:
        if self.positions is None:
            return self.windows.num_positions[self.dim]
        return len(self.positions)

    def starts(self, begin: int, end: int) -> Ints:
        """First element of the windows ``begin`` to ``end``."""
        positions = np.arange(begin, end) if self.positions is None else self.positions[begin:end]
        return self.windows.starts_of(self.dim, positions)

    def touching(self, begin: Ints, end: Ints, span: Span) -> tuple[Ints, Ints]:
        """Half-open range of the windows of which a span may reach into ``[begin, end)``."""
        first, step, count = span
        last = first + step * (count - 1)
        return self._windows_from(begin - last), self._windows_from(end - first)

    def _windows_from(self, elements: Ints) -> Ints:
        numbers = self.windows.num_before(self.dim, elements)
        if self.positions is None:
            return numbers
        return np.asarray(np.searchsorted(self.positions, numbers), np.int64)


def sum_windows(values: Ints, axis: int, begin: int, starts: Ints, span: Span) -> Ints:
    """Sums over windows along one axis, of the elements that lie in a chunk."""
    first, step, count = span
    size = values.shape[axis]
    num_turns = -(-size // step)
    lined = np.moveaxis(values, axis, 0)
    sums = np.zeros((num_turns + 1, step, *lined.shape[1:]), values.dtype)
    flat = sums.reshape(-1, *lined.shape[1:])
    flat[step : step + size] = lined
    # Row ``i`` of ``flat`` is now the sum of all elements before ``i`` of the same residue.
    np.cumsum(sums, axis=0, out=sums)
    at = starts + (first - begin)
    lo = np.where(at >= 0, at, at % step)
    hi = np.minimum(at + step * count, lo + step * -(-np.maximum(size - lo, 0) // step))
    totals = flat[np.maximum(hi, lo)]
    totals -= flat[lo]
    return np.moveaxis(totals, 0, axis)


_PIECE_SIZE = 1 << 20
"""Number of samples that are handled in one call."""

_FEW = 16
"""With fewer than one window in so many, only the positions of a subset's windows count."""

_MOST_BLOCKS = 1 << 12
"""Most blocks that are read before complete windows become bits."""


@dataclass(frozen=True, eq=False)
class Places:
    """The windows whose elements are counted, along each dimension; that of the sweep is first.

    `order`: the number of each dimension among those of the windows. `num_along`: most windows
    along the sweep that one block reaches into.
    """

    order: tuple[int, ...]
    dims: tuple[str, ...]
    lines: tuple[StartLine, ...]
    num_along: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of positions along each dimension."""
        return tuple(map(len, self.lines))


@dataclass(frozen=True, eq=False)
class BlockLine:
    """Blocks, by the first window along the sweep that each reaches into.

    `group`: index of the group of each block. `lo, hi`: the windows that it reaches into.
    """

    groups: tuple[Group, ...]
    group: Ints
    block: Ints
    lo: Ints
    hi: Ints

    def __len__(self) -> int:
        return len(self.lo)

    def take(self, rows: slice | NDArray[np.bool_]) -> BlockLine:
        """Some of the blocks, in the same order."""
        columns = (column[rows] for column in (self.group, self.block, self.lo, self.hi))
        return BlockLine(self.groups, *columns)

    @cached_property
    def sizes(self) -> Ints:
        """Decoded bytes of the chunks that are read for each block."""
        sizes = np.zeros(len(self), np.int64)
        for number, group in enumerate(self.groups):
            is_of_group = self.group == number
            sizes[is_of_group] = group.read_nbytes(self.block[is_of_group])
        return sizes

    def waves(self, most_along: int) -> Iterator[tuple[BlockLine, int | None]]:
        """Yield blocks to read together, and the first window that later blocks reach into."""
        begin = 0
        while begin < len(self):
            ends = np.maximum.accumulate(self.hi[begin : begin + _MOST_BLOCKS])
            fitting = np.searchsorted(ends, self.lo[begin] + most_along, side="right")
            end = begin + max(int(fitting), 1)
            yield self.take(slice(begin, end)), int(self.lo[end]) if end < len(self) else None
            begin = end

    def by_group(self) -> Iterator[tuple[Group, list[tuple[int, ...]]]]:
        """Yield the groups, each with the indices of its blocks."""
        for number in np.unique(self.group).tolist():
            group = self.groups[number]
            indices = np.unravel_index(self.block[self.group == number], group.shape)
            yield group, list(zip(*(index.tolist() for index in indices), strict=True))


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
    lo = np.min([reach[0] for reach in ranges], axis=0)
    return lo, np.maximum(np.max([reach[1] for reach in ranges], axis=0), lo)


def may_hold_nan(recipe: Recipe, variable: str) -> bool:
    """Whether a variable can hold NaN. Integers can if they are packed with fill values.

    Computed variables count as valid: samples are chosen by what is stored.
    """
    stored = recipe.variable(variable)
    if stored.is_computed:
        return False
    if stored.packing is None:
        return stored.dtype.kind == "f"
    return bool(stored.packing.fills) or stored.packing.stored_dtype.kind == "f"


@dataclass(frozen=True, eq=False)
class SampleCheck:
    """Which samples hold enough valid elements: what is asked, and how windows are swept for it."""

    recipe: Recipe
    layouts: tuple[FieldLayout, ...]
    at_least: float

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out cached properties.
        return SampleCheck, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def read_layouts(self) -> tuple[FieldLayout, ...]:
        """The fields with those of their variables that may hold NaN, which are read."""
        read = []
        for layout in self.layouts:
            parts = tuple(p for p in layout.parts if may_hold_nan(self.recipe, p.variable))
            if parts:
                read.append(replace(layout, parts=parts))
        return tuple(read)

    @cached_property
    def footprint(self) -> Footprint | None:
        """The chunks that are read; None if there are none."""
        return make_footprint(self.recipe, self.read_layouts) if self.read_layouts else None

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of variables that are read."""
        return () if self.footprint is None else self.footprint.groups

    @cached_property
    def places(self) -> Places:
        """The windows to count, swept along the dimension where fewest are under way."""
        recipe, subset = self.recipe, self.recipe.subset
        windows = recipe.require_windows()
        lines = [StartLine(windows, dim) for dim in range(len(windows.dims))]
        if subset is not None and _FEW * len(subset) < len(windows):
            kept = [np.zeros(0, np.int64)] * len(lines)
            for begin in range(0, len(subset), _PIECE_SIZE):
                ids = np.arange(begin, min(begin + _PIECE_SIZE, len(subset)))
                columns = recipe.positions_of(ids).T
                kept = [np.union1d(old, new) for old, new in zip(kept, columns, strict=True)]
            lines = [StartLine(windows, dim, positions) for dim, positions in enumerate(kept)]
        accesses = [part.accesses for layout in self.layouts for part in layout.parts]
        costs, spans = [], []
        for dim, line in enumerate(lines):
            reached = [reach for group in self.groups if (reach := _reached(group, dim, line))]
            spans.append(max((int((hi - lo).max(initial=0)) for lo, hi in reached), default=0))
            sizes = [spans[dim] if d == dim else len(lines[d]) for d in range(len(lines))]
            taken = [[n for n, span in zip(sizes, a, strict=True) if span] for a in accesses]
            costs.append(sum(map(math.prod, taken)))
        sweep = costs.index(min(costs))
        order = (sweep, *(dim for dim in range(len(lines)) if dim != sweep))
        dims = tuple(windows.dims[dim] for dim in order)
        return Places(order, dims, tuple(lines[dim] for dim in order), spans[sweep])

    @cached_property
    def line(self) -> BlockLine:
        """All blocks that are read, in the order of the sweep."""
        assert self.footprint is not None
        columns = []
        sweep = self.places.order[0]
        for number, group in enumerate(self.groups):
            blocks = self.footprint.needed(group)
            lo = hi = np.zeros(len(blocks), np.int64)
            reached = _reached(group, sweep, self.places.lines[0])
            if reached is not None:
                index = np.unravel_index(blocks, group.shape)[sweep]
                lo, hi = reached[0][index], reached[1][index]
            columns.append(np.stack([np.full(len(blocks), number), blocks, lo, hi]))
        rows = np.concatenate(columns, axis=1)
        return BlockLine(self.groups, *rows[:, np.argsort(rows[2], kind="stable")])

    @cached_property
    def parts(self) -> tuple[BlockLine, BlockLine]:
        """The blocks without the sweep dimension, which complete no windows; and the others."""
        sweep = self.places.order[0]
        is_static = np.array([group.axes[sweep] is None for group in self.groups])[self.line.group]
        return self.line.take(is_static), self.line.take(~is_static)


_ENOUGH: Final = 0.75
"""Blocks of the same windows stay together if that gives this part of the units asked for."""


@dataclass(frozen=True)
class SweepUnit:
    """Blocks whose elements are counted apart.

    `first, last`: the windows that it reaches into. `alone`: those that no other unit reaches
    into. `done`: windows below it are complete with this unit. `share`: one of some equal parts of
    the reads of a single block.
    """

    begin: int
    end: int
    first: int
    last: int
    alone: tuple[int, int]
    done: int
    share: tuple[int, int] = (0, 1)

    @property
    def num_border(self) -> int:
        """Number of windows along the sweep of which it gives counts."""
        return self.alone[0] - self.first + max(self.last - self.alone[1], 0)


def cut_sweep(line: BlockLine, most_nbytes: int, most_border: int) -> list[SweepUnit]:
    """Cut blocks of the sweep into units; larger ones if they have too many windows in common."""
    if not len(line):
        return []
    while True:
        units = list(_units(line, _begins(line, most_nbytes), most_nbytes))
        if len(units) == 1 or sum(unit.num_border for unit in units) <= most_border:
            return units
        most_nbytes *= 2


def _begins(line: BlockLine, most_nbytes: int) -> list[int]:
    """The first block of each unit, then the number of blocks."""
    before = np.cumsum(line.sizes) - line.sizes
    total = int(line.sizes.sum())
    count = max(min(-(-total // most_nbytes), len(line)), 1)
    marks = np.arange(1, count) * (total / count)
    # A unit best begins where a block reaches into other windows than the one before.
    cuts = at = np.flatnonzero(np.diff(line.lo, prepend=line.lo[0]) > 0)
    if len(at):
        cuts = np.unique(at[nearest(before[at], marks)])
    if len(cuts) + 1 < _ENOUGH * count:
        at = np.arange(1, len(line))
        cuts = np.unique(at[nearest(before[at], marks)])
    return [0, *cuts.tolist(), len(line)]


def _units(line: BlockLine, begins: list[int], most_nbytes: int) -> Iterator[SweepUnit]:
    reach = np.maximum.accumulate(line.hi)
    for begin, end in itertools.pairwise(begins):
        # The first unit also has the windows that no block reaches into.
        first = int(line.lo[begin]) if begin else 0
        last = int(line.hi[begin:end].max())
        done = int(line.lo[end]) if end < len(line) else int(reach[-1])
        first_alone = max(int(reach[begin - 1]), first) if begin else 0
        alone = (first_alone, done) if first_alone < done else (first, first)
        count = 1
        if end - begin == 1 and line.sizes[begin] > 1.5 * most_nbytes:
            reads = line.groups[line.group[begin]].num_reads_per_block
            count = min(-(-int(line.sizes[begin]) // most_nbytes), reads)
        if count == 1:
            yield SweepUnit(begin, end, first, last, alone, done)
            continue
        for number in range(count):
            complete = done if number == count - 1 else first
            yield SweepUnit(begin, end, first, last, (first, first), complete, (number, count))
