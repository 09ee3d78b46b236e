"""The shares of samples that threads or a cluster go through in batches, one pass a share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.options import LoaderOptions
from xloader.core.subset import Subset
from xloader.core.window_sets import WindowSet
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.sweep_loader import make_sweep_loader
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
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
    choices = []
    for dim in range(len(footprint.windows.dims)):
        units = _units(footprint, dim, -(-total // most_nbytes))
        # Reads take the time, on as many threads as there are units.
        cost = num_reads(footprint, units) / min(len(units), num_threads)
        choices.append((cost, -len(units), units))
    return min(choices, key=lambda choice: choice[:2])[2]


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
        numbers = (outer[:, None] + within).reshape(-1)
        return numbers if subset is None else subset.ids_of(numbers)
    pieces = [np.zeros(0, np.int64)]
    for begin in range(0, recipe.num_ids, _PIECE_SIZE):
        ids = np.arange(begin, min(begin + _PIECE_SIZE, recipe.num_ids))
        along = recipe.positions_of(ids)[:, unit.dim]
        pieces.append(ids[(unit.begin <= along) & (along < unit.end)])
    return np.concatenate(pieces)


@dataclass(frozen=True, eq=False)
class BatchSweep:
    """A number for each sample, computed by a function of batches."""

    recipe: Recipe
    function: Callable[[Batch], NDArray[Any]]
    memory_nbytes: int
    batch_size: int | None = None

    def fill(self, out: NDArray[Any], threads: int | None, tasks: ClusterTasks | None) -> int:
        """Compute the number of each sample, and return how many chunks were read for them."""
        if tasks is None:
            return _fill(self, out, threads)
        footprint = make_footprint(self.recipe, make_layouts(self.recipe))
        needed = [(group, footprint.needed(group)) for group in footprint.groups]
        total = sum(int(group.read_nbytes(blocks).sum()) for group, blocks in needed)
        units = cut_samples(footprint, tasks.unit_nbytes(total), tasks.num_threads)
        task = replace(self, memory_nbytes=tasks.task_memory(self.memory_nbytes))
        num_reads = 0
        with tasks.memory_errors(self.memory_nbytes):
            results = tasks.run("sweeping samples", fill_unit, (task, out.dtype), units)
            for unit, (values, count) in results:
                out[ids_of(self.recipe, unit)] = values
                num_reads += count
        return num_reads


def fill_unit(
    shared: tuple[BatchSweep, np.dtype[Any]], unit: SampleUnit
) -> tuple[NDArray[Any], int]:
    """Compute the numbers of the samples of a unit, on one thread; and the chunks read for them."""
    sweep, dtype = shared
    ids = ids_of(sweep.recipe, unit)
    out = np.zeros(len(ids), dtype)
    if not len(ids):
        return out, 0
    whole = sweep.recipe.subset or Subset(len(sweep.recipe.require_windows()))
    part = replace(sweep.recipe, subset=whole.select(ids))
    names = SampleNames(sweep.recipe, ids)
    return out, _fill(replace(sweep, recipe=part), out, 1, names)


def _fill(
    sweep: BatchSweep, out: NDArray[Any], threads: int | None, names: SampleNames | None = None
) -> int:
    options = LoaderOptions(memory=sweep.memory_nbytes, threads=threads)
    with make_sweep_loader(PlannedLoader, sweep.recipe, options, names, sweep.batch_size) as loader:
        for batch in loader:
            at = batch.ids if names is None else names.rows_of(batch.ids)
            out[at] = sweep.function(batch)
        return loader.report().num_reads
