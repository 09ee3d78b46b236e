"""Finds the stored array that a dask array is a plain view of, without computing anything.

All code that reads dask graphs for this purpose is in this file. Opening with ``chunks=`` makes a
graph that reads blocks of one array. Selecting, transposing and rechunking add layers that move
elements and change none. The graph is followed from its root up. Instead of data, each block
holds the elements that it selects from the root array::

    getter        block (i, j)   ->  rows 16 i .. 16 i + 15, columns 90 j .. 90 j + 89
    getitem       rows[2:9:3]    ->  rows 16 i + 2, 16 i + 5, 16 i + 8
    transpose     axes (1, 0)    ->  columns first
    concatenate   of blocks      ->  one after the other

The array is a view if the rows of every block depend only on its row in the grid of blocks, and
its columns only on its column. Functions are compared exactly. Any unknown one ends the search with
an error. Its text is the reason that the user is told, as in "computed (mul)".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
from zarr.storage import LocalStore, MemoryStore

from xloader.sources import zarr_adapter
from xloader.sources.arrays.xarray_views import (
    IndexedArray,
    LazyView,
    UnrecognisedError,
    held_by,
    join,
    known,
    reading,
    unknown_form,
    view_of,
)

_PLACES: Final = {
    "layers": "dask.highlevelgraph:HighLevelGraph",
    "stored": "dask.highlevelgraph:MaterializedLayer",
    "blockwise": "dask.blockwise:Blockwise",
    "slices": "dask.array.core:ArraySliceDep",
    "getter": "dask.array.core:getter",
    "getter_nofancy": "dask.array.core:getter_nofancy",
    "getter_inline": "dask.array.core:getter_inline",
    "getitem": "dask.array.chunk:getitem",
    "points": "dask.array.core:_vindex_slice_and_transpose",
    "take": "dask.array._shuffle:_getitem",
    "shuffle": "dask.array._shuffle:concatenate_arrays",
    "merge": "dask.array.core:concatenate_shaped",
    "task": "dask._task_spec:Task",
    "alias": "dask._task_spec:Alias",
    "data": "dask._task_spec:DataNode",
    "list": "dask._task_spec:List",
    "reference": "dask._task_spec:TaskRef",
}
"""Import paths of the known classes and functions, in every version that is supported."""

_PLAIN: Final = (LocalStore, MemoryStore)
"""Stores without a connection, a thread or an open file."""


@dataclass(frozen=True)
class _Grid:
    """The blocks of one layer of a graph, as selections from the root array."""

    kept: tuple[int | tuple[Any, ...], ...]
    order: tuple[int, ...]

    def block(self, index: tuple[int, ...]) -> IndexedArray:
        """The block at a position of the grid."""
        places = dict(zip(self.order, index, strict=True))
        kept = (
            selection if isinstance(selection, int) else selection[places[dim]]
            for dim, selection in enumerate(self.kept)
        )
        return IndexedArray(tuple(kept), self.order)


def view_of_variable(variable: xr.Variable) -> LazyView:
    """Find the Zarr array that a variable is a plain view of."""
    data = held_by(variable)
    return view_of(data) if variable.chunks is None else view_of_graph(data)


def view_of_graph(array: Any) -> LazyView:
    """Find the array that a dask array is a plain view of."""
    with reading("dask"):
        source, grid = _read_graph(array.__dask_graph__(), array.name)
    selections = [kept if isinstance(kept, int) else join(kept) for kept in grid.kept]
    view = view_of(source)
    view = view.select([_as_key(kept) for kept in selections])
    shown = [dim for dim, kept in enumerate(selections) if not isinstance(kept, int)]
    view = view.transpose([shown.index(dim) for dim in grid.order])
    if view.shape != array.shape:
        raise UnrecognisedError("of another shape than its blocks")
    return view


def _read_graph(graph: Any, name: str) -> tuple[Any, _Grid]:
    """The array that a graph reads, and the grid of the blocks of its last layer.

    A refusal names the operation whose layer is not plain.
    """
    if type(graph) is not _known("layers"):
        raise unknown_form("dask", f"a graph of type {type(graph).__name__}")
    chain = _chain(graph, name)
    below, _ = chain[-1]
    source, grid = _root(graph, chain)
    for upper, layer in reversed(chain[:-1]):
        try:
            if type(layer) is _known("blockwise"):
                grid = _transposed(layer, grid, below)
            else:
                grid = _followed(layer, grid, below, upper)
        except UnrecognisedError as reason:
            raise _refusal(str(reason), upper) from reason
        below = upper
    return source, grid


def _refusal(reason: str, layer: str) -> UnrecognisedError:
    """The error for a layer that is not plain. It names the operation, as dask calls it."""
    from dask.utils import key_split

    return UnrecognisedError(f"{reason} ({key_split(layer)})")


def _chain(graph: Any, name: str) -> list[tuple[str, Any]]:
    """The layers, with their names, from the last one down to the one that reads the array.

    Each layer must depend on exactly one layer below it.
    """
    getters = (_known("getter"), _known("getter_nofancy"), _known("getter_inline"))
    chain: list[tuple[str, Any]] = []
    while True:
        layer = graph.layers[name]
        chain.append((name, layer))
        if type(layer) is _known("blockwise"):
            if layer.task.func in getters:
                return chain
            # A cheap check, which stops at most graphs that compute.
            if layer.task.func is not np.transpose:
                raise _refusal("computed", name)
        elif type(layer) is not _known("stored"):
            raise unknown_form("dask", f"a layer of type {type(layer).__name__}")
        below = graph.dependencies[name]
        if not below:
            raise _refusal("from no stored array that xloader finds", name)
        if len(below) > 1:
            raise _refusal("put together from several arrays or parts of one", name)
        (name,) = below


def _root(graph: Any, chain: list[tuple[str, Any]]) -> tuple[Any, _Grid]:
    """The array that the last layer of a chain reads, and the grid of its blocks."""
    name, layer = chain[-1]
    (source, none), (slices, indices) = layer.indices
    below = graph.dependencies[name]
    slicing = layer.io_deps.get(slices)
    is_plain = (
        none is None
        and type(slicing) is _known("slices")
        and tuple(indices) == tuple(layer.output_indices)
        and set(layer.task.kwargs) <= {"asarray", "lock"}
        and _inputs(layer)[:2] == ["__dask_blockwise__0", "__dask_blockwise__1"]
        and not layer.new_axes
    )
    if not is_plain or len(below) > 1:
        raise _refusal("with blocks read in a way that xloader does not know", name)
    if below:
        # The array is in a layer of its own, which this layer refers to.
        (name,) = below
        if type(source) is not _known("reference") or source.key != name:
            raise unknown_form("dask", f"an array given as {type(source).__name__}")
        source = graph.layers[name][name]
        if type(source) is _known("data"):
            source = source.value
    if source.shape != tuple(map(sum, slicing.chunks)):
        raise _refusal("of another shape than the array that it reads", name)
    edges = [np.concatenate([[0], np.cumsum(sizes)]).tolist() for sizes in slicing.chunks]
    kept = tuple(tuple(itertools.starmap(range, itertools.pairwise(ends))) for ends in edges)
    return source, _Grid(kept, tuple(range(len(kept))))


def _inputs(layer: Any) -> list[str]:
    """Names of the layer's inputs in the order in which its task takes them."""
    return [str(getattr(argument, "key", None)) for argument in layer.task.args]


def _transposed(layer: Any, grid: _Grid, below: str) -> _Grid:
    """The blocks of a layer that only transposes each block."""
    ((name, indices),) = layer.indices
    axes = layer.task.kwargs.get("axes")
    expected = [tuple(indices).index(index) for index in layer.output_indices]
    is_plain = (
        set(layer.task.kwargs) == {"axes"}
        and _inputs(layer) == ["__dask_blockwise__0"]
        and name == below
        and sorted(expected) == list(range(len(indices)))
        and [axis % len(indices) for axis in axes] == expected
        and not layer.new_axes
        and not layer.io_deps
    )
    if not is_plain:
        raise UnrecognisedError("with each block transposed by itself")
    return _Grid(grid.kept, tuple(grid.order[axis] for axis in expected))


def _followed(layer: Mapping[Any, Any], grid: _Grid, below: str, name: str) -> _Grid:
    """The blocks of a layer of separate tasks, found by following each task."""
    blocks: dict[Hashable, Any] = {}

    def value(key: Hashable) -> Any:
        """The block that a key stands for: one of the array below, or that of a task."""
        if isinstance(key, tuple) and key[0] == below:
            return grid.block(key[1:])
        if key not in blocks:
            blocks[key] = _evaluated(layer[key], value)
        return blocks[key]

    outputs = {
        tuple(int(place) for place in key[1:]): value(key)
        for key in layer
        if isinstance(key, tuple) and key[0] == name
    }
    if not all(isinstance(block, IndexedArray) for block in outputs.values()):
        # Not tasks, but keys of other blocks or blocks themselves.
        raise UnrecognisedError("put together from whole blocks")
    return _assembled(outputs)


def _evaluated(task: Any, value: Callable[[Hashable], Any]) -> Any:
    """The value of a task: a block, or the numbers that select from a block."""
    task_type = type(task)
    if task_type is _known("data"):
        return task.value
    if task_type is _known("alias"):
        return value(task.target)
    if task_type is _known("reference"):
        return value(task.key)
    if task_type is _known("list"):
        return [_evaluated(argument, value) for argument in task.args]
    if task_type is tuple and task and callable(task[0]):
        # A task in an older form, of which dask itself makes none that only move elements.
        raise UnrecognisedError("computed")
    if task_type is not _known("task"):
        return task
    if task.kwargs:
        raise UnrecognisedError("computed")
    arguments = [_evaluated(argument, value) for argument in task.args]
    if task.func is _known("getitem"):
        return _selected(*arguments)
    if task.func is _known("points"):
        raise UnrecognisedError("an index of points, not of a block")
    if task.func is _known("take"):
        block, (_, keys) = arguments
        return _selected(block, keys)
    if task.func is _known("merge"):
        return _merged(*arguments)
    if task.func is _known("shuffle"):
        blocks, (_, sorter), axis = arguments
        sorting: list[Any] = [slice(None)] * len(blocks[0].order)
        sorting[axis] = np.argsort(sorter)
        return _concatenated(blocks, axis).select(sorting)
    raise UnrecognisedError("computed")


def _selected(block: IndexedArray, keys: Any) -> IndexedArray:
    """The part of a block that ``getitem`` selects."""
    keys = keys if isinstance(keys, tuple) else (keys,)
    if any(key is None for key in keys):
        raise UnrecognisedError("with a new dimension")
    num_arrays = sum(np.ndim(key) > 0 for key in keys if not isinstance(key, slice))
    # NumPy moves dimensions where arrays and ints index together.
    if num_arrays > (1 if all(isinstance(key, slice) or np.ndim(key) for key in keys) else 0):
        raise UnrecognisedError("indexed along several dimensions at once")
    return block.select((*keys, *[slice(None)] * (len(block.order) - len(keys))))


def _merged(blocks: list[IndexedArray], shape: Sequence[int]) -> IndexedArray:
    """One block made of several, which are given in C order of a grid of some shape."""
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        blocks = [
            _concatenated(blocks[begin : begin + size], axis)
            for begin in range(0, len(blocks), size)
        ]
    (whole,) = blocks
    return whole


def _concatenated(blocks: Sequence[IndexedArray], axis: int) -> IndexedArray:
    """One block made of several along an axis. They must agree along all other axes."""
    first = blocks[0]
    dim = first.order[axis]
    for block in blocks[1:]:
        others = zip(first.kept, block.kept, strict=True)
        is_alike = all(_is_same(a, b) for d, (a, b) in enumerate(others) if d != dim)
        if not is_alike or block.order != first.order:
            raise UnrecognisedError("joined from blocks that are not in one row")
    kept = list(first.kept)
    kept[dim] = join([block.kept[dim] for block in blocks])
    return IndexedArray(tuple(kept), first.order)


def _assembled(blocks: Mapping[tuple[int, ...], IndexedArray]) -> _Grid:
    """The grid of some blocks, if each dimension is cut the same way everywhere."""
    counts = [1 + max(places) for places in zip(*blocks, strict=True)]
    if len(blocks) != np.prod(counts, dtype=object):
        raise UnrecognisedError("without some of its blocks")
    first = blocks[(0,) * len(counts)]
    along: dict[int, list[Any]] = {}
    for axis, dim in enumerate(first.order):
        before, after = (0,) * axis, (0,) * (len(counts) - axis - 1)
        along[dim] = [blocks[*before, place, *after].kept[dim] for place in range(counts[axis])]
    grid = _Grid(
        tuple(tuple(along[d]) if d in along else kept for d, kept in enumerate(first.kept)),
        first.order,
    )
    for place, block in blocks.items():
        expected = grid.block(place)
        is_alike = all(map(_is_same, expected.kept, block.kept))
        if not is_alike or block.order != first.order:
            raise UnrecognisedError("with blocks in other places than in the stored array")
    return grid


def _is_same(first: Any, second: Any) -> bool:
    """Whether two selections keep the same elements."""
    if isinstance(first, int | range) and isinstance(second, int | range):
        return first == second
    return first is second or np.array_equal(np.asarray(first), np.asarray(second))


def _as_key(kept: Any) -> Any:
    """A selection as a key for `LazyView.select`."""
    if isinstance(kept, range):
        # Down to the first element, a slice would need the end -1, which is the last element.
        if kept.step < 0:
            return np.asarray(kept, np.int64)
        return slice(kept.start, kept.stop, kept.step)
    return kept


@functools.cache
def _known(name: str) -> Any:
    return known(_PLACES[name])


def survives_fork(dataset: xr.Dataset, names: tuple[str, ...]) -> bool:
    """Whether a forked child may make a source of some variables anew."""
    try:
        views = [view_of_variable(dataset.variables[name]) for name in names]
    except UnrecognisedError:
        return False
    return all(isinstance(zarr_adapter.innermost(view.array.store), _PLAIN) for view in views)
