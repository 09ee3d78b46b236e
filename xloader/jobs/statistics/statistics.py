"""Statistics of the elements that samples need: checks the arguments, sweeps, merges and writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr

from xloader.cluster.cluster_tasks import ClusterTasks, find_cluster
from xloader.core.cores import usable_cores
from xloader.core.messages import warn_caller
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_part, check_threads
from xloader.errors import OptionError, StateError, StatisticsWarning
from xloader.jobs.kept_result import KeptResult
from xloader.jobs.progress_bar import ProgressBar, is_shown
from xloader.jobs.statistics.stats_job import Pieces, StatsJob
from xloader.jobs.statistics.stats_parts import (
    PartialStats,
    StatsParts,
    StatsResult,
    StatsTemplate,
    StatsTrees,
    write_merged,
)
from xloader.jobs.statistics.stats_sweep import StatsOnCluster, StatsSweep
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.write_places import check_apart, check_replaceable, check_stored_names

_WRITE_RATIO: Final = 3
"""How many times its bytes a result takes while it is written."""


def compute_stats(
    recipe: Recipe,
    *,
    memory: int | str = "2GiB",
    threads: int | None = None,
    progress: bool | None = None,
    path: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    overwrite: bool = False,
    client: Any = None,
    **options: Any,
) -> xr.Dataset | PartialStats:
    """Compute the statistics of the elements that samples need; see `Samples.stats`.

    `options`: those that decide which statistics, see `StatsJob`.
    """
    num_threads = check_threads(threads) or usable_cores()
    memory_nbytes = parse_nbytes(memory)
    checked_part = None if part is None else check_part(part)
    is_shown(progress)
    kept = None if path is None else KeptResult.at(path, StatsTemplate)
    if kept is not None:
        check_apart(kept.target, recipe.source)
        if overwrite:
            check_replaceable(kept.target)
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    job = StatsJob(recipe.planned, **options)
    # Wrong options are refused before workers are looked for.
    pieces = job.all_pieces()
    tasks = _find_tasks(client, job, checked_part)
    run = _StatsRun(job, pieces, memory_nbytes, num_threads, tasks, progress, checked_part)
    if kept is None:
        return run.in_memory()
    _check_names(job)
    return run.in_files(kept, overwrite=overwrite)


def _find_tasks(client: Any, job: StatsJob, part: tuple[int, int] | None) -> ClusterTasks | None:
    """The cluster on which the job runs, if it does not run in this process."""
    if part is None:
        return find_cluster(client, job)
    if client is not None and client is not False:
        raise OptionError(
            "a part of the statistics is computed by one process, without a cluster",
            given=f"part={part} together with client= or --scheduler",
            remedy="leave part out: the cluster divides the work itself",
        )
    return None


def _check_names(job: StatsJob) -> None:
    names = [variable.name for variable in job.template.variables]
    check_stored_names([*names, *map(str, job.template.labels.coords)])
    if any("/" in name for name in names):
        raise OptionError(
            "statistics of joined data cannot be written to one group",
            given=", ".join(name for name in names if "/" in name),
            remedy="leave path out, and write the variables of each group as you like",
        )


@dataclass(frozen=True, eq=False)
class _StatsRun:
    """A job with all its pieces, and how it is computed."""

    job: StatsJob
    pieces: Pieces
    memory_nbytes: int
    num_threads: int
    tasks: ClusterTasks | None
    progress: bool | None
    part: tuple[int, int] | None

    def in_memory(self) -> xr.Dataset | PartialStats:
        """The statistics of all pieces, or those of a part."""
        job, template, wanted = self.job, self.job.template, self._share(self.pieces)
        if self.part is None:
            result = StatsResult(template)
            self._compute(StatsTrees(job.forms, result.put), wanted, template.nbytes)
            return result.dataset()
        trees = StatsTrees(job.forms)
        num_reads = self._compute(trees, wanted, job.memory.nodes_nbytes(wanted))
        return PartialStats(self.part, num_reads, template, trees.drain())

    def in_files(
        self, kept: KeptResult[StatsTemplate], *, overwrite: bool
    ) -> xr.Dataset | PartialStats:
        """The statistics of the pieces that no file beside the target has yet."""
        job, template, target = self.job, self.job.template, kept.target
        finished = None if overwrite else kept.finished(template.key)
        if finished is not None:
            # Fingerprints do not look at values.
            warn_caller(
                f"the result of this job lies at {target} already, and is returned as it is. If "
                "values in the data have changed since, pass overwrite=True",
                StatisticsWarning,
            )
            if self.part is None:
                return finished
            return PartialStats(self.part, 0, template, {}, str(target))
        try:
            parts = StatsParts(kept.open_parts(template, overwrite=overwrite))
            wanted = self._share(template.pieces_without(parts.nodes()[0]))
            flush_nbytes = job.memory.flush_nbytes
            trees = StatsTrees(job.forms, None, parts, flush_nbytes)
            kept_nbytes = min(2 * flush_nbytes, job.memory.nodes_nbytes(self.pieces))
            least = _WRITE_RATIO * template.nbytes * (self.part is None)
            num_reads = self._compute(trees, wanted, kept_nbytes, least, flush_nbytes)
            if self.part is not None:
                return PartialStats(self.part, num_reads, template, {}, str(target))
            return write_merged(kept, overwrite=overwrite)
        except (StateError, OSError):
            if overwrite or not target.exists():
                raise
            # An equal job that was faster has removed the parts.
            return self.in_files(kept, overwrite=False)

    def _share(self, pieces: Pieces) -> Pieces:
        """Of some pieces of each variable, those that this part of the job computes."""
        number, count = self.part or (0, 1)
        shares = []
        for several in pieces:
            chosen, size = np.zeros_like(several), len(several)
            chosen[size * number // count : size * (number + 1) // count] = True
            shares.append(chosen & several)
        return shares

    def _compute(
        self,
        trees: StatsTrees,
        wanted: Pieces,
        kept_nbytes: int,
        least_nbytes: int = 0,
        flush_nbytes: int | None = None,
    ) -> int:
        """Compute the statistics of some pieces; the number of chunks read.

        `flush_nbytes`: bytes after which they are written; None if they stay in memory.
        """
        way: StatsSweep | StatsOnCluster
        if self.tasks is None:
            memory = self.job.memory
            kept_nbytes += memory.under_way_nbytes
            most_nbytes = memory.most_read_nbytes(self.memory_nbytes, kept_nbytes, least_nbytes)
            way = StatsSweep(self.job, most_nbytes, self.num_threads, flush_nbytes)
        else:
            way, is_flushed = StatsOnCluster(self.job, self.tasks, wanted), flush_nbytes is not None
            way.check_memory(self.memory_nbytes, kept_nbytes, least_nbytes, is_flushed=is_flushed)
        with ProgressBar("Statistics", way.num_chunks(wanted), self.progress) as bar:
            try:
                way.run(wanted, trees, bar.advance)
            finally:
                # Also after an error: what has been computed need not be computed again.
                trees.flush(is_last=True)
        return way.num_reads
