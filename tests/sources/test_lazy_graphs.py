"""dask graphs that move blocks: only those that are views of a Zarr array are read directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._task_spec import List, Task, TaskRef
from dask.array.chunk import getitem
from dask.array.core import ArraySliceDep, concatenate_shaped, getter
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from tests.sources.lazy_kinds import is_direct, make_dataset, make_store, opened, values_of
from xloader.sources.open.open_source import open_source
from xloader.testing import write_store


def of_tasks(below: da.Array, chunks: Any, tasks: dict[tuple[int, ...], Any]) -> da.Array:
    """Make a dask array whose tasks are written by hand."""
    made = {("made", *index): Task(("made", *index), *task) for index, task in tasks.items()}
    graph = HighLevelGraph.from_collections("made", made, [below])
    return da.Array(graph, "made", chunks, below.dtype)


def block(below: da.Array, *index: int) -> TaskRef:
    return TaskRef((below.name, *index))


def moved(x: da.Array, places: list[tuple[int, int, int]]) -> da.Array:
    every = (slice(None),) * 3
    cells = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    tasks = {c: (getitem, block(x, *p), every) for c, p in zip(cells, places, strict=True)}
    return of_tasks(x, x.chunks, tasks)


def read_across(x: da.Array) -> da.Array:
    """Put block (i, j) of the array at (j, i), without transposing the block itself."""
    source = x.dask[f"original-{x.name}"]
    layer = blockwise(
        getter, "made", "jik", source, None, ArraySliceDep(x.chunks), "ijk", numblocks={}
    )
    return da.Array(HighLevelGraph({"made": layer}, {"made": set()}), "made", x.chunks, x.dtype)


BY_HAND: dict[str, Callable[[da.Array], da.Array]] = {
    "three blocks moved": lambda x: moved(x, [(0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 0)]),
    "a block in another's place": lambda x: moved(x, [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 0)]),
    "rows of two blocks joined": lambda x: of_tasks(
        x,
        ((3,), (6,), (4,)),
        {(0, 0, 0): (concatenate_shaped, List([block(x, 0, 0, 0), block(x, 1, 1, 0)]), [1, 2, 1])},
    ),
    "an int and an index": lambda x: of_tasks(
        x,
        ((3,), (3,)),
        {(0, 0): (getitem, block(x, 0, 0, 0), (0, slice(None), np.array([0, 1, 3])))},
    ),
    "read across": read_across,
}
"""Graphs of known functions that are no view of the array."""


@pytest.mark.parametrize("name", BY_HAND)
def test_graphs_that_put_blocks_elsewhere(name: str):
    dims = ("z", "y", "x")
    dataset = xr.Dataset({"t": (dims, np.arange(144.0).reshape(6, 6, 4))})
    below = opened(write_store(dataset, {"t": (3, 3, 4)}), "dask")["t"].data
    every = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    in_place = open_source(xr.Dataset({"t": (dims, moved(below, every))}))
    assert is_direct(in_place) == [True]
    array = BY_HAND[name](below)
    source = open_source(xr.Dataset({"t": (dims[: array.ndim], array)}))
    assert is_direct(source) == [False]
    np.testing.assert_array_equal(values_of(source, "t"), array.compute())


def test_a_dask_array_of_another_dtype_than_it_says():
    array = opened(make_store(make_dataset()), "dask")["t"].data
    double = da.Array(array.dask, array.name, array.chunks, "f8")
    source = open_source(xr.Dataset({"t": (("time", "lat", "lon"), double)}))
    assert source.path_of("t").endswith("its dtype or shape differs from the stored array")
    np.testing.assert_array_equal(values_of(source, "t"), make_dataset()["t"])


def test_dask_arrays_of_a_zarr_array_itself():
    store = make_store(make_dataset())
    array = da.from_zarr(store, component="t")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), array[2:, ::2])})
    source = open_source(ds)
    assert is_direct(source) == [True]
    np.testing.assert_array_equal(values_of(source, "t"), make_dataset()["t"][2:, ::2])
