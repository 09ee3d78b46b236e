"""Statistics of the elements of one chunk that samples need, also of leads between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints
from xloader.jobs.chunk_sweep import Deltas
from xloader.jobs.covered_elements import Flags, mask_of
from xloader.jobs.statistics.moments import LabelledMoments, Moments, side_by_side
from xloader.jobs.statistics.quantile_sketch import QuantileSketch
from xloader.jobs.statistics.stats_options import LeadPairs

_ONE_ROW = np.zeros(1, np.int64)

Taken = slice | Ints


@dataclass(frozen=True, eq=False)
class ChunkElements:
    """Values of a chunk, and which of them count.

    `lines`: per axis, the elements that count; None for all. `begin`: place in the chunk, along
    time, of the first ones.
    """

    values: NDArray[Any]
    lines: tuple[Flags | None, ...]
    flags: Flags | None = None
    weights: NDArray[np.float64] | None = None
    rows: Ints | None = None
    begin: int = 0

    def take(self, axis: int, part: Taken, *, has_rows: bool = False) -> ChunkElements:
        """Some elements along an axis."""
        at = (slice(None),) * axis + (part,)
        lines = list(self.lines)
        line = lines[axis]
        lines[axis] = None if line is None else line[part]
        flags, weights = self.flags, self.weights
        if flags is not None and flags.shape[axis] > 1:
            flags = flags[at]
        if weights is not None and weights.shape[axis] > 1:
            weights = weights[at]
        rows = self.rows[part] if self.rows is not None and has_rows else self.rows
        return ChunkElements(self.values[at], tuple(lines), flags, weights, rows)

    def minus(self, earlier: ChunkElements) -> ChunkElements:
        """The differences from earlier elements, which count if both do."""
        # In float64: a difference of rounded numbers is not rounded once more.
        values = self.values.astype(np.float64)
        values -= earlier.values
        lines = tuple(_both(*pair) for pair in zip(self.lines, earlier.lines, strict=True))
        flags = _both(self.flags, earlier.flags)
        return ChunkElements(values, lines, flags, earlier.weights, earlier.rows)


def _both(first: Flags | None, second: Flags | None) -> Flags | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def reduce_elements(
    elements: ChunkElements, kept: tuple[int, ...], clock: int | None, *, has_sketches: bool = False
) -> LabelledMoments:
    """The statistics of elements of a chunk, by label.

    Of the shape of the kept axes, for each label.
    """
    for axis, line in enumerate(elements.lines):
        if line is not None and axis not in kept:
            elements = elements.take(axis, run_of(np.flatnonzero(line)), has_rows=axis == clock)
            lines = tuple(None if d == axis else line for d, line in enumerate(elements.lines))
            elements = replace(elements, lines=lines)
    parts, rows = [elements], _ONE_ROW
    if elements.rows is not None:
        assert clock is not None
        rows = np.unique(elements.rows)
        parts = [
            elements.take(clock, run_of(np.flatnonzero(elements.rows == row)), has_rows=True)
            for row in rows
        ]
    axes = tuple(axis for axis in range(elements.values.ndim) if axis not in kept)
    shape = tuple(elements.values.shape[axis] for axis in kept)
    several = [Moments.of(p.values, axes, mask_of(p.lines, p.flags), p.weights) for p in parts]
    sketches = None
    if has_sketches:
        sketches = np.empty((len(parts), *shape), object)
        for number, part in enumerate(parts):
            sketches[number, ...] = _sketches_of(part, kept)
    if len(several) == 1:
        # Views are made faster than stacks, which counts for small chunks.
        moments = Moments.joined(several, lambda arrays: arrays[0][None])
    elif several:
        moments = Moments.joined(several, np.stack)
    else:
        moments = Moments.empty((0, *shape))
    return LabelledMoments(rows, moments, sketches)


def _sketches_of(elements: ChunkElements, kept: tuple[int, ...]) -> NDArray[Any]:
    """The sketch of each kept element."""

    def by_cell(array: NDArray[Any]) -> NDArray[Any]:
        whole = np.broadcast_to(array, elements.values.shape)
        return np.moveaxis(whole, kept, range(len(kept)))

    values, valid = by_cell(elements.values), mask_of(elements.lines, elements.flags)
    valid = None if valid is None else by_cell(valid)
    weights = None if elements.weights is None else by_cell(elements.weights)
    sketches = np.empty(values.shape[: len(kept)], object)
    for cell in np.ndindex(sketches.shape):
        # With the ellipsis, a single element stays an array.
        at = (*cell, ...)
        part, heavy = values[at], None if weights is None else weights[at]
        if valid is not None:
            part, heavy = part[valid[at]], None if heavy is None else heavy[valid[at]]
        sketches[cell] = QuantileSketch.of(part, heavy)
    return sketches


def run_of(places: Ints) -> Taken:
    """The places as a slice if they follow each other at one distance, which saves a copy."""
    if len(places) < 2:
        return slice(int(places[0]), int(places[0]) + 1) if len(places) else slice(0, 0)
    step = int(places[1] - places[0])
    if step > 0 and (np.diff(places) == step).all():
        return slice(int(places[0]), int(places[-1]) + 1, step)
    return places


@dataclass(frozen=True, eq=False)
class LeadPieces:
    """Which blocks along time hold differences, and which elements of them."""

    leads: tuple[LeadPairs, ...]
    axis: Axis

    def _pairs(self) -> Iterator[tuple[int, Ints, Ints, Ints]]:
        """Pairs by lead and distance: the latter, blocks of earlier elements, places of both.

        One after the other: all pairs at a time would take much memory.
        """
        edges = self.axis.edges
        for pairs in self.leads:
            earlier = np.flatnonzero(pairs.partner >= 0)
            later = pairs.partner[earlier]
            block, later_block = self.axis.block_of(earlier), self.axis.block_of(later)
            distance = later_block - block
            earlier, later = earlier - edges[block], later - edges[later_block]
            for delta in np.unique(distance).tolist():
                at = distance == delta
                yield delta, block[at], earlier[at], later[at]

    def deltas(self) -> Deltas:
        """How far apart the elements of pairs lie, in blocks."""
        occurring: dict[int, Flags] = {}
        for delta, block, _, _ in self._pairs():
            occurs = occurring.setdefault(delta, np.zeros(self.axis.num_blocks, np.bool_))
            occurs[block] = True
        return sorted(occurring.items())

    def places(self, first: int, second: int) -> list[tuple[Ints, Ints]]:
        """For each lead, the places of earlier and later elements within two blocks."""
        begin, end = self.axis.span_of(first)
        later_begin, later_end = self.axis.span_of(second)
        places = []
        for pairs in self.leads:
            partner = pairs.partner[begin:end]
            earlier = np.flatnonzero((partner >= later_begin) & (partner < later_end))
            places.append((earlier, partner[earlier] - later_begin))
        return places

    def longest_slab(self) -> int:
        """Most elements along time of a chunk that wait for another one."""
        none = np.full((2, self.axis.num_blocks), self.axis.size)
        # Per distance, side and block of the earlier elements: first and last element that waits.
        ends: dict[int, tuple[Ints, Ints]] = {}
        for delta, block, *both in self._pairs():
            first, last = ends.setdefault(delta, (none.copy(), -none))
            for side, places in enumerate(both):
                np.minimum.at(first[side], block, places)
                np.maximum.at(last[side], block, places)
        waiting = [ends[delta] for delta in ends if delta]
        return max((int((last - first).max()) + 1 for first, last in waiting), default=0)

    def slab(
        self, elements: ChunkElements, clock: int, piece: tuple[int, int], side: int
    ) -> ChunkElements:
        """The elements of a chunk that wait for another chunk, in memory of their own."""
        taken = np.concatenate([pair[side] for pair in self.places(*piece)])
        lo, hi = int(taken.min()), int(taken.max()) + 1
        part = elements.take(clock, slice(lo, hi), has_rows=True)
        flags = None if part.flags is None else np.array(part.flags)
        return replace(part, values=np.array(part.values), flags=flags, begin=lo)

    def reduce(
        self,
        earlier: ChunkElements,
        later: ChunkElements,
        clock: int,
        piece: tuple[int, int],
        kept: tuple[int, ...],
        *,
        has_sketches: bool,
    ) -> LabelledMoments:
        """The statistics of the differences between two chunks, for each lead."""
        statistics = []
        for pairs, (firsts, seconds) in zip(self.leads, self.places(*piece), strict=True):
            first = earlier.take(clock, run_of(firsts - earlier.begin), has_rows=True)
            if pairs.steps:
                second = later.take(clock, run_of(seconds - later.begin), has_rows=True)
                first = second.minus(first)
            statistics.append(reduce_elements(first, kept, clock, has_sketches=has_sketches))
        return side_by_side(statistics)
