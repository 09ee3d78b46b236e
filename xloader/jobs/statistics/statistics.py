"""Statistics of the elements that samples need: checks the arguments, sweeps, merges and writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks, find_cluster
from xloader.core.cores import usable_cores
from xloader.core.messages import warn_caller
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_part, check_threads
from xloader.errors import OptionError, StateError, StatisticsWarning
from xloader.jobs.progress_bar import ProgressBar, is_shown
from xloader.jobs.statistics.label_pairs import Lead
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.statistics.stats_merge import (
    finished_stats,
    merge_stored,
    target_path,
    write_target,
)
from xloader.jobs.statistics.stats_options import Dims
from xloader.jobs.statistics.stats_parts import (
    PartialStats,
    StatsParts,
    StatsTrees,
    open_stats_parts,
)
from xloader.jobs.statistics.stats_sweep import Pieces, StatsSweep
from xloader.jobs.statistics.stats_tasks import StatsOnCluster, StatsWork
from xloader.jobs.statistics.stats_template import StatsResult
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.write_places import check_apart, check_replaceable, check_stored_names

_WRITE_RATIO: Final = 3
"""How many times its bytes a result takes while it is written."""


Compute = Callable[..., int]
"""`_compute` for one job: ``compute(trees, wanted, kept_nbytes)``."""


def compute_stats(
    recipe: Recipe,
    *,
    dim: Dims = None,
    by: str | None = None,
    quantiles: Iterable[float] = (),
    leads: Lead | Iterable[Lead] = (),
    weights: str | xr.DataArray | None = None,
    memory: int | str = "2GiB",
    threads: int | None = None,
    progress: bool | None = None,
    path: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    overwrite: bool = False,
    client: Any = None,
) -> xr.Dataset | PartialStats:
    """Compute the statistics of the elements that samples need; see `Samples.stats`."""
    num_threads = check_threads(threads) or usable_cores()
    memory_nbytes = parse_nbytes(memory)
    own_part = None if part is None else check_part(part)
    is_shown(progress)
    target = None if path is None else target_path(path)
    if target is not None:
        check_apart(target, recipe.source)
        if overwrite:
            check_replaceable(target)
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    job = StatsJob(recipe.planned, dim, by, quantiles, leads, weights)
    tasks = _find_tasks(client, job, own_part)
    compute = partial(_compute, job, memory_nbytes, num_threads, tasks, progress)
    if target is None:
        return _in_memory(job, compute, own_part)
    _check_names(job)
    return _in_files(job, compute, own_part, target, overwrite=overwrite)


def _compute(
    job: StatsJob,
    memory_nbytes: int,
    num_threads: int,
    tasks: ClusterTasks | None,
    progress: bool | None,
    trees: StatsTrees,
    wanted: Pieces,
    kept_nbytes: int,
    least_nbytes: int = 0,
    *,
    flush_nbytes: int | None = None,
) -> int:
    """Compute the statistics of some pieces; the number of chunks read.

    `flush_nbytes`: bytes after which they are written; None if they stay in memory.
    """
    way: StatsSweep | StatsOnCluster
    if tasks is None:
        kept_nbytes += job.memory.under_way_nbytes
        most_nbytes = job.memory.most_read_nbytes(memory_nbytes, kept_nbytes, least_nbytes)
        way = job.sweep(job.jobs, most_nbytes, num_threads, flush_nbytes)
    else:
        way, is_flushed = StatsOnCluster(job, tasks, wanted), flush_nbytes is not None
        way.check_memory(memory_nbytes, kept_nbytes, least_nbytes, is_flushed=is_flushed)
    with ProgressBar("Statistics", way.num_chunks(wanted), progress) as bar:
        try:
            way.run(wanted, trees, bar.advance)
        finally:
            # Also after an error: what has been computed need not be computed again.
            trees.flush(is_last=True)
    return way.num_reads


def _find_tasks(client: Any, job: StatsJob, part: tuple[int, int] | None) -> ClusterTasks | None:
    """The cluster on which the job runs, if it does not run in this process."""
    if part is None:
        return find_cluster(client, StatsWork.of(job))
    if client is not None and client is not False:
        raise OptionError(
            "a part of the statistics is computed by one process, without a cluster",
            given=f"part={part} together with client= or --scheduler",
            remedy="leave part out: the cluster divides the work itself",
        )
    return None


def _in_memory(
    job: StatsJob, compute: Compute, part: tuple[int, int] | None
) -> xr.Dataset | PartialStats:
    """The statistics of all pieces, or those of a part."""
    if part is None:
        result = StatsResult(job.template)
        compute(StatsTrees(job.orders, result.put), job.all_pieces(), job.template.nbytes)
        return result.dataset()
    trees = StatsTrees(job.orders)
    wanted = [_share(pieces, part) for pieces in job.all_pieces()]
    num_reads = compute(trees, wanted, job.memory.nodes_nbytes(wanted))
    return PartialStats(part, num_reads, job.template, trees.drain())


def _in_files(
    job: StatsJob, compute: Compute, part: tuple[int, int] | None, target: Path, *, overwrite: bool
) -> xr.Dataset | PartialStats:
    """The statistics of the pieces that no file beside the target has yet."""
    finished = None if overwrite else _finished(job, target)
    if finished is not None and part is None:
        return finished
    num_reads = 0
    try:
        if finished is None:
            parts = open_stats_parts(target, job.template, overwrite=overwrite)
            wanted = _missing(job, parts)
            if part is not None:
                wanted = [_share(pieces, part) for pieces in wanted]
            flush_nbytes = job.memory.flush_nbytes
            trees = StatsTrees(job.orders, None, parts, flush_nbytes)
            kept = min(2 * flush_nbytes, job.memory.nodes_nbytes(job.all_pieces()))
            least = _WRITE_RATIO * job.template.nbytes * (part is None)
            num_reads = compute(trees, wanted, kept, least, flush_nbytes=flush_nbytes)
        if part is not None:
            return PartialStats(part, num_reads, job.template, {}, str(target))
        return write_target(target, merge_stored(target), overwrite=overwrite)
    except (StateError, OSError):
        if overwrite or not target.exists():
            raise
        # An equal job that was faster has removed the parts.
        return _in_files(job, compute, part, target, overwrite=False)


def _check_names(job: StatsJob) -> None:
    names = [variable.name for variable in job.template.variables]
    check_stored_names([*names, *map(str, job.template.labels.coords)])
    if any("/" in name for name in names):
        raise OptionError(
            "statistics of joined data cannot be written to one group",
            given=", ".join(name for name in names if "/" in name),
            remedy="leave path out, and write the variables of each group as you like",
        )


def _finished(job: StatsJob, target: Path) -> xr.Dataset | None:
    """The result of the job if it lies at the target already, with a warning."""
    result = finished_stats(target, job.template.key)
    if result is not None:
        # Fingerprints do not look at values.
        warn_caller(
            f"the result of this job lies at {target} already, and is returned as it is. If "
            "values in the data have changed since, pass overwrite=True",
            StatisticsWarning,
        )
    return result


def _share(pieces: NDArray[np.bool_], part: tuple[int, int]) -> NDArray[np.bool_]:
    """The pieces that one part of the job computes."""
    number, count = part
    chosen = np.zeros_like(pieces)
    size = len(pieces)
    chosen[size * number // count : size * (number + 1) // count] = True
    return chosen & pieces


def _missing(job: StatsJob, parts: StatsParts) -> list[NDArray[np.bool_]]:
    """Per variable, the pieces that no file holds."""
    pieces = job.all_pieces()
    for node in parts.nodes():
        variable, tree = node.tree
        order = job.jobs[variable].order
        begin, end = order.edges[tree : tree + 2].tolist()
        level, index = node.node
        last = min(begin + ((index + 1) << level), end)
        pieces[variable][begin + (index << level) : last] = False
    return pieces
