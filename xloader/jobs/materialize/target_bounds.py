"""The smallest and largest values of variables that are to be packed."""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.packing import Packing
from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import ChunkValues, sweep_values
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
            bounds, reads = _read(recipe, name, memory, num_threads, tasks)
            num_reads += reads
        bounds_of[name] = bounds
    return bounds_of, num_reads


def _read(
    recipe: Recipe, name: str, memory: int, num_threads: int, tasks: ClusterTasks | None
) -> tuple[ValueBounds, int]:
    """The bounds of all values of a variable, and the number of chunks read."""
    read = partial(_read_part, recipe, name, memory, num_threads)
    if tasks is None:
        return read(slice(None))
    axes = recipe.axes_of(name)
    num_chunks = math.prod(axis.num_blocks for axis in axes)
    nbytes = math.prod(axis.size for axis in axes) * recipe.variable(name).stored_dtype.itemsize
    count = min(-(-nbytes // tasks.unit_nbytes(nbytes)), num_chunks)
    edges = [number * num_chunks // count for number in range(count + 1)]
    parts = [slice(*pair) for pair in itertools.pairwise(edges)]
    bounds, num_reads = ValueBounds(math.inf, -math.inf), 0
    # `read` is what all tasks share, and is called with each part.
    for _, result in tasks.run("finding bounds of values", operator.call, read, parts):
        bounds, num_reads = bounds.union(result[0]), num_reads + result[1]
    return bounds, num_reads


def _read_part(
    recipe: Recipe, name: str, memory: int, num_threads: int, part: slice
) -> tuple[ValueBounds, int]:
    """The bounds of the values in a part of the chunks, and the number of chunks read."""
    packing = recipe.variable(name).packing
    bounds = ValueBounds(math.inf, -math.inf)
    lock = threading.Lock()

    def use(chunk: ChunkValues) -> None:
        nonlocal bounds
        values = chunk.values if packing is None else packing.unpack(chunk.values)
        chunk_bounds = ValueBounds.of(values)
        with lock:
            bounds = bounds.union(chunk_bounds)

    num_reads = sweep_values(recipe, name, memory // 4, num_threads, use, part)
    return bounds, num_reads


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
