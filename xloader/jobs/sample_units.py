"""Ranges of window positions that tasks take as a whole, cut where chunks end.

Where no window straddles two chunks along the dimension that is cut, each chunk belongs to one
unit. Chunks that windows straddle at a cut are read for both units::

    chunks     |  0  |  1  |  2  |  3  |
    windows    `---'  `---'     `---'            stay within chunks: no chunk is read twice
               `---------'`---------'            chunks 1 and 2 belong to two units, if each
                                                 window is one
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.core.window_sets import WindowSet
from xloader.recipe.recipe import Recipe

_PIECE_SIZE = 1 << 20
"""Number of samples that are handled in one call."""


@dataclass(frozen=True)
class SampleUnit:
    """The samples whose windows have some positions along one dimension."""

    dim: int
    begin: int
    end: int


def cut_samples(footprint: Footprint, most_nbytes: int, num_threads: int) -> list[SampleUnit]:
    """Cut samples into units, along the dimension where that is fastest."""
    total = sum(int(g.read_nbytes(footprint.needed(g)).sum()) for g in footprint.groups)
    found = []
    for dim in range(len(footprint.windows.dims)):
        units = _units(footprint, dim, -(-total // most_nbytes))
        # Reads take the time, on as many threads as there are units.
        cost = num_reads(footprint, units) / min(len(units), num_threads)
        found.append((cost, -len(units), units))
    return min(found, key=lambda own: own[:2])[2]


def num_reads(footprint: Footprint, units: list[SampleUnit]) -> int:
    """Number of (variable, chunk) pairs that units read, if each reads what it needs once.

    A chunk that several units need counts for each of them.
    """
    sizes, dim = footprint.windows.num_positions, units[0].dim
    lo = [np.zeros(len(units), np.int64) for _ in sizes]
    hi = [np.full(len(units), size, np.int64) for size in sizes]
    lo[dim] = np.array([unit.begin for unit in units])
    hi[dim] = np.array([unit.end for unit in units])
    boxes = Boxes(tuple(lo), tuple(hi))
    needs = (len(footprint.needs(g, boxes)[1]) * g.num_reads_per_block for g in footprint.groups)
    return sum(needs)


def _units(footprint: Footprint, dim: int, count: int) -> list[SampleUnit]:
    """Units along a dimension: cut where chunks end of the variable with most bytes."""
    size = footprint.windows.num_positions[dim]
    axis = footprint.leading_axes[dim]
    places = np.arange(1, size)
    line = next((g.lines[dim] for g in footprint.groups if g.axes[dim] is axis), None)
    if axis is not None and line is not None:
        edges = line.edges[1:-1] - footprint.first_offsets[dim]
        places = np.unique(footprint.windows.num_before(dim, edges))
        places = places[(places > 0) & (places < size)]
    marks = np.arange(1, count) * (size / count)
    cuts = np.unique(places[nearest(places, marks)]).tolist() if len(places) else []
    return [SampleUnit(dim, *pair) for pair in itertools.pairwise([0, *cuts, size])]


def nearest(places: Ints, marks: NDArray[Any]) -> Ints:
    """The index of that of some ascending numbers which is nearest to each mark."""
    after = np.clip(np.searchsorted(places, marks), 0, len(places) - 1)
    before = np.maximum(after - 1, 0)
    is_before = marks - places[before] <= places[after] - marks
    return np.asarray(np.where(is_before, before, after), np.int64)


def ids_of(recipe: Recipe, unit: SampleUnit) -> Ints:
    """Ids of the samples of a unit, ascending; int64."""
    windows, subset = recipe.require_windows(), recipe.subset
    shape = windows.num_positions
    sizes = [unit.end - unit.begin if d == unit.dim else n for d, n in enumerate(shape)]
    indices = None if subset is None else subset.indices
    is_sorted = indices is None or isinstance(indices, WindowSet)
    if is_sorted and math.prod(sizes) <= recipe.num_ids:
        first = math.prod(shape[unit.dim + 1 :])
        within = np.arange(unit.begin * first, unit.end * first)
        outer = np.arange(math.prod(shape[: unit.dim])) * (first * shape[unit.dim])
        own = (outer[:, None] + within).reshape(-1)
        return own if subset is None else subset.ids_of(own)
    found = [np.zeros(0, np.int64)]
    for begin in range(0, recipe.num_ids, _PIECE_SIZE):
        ids = np.arange(begin, min(begin + _PIECE_SIZE, recipe.num_ids))
        along = recipe.positions_of(ids)[:, unit.dim]
        found.append(ids[(unit.begin <= along) & (along < unit.end)])
    return np.concatenate(found)


def subset_of(recipe: Recipe, ids: Ints) -> Subset:
    """The subset of some samples, without weights."""
    whole = recipe.subset or Subset(len(recipe.require_windows()))
    return whole.select(ids)
