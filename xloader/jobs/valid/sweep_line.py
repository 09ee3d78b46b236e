"""The sweep over the chunks of a recipe: which windows count, and which chunks are read when.

Blocks are sorted by the first window that each reaches into along one dimension, the *sweep*. After
each wave of blocks, the windows before the first one of the next wave are complete.
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
from xloader.core.footprint import Footprint, Group
from xloader.core.windows import Windows
from xloader.jobs.valid.batch_sweep import nearest
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

Span = tuple[int, int, int]
"""Elements that a field takes of a window along a dimension: ``(first, step, count)``."""


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


class RollingCounts:
    """Counts for the windows under way; those of complete windows are taken out."""

    def __init__(
        self, sizes: tuple[int, ...], has_sweep: bool, dtype: np.dtype, first: int = 0
    ) -> None:
        self._has_sweep = has_sweep
        self._first = first
        self._counts = np.zeros((0, *sizes[1:]) if has_sweep else sizes, dtype)

    def reserve(self, end: int) -> None:
        """Make room for windows up to ``end`` along the first dimension."""
        if not self._has_sweep:
            return
        missing = end - self._first - len(self._counts)
        if missing > 0:
            more = np.zeros((missing, *self._counts.shape[1:]), self._counts.dtype)
            self._counts = np.concatenate([self._counts, more])

    def add(self, begins: tuple[int, ...], counts: Ints) -> None:
        """Add counts to a box of windows that begins at ``begins``."""
        shifted = list(begins)
        if self._has_sweep:
            shifted[0] -= self._first
        box = tuple(slice(b, b + n) for b, n in zip(shifted, counts.shape, strict=True))
        self._counts[box] += counts

    def peek(self, begin: int, end: int) -> NDArray[np.signedinteger]:
        """The counts of windows ``begin`` to ``end`` along the first dimension, or all of them."""
        if not self._has_sweep:
            return self._counts
        counts = self._counts[begin - self._first : end - self._first]
        if len(counts) < end - begin:
            # No chunk that is needed reaches into these windows, so no room was made for them.
            none = np.zeros((end - begin - len(counts), *counts.shape[1:]), counts.dtype)
            counts = np.concatenate([counts, none])
        return counts

    def drop(self, end: int) -> None:
        """Forget the windows below ``end`` along the first dimension."""
        if self._has_sweep and end > self._first:
            self._counts = self._counts[end - self._first :].copy()
            self._first = end


_PIECE_SIZE = 1 << 20
"""Number of samples that are handled in one call."""

_FEW = 16
"""With fewer than one window in so many, only the positions of a subset's windows count."""

_MOST_BLOCKS = 1 << 12
"""Most blocks that are read before complete windows become bits."""


@dataclass(frozen=True, eq=False)
class Places:
    """The windows whose elements are counted: all, or those at the positions of a subset.

    `num_along`: most windows along the sweep that one block reaches into.
    """

    dims: tuple[str, ...]
    order: tuple[int, ...]
    lines: tuple[StartLine, ...]
    num_along: int

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
            at = slice(begin, end)
            blocks = []
            for number, group in enumerate(self.groups):
                numbers = self.block[at][self.group[at] == number]
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
    lo = np.min([reach[0] for reach in ranges], axis=0)
    return lo, np.maximum(np.max([reach[1] for reach in ranges], axis=0), lo)


def choose_places(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], footprint: Footprint | None
) -> Places:
    """The windows to count, swept along the dimension where fewest are under way."""
    windows, subset = recipe.require_windows(), recipe.subset
    lines = [StartLine(windows, dim) for dim in range(len(windows.dims))]
    if subset is not None and _FEW * len(subset) < len(windows):
        kept = [np.zeros(0, np.int64)] * len(lines)
        for begin in range(0, len(subset), _PIECE_SIZE):
            ids = np.arange(begin, min(begin + _PIECE_SIZE, len(subset)))
            columns = recipe.positions_of(ids).T
            kept = [np.union1d(old, new) for old, new in zip(kept, columns, strict=True)]
        lines = [StartLine(windows, dim, positions) for dim, positions in enumerate(kept)]
    accesses = [part.accesses for layout in layouts for part in layout.parts]
    taken_dims = [[span is not None for span in access] for access in accesses]
    costs, spans = [], []
    for dim, line in enumerate(lines):
        reached = [_reached(group, dim, line) for group in footprint.groups] if footprint else []
        longest = max((int((r[1] - r[0]).max(initial=0)) for r in reached if r), default=0)
        spans.append(longest)
        sizes = [longest if d == dim else len(lines[d]) for d in range(len(lines))]
        costs.append(sum(math.prod(itertools.compress(sizes, taken)) for taken in taken_dims))
    sweep = costs.index(min(costs))
    order = (sweep, *(dim for dim in range(len(lines)) if dim != sweep))
    dims = tuple(windows.dims[dim] for dim in order)
    return Places(dims, order, tuple(lines[dim] for dim in order), spans[sweep])


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
    def footprint(self) -> Footprint | None:
        """The chunks of variables that may hold NaN, which are read; None if there are none."""
        recipe = self.recipe
        read = tuple(
            replace(
                layout, parts=tuple(p for p in layout.parts if may_hold_nan(recipe, p.variable))
            )
            for layout in self.layouts
        )
        if not any(layout.parts for layout in read):
            return None
        return make_footprint(recipe, tuple(layout for layout in read if layout.parts))

    @cached_property
    def line(self) -> SweepLine:
        """All blocks that are read, in the order of the sweep."""
        assert self.footprint is not None
        return SweepLine.of(self.footprint, self.places)

    @cached_property
    def parts(self) -> tuple[SweepLine, SweepLine]:
        """The blocks of variables without the sweep dimension, and the others."""
        return self.line.apart(self.places)

    @cached_property
    def places(self) -> Places:
        """The windows that are counted."""
        return choose_places(self.recipe, self.layouts, self.footprint)


_ENOUGH: Final = 0.75
"""Whole shards are kept together if that gives this part of the units that were asked for."""


@dataclass(frozen=True)
class SweepUnit:
    """Blocks whose elements are counted apart.

    `alone`: the windows that no other unit reaches into.
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


def cut_sweep(
    line: SweepLine, recipe: Recipe, places: Places, most_nbytes: int, most_border: int
) -> list[SweepUnit]:
    """Cut a sweep into units."""
    if not len(line.lo):
        return []
    is_new = np.diff(line.lo, prepend=line.lo[0]) > 0
    is_whole = is_new & ~_within_objects(line, recipe, places)
    # The blocks at which a unit may begin: the fewest, then more, then all but the first.
    levels = [np.flatnonzero(is_whole), np.flatnonzero(is_new), np.arange(1, len(line.lo))]
    while True:
        begins = _begins(line, levels, most_nbytes)
        units = list(_units(line, begins, most_nbytes))
        if len(units) == 1 or sum(unit.num_border for unit in units) <= most_border:
            return units
        most_nbytes *= 2


def _begins(line: SweepLine, levels: list[Ints], most_nbytes: int) -> list[int]:
    """The first block of each unit, then the number of blocks."""
    sizes = line.sizes
    before = np.cumsum(sizes) - sizes
    count = max(min(-(-int(sizes.sum()) // most_nbytes), len(sizes)), 1)
    marks = np.arange(1, count) * (int(sizes.sum()) / count)
    cuts: Ints = np.zeros(0, np.int64)
    for at in levels:
        if len(at):
            cuts = np.unique(at[nearest(before[at], marks)])
        if len(cuts) + 1 >= _ENOUGH * count:
            break
    return [0, *cuts.tolist(), len(sizes)]


def _within_objects(line: SweepLine, recipe: Recipe, places: Places) -> NDArray[np.bool_]:
    """Whether a stored object, such as a shard, has blocks before each block and from it on."""
    dim, name = places.order[0], places.dims[0]
    steps = np.zeros(len(line.lo) + 1, np.int64)
    for number, group in enumerate(line.groups):
        axis, rows = group.axes[dim], np.flatnonzero(line.group == number)
        if axis is None or not len(rows):
            continue
        along, which = np.unique(
            np.unravel_index(line.block[rows], group.shape)[dim], return_inverse=True
        )
        for demand in group.demands:
            chunk = [0] * len(recipe.variable(demand.variable).dims)
            keys: dict[object, int] = {}
            numbers = []
            for block in along.tolist():
                chunk[recipe.variable(demand.variable).dims.index(name)] = axis.stored_chunk(block)
                key = recipe.source.bundle_of(demand.variable, tuple(chunk))
                # Small chunks may be read with any others, but each is an object of its own.
                key = block if key is None else key
                numbers.append(keys.setdefault(key, len(keys)))
            objects = np.array(numbers)[which]
            firsts, lasts = np.full(len(keys), len(line.lo)), np.zeros(len(keys), np.int64)
            np.minimum.at(firsts, objects, rows)
            np.maximum.at(lasts, objects, rows)
            np.add.at(steps, firsts + 1, 1)
            np.add.at(steps, lasts + 1, -1)
    return np.cumsum(steps)[:-1] > 0


def _units(line: SweepLine, begins: list[int], most_nbytes: int) -> Iterator[SweepUnit]:
    sizes = line.sizes
    reach = np.maximum.accumulate(line.hi)
    for begin, end in itertools.pairwise(begins):
        # The first unit also has the windows that no block reaches into.
        first = int(line.lo[begin]) if begin else 0
        last = int(line.hi[begin:end].max())
        done = int(line.lo[end]) if end < len(sizes) else line.num_windows
        first_alone = max(int(reach[begin - 1]), first) if begin else 0
        alone = (first_alone, done) if first_alone < done else (first, first)
        count = 1
        if end - begin == 1 and sizes[begin] > 1.5 * most_nbytes:
            reads = line.groups[line.group[begin]].num_reads_per_block
            count = min(-(-int(sizes[begin]) // most_nbytes), reads)
        if count == 1:
            yield SweepUnit(begin, end, first, last, alone, done)
            continue
        for number in range(count):
            complete = done if number == count - 1 else first
            yield SweepUnit(begin, end, first, last, (first, first), complete, (number, count))
