"""Computes blocks of dask arrays, on the calling thread or on the cluster in use.

``.compute()`` goes through the whole graph for each block. Here the tasks that a block needs are
found from the block down, wherever the layers of the graph are of known kinds.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.sources.chunk_sizes import span_of
from xloader.sources.dask_cluster import active_client

Graph = dict[Any, Any]
"""Tasks by key, in the form that dask's schedulers take."""


@dataclass(frozen=True)
class TaskCost:
    """Cost of one block of a dask array.

    Parameters
    ----------
    num_tasks : int
        Number of tasks that a block in the middle of the array needs. 0 if that is not known.
    num_repeats : float
        Number of times that an epoch, block by block, runs each task of the graph on average.
    """

    num_tasks: int
    num_repeats: float


def effort_of(array: Any) -> TaskCost:
    """Find the cost of a block of a dask array, without computing anything.

    Parameters
    ----------
    array : dask.array.Array
        The array.
    """
    if not _has_layers(array):
        return TaskCost(num_tasks=0, num_repeats=0.0)
    graph = array.__dask_graph__()
    middle = tuple(count // 2 for count in array.numblocks)
    num_tasks = len(_needed(graph, array.__dask_layers__(), [(array.name, *middle)]))
    num_all = sum(len(layer) for layer in graph.layers.values())
    return TaskCost(num_tasks, num_tasks * math.prod(array.numblocks) / max(1, num_all))


def compute_blocks(blocks: Sequence[tuple[Any, tuple[int, ...]]]) -> list[NDArray[Any]]:
    """Compute one block of each of some dask arrays.

    Tasks that blocks share run once, if all graphs have layers.

    Parameters
    ----------
    blocks : sequence of (dask.array.Array, tuple of int)
        The arrays, each with the index of a block. Indices count only blocks that are not empty.

    Returns
    -------
    list of numpy.ndarray
        The blocks, in the order given.

    Raises
    ------
    ValueError
        If a block has another shape than its array says.
    """
    from dask.highlevelgraph import HighLevelGraph
    from dask.local import get_sync

    client = active_client()
    get = get_sync if client is None else client.get
    blocks = [(array, _counting_empty(array.chunks, index)) for array, index in blocks]
    if not all(_has_layers(array) for array, _ in blocks):
        return [
            _checked(array[_place(array.chunks, index)].compute(scheduler=get), array, index)
            for array, index in blocks
        ]
    graphs = {array.name: array.__dask_graph__() for array, _ in blocks}
    layers = [layer for array, _ in blocks for layer in array.__dask_layers__()]
    graph = HighLevelGraph.merge(*graphs.values()) if len(graphs) > 1 else graphs.popitem()[1]
    keys = [(array.name, *index) for array, index in blocks]
    tasks = blocks[0][0].__dask_optimize__(_needed(graph, layers, keys), keys)
    found = get(dict(tasks), keys)
    return [_checked(block, *place) for block, place in zip(found, blocks, strict=True)]


def is_on_cluster() -> bool:
    """Whether blocks are computed on a cluster."""
    return active_client() is not None


def share_tasks(dataset: xr.Dataset, names: Iterable[str]) -> dict[str, int]:
    """Group the dask variables that are made from the same tasks, block by block.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset. Nothing is computed.
    names : iterable of str
        Names of the variables to look at.

    Returns
    -------
    dict of str to int
        The number of each variable's group. Variables of a group share a layer of tasks and have
        the same dimensions and blocks. Variables that share none are left out.
    """
    groups: list[tuple[set[str], list[str]]] = []
    grids: dict[str, object] = {}
    for name in names:
        array = dataset[name].variable
        if array.chunks is None or not _has_layers(array.data):
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


def _has_layers(array: Any) -> bool:
    """Whether an array's graph has layers. Arrays of dask's query planning have none."""
    return hasattr(array, "__dask_layers__")


class _LayerKeys:
    """Keys of some layers, found without making the tasks of the blockwise layers.

    Parameters
    ----------
    graph : dask.highlevelgraph.HighLevelGraph
        The graph.
    names : iterable of str
        Names of the layers.
    """

    def __init__(self, graph: Any, names: Iterable[str]) -> None:
        from dask.blockwise import Blockwise

        layers = {name: graph.layers[name] for name in names}
        self._blockwise = {
            layer.output: name for name, layer in layers.items() if type(layer) is Blockwise
        }
        self._others = {
            name: layer for name, layer in layers.items() if type(layer) is not Blockwise
        }

    def owner(self, key: Any) -> str | None:
        """Name of the layer that has a key. None if there is none."""
        if isinstance(key, tuple) and key and isinstance(key[0], str):
            found = self._blockwise.get(key[0])
            if found is not None:
                return found
        return next((name for name, layer in self._others.items() if key in layer), None)

    def __contains__(self, key: Any) -> bool:
        return self.owner(key) is not None


def _needed(graph: Any, layers: Sequence[str], keys: Sequence[Hashable]) -> Graph:
    """The tasks that some keys of some layers need."""
    from dask.blockwise import Blockwise
    from dask.highlevelgraph import MaterializedLayer

    known = (Blockwise, MaterializedLayer)
    if not all(type(layer) in known for layer in graph.layers.values()):
        return dict(graph.cull(set(keys)))
    wanted: dict[str, set[Hashable]] = {name: set() for name in graph.layers}
    _claim(_LayerKeys(graph, layers), keys, wanted)
    tasks: Graph = {}
    order = list(graphlib.TopologicalSorter(graph.dependencies).static_order())
    for name in reversed(order):
        if not wanted[name]:
            continue
        layer = graph.layers[name]
        lower = _LayerKeys(graph, graph.dependencies[name])
        if type(layer) is MaterializedLayer:
            found, below = _walk(layer, wanted[name], lower)
        else:
            culled, depends = layer.cull(wanted[name], frozenset())
            found, below = dict(culled), set().union(*depends.values())
        tasks.update(found)
        _claim(lower, below, wanted)
    return tasks


def _walk(
    layer: Mapping[Any, Any], keys: Iterable[Hashable], lower: _LayerKeys
) -> tuple[Graph, set[Hashable]]:
    """The tasks of a layer that some keys need, and the keys that these need of other layers."""
    from dask.core import keys_in_tasks

    found: Graph = {}
    below: set[Hashable] = set()
    left = list(keys)
    while left:
        key = left.pop()
        if key in found:
            continue
        if key not in layer:
            below.add(key)
            continue
        task = found[key] = layer[key]
        known = getattr(task, "dependencies", None)
        if known is None:
            # A task as a tuple, or an alias as a plain key.
            known = {*keys_in_tasks(layer, [task]), *keys_in_tasks(cast(Any, lower), [task])}
        left.extend(known)
    return found, below


def _claim(keys: _LayerKeys, some: Iterable[Hashable], wanted: dict[str, set[Hashable]]) -> None:
    """Add each key to the wanted keys of the layer that has it."""
    for key in some:
        owner = keys.owner(key)
        if owner is None:
            raise KeyError(key)
        wanted[owner].add(key)
