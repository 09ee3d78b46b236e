"""The smallest and largest values of variables that are to be packed."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.packing import Packing
from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import ChunkValues
from xloader.jobs.materialize.section_writer import sweep_values
from xloader.jobs.materialize.value_packing import (
    PackRequest,
    ValueBounds,
    bounds_in,
    error_bound,
    make_packing,
)
from xloader.recipe.recipe import Recipe


def find_bounds(
    recipe: Recipe,
    requests: Mapping[str, PackRequest],
    known: Mapping[str, Any],
    stats: xr.Dataset | None,
    memory: int,
    num_threads: int,
    tasks: ClusterTasks | None = None,
    *,
    is_dry: bool = False,
) -> tuple[dict[str, ValueBounds], int]:
    """The bounds of all variables to pack."""
    bounds_of, num_reads = {}, 0
    if stats is not None and not isinstance(stats, xr.Dataset):
        raise OptionError(
            "stats is not the result of samples.stats()",
            given=type(stats).__name__,
            allowed='an xarray.Dataset with the dimension "stat"',
            remedy="leave it out: the bounds are then found by one pass over the values",
        )
    for name in requests:
        bounds = bounds_in(stats, name) if stats is not None else None
        if bounds is None and name in known:
            bounds = ValueBounds(*known[name])
        if bounds is None and is_dry:
            bounds = ValueBounds(0.0, 1.0)
            num_reads += math.prod(axis.num_blocks for axis in recipe.axes_of(name))
        if bounds is None:
            bounds, reads = _read(_BoundsPass(recipe, name, memory, num_threads), tasks)
            num_reads += reads
        bounds_of[name] = bounds
    return bounds_of, num_reads


@dataclass(frozen=True, eq=False)
class _BoundsPass:
    """A pass over the values of a variable, with the memory and the threads that it may take."""

    recipe: Recipe
    name: str
    memory: int
    num_threads: int

    def parts(self, tasks: ClusterTasks) -> Iterator[tuple[int, int]]:
        """Parts of the chunks for the tasks of a cluster."""
        axes = self.recipe.axes_of(self.name)
        num_chunks = math.prod(axis.num_blocks for axis in axes)
        nbytes = math.prod(axis.size for axis in axes)
        nbytes *= self.recipe.variable(self.name).stored_dtype.itemsize
        count = min(-(-nbytes // tasks.unit_nbytes(nbytes)), num_chunks)
        for number in range(count):
            yield number * num_chunks // count, (number + 1) * num_chunks // count


def _read(job: _BoundsPass, tasks: ClusterTasks | None) -> tuple[ValueBounds, int]:
    if tasks is None:
        return _read_part(job, None)
    bounds, num_reads = ValueBounds(math.inf, -math.inf), 0
    for _, (part_bounds, reads) in tasks.run(
        "finding bounds of values", _read_part, job, job.parts(tasks)
    ):
        bounds, num_reads = bounds.union(part_bounds), num_reads + reads
    return bounds, num_reads


def _read_part(job: _BoundsPass, part: tuple[int, int] | None) -> tuple[ValueBounds, int]:
    """The bounds of the values in a part of the chunks, and the number of chunks read."""
    stored = job.recipe.variable(job.name)
    merged = [ValueBounds(math.inf, -math.inf)]
    lock = threading.Lock()

    def use(chunk: ChunkValues) -> None:
        values = chunk.values
        if stored.packing is not None:
            values = stored.packing.unpack(values)
        bounds = ValueBounds.of(values)
        with lock:
            merged[0] = merged[0].union(bounds)

    num_reads = sweep_values(
        *(job.recipe, job.name, job.memory, job.num_threads, use),
        slice(None) if part is None else slice(*part),
    )
    return merged[0], num_reads


def packings_of(
    requests: Mapping[str, PackRequest], bounds: Mapping[str, ValueBounds]
) -> dict[str, tuple[Packing, float]]:
    """The packing of each variable, and the largest error that it may cause."""
    packings = {}
    for name, request in requests.items():
        # As xloader.open decodes packed integers; see `decoded_dtype`.
        dtype = np.dtype(np.float64 if request.dtype.itemsize >= 4 else np.float32)
        packing = make_packing(name, request, bounds[name], dtype)
        packings[name] = packing, error_bound(packing, bounds[name])
    return packings
