"""Computes blocks of dask arrays, on the calling thread or on the cluster in use."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import warn_caller
from xloader.errors import ClusterError, ClusterWarning
from xloader.sources.arrays.cluster_blocks import (
    BlockGraph,
    BlockRequests,
    has_layers,
    needed_tasks,
    with_held_values,
)
from xloader.sources.arrays.dask_cluster import active_client, cluster_errors, is_closed
from xloader.sources.chunk_sizes import span_of

BlockPlace = tuple[Any, tuple[int, ...]]
"""A dask array, and the index of one of its blocks."""


@dataclass(frozen=True)
class TaskCost:
    """Cost of one block of a dask array."""

    num_tasks: int
    num_repeats: float


def effort_of(array: Any) -> TaskCost:
    """Find the cost of a block of a dask array, without computing anything."""
    if not has_layers(array):
        return TaskCost(num_tasks=0, num_repeats=0.0)
    graph = array.__dask_graph__()
    middle = tuple(count // 2 for count in array.numblocks)
    num_tasks = len(needed_tasks(graph, array.__dask_layers__(), [(array.name, *middle)]))
    num_all = sum(len(layer) for layer in graph.layers.values())
    return TaskCost(num_tasks, num_tasks * math.prod(array.numblocks) / max(1, num_all))


class BlockComputer:
    """Computes blocks of dask arrays, and keeps the graphs that it takes their tasks from.

    It pickles without these graphs. Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[str, ...], BlockGraph] = {}
        self._lock = threading.Lock()
        self._last_client: weakref.ref[Any] | None = None

    def __reduce__(self) -> tuple[type[BlockComputer], tuple[()]]:
        return BlockComputer, ()

    def compute(self, blocks: Sequence[BlockPlace]) -> list[NDArray[Any]]:
        """Compute one block of each of some dask arrays.

        Tasks that blocks share run once, if all graphs have layers.
        """
        client = active_client()
        blocks = [(array, _counting_empty(array.chunks, index)) for array, index in blocks]
        if not all(has_layers(array) for array, _ in blocks):
            scheduler = "synchronous" if client is None else client.get
            with cluster_errors("computing blocks"):
                parts = [array[_place(array.chunks, index)] for array, index in blocks]
                results = [part.compute(scheduler=scheduler) for part in parts]
            return [_checked(block, *place) for block, place in zip(results, blocks, strict=True)]
        keys = [(array.name, *index) for array, index in blocks]
        graph = self._graph_of([array for array, _ in blocks])
        if client is None and graph.is_shuffled:
            raise _shuffled(keys[0])
        if client is None:
            self._tell_of_closed()
            from dask.local import get_sync

            results = get_sync(with_held_values(graph.tasks(keys), keys), keys)
        else:
            self._last_client = weakref.ref(client)
            results = BlockRequests.of(client).get(client, graph.tasks(keys), keys)
        return [_checked(block, *place) for block, place in zip(results, blocks, strict=True)]

    def _tell_of_closed(self) -> None:
        """Warn if blocks were computed through a client that has been closed."""
        with self._lock:
            client = None if self._last_client is None else self._last_client()
            if self._last_client is None or (client is not None and not is_closed(client)):
                return
            self._last_client = None
        warn_caller(
            "the dask client that computed blocks is closed, and no other one is active: this "
            "process computes them on its own threads now. To use the cluster, keep a client open "
            "while you iterate",
            ClusterWarning,
        )

    def _graph_of(self, arrays: Sequence[Any]) -> BlockGraph:
        """The graph of some arrays, made when they are first asked for."""
        by_name = {array.name: array for array in arrays}
        names = tuple(sorted(by_name))
        with self._lock:
            if names not in self._graphs:
                self._graphs[names] = BlockGraph([by_name[name] for name in names])
            return self._graphs[names]


def share_tasks(dataset: xr.Dataset, names: Iterable[str]) -> dict[str, int]:
    """Group the dask variables that are made from the same tasks, block by block."""
    groups: list[tuple[set[str], list[str]]] = []
    grids: dict[str, object] = {}
    for name in names:
        array = dataset[name].variable
        if array.chunks is None or not has_layers(array.data):
            continue
        grids[name] = array.dims, array.chunks
        # A layer of one task holds an array that other layers read from.
        graph = array.data.__dask_graph__()
        layers = {label for label, layer in graph.layers.items() if len(layer) > 1}
        members = [name]
        for group in [g for g in groups if g[0] & layers and grids[g[1][0]] == grids[name]]:
            groups.remove(group)
            layers |= group[0]
            members = [*group[1], *members]
        groups.append((layers, members))
    return {
        name: number
        for number, (_, members) in enumerate(groups)
        if len(members) > 1
        for name in members
    }


def _shuffled(key: Hashable) -> ClusterError:
    return ClusterError(
        "dask's p2p rechunk needs a cluster, and no client is active in this process",
        given=f"block {key!r}",
        remedy="rechunk again under dask.config.set({'array.rechunk.method': 'tasks'}), which dask "
        "does by itself only where no client is active, or write the data to a store; or keep a "
        "client open, and read in its process (num_workers=0)",
    )


def _place(chunks: Sequence[Sequence[int]], index: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices of an array that a block covers."""
    return tuple(
        slice(*span_of(tuple(sizes), place, sum(sizes)))
        for sizes, place in zip(chunks, index, strict=True)
    )


def _counting_empty(chunks: Sequence[Sequence[int]], index: tuple[int, ...]) -> tuple[int, ...]:
    """Index of a block among all blocks, empty ones included, as dask counts."""
    return tuple(
        place if all(sizes) else int(np.flatnonzero(sizes)[place])
        for sizes, place in zip(chunks, index, strict=True)
    )


def _checked(block: Any, array: Any, index: tuple[int, ...]) -> NDArray[Any]:
    """A block as an array. Its shape must be the one that dask says."""
    values = np.asarray(block)
    shape = tuple(sizes[place] for sizes, place in zip(array.chunks, index, strict=True))
    if values.shape != shape:
        # A block that is too small would be broadcast when it is copied.
        raise ValueError(f"a block of shape {values.shape}, but dask declares {shape}")
    return values
