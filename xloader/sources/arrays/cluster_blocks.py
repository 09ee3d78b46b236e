"""Blocks of dask arrays, computed on the calling thread, or on a cluster and fetched from it."""

from __future__ import annotations

import graphlib
import hashlib
import math
import sys
import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import warn_caller
from xloader.errors import ClusterError, ClusterWarning
from xloader.sources.arrays.dask_cluster import (
    active_client,
    check_open,
    client_of_worker,
    cluster_errors,
    is_closed,
    release_futures,
    worker_threads,
)
from xloader.sources.chunk_sizes import spans_of
from xloader.sources.retries import current

Graph = dict[Any, Any]
"""Tasks by key, in the form that dask's schedulers take."""

_REACH_SECONDS: Final = 2.0
"""Time in which a worker must answer, so that results are fetched from the workers themselves."""

_MOST_NBYTES: Final = 2**16
"""Largest array in memory that becomes a part of each task that needs it."""


class BlockGraph:
    """The graph of some dask arrays, from which the tasks of single blocks are taken."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        from dask.blockwise import optimize_blockwise
        from dask.highlevelgraph import HighLevelGraph

        graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
        # Done for each block anew, this and the larger number of tasks would cost more than
        # computing a small block.
        self._graph = optimize_blockwise(graph, keys=[array.name for array in arrays])  # type: ignore[no-untyped-call]
        self._optimize = arrays[0].__dask_optimize__
        self.is_shuffled = any(map(_is_exchange, self._graph.layers.values()))

    def tasks(self, keys: Sequence[Hashable]) -> Graph:
        """The optimized tasks that some blocks need."""
        return dict(self._optimize(needed_tasks(self._graph, keys), list(keys)))


def has_layers(array: Any) -> bool:
    """Whether an array's graph has layers. Arrays of dask's query planning have none."""
    return hasattr(array, "__dask_layers__")


def needed_tasks(graph: Any, keys: Iterable[Hashable]) -> Graph:
    """The tasks that some keys need, found without making those of other blocks."""
    from dask.blockwise import Blockwise
    from dask.core import keys_in_tasks
    from dask.highlevelgraph import MaterializedLayer

    wanted = set(keys)
    if not all(type(layer) in (Blockwise, MaterializedLayer) for layer in graph.layers.values()):
        return dict(graph.cull(wanted))
    owners: Any = _KeyOwners(graph.layers)
    tasks: Graph = {}
    while wanted:
        of_layers: dict[str, set[Hashable]] = {}
        for key in wanted:
            owner = owners.owner(key)
            if owner is not None:
                of_layers.setdefault(owner, set()).add(key)
            elif "distributed" not in sys.modules:
                raise KeyError(key)
            # Otherwise a cluster has it: arguments of tasks may be futures.
        wanted = set()
        for name, some in of_layers.items():
            layer = graph.layers[name]
            if type(layer) is Blockwise:
                culled, depends = layer.cull(some, frozenset())
                tasks.update(culled)
                wanted.update(*depends.values())
                continue
            for key in some:
                task = tasks[key] = layer[key]
                known = getattr(task, "dependencies", None)
                # Without: a task as a tuple, or an alias as a plain key.
                wanted.update(keys_in_tasks(owners, [task]) if known is None else known)
        wanted -= tasks.keys()
    return tasks


class _KeyOwners:
    """Which of some layers has a key, without making the tasks of the blockwise layers."""

    def __init__(self, layers: Mapping[str, Any]) -> None:
        from dask.blockwise import Blockwise

        self._outputs = {
            layer.output: name for name, layer in layers.items() if type(layer) is Blockwise
        }
        self._others = {
            name: layer for name, layer in layers.items() if type(layer) is not Blockwise
        }

    def owner(self, key: Any) -> str | None:
        """Name of the layer that has a key. None if there is none."""
        name = key[0] if isinstance(key, tuple) and key and isinstance(key[0], str) else key
        if isinstance(name, str):
            if name in self._outputs and name is not key:
                return self._outputs[name]
            if key in self._others.get(name, ()):
                return name
        return next((name for name, layer in self._others.items() if key in layer), None)

    def __contains__(self, key: Any) -> bool:
        return self.owner(key) is not None


_REACHED: Final[weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()
"""Whether this process can connect to the workers, by client."""


def compute_on_cluster(client: Any, tasks: Graph, keys: Sequence[Hashable]) -> list[Any]:
    """Compute tasks on the cluster, and fetch the values of some of them.

    The cluster forgets them afterwards, also if the calling thread is given up.
    """
    attempts = current()
    futures: list[Any] = []
    attempts.on_given_up = partial(release_futures, futures)
    try:
        with cluster_errors("computing blocks"):
            check_open(client)
            renamed, names = _renamed(_joined(tasks, set(keys)), keys)
            futures += client.get(renamed, names, sync=False)
            if attempts.is_given_up:
                release_futures(futures)
            if client not in _REACHED:
                _REACHED[client] = _reaches_workers(client)
            return list(client.gather(futures, direct=_REACHED[client]))
    finally:
        attempts.on_given_up = None
        release_futures(futures)


def with_held_values(tasks: Graph, keys: Sequence[Hashable]) -> Graph:
    """Tasks for this thread, with the values that a cluster holds: persisted and scattered ones."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return tasks
    held = [key for key, task in tasks.items() if isinstance(task, distributed.Future)]
    needed = {key for task in tasks.values() for key in getattr(task, "dependencies", ())}
    # A block that is itself persisted has no task left.
    needed.update(keys)
    held += needed - tasks.keys()
    if not held:
        return tasks
    client = client_of_worker()
    if client is None:
        raise ClusterError(
            "blocks need values that a dask cluster holds, and no client is active in this process",
            given=f"{len(held)} keys, the first is {held[0]!r}",
            remedy="keep the client open, and read in its process (num_workers=0); "
            "or call .compute() in place of .persist(), or write the data to a store",
        )
    # They were complete when they were sent here, which `wait_for_persisted` sees to.
    futures = [distributed.Future(key, client, state="memory") for key in held]
    try:
        with cluster_errors("fetching persisted blocks"):
            values = client.gather(futures)
    finally:
        release_futures(futures)
    return {**tasks, **dict(zip(held, values, strict=True))}


def _joined(tasks: Graph, keys: set[Hashable]) -> Graph:
    """Tasks without those that only hold a value, such as a lazy array: others hold it now.

    On a cluster, each of them would be a task of its own, whose value is sent to other workers.
    """
    from dask._task_spec import DataNode

    held = {
        key: task
        for key, task in tasks.items()
        # Lazy arrays have the size of all that they could read.
        if isinstance(task, DataNode)
        and key not in keys
        and not (isinstance(task.value, np.ndarray) and task.value.nbytes > _MOST_NBYTES)
    }
    return {
        key: task.substitute(held, key=key) if hasattr(task, "substitute") else task
        for key, task in tasks.items()
        if key not in held
    }


def _renamed(tasks: Graph, keys: Sequence[Hashable]) -> tuple[Graph, list[Hashable]]:
    """Tasks under names that stand for the tasks that they need too, and the new names of keys.

    dask fuses tasks of one block in another way than the same tasks for another block. Under one
    name, both would confuse the scheduler, which may then wait for ever. Alike ones stay shared.
    """
    from dask._task_spec import GraphNode

    # Persisted blocks have their name on the cluster.
    nodes = {key: task for key, task in tasks.items() if isinstance(task, GraphNode)}
    if any(map(_is_exchange, nodes.values())):
        return tasks, list(keys)
    needed = {key: task.dependencies & nodes.keys() for key, task in nodes.items()}
    names: dict[Any, Any] = {}
    for key in graphlib.TopologicalSorter(needed).static_order():
        below = sorted(repr(names[lower]) for lower in needed[key])
        text = repr([type(nodes[key]).__name__, *below])
        suffix = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        # At the name, from which dask tells what kind of task it is.
        name, *rest = key if isinstance(key, tuple) else (key,)
        names[key] = (f"{name}-{suffix}", *rest) if rest else f"{name}-{suffix}"
    renamed = {names[key]: task.substitute(names, key=names[key]) for key, task in nodes.items()}
    held = {key: task for key, task in tasks.items() if key not in nodes}
    return {**held, **renamed}, [names.get(key, key) for key in keys]


def _is_exchange(task: Any) -> bool:
    """Whether a task or layer is of dask's p2p rechunk, whose tasks find each other by name."""
    return type(task).__module__.startswith("distributed.shuffle")


def _reaches_workers(client: Any) -> bool:
    """Whether this process can connect to the workers, as far as one of them shows it."""
    if client.direct_to_workers is not None:
        return bool(client.direct_to_workers)
    from distributed.comm.core import connect

    async def reach(address: str) -> None:
        comm = await connect(  # type: ignore[no-untyped-call]
            address, timeout=_REACH_SECONDS, **client.connection_args
        )
        await comm.close()

    try:
        client.sync(reach, next(iter(worker_threads(client))))
    except (OSError, TimeoutError, StopIteration):
        return False
    return True


def wait_for_persisted(dataset: xr.Dataset) -> None:
    """Wait until a cluster has computed all blocks that a dataset keeps there."""
    distributed = sys.modules.get("distributed")
    client = active_client()
    if distributed is None or client is None:
        return
    from dask.highlevelgraph import MaterializedLayer

    arrays = [v.data for v in dataset.variables.values() if v.chunks is not None]
    futures = [
        task
        for array in arrays
        if has_layers(array)
        for layer in array.__dask_graph__().layers.values()
        # Other layers hold no tasks yet, only a recipe for them.
        if type(layer) is MaterializedLayer
        for task in layer.values()
        if isinstance(task, distributed.Future) and task.client is client
    ]
    if futures:
        with cluster_errors("persisting blocks"):
            distributed.wait(futures)


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
    num_tasks = len(needed_tasks(graph, [(array.name, *middle)]))
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
                parts = (array[_place(array, index)] for array, index in blocks)
                results = [part.compute(scheduler=scheduler) for part in parts]
            return [_checked(block, *place) for block, place in zip(results, blocks, strict=True)]
        keys = [(array.name, *index) for array, index in blocks]
        graph = self._graph_of([array for array, _ in blocks])
        if client is None and graph.is_shuffled:
            raise ClusterError(
                "dask's p2p rechunk needs a cluster, and no client is active in this process",
                given=f"block {keys[0]!r}",
                remedy="rechunk under dask.config.set({'array.rechunk.method': 'tasks'}), or keep "
                "a client open, and read in its process (num_workers=0)",
            )
        if client is None:
            self._tell_of_closed()
            from dask.local import get_sync

            results = get_sync(with_held_values(graph.tasks(keys), keys), keys)
        else:
            self._last_client = weakref.ref(client)
            results = compute_on_cluster(client, graph.tasks(keys), keys)
        return [_checked(block, *place) for block, place in zip(results, blocks, strict=True)]

    def _tell_of_closed(self) -> None:
        """Warn if blocks were computed through a client that has been closed."""
        with self._lock:
            client = None if self._last_client is None else self._last_client()
            if self._last_client is None or (client is not None and not is_closed(client)):
                return
            self._last_client = None
        warn_caller(
            "the dask client that computed blocks is closed: this process computes them on its own "
            "threads now. To use the cluster, keep a client open while you iterate",
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


def _place(array: Any, index: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices of an array that a block covers."""
    return tuple(slice(*span) for span in spans_of(array.chunks, index, array.shape))


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
