"""dask graphs that move blocks: only those that are views of a Zarr array are read directly."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._task_spec import List, Task, TaskRef
from dask.array.chunk import getitem
from dask.array.core import ArraySliceDep, concatenate_shaped, getter
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph

from tests.sources import kinds
from tests.sources.lazy_kinds import is_direct, make_dataset, make_store, opened
from xloader.sources.arrays import dask_views as graphs
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


def halved(x: da.Array) -> da.Array:
    """The blocks of the upper half, from a graph that has no others."""
    tasks = {(0, j, 0): (getitem, block(x, 0, j, 0), (slice(None),) * 3) for j in range(2)}
    tasks[0, 3, 0] = tasks[0, 1, 0]
    return of_tasks(x, ((3,), (3, 3), (4,)), tasks)


ELSEWHERE = "with blocks in other places than in the stored array (made)"
BY_HAND: dict[str, tuple[Callable[[da.Array], da.Array], str]] = {
    "three blocks moved": (
        lambda x: moved(x, [(0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 0)]),
        ELSEWHERE,
    ),
    "a block in another's place": (
        lambda x: moved(x, [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 0)]),
        ELSEWHERE,
    ),
    "rows of two blocks joined": (
        lambda x: of_tasks(
            x,
            ((3,), (6,), (4,)),
            {
                (0, 0, 0): (
                    concatenate_shaped,
                    List([block(x, 0, 0, 0), block(x, 1, 1, 0)]),
                    [1, 2, 1],
                )
            },
        ),
        "joined from blocks that are not in one row (made)",
    ),
    "an int and an index": (
        lambda x: of_tasks(
            x,
            ((3,), (3,)),
            {(0, 0): (getitem, block(x, 0, 0, 0), (0, slice(None), np.array([0, 1, 3])))},
        ),
        "indexed along several dimensions at once (made)",
    ),
    "read across": (read_across, "with blocks read in a way that xloader does not know (made)"),
    "blocks left out": (halved, "without some of its blocks (made)"),
}
"""Graphs of known functions that are no view of the array, each with the reason that is given."""


@pytest.mark.parametrize("name", BY_HAND)
def test_graphs_that_put_blocks_elsewhere(name: str):
    dims = ("z", "y", "x")
    dataset = xr.Dataset({"t": (dims, np.arange(144.0).reshape(6, 6, 4))})
    below = opened(write_store(dataset, {"t": (3, 3, 4)}), "dask")["t"].data
    every = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    in_place = open_source(xr.Dataset({"t": (dims, moved(below, every))}))
    assert is_direct(in_place) == [True]
    make, reason = BY_HAND[name]
    array = make(below)
    source = open_source(xr.Dataset({"t": (dims[: array.ndim], array)}))
    assert is_direct(source) == [False]
    assert source.path_of("t").endswith(f" a block, {reason}")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), array.compute())


def test_a_dask_array_of_another_dtype_than_it_says():
    array = opened(make_store(make_dataset()), "dask")["t"].data
    double = da.Array(array.dask, array.name, array.chunks, "f8")
    source = open_source(xr.Dataset({"t": (("time", "lat", "lon"), double)}))
    assert source.path_of("t").endswith("its dtype or shape differs from the stored array")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), make_dataset()["t"])


def test_dask_arrays_of_a_zarr_array_itself():
    store = make_store(make_dataset())
    array = da.from_zarr(store, component="t")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), array[2:, ::2])})
    source = open_source(ds)
    assert is_direct(source) == [True]
    np.testing.assert_array_equal(kinds.read_all(source, "t"), make_dataset()["t"][2:, ::2])


class Held:
    """An array of another library than NumPy and Zarr."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, 3

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.values[key]


ANY_STEP: dict[str, tuple[Callable[[da.Array], da.Array], str]] = {
    "arithmetic": (lambda x: (x * 2)[1:], "computed (mul)"),
    "a mask": (lambda x: x[x > 3], "computed (getitem)"),
    "points": (
        lambda x: x.vindex[[0, 4], [1, 5]],
        "an index of points, not of a block (vindex-merge)",
    ),
    "a new dimension": (lambda x: x[None], "with a new dimension (getitem)"),
    "two arrays": (
        lambda x: da.concatenate([x, x + 1]),
        "put together from several arrays or parts of one (concatenate)",
    ),
    "twice": (lambda x: da.concatenate([x, x]), "put together from whole blocks (concatenate)"),
    "blocks transposed": (
        lambda x: x[:, :, 0].map_blocks(np.transpose),
        "with each block transposed by itself (transpose)",
    ),
    "of numpy": (
        lambda x: da.from_array(x.compute(), chunks=3),
        "from no stored array that xloader finds (array)",
    ),
    "of numpy, read one block at a time": (
        lambda x: da.from_array(x.compute(), chunks=3, lock=True),
        "in memory",
    ),
    "of another library": (
        lambda x: da.from_array(Held(x.compute()), chunks=3),
        "held by Held of tests, which xloader does not read",
    ),
    "back to a chunk": (lambda x: x[[1, 4, 0]], "an index that comes back to a chunk"),
}
"""What users write, and what is said of it."""


@pytest.mark.parametrize("name", ANY_STEP)
def test_the_operation_that_makes_it_no_view_is_named(name: str):
    dims = ("z", "y", "x")
    dataset = xr.Dataset({"t": (dims, np.arange(144.0).reshape(6, 6, 4))})
    below = opened(write_store(dataset, {"t": (3, 3, 4)}), "dask")["t"].data
    make, reason = ANY_STEP[name]
    array = make(below)
    if np.isnan(array.shape).any():
        array = array.compute_chunk_sizes()
    source = open_source(xr.Dataset({"t": ([f"d{k}" for k in range(array.ndim)], array)}))
    path = source.path_of("t")
    assert path.startswith("block by block through xarray: dask, ")
    assert path.endswith(f" a block, {reason}"), path


def test_a_graph_that_is_larger_or_smaller_than_its_array():
    array = opened(make_store(make_dataset()), "dask")["t"].data
    less = da.Array(array.dask, array.name, ((4,), (3,), (5,)), "f4")
    said = open_source(xr.Dataset({"t": (("time", "lat", "lon"), less)})).path_of("t")
    assert said.endswith("of another shape than its blocks")
    slices = ArraySliceDep(((4, 4), (3, 3, 1), (5,)))
    source = array.dask[f"original-{array.name}"]
    layer = blockwise(getter, "made", "ijk", source, None, slices, "ijk", numblocks={})
    made = da.Array(HighLevelGraph({"made": layer}, {"made": set()}), "made", slices.chunks, "f4")
    said = open_source(xr.Dataset({"t": (("time", "lat", "lon"), made)})).path_of("t")
    assert said.endswith("of another shape than the array that it reads (made)")


FORM = rf"a block, in a form of dask {re.escape(dask.__version__)} that xloader does not know "


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("layers", "a graph of type HighLevelGraph"),
        ("blockwise", "a layer of type Blockwise"),
        ("stored", "a layer of type MaterializedLayer"),
        ("reference", "an array given as TaskRef"),
    ],
)
def test_a_release_of_dask_that_has_other_classes(
    monkeypatch: pytest.MonkeyPatch, place: str, told: str
):
    ds = opened(make_store(make_dataset()), "dask")[["t"]].isel(time=slice(1, None))
    graphs._known.cache_clear()
    monkeypatch.setitem(graphs._PLACES, place, "dask.array.core:NotThereYet")
    try:
        source = open_source(ds)
    finally:
        graphs._known.cache_clear()
    assert re.search(rf"{FORM}\({told}\)$", source.path_of("t")), source.path_of("t")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), make_dataset()["t"][1:])


@pytest.mark.parametrize("error", [AttributeError, KeyError])
def test_a_release_of_dask_that_has_other_attributes(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
):
    def fail(*args: object) -> None:
        raise error("indices")

    ds = opened(make_store(make_dataset()), "dask")[["t"]]
    monkeypatch.setattr(graphs, "_root", fail)
    path = open_source(ds).path_of("t")
    assert re.search(rf"{FORM}\({error.__name__}: '?indices'?\)$", path), path


def test_a_fault_of_another_kind_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object) -> None:
        raise AssertionError("a fault")

    ds = opened(make_store(make_dataset()), "dask")[["t"]]
    monkeypatch.setattr(graphs, "_root", fail)
    with pytest.raises(AssertionError, match="a fault"):
        open_source(ds)
