"""Statistics of the elements that samples need: checks the arguments, sweeps, merges and writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import MOST_THREADS, check_whole, is_whole
from xloader.core.options import usable_cores
from xloader.errors import OptionError
from xloader.jobs.partial_stats import PartialStats
from xloader.jobs.stats_job import StatsJob
from xloader.jobs.stats_merge import merge_stored, target_path, write_target
from xloader.jobs.stats_options import (
    Dims,
    Lead,
)
from xloader.jobs.stats_parts import StatsParts, open_stats_parts
from xloader.jobs.stats_template import StatsResult
from xloader.recipe.recipe import Recipe


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
) -> xr.Dataset | PartialStats:
    """Compute the statistics of the elements that samples need; see `Samples.stats`."""
    num_threads = (
        usable_cores() if threads is None else check_whole("threads", threads, 1, MOST_THREADS)
    )
    memory_nbytes = parse_nbytes(memory)
    own_part = (0, 1) if part is None else _check_part(part)
    target = None if path is None else target_path(path, overwrite=overwrite)
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    job = StatsJob(recipe.planned, dim, by, quantiles, leads, weights)
    if target is not None and any("/" in own.name for own in job.template.variables):
        raise OptionError(
            "statistics of joined data cannot be written to one group",
            given=", ".join(own.name for own in job.template.variables if "/" in own.name),
            allowed="variables without a '/' in their names",
            remedy="leave path out, and write the variables of each group as you like",
        )
    if target is None:
        result = StatsResult(job.template) if part is None else None
        sweep = job.sweep(memory_nbytes, num_threads, result)
        wanted = [_share(own, own_part) for own in job.all_pieces()]
        job.run(sweep, wanted, progress)
        if result is not None:
            return result.dataset()
        return PartialStats(own_part, sweep.num_reads, job.template, sweep.drain())
    parts = open_stats_parts(target, job.template, overwrite=overwrite)
    sweep = job.sweep(memory_nbytes, num_threads)
    wanted = [
        _share(own, own_part) & is_missing
        for own, is_missing in zip(job.all_pieces(), _missing(job, parts), strict=True)
    ]
    job.run(sweep, wanted, progress, parts)
    if part is not None:
        return PartialStats(own_part, sweep.num_reads, job.template, {}, str(target))
    return write_target(target, merge_stored(target), overwrite=overwrite)


def _check_part(part: Any) -> tuple[int, int]:
    is_pair = isinstance(part, Sequence) and len(part) == 2 and all(map(is_whole, part))
    if not is_pair or not 0 <= part[0] < part[1]:
        raise OptionError(
            "part is not a number and a count",
            given=repr(part),
            allowed="(i, n) with i from 0 to n - 1",
            remedy="pass part=(0, 8) to part=(7, 8) in eight processes",
        )
    return int(part[0]), int(part[1])


def _share(pieces: NDArray[np.bool_], part: tuple[int, int]) -> NDArray[np.bool_]:
    """The pieces that one part of the job computes."""
    number, count = part
    own = np.zeros_like(pieces)
    size = len(pieces)
    own[size * number // count : size * (number + 1) // count] = True
    return own & pieces


def _missing(job: StatsJob, parts: StatsParts) -> list[NDArray[np.bool_]]:
    """Per variable, the pieces that no file holds."""
    found = job.all_pieces()
    for own in parts.nodes():
        variable, tree = own.tree
        order = job.jobs[variable].order
        begin, end = order.edges[tree : tree + 2].tolist()
        level, index = own.node
        found[variable][begin + (index << level) : min(begin + ((index + 1) << level), end)] = False
    return found
