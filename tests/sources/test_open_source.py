"""open_source: the arguments it accepts, those it refuses, and the error texts."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import fsspec.registry  # noqa: F401  (a test looks at it in sys.modules)
import numpy as np
import pytest
import xarray as xr
import zarr

import xloader
from tests.sources import kinds
from xloader.errors import (
    MissingDependencyError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.sources.open.open_source import open_source
from xloader.testing import SourceRecorder

HDF5 = b"\x89HDF\r\n\x1a\n but no more"
MISTAKES: list[tuple[str | list[str] | int, dict[str, Any], type[Exception], str]] = [
    ("{}/nothing.zarr", {}, SourceNotFoundError, r"nothing\.zarr"),
    ("{}", {}, SourceNotFoundError, "no Zarr group.*{}"),
    ("{}/a.h5", {"engine": "netcdf4"}, UnsupportedDataError, 'engine="h5netcdf"'),
    ("{}/a.h5", {"engine": "h5netcdf"}, UnsupportedDataError, "check the file"),
    (
        "memory://nothing.nc",
        {"engine": "h5netcdf"},
        SourceNotFoundError,
        "no such file",
    ),
    ("{}/*.nc", {}, SourceNotFoundError, r"xloader\.concat\('.*\*\.nc'\)"),
    (["{}/a.nc", "{}/b.nc"], {}, UnsupportedDataError, r"xloader\.concat\(\[\.\.\.\]\)"),
    (42, {}, UnsupportedDataError, r"builtins\.int.*open it with xarray first"),
]


@pytest.mark.parametrize(("source", "options", "kind", "told"), MISTAKES, ids=str)
def test_what_cannot_be_opened_says_why(
    source: Any, options: dict[str, Any], kind: type[Exception], told: str, tmp_path: Path
):
    (tmp_path / "a.h5").write_bytes(HDF5)
    if isinstance(source, str):
        source = source.format(tmp_path)
    with pytest.raises(kind, match=told.replace("{}", str(tmp_path))) as caught:
        open_source(source, **options)
    assert isinstance(caught.value, FileNotFoundError) == (kind is SourceNotFoundError)


def test_a_single_array_and_arrays_without_dims(tmp_path: Path):
    zarr.create_array(tmp_path / "a", shape=(3,), dtype="f4")
    with pytest.raises(UnsupportedDataError, match="single Zarr array"):
        open_source(tmp_path / "a")
    zarr.create_group(tmp_path / "g").create_array("a", shape=(3,), dtype="f4")
    with pytest.raises(UnsupportedDataError, match="dimension names"):
        open_source(tmp_path / "g")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", ["", "deep/er"])
def test_arrays_without_dims_that_nobody_asks_for(tmp_path: Path, zarr_format: int, group: str):
    ds = xr.Dataset({"t": (("time", "x"), np.arange(12.0).reshape(6, 2))}, {"time": np.arange(6)})
    path = tmp_path / "a.zarr"
    ds.to_zarr(path, group=group or None, zarr_format=zarr_format, consolidated=False)
    root = zarr.open_group(path, path=group, use_consolidated=False)
    root.create_array("scratch", shape=(3,), dtype="f4")
    root.create_array("crs", shape=(), dtype="i4")
    if zarr_format == 2:
        zarr.consolidate_metadata(path)
    with pytest.raises(UnsupportedDataError, match=r"dimension names.*variables=\[...\]"):
        open_source(path, group=group)
    with pytest.raises(UnsupportedDataError, match="dimension names"):
        open_source(path, variables=["t", "scratch"], group=group)
    # xarray raises another error for a zip file.
    archive = shutil.make_archive(str(path), "zip", path)
    with pytest.raises(UnsupportedDataError, match=r"dimension names.*variables=\[...\]"):
        open_source(archive, group=group)
    for place, variables in (path, "t"), (path, iter(["t"])), (archive, ["t"]):
        source = pickle.loads(pickle.dumps(open_source(place, variables=variables, group=group)))
        assert list(source.variables) == ["t"]
        assert source.path_of("t").startswith("direct")
        assert kinds.read(source, "t", (0, 0)).tolist() == ds["t"].values.tolist()
        assert source.coordinates()["time"].values.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["0.nc", "1.nc", "notes.txt"], r"concat\('.*/data/\*\.nc'\)"),
        (["a.GRIB2"], r"concat\('.*/data/\*\.GRIB2'\)"),
        (["2000/0.nc4", "2001/0.nc4"], r"concat\('.*/data/\*/\*\.nc4'\)"),
        (["a.zarr/zarr.json", "b.zarr/zarr.json"], r"concat\('.*/data/\*\.zarr'\)"),
        (["t2m/refs.0.parq", ".zmetadata"], 'pass engine="kerchunk"'),
        (["notes.txt"], "check the path"),
    ],
    ids=["netCDF", "GRIB", "years", "Zarr", "references", "nothing"],
)
def test_a_folder_of_files_says_how_to_open_them(tmp_path: Path, names: list[str], told: str):
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("{}")
    for path in (f"{tmp_path}/data", f"{tmp_path}/data/"):
        with pytest.raises(SourceNotFoundError, match=told):
            open_source(path)


def test_a_folder_with_brackets_in_its_name_is_named_as_a_pattern(tmp_path: Path):
    (tmp_path / "run[1]").mkdir()
    xr.Dataset({"t": ("time", np.arange(3.0))}).to_netcdf(tmp_path / "run[1]" / "0.nc")
    with pytest.raises(SourceNotFoundError, match=r"concat\(") as caught:
        open_source(tmp_path / "run[1]")
    pattern = caught.value.remedy.split("'")[1]
    assert len(xloader.concat(pattern).window(time=1)) == 3


def test_a_zip_file_with_a_folder_around_the_store(tmp_path: Path):
    ds = xr.Dataset({"t": (("time", "x"), np.arange(12.0).reshape(6, 2))})
    ds.to_zarr(tmp_path / "in" / "a.zarr", consolidated=False)
    shutil.make_archive(str(tmp_path / "a.zarr"), "zip", tmp_path / "in")
    with pytest.raises(SourceNotFoundError, match=r'pass group="a\.zarr"'):
        open_source(tmp_path / "a.zarr.zip")
    source = open_source(tmp_path / "a.zarr.zip", group="a.zarr")
    assert kinds.read(source, "t", (0, 0)).tolist() == ds["t"].values.tolist()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"version": 1, "refs": {".zgroup": "{}"}}', 'engine="kerchunk"'),
        (b'{"t/.zarray": "{}", ".zgroup": "{}"}', 'engine="kerchunk"'),
        (b"\x89HDF\r\n\x1a\n but no more", 'engine="h5netcdf", and phony_dims="access"'),
        (b"MATLAB".ljust(512) + b"\x89HDF\r\n\x1a\n", 'engine="h5netcdf"'),
        (b'{"type": "FeatureCollection"}', "check the file, pass engine="),
        (b"no dataset here", "cannot open this file"),
        (b"CDF\x01\x00", "cannot open this file"),
    ],
    ids=["references", "references of version 0", "HDF5", "MATLAB", "JSON", "text", "cut netCDF"],
)
def test_a_file_that_cannot_be_opened_is_known_by_its_begin(
    tmp_path: Path, content: bytes, told: str
):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnsupportedDataError, match=told):
        open_source(tmp_path / "file")


def test_groups_further_down_are_named(tmp_path: Path):
    dataset = kinds.numeric(kinds.make_dataset())
    zarr.create_group(tmp_path / "z")
    for group in ("deep/one", "deep/two"):
        dataset.to_zarr(tmp_path / "z", group=group, zarr_format=3, consolidated=False)
    for group in (None, "deep"):
        with pytest.raises(UnsupportedDataError, match=r"\['deep/one', 'deep/two'\]") as caught:
            open_source(tmp_path / "z", group=group)
        assert "pass group= with one of ['deep/one', " in str(caught.value)
    assert set(open_source(tmp_path / "z", group="deep/one").variables) == {"t", "m", "flag", "s"}
    dataset.to_netcdf(tmp_path / "a.nc", group="deep")
    with pytest.raises(UnsupportedDataError, match=r"\['deep'\]"):
        open_source(tmp_path / "a.nc")
    zarr.create_group(tmp_path / "empty")
    with pytest.raises(UnsupportedDataError, match="has no numeric data variable"):
        open_source(tmp_path / "empty")


def test_a_url_without_its_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    # fsspec remembers file systems that other tests have imported.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(MissingDependencyError, match=r'pip install "\.\[cloud\]"') as caught:
        open_source("s3://me:canary@bucket/a.zarr")
    assert "canary" not in str(caught.value)
    with pytest.raises(UnsupportedDataError, match=r"no file system.*Given: nosuch://bucket"):
        open_source("nosuch://bucket/a.zarr")


def test_only_numbers_are_offered_and_others_refused():
    dataset = kinds.make_dataset()
    dataset["when"] = ("time", dataset["time"].values)
    dataset["wave"] = ("time", np.ones(11, complex))
    assert set(open_source(dataset).variables) == {"t", "m", "flag", "s"}
    for name in ("label", "when", "wave"):
        with pytest.raises(UnsupportedDataError, match=f"'{name}'") as caught:
            open_source(dataset, variables=["t", name])
        assert str(dataset[name].dtype) in str(caught.value)
    with pytest.raises(UnsupportedDataError, match="has no numeric data variable"):
        open_source(dataset[["label"]])
    with pytest.raises(OptionError, match="variables= is empty"):
        open_source(dataset, variables=[])


def test_datetimes_of_a_store_are_not_numbers(tmp_path: Path):
    dataset = kinds.numeric(kinds.make_dataset())
    dataset["when"] = ("time", dataset["time"].values)
    dataset.to_zarr(tmp_path / "z", zarr_format=3, consolidated=False)
    assert set(open_source(tmp_path / "z").variables) == {"t", "m", "flag", "s"}
    with pytest.raises(UnsupportedDataError, match="datetime64"):
        open_source(tmp_path / "z", variables="when")


def test_a_coordinate_is_no_variable():
    with pytest.raises(UnknownNameError, match="reset_coords"):
        open_source(kinds.make_dataset(), variables=["area"])


def test_data_arrays_named_and_not():
    values = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("x", "y"))
    assert list(open_source(values).variables) == ["data"]
    named = open_source(values.rename("sst"))
    assert list(named.variables) == ["sst"]
    np.testing.assert_array_equal(kinds.read_all(named, "sst"), values.values)


def test_variables_keep_the_order_asked_for_else_sorted(tmp_path: Path):
    path = kinds.KINDS["zarr-direct-local"](tmp_path, kinds.make_dataset()).source.name
    assert list(open_source(path).variables) == ["flag", "m", "s", "t"]
    assert list(open_source(path, variables=("t", "flag", "t")).variables) == ["t", "flag"]
    assert list(open_source(path, variables="m").variables) == ["m"]


def test_options_out_of_range(tmp_path: Path):
    dataset = kinds.make_dataset()
    with pytest.raises(OptionError, match="on_missing") as caught:
        open_source(dataset, on_missing="ignore")
    assert "'warn' or 'raise' or 'fill'" in str(caught.value)
    with pytest.raises(OptionError, match="engine, decode_times"):
        open_source(dataset, engine="netcdf4", decode_times=False)
    path = kinds.KINDS["zarr-direct-local"](tmp_path, dataset).source.name
    for dtype in ("int16", "no dtype"):
        with pytest.raises(OptionError, match="packed integers cannot be decoded to this dtype"):
            open_source(path, dtype=dtype)


def test_sources_pass_through():
    recorder = SourceRecorder(open_source(kinds.make_dataset()))
    assert open_source(recorder) is recorder


def test_names_hold_no_credential():
    dataset = kinds.make_dataset()
    dataset.encoding["source"] = "https://me:canary@host/a.nc?sig=canary"
    source = open_source(dataset)
    assert "canary" not in source.name
    assert "host/a.nc" in source.name


def test_paths_hold_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kinds.KINDS["zarr-direct-local"](tmp_path, kinds.make_dataset())
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(open_source("a.zarr"))
    monkeypatch.chdir("/")
    assert kinds.read(pickle.loads(data), "s", ()) == 2.5


def test_blocks_of_datasets_without_chunks():
    values = np.zeros((100, 180, 360), "f4")
    source = open_source(xr.Dataset({"a": (("t", "y", "x"), values)}))
    assert source.variables["a"].chunks == (16, 180, 360)


def test_blocks_follow_the_file_and_dask(tmp_path: Path):
    dataset = kinds.make_dataset()
    source = kinds.KINDS["netcdf4"](tmp_path, dataset).source
    assert source.variables["m"].chunks == (7, 3)
    chunked = dataset.chunk({"time": (4, 4, 3), "lat": (3, 1, 3)})
    source = open_source(chunked)
    assert source.variables["t"].chunks == (4, (3, 1, 3), 5)
    assert "dask" in source.path_of("t")
    assert open_source(dataset).path_of("t").endswith("numpy")


def test_blocks_that_end_in_a_longer_one_are_listed():
    dataset = xr.Dataset({"a": ("x", np.arange(7.0))}).chunk({"x": (3, 4)})
    source = open_source(dataset)
    assert source.variables["a"].chunks == ((3, 4),)
    assert kinds.read_all(source, "a").tolist() == list(range(7))


def test_coordinates_of_dims_that_no_variable_has_are_kept():
    dataset = xr.Dataset({"a": ("x", np.arange(2.0))}, coords={"y": [1, 2, 3]})
    assert open_source(dataset).coordinates()["y"].values.tolist() == [1, 2, 3]


def test_fingerprint_tells_blocks_dtypes_and_files_apart():
    dataset = kinds.make_dataset()
    one = open_source(dataset).fingerprint
    assert open_source(dataset.copy(deep=True)).fingerprint == one
    assert open_source(dataset.chunk({"time": 3})).fingerprint != one
    assert open_source(dataset.assign(m=dataset["m"].astype("i4"))).fingerprint != one
    assert open_source(dataset.rename(t="u")).fingerprint != one
    assert open_source(dataset.rename(lon="x")).fingerprint != one
    dataset.encoding["source"] = "/somewhere/a.nc"
    named = open_source(dataset).fingerprint
    assert named != one
    dataset.encoding["source"] = "/elsewhere/a.nc"
    assert open_source(dataset).fingerprint == named


def test_empty_dimension():
    source = open_source(xr.Dataset({"a": (("x", "y"), np.zeros((0, 5)))}))
    assert source.variables["a"].shape == (0, 5)
    assert kinds.read_all(source, "a").shape == (0, 5)
