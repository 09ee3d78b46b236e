"""Opened Datasets: plain views of Zarr arrays are recognised, all others are read by xarray."""

from __future__ import annotations

import functools
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from xarray.core.indexing import ExplicitlyIndexed
from zarr.storage import LocalStore, ZipStore

import xloader
from tests.sources import kinds
from tests.sources.lazy_kinds import (
    CHUNKED,
    CHUNKS,
    OPENED,
    OTHERS,
    PACKED,
    VIEWS,
    check_values,
    is_direct,
    make_dataset,
    make_store,
    opened,
)
from xloader.errors import ChunkError, ForkError, MissingChunkError
from xloader.sources.arrays import xarray_views as lazy
from xloader.sources.arrays.selected_source import Selected, SelectedSource
from xloader.sources.base import Read
from xloader.sources.combined.mixed_source import MixedSource
from xloader.sources.open.from_dataset import from_dataset
from xloader.sources.open.open_source import open_source
from xloader.testing import CountingStore, FaultyStore, write_store


def ways(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each expression with the two usual ways to open a store, and some with all others."""
    usual = [(name, how) for name in names for how in ("lazy", "dask")]
    others = [how for how in OPENED if how not in ("lazy", "dask")]
    return usual + [(name, how) for name in list(names)[::5] for how in others]


@pytest.mark.ends(every=2)
@pytest.mark.parametrize(("name", "how"), ways([*VIEWS, *CHUNKED]))
def test_views_are_read_directly(how: str, name: str):
    dataset = make_dataset()
    ds = ({**VIEWS, **CHUNKED}[name])(opened(make_store(dataset), how))
    source = open_source(ds)
    assert all(is_direct(source)), [source.path_of(v) for v in source.variables]
    assert set(source.variables) == {v for v, a in ds.data_vars.items() if a.dtype.kind in "biuf"}
    check_values(source, ds, ({**VIEWS, **CHUNKED}[name])(dataset))
    xr.testing.assert_identical(source.coordinates().load(), ds.coords.to_dataset().load())


@pytest.mark.ends(every=2)
@pytest.mark.parametrize(("name", "how"), ways(OTHERS))
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
    mixed = open_source(ds.isel(time=[9, 1, 8]))
    assert mixed.path_of("t").endswith("zarr, an index that comes back to a chunk")
    assert mixed.path_of("s").startswith("direct")
    twice = open_source(ds.isel(time=[1, 1]))
    assert twice.path_of("t").endswith("zarr, an index with an element twice")
    ds["t"].data  # noqa: B018  # noqa: B018  # loads the values and caches them
    assert open_source(ds).path_of("t") == "block by block through xarray: numpy"
    dask = opened(store, "dask")
    path = open_source(dask[["t"]] + 1).path_of("t")
    assert path == "block by block through xarray: dask, 3 tasks a block, computed (add)"
    points = xr.DataArray([1, 4], dims="at")
    assert (
        open_source(ds[["p"]].isel(time=points, lat=points))
        .path_of("p")
        .endswith("zarr, an index of points, not of a block")
    )


@pytest.mark.parametrize(
    ("chunks", "begin"), [(None, "file, "), ({}, "dask, 2 tasks a block, ")], ids=["lazy", "dask"]
)
def test_a_file_of_another_format_says_so(
    tmp_path: Path, chunks: dict[str, int] | None, begin: str
):
    make_dataset()[["t"]].to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4", chunks=chunks) as ds:
        path = open_source(ds).path_of("t")
    reason = "held by NetCDF4ArrayWrapper of xarray, which xloader does not read"
    assert path == f"block by block through xarray: {begin}{reason}"


def test_an_array_of_another_library_is_named_as_such():
    class Foreign(ExplicitlyIndexed):
        shape, dtype, ndim = (4,), np.dtype("f8"), 1

    # As xarray_tensorstore puts its arrays into a Dataset.
    ds = xr.Dataset({"t": ("time", np.zeros(4))})
    ds["t"].variable._data = Foreign()
    path = open_source(ds).path_of("t")
    assert path.endswith("held by Foreign of tests, which xloader does not read")


def test_what_was_written_to_is_not_read_from_the_store():
    ds = opened(make_store(make_dataset()), "lazy")
    ds["m"][0, 0] = 99
    source = open_source(ds)
    assert kinds.read_all(source, "m")[0, 0] == 99
    assert source.path_of("t").startswith("direct")


def test_an_encoding_is_believed_only_where_values_agree():
    # Encodings describe how to write, and users change them.
    ds = opened(make_store(make_dataset()), "lazy")
    ds["t"].encoding.update(scale_factor=10.0, _FillValue=7.0)
    ds["p"].encoding["scale_factor"] = 100.0
    source = open_source(ds)
    assert source.variables["t"].packing is None
    check_values(source, ds, make_dataset())


def test_unsigned_numbers_are_decoded_as_xarray_does_whatever_the_encoding_says():
    # A fill value that is unlikely to be among the numbers that are compared.
    stored = np.array([0, 1, -1, -1234567890], "i4")
    packed = xr.Dataset({"t": (("time",), stored)})
    packed["t"].attrs.update(_Unsigned="true", _FillValue=np.int32(-1234567890), scale_factor=0.5)
    store = write_store(packed, {"t": (2,)})
    for changes in ({}, {"scale_factor": 0.25}, {"_Unsigned": "false"}, {"_FillValue": None}):
        ds = opened(store, "lazy")
        ds["t"].encoding.update(changes)
        if "_FillValue" in changes:
            del ds["t"].encoding["_FillValue"]
        source = open_source(ds)
        assert is_direct(source) == [True]
        np.testing.assert_array_equal(kinds.read_all(source, "t"), [0.0, 0.5, 2147483647.5, np.nan])


def test_what_was_decoded_twice_is_left_to_xarray():
    far = np.float32(1e20)
    group = zarr.create_group(zarr.storage.MemoryStore(), zarr_format=2)
    array = group.create_array("t", shape=(4,), chunks=(2,), dtype="f4", fill_value=far)
    array[:] = [far, 1.0, 7777777.0, 2.0]
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    ds = opened(group.store, "lazy")
    ds["t"].attrs["missing_value"] = 7777777.0
    ds["t"].encoding.clear()
    ds = xr.decode_cf(ds)
    source = open_source(ds)
    assert source.path_of("t").endswith("zarr, decoded more than once")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), [np.nan, 1.0, np.nan, 2.0])


def test_a_step_of_decoding_that_gives_other_values_than_its_attributes():
    ds = opened(make_store(make_dataset()), "lazy")
    keywords = {"encoded_fill_values": [3.0], "decoded_fill_value": -1.0, "dtype": np.dtype("f4")}
    masked = functools.partial(lazy._known("mask"), **keywords)
    data = lazy._known("function")(ds["t"].variable._data, masked, np.dtype("f4"))
    source = open_source(xr.Dataset({"t": xr.Variable(ds["t"].dims, data)}))
    assert source.path_of("t").endswith("decoded differently from its encoding")
    expected = make_dataset()["t"].to_numpy()
    np.testing.assert_array_equal(
        kinds.read_all(source, "t"), np.where(expected == 3, -1, expected)
    )


def test_decoding_by_other_functions_is_left_to_xarray():
    ds = opened(make_store(make_dataset()), "lazy")
    function = lazy._known("function")
    data = function(ds["t"].variable._data, np.negative, np.dtype("f4"))
    ds["t"] = xr.Variable(ds["t"].dims, data)
    source = open_source(ds)
    assert source.path_of("t").endswith("decoded by an unknown function")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), -make_dataset()["t"].to_numpy())


def test_a_version_of_xarray_that_is_not_known(monkeypatch: pytest.MonkeyPatch):
    lazy._known.cache_clear()
    monkeypatch.setitem(lazy._PLACES, "outer", "xarray.core.indexing:NotThereYet")
    try:
        ds = opened(make_store(make_dataset()), "lazy")
        source = open_source(ds)
        assert not any(is_direct(source))
        form = f"in a form of xarray {xr.__version__} that xloader does not know"
        path = source.path_of("t")
        assert path == f"block by block through xarray: zarr, {form} (LazilyIndexedArray)"
        check_values(source, ds, make_dataset())
    finally:
        lazy._known.cache_clear()


def test_a_version_of_xarray_with_other_attributes(monkeypatch: pytest.MonkeyPatch):
    def other(self: Any) -> Any:
        raise AttributeError("no get_array here")

    ds = {how: opened(make_store(make_dataset()), how)[["t"]] for how in ("lazy", "dask")}
    monkeypatch.setattr(lazy._known("zarr"), "get_array", other)
    form = f"in a form of xarray {xr.__version__} that xloader does not know"
    for lazily in ds.values():
        path = open_source(lazily).path_of("t")
        assert path.endswith(f", {form} (AttributeError: no get_array here)"), path


EPOCHS = [
    *("steps", "increasing index", "reversed", "index out of order", "mask", "selected twice"),
    *("transposed", "transposed and selected", "squeezed", "renamed"),
]


@pytest.mark.ends(every=2)
@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "lazy") for name in EPOCHS), *((name, "dask") for name in EPOCHS[::3])],
)
def test_an_epoch_reads_each_chunk_once(how: str, name: str):
    dataset = make_dataset().drop_vars(["s", "area", "when"])
    store = CountingStore(make_store(dataset))
    ds, oracle = VIEWS[name](opened(store, how)), VIEWS[name](dataset)
    dim = next(dim for dim in ("hour", "time", "lat") if dim in ds["t"].dims)
    samples = xloader.open(ds).window({dim: 1})
    options = {"memory": "1MiB", "output": "numpy", "threads": 2, "on_nan": "ignore"}
    loader = samples.loader(batch_size=3, **options)
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
            np.testing.assert_array_equal(kinds.read_all(other, name), kinds.read_all(source, name))


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
        np.testing.assert_array_equal(kinds.read_all(source, name), dataset["t"] * factor)


def test_bundles_are_of_one_source_and_one_variable():
    arrays = (xr.Dataset({"t": (("x",), np.arange(4.0))}) for _ in range(2))
    cut = {"t": Selected("t", (range(4),), (0,)), "u": Selected("t", (range(2),), (0,))}
    dims = {"t": ("x",), "u": ("x",)}
    one, two = (SelectedSource(open_source(ds), cut, dims) for ds in arrays)
    source = MixedSource({"t": one, "u": two}, one)
    assert one.bundle_of("t", (0,)) != one.bundle_of("u", (0,))
    outs = np.empty(4), np.empty(2)
    reads = [Read(name, (0,), (slice(None),)) for name in "tu"]
    assert source.fetch(reads).decode(outs).num_requests == 2
    assert [out.tolist() for out in outs] == [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0]]


def test_absent_and_damaged_chunks_are_told_as_of_any_store():
    dataset = make_dataset()
    store = make_store(dataset)
    del store._store_dict["t/c/1/0/0"]
    ds = opened(store, "lazy").isel(time=slice(1, None)).transpose()
    out = np.empty((5, 3, 4), "f4")
    source = from_dataset(ds, "t", on_missing="raise")
    with pytest.raises(MissingChunkError, match="t/c/1/0/0"):
        kinds.read_into(source, "t", (0, 0, 1), (slice(None),) * 3, out)
    filled = from_dataset(ds, "t", on_missing="fill")
    assert kinds.read_into(filled, "t", (0, 0, 1), (slice(None),) * 3, out) is False
    np.testing.assert_array_equal(out, ds["t"][:, :3, 3:7])
    faulty = FaultyStore(make_store(dataset), {"t/c/0/0/0": lambda data: data[:-3]})
    damaged = open_source(opened(faulty, "dask"), variables="t")
    with pytest.raises(ChunkError, match="t/c/0/0/0"):
        kinds.read_into(damaged, "t", (0, 0, 0), (slice(None),) * 3, np.empty((4, 3, 5), "f4"))


def test_a_fork_is_refused_where_the_store_does_not_survive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_dataset().to_zarr(tmp_path / "a", consolidated=False)
    shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a")
    stores = LocalStore(tmp_path / "a", read_only=True), ZipStore(tmp_path / "a.zip", mode="r")
    files, archive = (open_source(opened(store, "lazy")) for store in stores)
    monkeypatch.setattr("os.getpid", lambda: -1)
    kinds.read_into(files, "t", (0, 0, 0), (slice(0, 1),) * 3, np.empty((1, 1, 1), "f4"))
    with pytest.raises(ForkError):
        kinds.read_into(archive, "t", (0, 0, 0), (slice(0, 1),) * 3, np.empty((1, 1, 1), "f4"))
