"""Statistics by tasks on a cluster: each computes a unit, and the trees here merge what comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr

from xloader.jobs.cluster_tasks import MOST_UNITS, ClusterTasks
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.statistics.stats_memory import check_memory
from xloader.jobs.statistics.stats_sweep import Pieces, chunks_of
from xloader.jobs.statistics.stats_trees import Nodes, StatsTrees
from xloader.jobs.statistics.stats_units import (
    StatsUnit,
    UnitSizes,
    cut_units,
    num_chunks,
    num_nodes,
)
from xloader.recipe.recipe import Recipe

_RESULT_NBYTES: Final = 1 << 24
"""Most bytes of the statistics of a unit, as they go through the scheduler."""


class StatsWork:
    """The samples and options that all tasks of a job share.

    Each worker finds out once which chunks that means.
    """

    def __init__(self, recipe: Recipe, settings: dict[str, Any], most_nbytes: int = 0) -> None:
        self.recipe = recipe
        self.settings = settings
        self.most_nbytes = most_nbytes
        self._lock = threading.Lock()
        self._job: StatsJob | None = None

    @classmethod
    def of(cls, job: StatsJob, most_nbytes: int = 0) -> StatsWork:
        """The work of a job, with options that were checked and pickle."""
        options = job.options
        weights: Any = options.weights_text or None
        if options.weights is not None and weights != "area":
            weights = xr.DataArray(options.weights.values, dims=options.weights.dims)
        settings = {
            "dim": options.dim,
            "by": options.by or None,
            "quantiles": options.quantiles,
            "leads": [pairs.steps for pairs in options.leads],
            "weights": weights,
        }
        return cls(job.recipe, settings, most_nbytes)

    @property
    def job(self) -> StatsJob:
        """The job."""
        with self._lock:
            if self._job is None:
                self._job = StatsJob(self.recipe, **self.settings)
            return self._job

    def __reduce__(self) -> tuple[object, ...]:
        return StatsWork, (self.recipe, self.settings, self.most_nbytes)


@dataclass(frozen=True, eq=False)
class UnitStats:
    """The statistics of a unit."""

    nodes: Nodes
    num_reads: int


def compute_unit(work: StatsWork, unit: StatsUnit) -> UnitStats:
    """Compute the statistics of a unit on one thread. This is the task of a worker."""
    job = work.job
    wanted = wanted_of(job, unit)
    trees = StatsTrees(job.orders)
    numbers = sorted(wanted)
    sweep = job.sweep([job.jobs[number] for number in numbers], work.most_nbytes, 1)
    sweep.run([wanted[number] for number in numbers], trees, lambda: None)
    return UnitStats(trees.drain(), sweep.num_reads)


def wanted_of(job: StatsJob, unit: StatsUnit) -> dict[int, np.ndarray[Any, np.dtype[np.bool_]]]:
    """By number of the variable, whether each of its pieces is in a unit."""
    found: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}
    for number, begin, end in unit:
        if number not in found:
            found[number] = np.zeros(job.jobs[number].order.num_pieces, np.bool_)
        found[number][begin:end] = True
    return found


class StatsOnCluster:
    """Computes statistics by tasks on a cluster, as `StatsSweep` does on threads."""

    def __init__(self, job: StatsJob, tasks: ClusterTasks, wanted: Pieces) -> None:
        self._job = job
        self._tasks = tasks
        self._most_nbytes = 0
        total = sum(
            len(chunks_of(own.order, pieces)) * own.chunk_nbytes
            for own, pieces in zip(job.jobs, wanted, strict=True)
        )
        # Ends of units are looked for in the upper half of this size.
        unit_nbytes = tasks.unit_nbytes(total, MOST_UNITS // 2)
        sizes = UnitSizes.of(unit_nbytes, total, tasks.num_threads, _RESULT_NBYTES)
        self._units = cut_units(job.recipe.source, job.jobs, wanted, sizes)
        self.num_reads = 0

    def check_memory(
        self, memory_nbytes: int, kept_nbytes: int, least_nbytes: int, *, is_flushed: bool
    ) -> None:
        """Check that the memory is enough here, and for the tasks of a worker."""
        memory = self._job.memory
        sizes = [self._nodes_nbytes(unit) for unit in self._units]
        unit, cut = (max(own, default=0) for own in zip(*sizes, strict=True)) if sizes else (0, 0)
        # Subtrees wait for the units that are computed at the same time.
        waiting = memory.tree_nbytes + cut * min(self._tasks.most_running, len(sizes))
        here = max(kept_nbytes + unit + waiting * (not is_flushed), least_nbytes)
        shares, kept = self._tasks.most_threads_of_worker, unit + memory.under_way_nbytes
        worker = shares * (kept + memory.work_nbytes)
        check_memory(memory_nbytes, max(here, worker), shares if worker > here else 1)
        self._most_nbytes = memory.most_read_nbytes(memory_nbytes // shares, kept)

    def _nodes_nbytes(self, unit: StatsUnit) -> tuple[int, int]:
        """Bytes of the statistics of a unit, and of those of trees that it does not complete."""
        found = cut = 0
        for own in unit:
            job = self._job.jobs[own.variable]
            num, num_cut = num_nodes(job.order, own)
            found += num * job.node_nbytes
            cut += num_cut * job.node_nbytes
        return found, cut

    def num_chunks(self, wanted: Pieces) -> int:
        """Number of chunks that the tasks read. With leads, two tasks may read the same one."""
        return sum(map(self._num_chunks, self._units))

    def _num_chunks(self, unit: StatsUnit) -> int:
        return sum(num_chunks(self._job.jobs[own.variable].order, own) for own in unit)

    def run(self, wanted: Pieces, trees: StatsTrees, advance: Callable[[int], None]) -> None:
        """Compute the statistics of the pieces."""
        work = StatsWork.of(self._job, self._most_nbytes)
        found = self._tasks.run("computing statistics", compute_unit, work, self._units)
        with closing(found):
            for unit, result in found:
                for tree, nodes in result.nodes.items():
                    for node, value in nodes.items():
                        trees.add(tree, node, value)
                self.num_reads += result.num_reads
                advance(self._num_chunks(unit))
                trees.flush()
