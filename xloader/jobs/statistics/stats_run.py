"""Carries a job of statistics out: on threads of this process, or by tasks on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xloader.jobs.cluster_tasks import ClusterTasks
from xloader.jobs.progress_bar import ProgressBar
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.statistics.stats_parts import StatsParts
from xloader.jobs.statistics.stats_sweep import Pieces, StatsSweep
from xloader.jobs.statistics.stats_tasks import StatsOnCluster
from xloader.jobs.statistics.stats_trees import StatsTrees

_WRITE_RATIO: Final = 3
"""How many times its bytes a result takes while it is written."""


@dataclass(frozen=True, eq=False)
class StatsRun:
    """A job of statistics, and what carries it out."""

    job: StatsJob
    memory_nbytes: int
    num_threads: int
    tasks: ClusterTasks | None
    progress: bool | None

    def compute(self, trees: StatsTrees, wanted: Pieces, kept_nbytes: int) -> int:
        """Compute the statistics of some pieces, which stay in memory."""
        if self.tasks is None:
            return self._do(self._sweep(kept_nbytes), trees, wanted)
        cluster = StatsOnCluster(self.job, self.tasks, wanted)
        cluster.check_memory(self.memory_nbytes, kept_nbytes, 0, is_flushed=False)
        return self._do(cluster, trees, wanted)

    def compute_files(self, parts: StatsParts, wanted: Pieces, *, is_written: bool) -> int:
        """Compute the statistics of some pieces, which are written to files now and then."""
        job, memory = self.job, self.job.memory
        trees = StatsTrees(job.orders, None, parts, memory.flush_nbytes)
        kept = memory.waiting_for_file_nbytes(job.all_pieces())
        least = _WRITE_RATIO * job.template.nbytes * is_written
        if self.tasks is None:
            sweep = self._sweep(kept, least, memory.flush_nbytes)
            return self._do(sweep, trees, wanted)
        cluster = StatsOnCluster(job, self.tasks, wanted)
        cluster.check_memory(self.memory_nbytes, kept, least, is_flushed=True)
        return self._do(cluster, trees, wanted)

    def _sweep(
        self, kept_nbytes: int, least_nbytes: int = 0, most_done_nbytes: int | None = None
    ) -> StatsSweep:
        memory = self.job.memory
        kept_nbytes += memory.under_way_nbytes
        most_nbytes = memory.most_read_nbytes(self.memory_nbytes, kept_nbytes, least_nbytes)
        return self.job.sweep(self.job.jobs, most_nbytes, self.num_threads, most_done_nbytes)

    def _do(self, way: StatsSweep | StatsOnCluster, trees: StatsTrees, wanted: Pieces) -> int:
        with ProgressBar("Statistics", way.num_chunks(wanted), self.progress) as bar:
            try:
                way.run(wanted, trees, bar.advance)
            finally:
                # Also after an error: what has been computed need not be computed again.
                trees.flush(is_last=True)
        return way.num_reads
