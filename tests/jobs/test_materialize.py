"""A materialized store gives the same samples, whatever the source, and reads as it said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from tests.test_oracle import ROWS, Row
from xloader import Samples
from xloader.errors import (
    ChunkWarning,
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    TargetError,
    TargetWarning,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.testing import CountingStore, LatencyStore, SourceRecorder, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def over(samples: Samples, target: Any) -> Samples:
    """The same verbs as those of samples, on a target."""
    source = xloader.open(target).recipe.source
    recipe = replace(samples.recipe, source=source, variables=tuple(source.variables))
    kept = tuple((dim, kept) for dim, kept in recipe.selection if not isinstance(kept, int))
    assert all(dim in {d for v in source.variables.values() for d in v.dims} for dim, _ in kept)
    return Samples(replace(recipe, selection=()))


def check_same(samples: Samples, target: Any) -> Samples:
    """Check that all samples of a target equal those of the source, with ids and labels."""
    other = over(samples, target)
    assert len(other) == len(samples)
    subset = samples.recipe.subset
    # Samples of weight 0 are in no epoch.
    ids = np.arange(len(samples)) if subset is None else subset.possible_ids
    expected = samples.to_xarray(ids)
    # Labels of dims that the selection drops are shown for the source only.
    dropped = [dim for dim, kept in samples.recipe.selection if isinstance(kept, int)]
    assert_same(other.to_xarray(ids), expected.drop_vars(dropped, errors="ignore"))
    return other


def assert_same(actual: xr.Dataset, expected: xr.Dataset) -> None:
    xr.testing.assert_identical(actual, expected)
    for name, array in expected.variables.items():
        assert actual[name].dtype == array.dtype, name


def weather(num_steps: int = 24) -> xr.Dataset:
    rng = np.random.default_rng(3)
    values = rng.normal(280, 9, (num_steps, 3, 6, 8)).astype("f4")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values[:, 0], {"units": "K", "long_name": "warmth"}),
            "z": (("time", "level", "lat", "lon"), values),
            "oro": (("lat", "lon"), values[0, 0]),
        },
        {
            "time": np.datetime64("2000-01-01", "ns")
            + np.arange(num_steps) * np.timedelta64(6, "h"),
            "level": [500, 700, 850],
            "lat": np.linspace(75, -75, 6),
        },
    )


CHUNKS = {"t2m": (5, 4, 3), "z": (4, 1, 6, 8), "oro": (6, 8)}


def opened(**encoding: Any) -> Samples:
    return xloader.open(write_store(weather(), CHUNKS, encoding=encoding))


# Same samples


# Each kind of source once, and a third of all rows.
NAMES = sorted({*{row.source: name for name, row in ROWS.items()}.values(), *list(ROWS)[::3]})


@pytest.mark.ends(every=6)
@pytest.mark.parametrize("name", NAMES)
def test_every_source_and_expression(name: str, tmp_path: Path) -> None:
    row: Row = ROWS[name]
    samples = row.make(row.source(tmp_path)[0])
    if any(v.is_computed for v in samples.recipe.source.variables.values()):
        check_forcings(row, samples, tmp_path / "target")
        return
    done = samples.materialize(tmp_path / "target", chunks={"time": 3}, verify=True)
    assert done.is_complete
    assert done.is_verified
    for own in done.variables:
        assert own.num_reads == own.expected_reads
        assert own.num_reads == own.num_chunks or own.num_unneeded
    check_same(samples, tmp_path / "target")


def check_forcings(row: Row, samples: Samples, target: Path) -> None:
    """Forcings are not written: they are computed again from the labels of the target."""
    stored = [v for v in samples.recipe.source.variables.values() if not v.is_computed]
    taken = {name for field in samples.recipe.gathered_fields for name in field.variables}
    if not taken & {v.name for v in stored}:
        with pytest.raises(EmptySamplesError, match="forcings only"):
            samples.materialize(target, chunks={"time": 2})
        return
    samples.materialize(target, chunks={"time": 2})
    if not samples.recipe.selection:
        ids = np.arange(len(samples))
        assert_same(row.make(xloader.open(target)).to_xarray(ids), samples.to_xarray(ids))


@given(case=cases(), data=st.data())
def test_any_samples(case: Case, data: st.DataObject) -> None:
    """The memory is drawn too: chunks are read again, or values go through another store."""
    samples = case.samples
    sizes = {dim: data.draw(st.integers(1, size)) for dim, size in case.dataset.sizes.items()}
    shards = None
    if data.draw(st.booleans()):
        shards = {dim: size * data.draw(st.integers(1, 3)) for dim, size in sizes.items()}
    names = {n for f in samples.recipe.gathered_fields for n in f.variables}
    dims = {dim for name in names for dim in samples.recipe.dims_of(name)}
    options: dict[str, Any] = {
        "chunks": {dim: size for dim, size in sizes.items() if dim in dims},
        "shards": shards and {dim: size for dim, size in shards.items() if dim in dims},
        "threads": data.draw(st.integers(1, 2)),
    }
    target: dict[str, Any] = {}
    memory: int | str = "1GiB"
    if data.draw(st.booleans()):
        with pytest.raises(MemoryBudgetError) as refused:
            samples.materialize(zarr.storage.MemoryStore(), memory=1, **options)
        memory = refused.value.minimum_nbytes * data.draw(st.integers(1, 8))
    try:
        plan = samples.materialize(
            zarr.storage.MemoryStore(), memory=memory, dry_run=True, **options
        )
    except MemoryBudgetError:
        return
    case.store.reset()
    store = zarr.storage.MemoryStore(target)
    done = samples.materialize(store, memory=memory, verify=True, **options)
    assert case.store.num_reads == done.num_reads == done.expected_reads == plan.expected_reads
    check_same(samples, store)
    num_objects = sum(own.num_shards - own.num_unneeded for own in done.variables)
    kept = [key for key in target if "/c/" in key and key.split("/")[0] in names]
    assert len(kept) == num_objects


def test_the_same_verbs_after_the_selection(tmp_path: Path) -> None:
    def verbs(samples: Samples) -> Samples:
        samples = samples.window(time=4, stride=2).field("inputs", ["t2m", "z"], time=slice(0, 2))
        samples = samples.field("targets", ["t2m"], time=3)
        return samples.normalize({"t2m": (280.0, 9.0), "z": (1.0, 2.0)})

    source = opened().sel(time=slice("2000-01-02", "2000-01-05"), level=[500, 850])
    source = source.isel(lat=slice(1, 5))
    done = verbs(source).materialize(tmp_path / "t.zarr", chunks={"time": 4})
    assert [own.name for own in done.variables] == ["t2m", "z"]
    target = xloader.open(tmp_path / "t.zarr")
    ids = np.arange(len(verbs(source)))
    assert_same(verbs(target).to_xarray(ids), verbs(source).to_xarray(ids))
    # Labels select the same elements, too.
    day = {"time": "2000-01-03"}
    assert_same(
        target.sel(**day).window(time=2).to_xarray([0, 1]),
        source.sel(**day).window(time=2).to_xarray([0, 1])[["t2m", "z"]],
    )


def test_what_the_store_says(tmp_path: Path) -> None:
    samples = opened().sel(level=700).window(time=2)
    samples.materialize(tmp_path / "t.zarr", chunks={"time": 8, "lat": 3}, shards={"time": 16})
    with xr.open_zarr(tmp_path / "t.zarr") as found:
        assert found.attrs["xloader_origin_fingerprint"] == samples.recipe.source.fingerprint
        assert "xloader" in found.attrs["history"]
        assert found.t2m.attrs == {"units": "K", "long_name": "warmth"}
        # The level that was selected stays as a label without a dimension.
        assert found.level.item() == 700
        assert found.z.dims == ("time", "lat", "lon")
        assert found.z.encoding["chunks"] == (8, 3, 8)
        assert found.z.encoding["shards"] == (16, 6, 8)
        xr.testing.assert_equal(found.z, weather().z.sel(level=700))
    # Nothing that only the job needs is left.
    names = {path.name for path in (tmp_path / "t.zarr").iterdir()}
    assert names == {"zarr.json", "t2m", "z", "time", "level", "lat"}


LABELS = {
    "text": np.array(["a", "bc", "def", "g", "hi", "j"]),
    "cftime": xr.date_range("0001-01-01", periods=6, calendar="360_day", use_cftime=True),
    "days": np.datetime64("1999-12-30", "ns") + np.arange(6) * np.timedelta64(1, "D"),
    "seconds": np.datetime64("2000-01-01T00:00:01", "ns") + np.arange(6) * np.timedelta64(7, "s"),
    "hours": np.arange(6) * np.timedelta64(1, "h").astype("m8[ns]"),
    "floats": np.linspace(0.1, 0.7, 6),
    "whole": np.arange(6, dtype="i2") * 3,
    "flags": np.array([True, False, False, True, True, False]),
}


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("is_index", [True, False])
def test_labels(name: str, is_index: bool) -> None:
    dim = "x" if is_index else "label"
    ds = xr.Dataset({"v": ("x", np.arange(6.0))}, {dim: ("x", LABELS[name])})
    if name == "days":
        ds[dim].encoding = {"units": "hours since 1900-01-01", "dtype": np.dtype("i4")}
    elif name == "seconds":
        # This encoding is too coarse for the labels.
        ds[dim].encoding = {"units": "days since 1900-01-01", "dtype": np.dtype("i4")}
    elif name == "floats":
        ds[dim].encoding = {"dtype": np.dtype("i2"), "scale_factor": 0.1, "add_offset": 0.1}
    samples = xloader.open(ds).isel(x=[0, 2, 3, 5]).window(x=2)
    store = zarr.storage.MemoryStore()
    samples.materialize(store, chunks={"x": 3})
    check_same(samples, store)
    # What xarray itself reads.
    with xr.open_zarr(store) as found:
        np.testing.assert_array_equal(found[dim], ds[dim].isel(x=[0, 2, 3, 5]))


PACKINGS: dict[str, dict[str, Any]] = {
    "scaled": {"dtype": "i2", "scale_factor": 0.25, "add_offset": 280.0, "_FillValue": -9999},
    "bytes": {"dtype": "u1", "scale_factor": 2.0, "_FillValue": 255},
    "offset": {"dtype": "i4", "add_offset": 270.0},
    "fill": {"dtype": "f4", "_FillValue": -999.0},
    "unsigned": {"dtype": "i2", "scale_factor": 0.5, "_Unsigned": "true", "_FillValue": -1},
    "two fills": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -9999},
}


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("name", PACKINGS)
def test_packed_sources(name: str) -> None:
    ds = weather().round()
    if "_FillValue" in PACKINGS[name]:
        ds["t2m"] = ds.t2m.where(ds.t2m > 270)
    if name == "unsigned":
        ds["t2m"] = abs(ds.t2m)
    raw = write_store(ds, CHUNKS, encoding={"t2m": PACKINGS[name]})
    if name == "two fills":
        zarr.open_group(raw)["t2m"].attrs["missing_value"] = -7
    samples = xloader.open(raw).window(time=3)
    store = zarr.storage.MemoryStore()
    done = samples.materialize(store, chunks={"time": 4})
    check_same(samples, store)
    stored = zarr.open_group(store)["t2m"].dtype
    assert done.variables[0].dtype == str(stored)
    # xarray would not write two fill values, so the values are stored unpacked.
    assert stored == ("f4" if name == "two fills" else PACKINGS[name]["dtype"])


def test_a_variable_without_dimensions() -> None:
    ds = weather().assign(one=np.float32(7))
    store = zarr.storage.MemoryStore()
    whole = xloader.open(write_store(ds, CHUNKS))
    done = whole.isel(time=slice(0, 4)).materialize(store, chunks={"time": 2})
    assert "one" in {own.name for own in done.variables}
    with xr.open_zarr(store) as found:
        assert found.one.item() == 7
        xr.testing.assert_equal(found.z, ds.z.isel(time=slice(0, 4)))


def test_without_windows_all_of_the_selection_is_written() -> None:
    store = zarr.storage.MemoryStore()
    opened().isel(time=slice(0, 5)).materialize(store, chunks={"time": 2})
    with xr.open_zarr(store) as found:
        xr.testing.assert_equal(found, weather().isel(time=slice(0, 5)))


def test_dtype() -> None:
    ds = weather()[["t2m", "z"]].astype("f8") * 1.000001
    samples = xloader.open(ds).window(time=2)
    store = zarr.storage.MemoryStore()
    done = samples.materialize(store, chunks={"time": 4}, dtype="float32")
    change = {name: float(abs(ds[name].astype("f4") - ds[name]).max()) for name in ds}
    assert min(change.values()) > 0
    assert {own.name: own.max_error for own in done.variables} == change
    with xr.open_zarr(store) as found:
        assert found.t2m.dtype == np.float32
        np.testing.assert_array_equal(found.t2m, ds.t2m.astype("f4"))
    half = samples.materialize(zarr.storage.MemoryStore(), chunks={"time": 4}, dtype="float16")
    assert 0.01 < half.variables[0].max_error < 0.2
    assert "float16 changed values by up to" in str(half)
    ds["t2m"][3] = 1e9
    with pytest.raises(OptionError, match="too large for the dtype"):
        xloader.open(ds).window(time=2).materialize(
            zarr.storage.MemoryStore(), chunks={"time": 4}, dtype="float16"
        )


def test_a_coordinate_with_a_space_in_its_name_hides_no_other() -> None:
    ds = weather().assign_coords(two=("time", np.arange(24)), three=("lat", np.arange(6.0)))
    ds = ds.assign_coords({"with space": ("time", np.arange(24.0))})
    store = zarr.storage.MemoryStore()
    xloader.open(ds).window(time=2).materialize(store, chunks={"time": 4})
    with xr.open_zarr(store) as found:
        assert {"two", "three"} <= set(found.coords)
    attributes = zarr.open_group(store)["t2m"].attrs
    assert attributes["coordinates"] == "three two"


# Packing


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_packing_keeps_its_bound(dtype: str) -> None:
    ds = weather()
    ds["t2m"] = ds.t2m.where(ds.t2m > 265)
    samples = xloader.open(ds).window(time=2)
    store = zarr.storage.MemoryStore()
    done = samples.materialize(store, chunks={"time": 4}, pack={"t2m": dtype})
    own = done.variables[[own.name for own in done.variables].index("t2m")]
    # Any dataset in memory is one chunk; it is read once more for the bounds.
    assert done.num_bounds_reads == 1
    assert own.dtype == dtype
    found = xloader.open(store).window(time=2).to_xarray(np.arange(12)).t2m
    wanted = samples.to_xarray(np.arange(12)).t2m
    error = float(abs(found.astype("f8") - wanted).max())
    assert error == own.max_error <= own.error_bound
    spread = float(ds.t2m.max() - ds.t2m.min())
    assert own.error_bound <= spread / (2 ** (8 * np.dtype(dtype).itemsize) - 2) / 2 + 1e-4
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def test_a_chunk_without_a_value_has_no_bounds() -> None:
    values = np.arange(80, dtype=np.float32).reshape(20, 4)
    values[5:10] = np.nan
    source, target = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    ds = xr.Dataset({"t2m": (("time", "x"), values)})
    ds.to_zarr(source, encoding={"t2m": {"chunks": (5, 4)}}, consolidated=False)
    samples = xloader.open(source, on_missing="fill").window(time=2)
    done = samples.materialize(target, chunks={"time": 5}, pack={"t2m": "int16"})
    packed = xr.open_zarr(target, consolidated=False).t2m.values
    np.testing.assert_allclose(packed, values, atol=done.variables[0].error_bound)


def test_packing_with_bounds_that_are_known() -> None:
    samples = opened().window(time=2)
    low, high = float(weather().t2m.min()), float(weather().t2m.max())
    stats = xr.Dataset({"t2m": ("stat", [low, high])}, {"stat": ["min", "max"]})
    options: dict[str, Any] = {"chunks": {"time": 4}, "pack": {"t2m": "int16"}}
    done = samples.materialize(zarr.storage.MemoryStore(), stats=stats, **options)
    assert done.num_bounds_reads == 0
    narrow = stats.assign(t2m=("stat", [low + 1, high - 1]))
    with pytest.raises(OptionError, match="outside the range"):
        samples.materialize(zarr.storage.MemoryStore(), stats=narrow, **options)
    given_numbers = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0}
    done = samples.materialize(
        zarr.storage.MemoryStore(), chunks={"time": 4}, pack={"t2m": given_numbers}
    )
    assert 0.005 <= done.variables[0].error_bound < 0.0051


def test_an_error_that_is_too_large() -> None:
    samples = opened().window(time=2)
    with pytest.raises(OptionError, match="would differ by too much"):
        samples.materialize(
            zarr.storage.MemoryStore(), chunks={"time": 4}, pack={"t2m": ("int8", 0.01)}
        )
    ds = weather()
    ds["t2m"][0, 0, 0] = np.inf
    with pytest.raises(OptionError, match="infinite"):
        xloader.open(ds).window(time=2).materialize(
            zarr.storage.MemoryStore(), chunks={"time": 4}, pack={"t2m": "int8"}
        )


@pytest.mark.parametrize(
    "pack", [{"t2m": "float32"}, {"t2m": ("int16", -1)}, {"t2m": {"scale_factor": 1}}, {"t2m": 3}]
)
def test_packings_that_are_none(pack: Any) -> None:
    with pytest.raises(OptionError, match="pack="):
        opened().window(time=2).materialize(
            zarr.storage.MemoryStore(), chunks={"time": 4}, pack=pack
        )


# What samples do not need


def test_shards_that_no_sample_needs_are_left_out() -> None:
    samples = opened().window(time=2, stride=2).select([0, 1, 10])
    store = zarr.storage.MemoryStore()
    done = samples.materialize(store, chunks={"time": 4})
    assert [own.num_unneeded for own in done.variables] == [4, 4]
    assert "24 objects" not in str(done)
    assert "4 that no sample needs are left out" in str(done)
    check_same(samples, store)
    with pytest.warns(ChunkWarning):
        xloader.open(store).window(time=2, stride=2).to_xarray(5)


def test_shards_of_fill_values_are_written() -> None:
    """Otherwise they would count as missing."""
    ds = xr.zeros_like(weather())
    ds["t2m"][:] = np.nan
    store = zarr.storage.MemoryStore()
    samples = xloader.open(ds).window(time=2)
    samples.materialize(store, chunks={"time": 4, "lat": 2}, shards={"time": 8, "lat": 6})
    target = xloader.open(store, on_missing="raise").window(time=2)
    assert_same(target.to_xarray(np.arange(12)), samples.to_xarray(np.arange(12)))


# Targets and options


def test_other_kinds_of_targets(tmp_path: Path) -> None:
    samples = opened().window(time=2)
    chunks = {"time": 4}
    samples.materialize(str(tmp_path / "deep" / "path.zarr"), chunks=chunks)
    check_same(samples, tmp_path / "deep" / "path.zarr")
    samples.materialize(f"file://{tmp_path}/url.zarr", chunks=chunks)
    check_same(samples, tmp_path / "url.zarr")
    local = zarr.storage.LocalStore(tmp_path / "store.zarr")
    samples.materialize(local, chunks=chunks)
    check_same(samples, local)


def test_urls_and_stores_of_other_libraries(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    obstore = pytest.importorskip("obstore")
    samples = opened().window(time=2)
    url = "memory://materialized.zarr"
    samples.materialize(url, chunks={"time": 4})
    assert samples.materialize(url, chunks={"time": 4}).num_reads == 0
    check_same(samples, url)
    mapper = fsspec.filesystem("file", auto_mkdir=True).get_mapper(str(tmp_path / "m.zarr"))
    samples.materialize(mapper, chunks={"time": 4})
    check_same(samples, tmp_path / "m.zarr")
    within = obstore.store.LocalStore(tmp_path / "o.zarr", mkdir=True)
    samples.materialize(within, chunks={"time": 4})
    check_same(samples, within)


def test_a_session_of_icechunk(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    samples = opened().window(time=2)
    with pytest.raises(UnsupportedDataError, match="writable_session"):
        samples.materialize(made, chunks={"time": 4})
    session = made.writable_session("main")
    with pytest.raises(OptionError, match="parts cannot share one session"):
        samples.materialize(session, chunks={"time": 4}, part=(0, 2))
    done = samples.materialize(session, chunks={"time": 4}, verify=True)
    assert done.is_complete
    session.commit("in chunks for training")
    check_same(samples, made)
    # A later call finds it complete.
    again = samples.materialize(made.writable_session("main"), chunks={"time": 4})
    assert again.num_reads == 0


def test_what_lies_there_already(tmp_path: Path) -> None:
    samples = opened().window(time=2)
    chunks = {"time": 4}
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    with pytest.raises(TargetError, match="something else lies"):
        samples.materialize(tmp_path / "files", chunks=chunks, overwrite=True)
    assert (tmp_path / "files" / "notes.txt").exists()
    for zarr_format in (2, 3):
        other = tmp_path / f"v{zarr_format}.zarr"
        write_store(weather(), CHUNKS, other, zarr_format=zarr_format)
        with pytest.raises(TargetError, match="another Zarr store"):
            samples.materialize(other, chunks=chunks)
        samples.materialize(other, chunks=chunks, overwrite=True)
        check_same(samples, other)


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    write_store(weather(), CHUNKS, tmp_path / "a.zarr")
    samples = xloader.open(tmp_path / "a.zarr").window(time=2)
    for target in (tmp_path / "a.zarr", tmp_path / "a.zarr" / "deep", tmp_path):
        with pytest.raises(TargetError, match="the target lies in the source"):
            samples.materialize(target, chunks={"time": 4}, overwrite=True)
    assert len(xloader.open(tmp_path / "a.zarr").window(time=2)) == len(samples)
    lazy = xloader.open(xr.open_zarr(tmp_path / "a.zarr", consolidated=False)).window(time=2)
    local = zarr.storage.LocalStore(tmp_path / "a.zarr")
    for own, target in ((lazy, tmp_path / "a.zarr"), (lazy, local), (samples, local)):
        with pytest.raises(TargetError, match="the target lies in the source"):
            own.materialize(target, chunks={"time": 4}, overwrite=True)


def test_sources_that_were_opened_without_decoding(tmp_path: Path) -> None:
    write_store(weather().round(), CHUNKS, tmp_path / "a", encoding={"t2m": PACKINGS["scaled"]})
    samples = xloader.open(tmp_path / "a", mask_and_scale=False).window(time=2)
    store = zarr.storage.MemoryStore()
    samples.materialize(store, chunks={"time": 4})
    target = xloader.open(store).window(time=2)
    assert target.recipe.variable("t2m").dtype == np.int16
    ids = np.arange(len(samples))
    np.testing.assert_array_equal(target.to_xarray(ids).t2m, samples.to_xarray(ids).t2m)


def test_what_would_read_otherwise_is_refused(tmp_path: Path) -> None:
    days = xr.Dataset({"d": ("time", np.arange(9), {"units": "days since 2000-01-01"})})
    write_store(days, {"d": (3,)}, tmp_path / "days")
    samples = xloader.open(tmp_path / "days", decode_times=False).window(time=2)
    with pytest.raises(UnsupportedDataError, match="would not read from Zarr as they are now"):
        samples.materialize(tmp_path / "target", chunks={"time": 4})
    tree = xr.DataTree.from_dict({"/a": weather(), "/b": weather().rename(t2m="q")})
    with pytest.raises(UnsupportedDataError, match="groups of a DataTree one by one"):
        xloader.open(tree).window(time=2).materialize(tmp_path / "target", chunks={"time": 4})
    assert not (tmp_path / "target").exists()


def test_options_that_are_wrong(tmp_path: Path) -> None:
    samples, target = opened().window(time=2), tmp_path / "t.zarr"
    for wrong in ({"time": 0}, {"time": 2.5}, 7, {"t2m": {"time": "x"}}):
        with pytest.raises(OptionError):
            samples.materialize(target, chunks=wrong)  # type: ignore[arg-type]
    for unknown in ({"times": 2}, {"q": {"time": 2}}):
        with pytest.raises(UnknownNameError):
            samples.materialize(target, chunks=unknown)
    with pytest.raises(OptionError, match="whole chunks"):
        samples.materialize(target, chunks={"time": 4}, shards={"time": 6})
    with pytest.raises(OptionError, match="compressor"):
        samples.materialize(target, chunks={"time": 4}, compressor="zip")
    with pytest.raises(OptionError, match="dtype"):
        samples.materialize(target, chunks={"time": 4}, dtype="int16")
    with pytest.raises(OptionError, match="part"):
        samples.materialize(target, chunks={"time": 4}, part=(2, 2))
    with pytest.raises(OptionError, match="only for URLs"):
        samples.materialize(target, chunks={"time": 4}, storage_options={"anon": True})
    with pytest.raises(UnsupportedDataError):
        samples.materialize(tmp_path / "t.zip", chunks={"time": 4})
    with pytest.raises(MemoryBudgetError, match="shard"):
        samples.materialize(target, chunks={"time": 4}, memory=1000)
    assert not target.exists()


def test_chunks_for_one_variable() -> None:
    store = zarr.storage.MemoryStore()
    opened().window(time=2).materialize(store, chunks={"time": 8, "z": {"time": 2, "level": 1}})
    found = zarr.open_group(store)
    assert found["t2m"].chunks == (8, 6, 8)
    assert found["z"].chunks == (2, 1, 6, 8)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    recorder = SourceRecorder(opened().recipe.source)
    samples = xloader.open(recorder).window(time=2)
    options: dict[str, Any] = {"chunks": {"time": 4}, "pack": {"z": "int16"}}
    plan = samples.materialize(tmp_path / "t.zarr", dry_run=True, **options)
    assert recorder.num_reads == 0
    assert not (tmp_path / "t.zarr").exists()
    assert "would be written" in str(plan)
    done = samples.materialize(tmp_path / "t.zarr", **options)
    assert plan.num_bounds_reads == done.num_bounds_reads == 18
    told = (
        f"    {done.variables[0].num_reads} reads of {done.variables[0].num_chunks} source chunks"
    )
    assert told in str(plan).splitlines()
    assert told in str(done).splitlines()
    # As if an object had been changed by another while it was read.
    more = replace(done.variables[0], num_reads=99)
    assert "99 reads of" in str(replace(done, variables=(more,)))
    assert f"({more.expected_reads} were planned)" in str(replace(done, variables=(more,)))
    assert recorder.num_reads == done.num_reads + 18 == plan.expected_reads + 18
    assert set(plan.to_dict()) == set(done.to_dict())


def test_one_chunk_over_all_time() -> None:
    """With little memory, values go through an intermediate store: each chunk is read once."""
    values = np.random.default_rng(0).normal(size=(240, 24, 24)).astype("f4")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values)})
    counting = CountingStore(write_store(ds, {"t": (240, 4, 4)}))
    samples = xloader.open(counting).window(time=4)
    options: dict[str, Any] = {"chunks": {"time": 4}, "threads": 1}
    for memory, is_direct in (("8MiB", True), ("160KiB", False)):
        counting.reset()
        held: dict[str, Any] = {}
        store = zarr.storage.MemoryStore(held)
        done = samples.materialize(store, memory=memory, verify=True, **options)
        (own,) = done.variables
        assert (own.intermediate_chunks is None) == is_direct
        assert counting.num_reads == own.num_reads == own.expected_reads == 36
        check_same(samples, store)
        assert not [key for key in held if "records" in key]
    # Parts read chunks again instead: each would fill an intermediate store of its own.
    part = samples.materialize(zarr.storage.MemoryStore(), memory="160KiB", part=(0, 2), **options)
    assert part.variables[0].intermediate_chunks is None
    assert part.num_reads == part.expected_reads > 36


# Advice


def test_advice_is_taken_and_comes_true() -> None:
    values = np.random.default_rng(0).normal(size=(960, 16, 50)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    counting = CountingStore(write_store(ds, {"t": (960, 2, 10)}))
    samples = xloader.open(counting).window(time=2)
    options: dict[str, Any] = {"batch_size": 8, "memory": "2MiB", "threads": 1, "output": "numpy"}
    advice = samples.advise(**options)
    assert advice.proposals
    store = zarr.storage.MemoryStore()
    counting.reset()
    done = samples.materialize(store, advice=advice, threads=1)
    assert counting.num_reads == done.num_reads == 40
    target = check_same(samples, store)
    found, promised = target.loader(**options).explain(), advice.best.explanation
    assert promised is not None
    assert found.num_reads == promised.num_reads
    assert found.mixing == promised.mixing
    # One proposal may be passed, too; and without any, it is asked for.
    one = samples.materialize(zarr.storage.MemoryStore(), advice=advice.proposals[-1], threads=1)
    assert one.variables[0].chunks == tuple(advice.proposals[-1].chunks.values())
    assert samples.materialize(zarr.storage.MemoryStore(), threads=1).is_complete


def test_advised_shards_are_made_smaller_for_a_small_memory() -> None:
    values = np.random.default_rng(0).normal(size=(960, 16, 50)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    samples = xloader.open(write_store(ds, {"t": (960, 2, 10)})).window(time=2)
    advice = samples.advise(batch_size=8, memory="2MiB", threads=1)
    best = advice.best
    assert best is not None
    assert best.shards is not None
    store = zarr.storage.MemoryStore()
    with pytest.warns(TargetWarning, match="advised shards"):
        done = samples.materialize(store, advice=advice, threads=1, memory="4MiB")
    (own,) = done.variables
    assert own.shards is not None
    assert np.prod(own.shards) < np.prod(list(best.shards.values()))
    assert done.expected_peak_nbytes <= 4 << 20
    check_same(samples, store)
    # Shards of one's own are kept to.
    with pytest.raises(MemoryBudgetError):
        samples.materialize(
            zarr.storage.MemoryStore(), chunks=best.chunks, shards=best.shards, memory="4MiB"
        )


def test_a_part_of_many_joined_sources_is_never_overwritten(tmp_path: Path) -> None:
    """The name of the joined source tells only the first and the last."""
    parts = []
    for number in range(4):
        path = tmp_path / f"{number}.zarr"
        write_store(weather().isel(time=slice(6 * number, 6 * number + 6)), CHUNKS, path)
        parts.append(path)
    samples = xloader.concat(parts, dim="time").window(time=2)
    before = sorted(path.name for path in (tmp_path / "2.zarr").rglob("*"))
    with pytest.raises(TargetError, match="lies in the source"):
        samples.materialize(tmp_path / "2.zarr", chunks={"time": 4}, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "2.zarr").rglob("*")) == before


def test_advice_beside_sizes_is_refused() -> None:
    samples = opened().window(time=2)
    advice = samples.advise(batch_size=2)
    with pytest.raises(OptionError, match="given twice"):
        samples.materialize(zarr.storage.MemoryStore(), advice=advice, chunks={"time": 2})
    with pytest.raises(OptionError, match="without chunks"):
        samples.materialize(zarr.storage.MemoryStore(), shards={"time": 2})
    with pytest.raises(OptionError, match="not that of"):
        samples.materialize(zarr.storage.MemoryStore(), advice="best")  # type: ignore[arg-type]


class CrowdedStore(LatencyStore):
    """A store that waits, and notes the most requests at a time."""

    now = most = 0

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        kind.now += 1
        kind.most = max(kind.most, kind.now)
        try:
            return await super().get(*args, **kwargs)
        finally:
            kind.now -= 1


def test_a_source_that_waits_is_read_ahead() -> None:
    """Also where one thread encodes."""
    samples = xloader.open(CrowdedStore(write_store(weather(), CHUNKS), 0.02)).window(time=2)
    target = zarr.storage.MemoryStore()
    CrowdedStore.most = 0
    done = samples.materialize(target, chunks={"time": 4}, threads=1)
    assert CrowdedStore.most >= 2
    assert done.num_reads == done.expected_reads
    check_same(samples, target)
    done = samples.materialize(
        zarr.storage.MemoryStore(), chunks={"time": 4}, threads=1, memory=20_000
    )
    assert done.expected_peak_nbytes <= 20_000
