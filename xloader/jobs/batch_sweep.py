"""A pass over all samples in batches, in the order that reads fewest chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.options import LoaderOptions
from xloader.jobs.cluster_tasks import ClusterTasks
from xloader.jobs.sample_units import SampleUnit, cut_samples, ids_of, subset_of
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.sample_names import SampleNames
from xloader.loader.loader import Loader
from xloader.loader.sweep_loader import make_sweep_loader
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe


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
        own = replace(self, memory_nbytes=tasks.task_memory(self.memory_nbytes))
        num_reads = 0
        with tasks.memory_errors(self.memory_nbytes):
            run = tasks.run("sweeping samples", fill_unit, (own, out.dtype), units)
            for unit, (values, count) in run:
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
    part = replace(sweep.recipe, subset=subset_of(sweep.recipe, ids))
    names = SampleNames(sweep.recipe, ids)
    return out, _fill(replace(sweep, recipe=part), out, 1, names)


def _fill(
    sweep: BatchSweep, out: NDArray[Any], threads: int | None, names: SampleNames | None = None
) -> int:
    options = LoaderOptions(memory=sweep.memory_nbytes, threads=threads)
    own = sweep.recipe, options, names, sweep.batch_size
    with make_sweep_loader(Loader, *own) as loader:
        for batch in loader:
            at = batch.ids if names is None else names.rows_of(batch.ids)
            out[at] = sweep.function(batch)
        return loader.report().num_reads
