"""Statistics of the elements that samples need: checks the arguments, sweeps, merges and writes."""

from __future__ import annotations

import os
from typing import Any

import xarray as xr

from xloader.errors import OptionError
from xloader.jobs.kept_result import KeptResult
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.statistics.stats_parts import PartialStats, StatsTemplate
from xloader.jobs.swept_job import SweptRun
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.write_places import check_stored_names


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
) -> xr.Dataset | PartialStats | None:
    """Compute the statistics of the elements that samples need; see `Samples.stats`.

    `options`: those that decide which statistics, see `StatsJob`.
    """
    kept = None
    if path is not None:
        kept = KeptResult.to_write(path, StatsTemplate, recipe.source, overwrite=overwrite)
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    job = StatsJob(recipe.planned, **options)
    run = SweptRun(job, memory, threads, progress, part, client)
    if kept is not None:
        _check_names(job)
        result, num_reads = run.in_files(kept, overwrite=overwrite)
        if run.part is not None:
            return PartialStats(run.part, num_reads, job.template, {}, str(kept.target))
        return result
    if run.part is None:
        return run.in_memory()
    nodes, num_reads = run.part_in_memory()
    return PartialStats(run.part, num_reads, job.template, nodes)


def _check_names(job: StatsJob) -> None:
    names = [variable.name for variable in job.template.variables]
    check_stored_names([*names, *map(str, job.template.labels.coords)])
    if any("/" in name for name in names):
        raise OptionError(
            "statistics of joined data cannot be written to one group",
            given=", ".join(name for name in names if "/" in name),
            remedy="leave path out, and write the variables of each group as you like",
        )
