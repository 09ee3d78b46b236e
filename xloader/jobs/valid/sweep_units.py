"""Ranges of the blocks of a sweep that are counted apart, as on the workers of a cluster.

A unit completes the windows that only its own blocks reach. The windows at its borders get a part
of their counts from it, and the rest from its neighbours::

    blocks     |  0    1    2  |  3    4    5  |        two units
    windows     0 0 0 0 0 0 0 b b 1 1 1 1 1 1 1         0, 1: complete in one unit; b: in neither

A unit ends where a stored object ends, such as a shard, if there are enough such places. A block
that is much larger than a unit is read in shares: each adds a part to the counts of all windows
that the block reaches into.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.jobs.sample_units import nearest
from xloader.jobs.valid.sweep_line import Places, SweepLine
from xloader.recipe.recipe import Recipe

_ENOUGH: Final = 0.75
"""Whole shards are kept together if that gives this part of the units that were asked for."""


@dataclass(frozen=True)
class SweepUnit:
    """Blocks whose elements are counted apart."""

    begin: int
    end: int
    first: int
    last: int
    own: tuple[int, int]
    done: int
    share: tuple[int, int] = (0, 1)

    @property
    def num_border(self) -> int:
        """Number of windows along the sweep of which it gives counts."""
        return self.own[0] - self.first + max(self.last - self.own[1], 0)


def cut_sweep(
    line: SweepLine, recipe: Recipe, places: Places, most_nbytes: int, most_border: int
) -> list[SweepUnit]:
    """Cut a sweep into units."""
    if not len(line.lo):
        return []
    levels = _levels(line, recipe, places)
    while True:
        begins = _begins(line, levels, most_nbytes)
        units = list(_units(line, begins, most_nbytes))
        if len(units) == 1 or sum(unit.num_border for unit in units) <= most_border:
            return units
        most_nbytes *= 2


def _levels(line: SweepLine, recipe: Recipe, places: Places) -> list[Ints]:
    """The blocks at which a unit may begin: the fewest, then more, then all but the first."""
    is_new = np.diff(line.lo, prepend=line.lo[0]) > 0
    is_whole = is_new & ~_within_objects(line, recipe, places)
    return [np.flatnonzero(is_whole), np.flatnonzero(is_new), np.arange(1, len(line.lo))]


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
        axis, own = group.axes[dim], np.flatnonzero(line.group == number)
        if axis is None or not len(own):
            continue
        along, which = np.unique(
            np.unravel_index(line.block[own], group.shape)[dim], return_inverse=True
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
            np.minimum.at(firsts, objects, own)
            np.maximum.at(lasts, objects, own)
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
        alone = max(int(reach[begin - 1]), first) if begin else 0
        own = (alone, done) if alone < done else (first, first)
        count = 1
        if end - begin == 1 and sizes[begin] > 1.5 * most_nbytes:
            reads = line.groups[line.group[begin]].num_reads_per_block
            count = min(-(-int(sizes[begin]) // most_nbytes), reads)
        if count == 1:
            yield SweepUnit(begin, end, first, last, own, done)
            continue
        for number in range(count):
            complete = done if number == count - 1 else first
            yield SweepUnit(begin, end, first, last, (first, first), complete, (number, count))
