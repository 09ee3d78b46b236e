"""Open datasets: what is recognised as a plain view of Zarr arrays, and what is not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from dask._task_spec import Task, TaskRef
from dask.array.chunk import getitem
from dask.highlevelgraph import HighLevelGraph

import xloader
from tests.sources import kinds
from xloader.errors import ChunkError, ForkError, MissingChunkError
from xloader.sources import lazy
from xloader.sources.base import Read, Source
from xloader.sources.datasets import from_dataset
from xloader.sources.mixed import MixedSource
from xloader.sources.opening import open_source
from xloader.sources.selected import Selected, SelectedSource
from xloader.testing import CountingStore, FaultyStore, write_store

Expression = Callable[[xr.Dataset], xr.Dataset]

CHUNKS = {"t": (4, 3, 5), "p": (4, 3), "m": (3, 4), "flag": (4,), "u": (4,), "s": ()}
PACKED = {
    "p": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -9},
    "u": {"dtype": "u1", "_FillValue": 255},
}


def make_dataset() -> xr.Dataset:
    p = np.arange(77.0).reshape(11, 7) / 2
    p[2, 3] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), np.arange(385, dtype="f4").reshape(11, 7, 5)),
            "p": (("time", "lat"), p),
            "m": (("lat", "time"), np.arange(77, dtype="i4").reshape(7, 11)),
            "flag": (("time",), np.arange(11) % 3 == 0),
            "u": (("time",), np.where(np.arange(11) == 4, np.nan, np.arange(11)).astype("f4")),
            "s": ((), np.float64(2.5)),
            "when": (("time",), np.datetime64("2001-01-01", "ns") + np.arange(11)),
        },
        coords={
            "time": np.arange(11) * 10,
            "lat": np.linspace(-90, 90, 7),
            "area": (("lat", "lon"), np.arange(35.0).reshape(7, 5)),
        },
    )


def make_store(dataset: xr.Dataset, **kwargs: Any) -> zarr.storage.MemoryStore:
    chunks = {name: sizes for name, sizes in CHUNKS.items() if name in dataset}
    return write_store(dataset, chunks, encoding=PACKED, **kwargs)


VIEWS: dict[str, Expression] = {
    "whole": lambda ds: ds,
    "slice": lambda ds: ds.isel(time=slice(2, 9)),
    "steps": lambda ds: ds.isel(time=slice(1, None, 3), lat=slice(None, None, 2)),
    "steps beyond a chunk": lambda ds: ds.isel(time=slice(0, None, 5)),
    "labels": lambda ds: ds.sel(time=slice(20, 80), lat=[-90.0, 30.0]),
    "increasing index": lambda ds: ds.isel(time=[1, 5, 6], lat=[0, 2]),
    "mask": lambda ds: ds.isel(time=ds["time"].values % 20 == 0),
    "int": lambda ds: ds.isel(time=3),
    "int and index": lambda ds: ds.isel(time=-2, lat=[1, 4]),
    "one element": lambda ds: ds.isel(time=3, lat=1, lon=2),
    "selected twice": lambda ds: ds.isel(time=slice(1, 9)).isel(time=[0, 3], lat=slice(1, 6, 2)),
    "head and tail": lambda ds: ds.head(time=7).tail(time=4).thin(time=2),
    "transposed": lambda ds: ds.transpose(),
    "selected and transposed": lambda ds: ds.isel(time=slice(1, 9, 2), lat=2).transpose(),
    "transposed and selected": lambda ds: ds.transpose("lon", "time", "lat").isel(
        time=slice(1, None, 2), lat=[1, 3], lon=0
    ),
    "one element along a dim, transposed": lambda ds: ds.isel(time=[4], lat=[2]).transpose(),
    "squeezed": lambda ds: ds.isel(time=[2]).squeeze("time"),
    "renamed": lambda ds: ds.rename(t="temperature", m="t", time="hour"),
    "renamed dims": lambda ds: ds.rename_dims(lon="x").swap_dims(x="lon"),
    "other coordinates": lambda ds: ds.assign_coords(time=np.arange(11), year=2000).set_coords("m"),
    "other attributes": lambda ds: ds.assign_attrs(a=1).assign(t=ds["t"].assign_attrs(units="K")),
    "some variables": lambda ds: ds[["m", "t"]],
    "no encoding": lambda ds: ds.drop_encoding(),
    "nothing left": lambda ds: ds.isel(time=slice(0, 0)),
}
"""What changes no value: selections, transpositions and names."""

CHUNKED: dict[str, Expression] = {
    "chunked": lambda ds: ds.chunk(time=5),
    "rechunked": lambda ds: ds.chunk(time=5).chunk(time=11, lat=2),
    "rechunked and selected": lambda ds: (
        ds.chunk(time=3).isel(time=slice(2, 9)).chunk(time=4, lat=4).transpose()
    ),
}
"""What changes no value of a dataset in dask's chunks."""

OTHERS: dict[str, Expression] = {
    "where": lambda ds: ds[["t"]].where(ds["t"] > 3),
    "astype": lambda ds: ds[["t"]].astype("f8"),
    "arithmetic": lambda ds: ds[["t", "p"]] * 2,
    "filled": lambda ds: ds[["p"]].fillna(0.0),
    "rolled": lambda ds: ds[["t"]].roll(time=2),
    "concatenated": lambda ds: xr.concat([ds[["t"]], ds[["t"]]], "time"),
    "reversed": lambda ds: ds[["t", "p"]].isel(time=slice(None, None, -1)),
    "index out of order": lambda ds: ds[["t", "p"]].isel(time=[5, 1]),
    "index with repeats": lambda ds: ds[["t", "p"]].isel(time=[1, 1, 2]),
    "points": lambda ds: ds[["t"]].isel(
        time=xr.DataArray([1, 4], dims="at"), lat=xr.DataArray([2, 5], dims="at")
    ),
    "a table of points": lambda ds: ds[["t"]].isel(
        time=xr.DataArray([[1, 2], [3, 4]], dims=("a", "b")), lat=xr.DataArray([2, 5], dims="b")
    ),
    "a new dim": lambda ds: ds[["t"]].expand_dims(member=2),
    "stacked": lambda ds: ds[["p"]].stack(place=("time", "lat")).reset_index("place"),
    "shifted blocks": lambda ds: ds[["m"]].pad(lat=1, constant_values=0),
    "loaded": lambda ds: ds[["t", "p"]].load(),
}
"""What makes other values, or other places for them than a selection of each dimension."""

OPENED: dict[str, dict[str, Any]] = {
    "lazy": {"chunks": None},
    "uncached": {"chunks": None, "cache": False},
    "dask": {"chunks": {}},
    "dask-inline": {"chunks": {}, "inline_array": True},
}


def opened(store: Any, how: str) -> xr.Dataset:
    return xr.open_dataset(store, engine="zarr", consolidated=False, **OPENED[how])


def values_of(source: Source, name: str) -> np.ndarray:
    """All values of a variable, chunk by chunk."""
    variable = source.variables[name]
    stored = np.empty(variable.shape, variable.stored_dtype)
    for chunk in np.ndindex(kinds.num_chunks(variable)):
        spans = (slice(*kinds.span(variable, axis, index)) for axis, index in enumerate(chunk))
        place = (*spans, ...)
        source.read(name, chunk, kinds.whole_cut(variable, chunk), stored[place])
    return stored if variable.packing is None else variable.packing.unpack(stored)


def check_values(source: Source, dataset: xr.Dataset, oracle: xr.Dataset) -> None:
    for name, variable in source.variables.items():
        assert variable.dims == oracle[name].dims
        assert variable.dtype == dataset[name].dtype
        np.testing.assert_array_equal(values_of(source, name), oracle[name].to_numpy())


def is_direct(source: Source) -> list[bool]:
    return [source.path_of(name).startswith("direct: zarr") for name in source.variables]


@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("name", [*VIEWS, *CHUNKED])
def test_views_are_read_directly(how: str, name: str):
    dataset = make_dataset()
    ds = ({**VIEWS, **CHUNKED}[name])(opened(make_store(dataset), how))
    source = open_source(ds)
    assert all(is_direct(source)), [source.path_of(v) for v in source.variables]
    assert set(source.variables) == {v for v, a in ds.data_vars.items() if a.dtype.kind in "biuf"}
    check_values(source, ds, ({**VIEWS, **CHUNKED}[name])(dataset))
    xr.testing.assert_identical(source.coordinates().load(), ds.coords.to_dataset().load())


@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_read_through_xarray(how: str, name: str):
    dataset = make_dataset()
    ds = OTHERS[name](opened(make_store(dataset), how))
    source = open_source(ds)
    paths = [source.path_of(variable) for variable in source.variables]
    assert all(path.startswith("block by block through xarray: ") for path in paths)
    check_values(source, ds, OTHERS[name](dataset))


@pytest.mark.parametrize("kwargs", [{"zarr_format": 2}, {"shards": True}], ids=str)
def test_other_formats(kwargs: dict[str, Any]):
    dataset = make_dataset()
    encoding: dict[str, Any] = {name: dict(packed) for name, packed in PACKED.items()}
    if kwargs.pop("shards", False):
        encoding["t"] = {"shards": (8, 6, 5)}
    store = write_store(dataset, CHUNKS, encoding=encoding, **kwargs)
    for expression in (VIEWS["steps"], VIEWS["transposed and selected"]):
        ds = expression(opened(store, "dask"))
        check_values(open_source(ds), ds, expression(dataset))


def test_a_variable_says_why_it_is_not_read_directly():
    store = make_store(make_dataset())
    ds = opened(store, "lazy")
    turned = open_source(ds.isel(time=slice(None, None, -1)))
    assert turned.path_of("t") == "block by block through xarray: zarr, in reverse order"
    assert turned.path_of("s").startswith("direct")
    mixed = open_source(ds.isel(time=[3, 1]))
    assert mixed.path_of("t").endswith("zarr, an index that does not increase")
    ds["t"].data  # noqa: B018  # loads it, and keeps it
    assert open_source(ds).path_of("t") == "block by block through xarray: numpy"
    dask = opened(store, "dask")
    assert open_source(dask + 1).path_of("t").startswith("block by block through xarray: dask, ")


def test_what_was_written_to_is_not_read_from_the_store():
    ds = opened(make_store(make_dataset()), "lazy")
    ds["m"][0, 0] = 99
    source = open_source(ds)
    assert values_of(source, "m")[0, 0] == 99
    assert source.path_of("t").startswith("direct")


def test_an_encoding_is_believed_only_where_values_agree():
    # Encodings say how to write, and people change them.
    ds = opened(make_store(make_dataset()), "lazy")
    ds["t"].encoding.update(scale_factor=10.0, _FillValue=7.0)
    ds["p"].encoding["scale_factor"] = 100.0
    source = open_source(ds)
    assert source.variables["t"].packing is None
    check_values(source, ds, make_dataset())


def test_an_unsigned_encoding_is_believed_only_where_values_agree():
    packed = xr.Dataset({"t": (("time",), np.array([0, 1, -1, -2], "i1"))})
    packed["t"].attrs.update(_Unsigned="true", _FillValue=np.int8(-1), scale_factor=0.5)
    store = write_store(packed, {"t": (2,)})
    for factor, way in ((0.5, "direct"), (0.25, "block by block through xarray: zarr")):
        ds = opened(store, "lazy")
        ds["t"].encoding["scale_factor"] = factor
        source = open_source(ds)
        assert source.path_of("t").startswith(way)
        np.testing.assert_array_equal(values_of(source, "t"), [0.0, 0.5, np.nan, 127.0])


def test_decoding_by_other_functions_is_left_to_xarray():
    ds = opened(make_store(make_dataset()), "lazy")
    function = lazy._known("function")
    data = function(ds["t"].variable._data, np.negative, np.dtype("f4"))
    ds["t"] = xr.Variable(ds["t"].dims, data)
    source = open_source(ds)
    assert source.path_of("t").endswith("decoded by an unknown function")
    np.testing.assert_array_equal(values_of(source, "t"), -make_dataset()["t"].to_numpy())


def test_a_version_of_xarray_that_is_not_known(monkeypatch: pytest.MonkeyPatch):
    lazy._known.cache_clear()
    monkeypatch.setitem(lazy._PLACES, "outer", "xarray.core.indexing:NotThereYet")
    try:
        ds = opened(make_store(make_dataset()), "lazy")
        source = open_source(ds)
        assert not any(is_direct(source))
        check_values(source, ds, make_dataset())
    finally:
        lazy._known.cache_clear()


@pytest.mark.parametrize(
    "places",
    [[0, 1, 2, 3], [1, 2, 0, 3], [0, 1, 2, 0]],
    ids=["in place", "three moved", "one in another's place"],
)
def test_blocks_that_tasks_put_elsewhere(places: list[int]):
    # A grid of 2 x 2 blocks, and a graph made by hand.
    dataset = xr.Dataset({"t": (("y", "x"), np.arange(24.0).reshape(4, 6))})
    array = opened(write_store(dataset, {"t": (2, 3)}), "dask")["t"].data
    cells = [(0, 0), (0, 1), (1, 0), (1, 1)]
    every = (slice(None), slice(None))
    tasks = {
        ("moved", *cell): Task(
            ("moved", *cell), getitem, TaskRef((array.name, *cells[place])), every
        )
        for cell, place in zip(cells, places, strict=True)
    }
    graph = HighLevelGraph.from_collections("moved", tasks, [array])
    moved = da.Array(graph, "moved", array.chunks, "f8")
    source = open_source(xr.Dataset({"t": (("y", "x"), moved)}))
    assert all(is_direct(source)) == (places == sorted(places))
    np.testing.assert_array_equal(values_of(source, "t"), moved.compute())


def test_a_dask_array_of_another_dtype_than_it_says():
    array = opened(make_store(make_dataset()), "dask")["t"].data
    double = da.Array(array.dask, array.name, array.chunks, "f8")
    source = open_source(xr.Dataset({"t": (("time", "lat", "lon"), double)}))
    assert source.path_of("t").endswith("of another dtype or shape than its array")
    np.testing.assert_array_equal(values_of(source, "t"), make_dataset()["t"])


def test_dask_arrays_of_a_zarr_array_itself():
    store = make_store(make_dataset())
    array = da.from_zarr(store, component="t")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), array[2:, ::2])})
    source = open_source(ds)
    assert is_direct(source) == [True]
    np.testing.assert_array_equal(values_of(source, "t"), make_dataset()["t"][2:, ::2])


EPOCHS = ("whole", "slice", "steps", "increasing index", "selected and transposed", "renamed")


@pytest.mark.parametrize("how", ["lazy", "dask"])
@pytest.mark.parametrize("name", EPOCHS)
def test_an_epoch_reads_each_chunk_once(how: str, name: str):
    dataset = make_dataset().drop_vars(["s", "area", "when"])
    store = CountingStore(make_store(dataset))
    ds, oracle = VIEWS[name](opened(store, how)), VIEWS[name](dataset)
    dim = "hour" if name == "renamed" else "time"
    samples = xloader.open(ds).window({dim: 1})
    loader = samples.loader(batch_size=3, memory="1MiB", output="numpy", threads=2)
    explained = loader.explain()
    store.reset()
    with loader:
        for batch in loader:
            for row, index in enumerate(batch.ids):
                for field in samples.fields:
                    expected = oracle[field].isel({dim: slice(index, index + 1)}).to_numpy()
                    np.testing.assert_array_equal(batch[field][row], expected)
        assert loader.report().num_reads == explained.num_reads
    chunks = {key: count for key, count in store.reads.items() if "/c/" in key}
    assert set(chunks.values()) == {1}
    assert sum(chunks.values()) == explained.num_reads


def test_sources_travel_with_their_store():
    dataset = make_dataset()
    for how in ("lazy", "dask"):
        ds = VIEWS["steps"](opened(make_store(dataset), how))
        ds["half"] = ds["t"] / 2
        source = open_source(ds)
        other = pickle.loads(pickle.dumps(source))
        assert other.fingerprint == source.fingerprint
        for name in source.variables:
            np.testing.assert_array_equal(values_of(other, name), values_of(source, name))


def test_what_is_loaded_beside_does_not_travel():
    dataset = make_dataset()
    dataset["big"] = ("n", np.zeros(100_000))
    ds = opened(make_store(dataset.chunk()), "lazy")
    ds["big"].load()
    assert len(pickle.dumps(open_source(ds, variables=["t"]))) < 64 * 1024


def test_fingerprints_tell_selections_apart():
    ds = opened(make_store(make_dataset()), "lazy")
    whole, same = open_source(ds), open_source(ds)
    assert whole.fingerprint == same.fingerprint
    first, second = (open_source(ds.isel(time=slice(k, k + 4))) for k in (0, 4))
    assert first.variables == second.variables
    assert first.fingerprint != second.fingerprint


def test_variables_of_two_stores():
    dataset = make_dataset()[["t", "p", "u"]]
    one = opened(make_store(dataset), "lazy")[["t"]]
    two = opened(make_store(dataset * 2), "dask")[["t", "p"]].rename(t="twice")
    source = open_source(xr.merge([one, two, {"half": dataset["t"] / 2}], compat="override"))
    assert list(source.variables) == ["t", "twice", "p", "half"]
    assert is_direct(source) == [True, True, True, False]
    for name, factor in {"t": 1.0, "twice": 2.0, "half": 0.5}.items():
        np.testing.assert_array_equal(values_of(source, name), dataset["t"] * factor)


def test_bundles_are_of_one_source_and_one_variable():
    arrays = (xr.Dataset({"t": (("x",), np.arange(4.0))}) for _ in range(2))
    cut = {"t": Selected("t", (range(4),), (0,)), "u": Selected("t", (range(2),), (0,))}
    dims = {"t": ("x",), "u": ("x",)}
    one, two = (SelectedSource(open_source(ds), cut, dims) for ds in arrays)
    source = MixedSource({"t": one, "u": two}, one)
    assert one.bundle_of("t", (0,)) != one.bundle_of("u", (0,))
    outs = np.empty(4), np.empty(2)
    reads = [Read(name, (0,), (slice(None),), out) for name, out in zip("tu", outs, strict=True)]
    assert source.read_together(reads).num_requests == 2
    assert [out.tolist() for out in outs] == [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0]]


def test_absent_and_damaged_chunks_are_told_as_of_any_store():
    dataset = make_dataset()
    store = make_store(dataset)
    del store._store_dict["t/c/1/0/0"]
    ds = opened(store, "lazy").isel(time=slice(1, None)).transpose()
    out = np.empty((5, 3, 4), "f4")
    source = from_dataset(ds, "t", on_missing="raise")
    with pytest.raises(MissingChunkError, match="t/c/1/0/0"):
        source.read("t", (0, 0, 1), (slice(None),) * 3, out)
    filled = from_dataset(ds, "t", on_missing="fill")
    assert filled.read("t", (0, 0, 1), (slice(None),) * 3, out) is False
    np.testing.assert_array_equal(out, ds["t"][:, :3, 3:7])
    faulty = FaultyStore(make_store(dataset), {"t/c/0/0/0": lambda data: data[:-3]})
    damaged = open_source(opened(faulty, "dask"), variables="t")
    with pytest.raises(ChunkError, match="t/c/0/0/0"):
        damaged.read("t", (0, 0, 0), (slice(None),) * 3, np.empty((4, 3, 5), "f4"))


def test_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch):
    source = open_source(opened(make_store(make_dataset()), "lazy"))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ForkError):
        source.read("t", (0, 0, 0), (slice(None),) * 3, np.empty((4, 3, 5), "f4"))
