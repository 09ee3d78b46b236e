"""Finds the tasks that blocks of dask arrays need.

``.compute()`` goes through the whole graph for each block. Here the layers of operations on single
elements are joined once, and the tasks that a block needs are found from the block down, wherever
the layers of the graph are of known kinds.
"""

from __future__ import annotations

import graphlib
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

Graph = dict[Any, Any]
"""Tasks by key, in the form that dask's schedulers take."""


class BlockGraph:
    """The graph of some dask arrays, from which the tasks of single blocks are taken."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        from dask.blockwise import optimize_blockwise
        from dask.highlevelgraph import HighLevelGraph

        graphs = [array.__dask_graph__() for array in arrays]
        graph = HighLevelGraph.merge(*graphs) if len(graphs) > 1 else graphs[0]
        self._layers = [layer for array in arrays for layer in array.__dask_layers__()]
        # Done for each block anew, this and the larger number of tasks would cost more than
        # computing a small block.
        self._graph = optimize_blockwise(graph, keys=[array.name for array in arrays])  # type: ignore[no-untyped-call]
        self._optimize = arrays[0].__dask_optimize__
        self.is_shuffled = any(
            type(layer).__module__.startswith("distributed.shuffle")
            for layer in self._graph.layers.values()
        )

    def tasks(self, keys: Sequence[Hashable]) -> Graph:
        """The optimized tasks that some blocks need."""
        needed = needed_tasks(self._graph, self._layers, keys)
        return dict(self._optimize(needed, list(keys)))


def has_layers(array: Any) -> bool:
    """Whether an array's graph has layers. Arrays of dask's query planning have none."""
    return hasattr(array, "__dask_layers__")


def needed_tasks(graph: Any, layers: Sequence[str], keys: Sequence[Hashable]) -> Graph:
    """The tasks that some keys need."""
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
    """Add each key to the wanted keys of the layer that has it, if any has."""
    for key in some:
        owner = keys.owner(key)
        if owner is not None:
            wanted[owner].add(key)
        elif "distributed" not in sys.modules:
            raise KeyError(key)
        # Otherwise a cluster has it: arguments of tasks may be futures.


class _LayerKeys:
    """Keys of some layers, found without making the tasks of the blockwise layers."""

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
