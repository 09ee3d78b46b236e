"""``xloader inspect`` tells the truth about whole stores, and about stores that are broken."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import click.testing
import numcodecs
import numpy as np
import pytest
import xarray as xr

import xloader
from tests.cli.json_shapes import SHAPES, check
from xloader import cli
from xloader.cli.inspected_variable import show_sizes
from xloader.cli.store_inspection import inspect_store
from xloader.core.nbytes import show_nbytes
from xloader.errors import ArrayNotGroupError
from xloader.testing import write_store

TIME = np.arange("2001-01-01", "2001-02-10", np.timedelta64(1, "D"), "M8[ns]")


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, ["inspect", *map(str, arguments)])


def told(*arguments):
    """The JSON of the command, and its exit code."""
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), f"{result.output} {result.exception!r}"
    found = json.loads(result.stdout)
    check(found, SHAPES["inspect"])
    assert result.exit_code == (1 if found["num_problems"] else 0)
    if found["num_problems"]:
        assert result.stderr.splitlines()[-1].startswith("Broken: ")
    return found


def dataset() -> xr.Dataset:
    """Two variables of 40 days on one grid, and one with NaN in a quarter of its values."""
    values = np.arange(40 * 4 * 6, dtype="f4").reshape(40, 4, 6)
    mask = values.copy()
    mask[:20, :2] = np.nan
    dims = ("time", "lat", "lon")
    coords = {"time": TIME, "lat": [60.0, 50.0, 40.0, 30.0], "lon": np.arange(6) * 60.0}
    return xr.Dataset({"a": (dims, values), "b": (dims, values), "m": (dims, mask)}, coords)


def write(
    path: Path, ds: xr.Dataset | None = None, *, consolidated=False, zarr_format=3, **encoding
) -> Path:
    """Write a dataset with an encoding of its maps."""
    ds = dataset() if ds is None else ds
    maps = {name: {"chunks": (10, 4, 3), **encoding} for name in "abm" if name in ds}
    ds.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated, encoding=maps)
    return path


@pytest.fixture
def store(tmp_path) -> Path:
    return write(tmp_path / "days.zarr")


def edit(path: Path, **changes: object) -> None:
    """Change a metadata document; None removes a name."""
    document = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            del document[name]
        else:
            document[name] = value
    path.write_text(json.dumps(document))


def problems(found: dict) -> dict[str, str]:
    return {own["subject"]: own["found"] for own in found["findings"] if own["level"] == "problem"}


def names(found: dict) -> list[str]:
    return [own["name"] for own in found["variables"]]


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("c/**/[0-9]*") if path.is_file())


# --- a store that is whole


def test_a_whole_store(store):
    found = told(store, "--nan")
    assert problems(found) == {}
    (first, second, third) = found["variables"]
    assert names(found) == ["a", "b", "m"]
    assert first["chunks"] == [10, 4, 3]
    assert first["num_chunks"] == first["num_objects"] == 8
    assert first["nbytes"] == 40 * 4 * 6 * 4
    assert first["stored_nbytes"] == size_on_disk(store / "a")
    assert first["ratio"] == pytest.approx(first["nbytes"] / first["stored_nbytes"])
    assert first["path"] == xloader.open(store).recipe.source.path_of("a")
    assert first["is_direct"]
    assert (first["num_absent"], first["num_beyond"], first["num_empty"]) == (0, 0, 0)
    assert [own["nans"]["share"] for own in (first, second, third)] == [0, 0, 0.25]
    assert third["nans"]["num_chunks"] == 8
    assert found["differing_dims"] == []
    assert found["grids"] == [
        {"chunks": {"time": 10, "lat": 4, "lon": 3}, "variables": ["a", "b", "m"]}
    ]


def test_the_text_holds_the_same(store):
    result = run(store, "--nan")
    assert result.exit_code == 0
    for text in (
        "days.zarr: 3 variables, 11.2 KiB decoded, ",
        "40 x 4 x 6   float32   10 x 4 x 3",
        "a, b, m   direct: zarr v3, bytes, zstd",
        "a, b, m   time 10 x lat 4 x lon 3",
        "time   40 from 2001-01-01 to 2001-02-09; step 1 day",
        "lat    4 from 60 to 30; step -10",
        "m   25.00% of the values of all 8 chunks",
        "Nothing is broken.",
    ):
        assert text in result.stdout
    cost = f"NaN, for which {show_nbytes(3 * 40 * 4 * 6 * 4)} were read and decoded"
    assert cost in result.stdout
    assert "NaN: not counted; --nan reads and decodes 24 chunks, 11.2 KiB" in run(store).stdout


def test_without_nan_no_value_is_read(tmp_path):
    reads = xloader.testing.CountingStore(write_store(dataset(), {"a": (10, 4, 3)}))
    source = xloader.open(reads).recipe.source
    assert source.inventory("a").num_absent == 0
    assert not [key for key in reads.reads if key.startswith("a/")]
    store = write(tmp_path / "days.zarr")
    found = told(store)
    assert [own["nans"] for own in found["variables"]] == [None] * 3


def test_nan_of_a_few_chunks(store):
    found = told(store, "--nan=2", "--variables", "m")
    assert names(found) == ["m"]
    nans = found["variables"][0]["nans"]
    assert (nans["num_chunks"], nans["is_whole"]) == (2, False)
    # The first chunk is half NaN, the last has none.
    assert nans["share"] == 0.25
    assert "25.00% of the values of 2 of 8 chunks" in run(store, "--nan=2").stdout


def test_chunks_of_unequal_grids_are_told(tmp_path):
    chunks = {"a": {"chunks": (10, 4, 3)}, "b": {"chunks": (20, 4, 3)}}
    dataset()[["a", "b"]].to_zarr(
        tmp_path / "two.zarr", zarr_format=3, consolidated=False, encoding=chunks
    )
    found = told(tmp_path / "two.zarr")
    assert found["differing_dims"] == ["time"]
    assert len(found["grids"]) == 2
    assert show_sizes((24, (5, 7, 6))) == "24 x 5-7"


def test_shards_and_packing(tmp_path):
    packed = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}
    sizes = {"chunks": (5, 4, 3), "shards": (20, 4, 6)}
    store = write(tmp_path / "packed.zarr", dataset()[["a"]], **packed, **sizes)
    (own,) = told(store, "--nan")["variables"]
    assert (own["dtype"], own["stored_dtype"]) == ("float32", "int16")
    assert (own["chunks"], own["shards"]) == ([5, 4, 3], [20, 4, 6])
    assert (own["num_chunks"], own["num_objects"]) == (16, 2)
    assert own["nans"]["num_chunks"] == 16
    assert own["stored_nbytes"] == size_on_disk(store / "a")


def test_codecs_that_xloader_does_not_decode_are_named(tmp_path):
    lzma = [numcodecs.LZMA()]
    store = write(tmp_path / "odd.zarr", dataset()[["a"]], zarr_format=2, compressors=lzma)
    (own,) = told(store, "--nan")["variables"]
    assert not own["is_direct"]
    assert own["path"].endswith("lzma")
    assert own["nans"]["num_chunks"] == 8


def test_single_values_no_values_and_other_files(tmp_path):
    ds = xr.Dataset(
        {"one": ((), np.float32(3)), "none": (("empty",), np.zeros(0, "f4"))},
        {"known": (("x",), [1.0, np.nan])},
    )
    ds.to_zarr(tmp_path / "odd.zarr", zarr_format=2, consolidated=False)
    (tmp_path / "odd.zarr/one/.DS_Store").write_bytes(b"of a file manager")
    shutil.make_archive(str(tmp_path / "odd"), "zip", tmp_path / "odd.zarr")
    for name in ("odd.zarr", "odd.zip"):
        found = told(tmp_path / name, "--nan")
        assert [own["found"] for own in found["findings"]] == ["1 label missing"]
        none, one = found["variables"]
        assert (one["num_objects"], one["num_absent"], one["nans"]["num_values"]) == (1, 0, 1)
        assert (none["num_chunks"], none["nans"]["num_chunks"]) == (0, 0)
        text = run(tmp_path / name, "--nan").stdout
        assert "0.00% of the values of its one chunk" in text
        assert "it has no values" in text


# --- labels


def labels_of(found: dict, name: str) -> dict:
    return next(own for own in found["labels"] if own["name"] == name)


def write_times(path: Path, times: np.ndarray) -> Path:
    return write(path, dataset()[["a"]].isel(time=slice(len(times))).assign_coords(time=times))


SPANS = np.arange(5) * np.timedelta64(6, "h")
MONTHS = xr.date_range("2000-01-01", periods=5, freq="MS", calendar="noleap", use_cftime=True)


@pytest.mark.parametrize(
    ("labels", "first", "last", "step"),
    [
        (SPANS, "0 seconds", "1 day", "6 hours"),
        (SPANS[::-1], "1 day", "0 seconds", "-6 hours"),
        (np.where([1, 0, 1, 1, 0], SPANS, np.timedelta64("NaT")), "0 seconds", "18 hours", ""),
        (np.full(5, np.timedelta64("NaT", "ns")), "", "", ""),
        (TIME[:5], "2001-01-01", "2001-01-05", "1 day"),
        (MONTHS, "2000-01-01", "2000-05-01", "1 month"),
        (np.array(list("bacde")), "b", "e", ""),
        (np.array([True, False, True, False, False]), "True", "False", ""),
        (np.arange(5) + 20010101, "20010101", "20010105", "1"),
        (np.linspace(-1, 1, 5, dtype="f4"), "-1", "1", "0.5"),
    ],
)
def test_labels_of_every_kind(tmp_path, labels, first, last, step):
    values = xr.Dataset({"a": (("step", "x"), np.zeros((5, 2), "f4"))})
    two = np.stack([labels, labels], axis=1)
    other = {"other": ("step", labels), "two": (("step", "x"), two), "one": labels[0]}
    # Zarr's format 3 has no words for text of a fixed length.
    ds = values.assign_coords(step=labels, **other)
    ds.to_zarr(tmp_path / "a.zarr", consolidated=False, zarr_format=2)
    found = told(tmp_path / "a.zarr")
    assert found["num_problems"] == 0
    own = labels_of(found, "step")
    assert (own["first"], own["last"], own["step"]) == (first, last, step)
    assert (labels_of(found, "other")["first"], labels_of(found, "one")["last"]) == (first, first)
    assert bool(labels_of(found, "two")["first"]) == bool(first)
    line = next(x for x in run(tmp_path / "a.zarr").output.splitlines() if x.startswith("  step "))
    assert (f"5 from {first} to {last}" if first else "; 5 missing") in line


NOISE = np.random.default_rng(0).integers(0, 2**31, (64, 64), "i4")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.ones((64, 64), "i4"), r"stored: \d\.\d times smaller$"),
        (NOISE, r"stored: 1\.\d times larger"),
        (np.zeros((0, 64), "i4"), r"stored$|decoded$"),
    ],
)
def test_a_store_is_smaller_or_larger_than_its_values(tmp_path, values, words):
    ds = xr.Dataset({"a": (("time", "x"), values)})
    ds.to_zarr(tmp_path / "a.zarr", consolidated=False, encoding={"a": {"chunks": (2, 8)}})
    assert re.search(words, run(tmp_path / "a.zarr").output.splitlines()[0])


def test_labels_that_come_twice_or_go_back(tmp_path):
    found = told(write_times(tmp_path / "twice.zarr", TIME[np.r_[0:20, 19:39]]))
    assert labels_of(found, "time")["num_duplicates"] == 1
    assert labels_of(found, "time")["num_backward"] == 0
    found = told(write_times(tmp_path / "back.zarr", TIME[np.r_[0:10, 20:30, 10:20]]))
    assert labels_of(found, "time")["num_duplicates"] == 0
    assert labels_of(found, "time")["num_backward"] == 1


# --- stores that are broken


def test_absent_chunks(store):
    os.remove(store / "a/c/1/0/0")
    os.remove(store / "a/c/3/0/1")
    found = told(store)
    assert problems(found) == {
        "a": "2 of 8 chunks absent, so their values are the fill value: a/c/1/0/0, a/c/3/0/1"
    }
    assert [own["num_absent"] for own in found["variables"]] == [2, 0, 0]
    assert problems(told(store, "--on-missing", "fill")) == {}


def test_one_broken_chunk_of_a_shard_leaves_the_others(tmp_path):
    write(tmp_path / "s.zarr", dataset()[["a"]], shards=(20, 4, 6), compressors=None)
    document = json.loads((tmp_path / "s.zarr/a/zarr.json").read_text())
    assert document["codecs"][0]["name"] == "sharding_indexed"
    inner = document["codecs"][0]["configuration"]["codecs"]
    inner.append({"name": "crc32c"})
    # Without the checksums that its codecs now ask for, no chunk of the shard decodes.
    edit(tmp_path / "s.zarr/a/zarr.json", codecs=document["codecs"])
    found = told(tmp_path / "s.zarr", "--nan")
    assert found["variables"][0]["nans"]["num_unreadable"] == 8
    assert len(found["variables"][0]["nans"]["errors"]) == 3


@pytest.mark.filterwarnings("ignore:Object at a is not recognized")
def test_what_is_beside_an_unknown_codec_is_whole(store):
    xr.Dataset({"s": ((), 1.5)}).to_zarr(store, mode="a", zarr_format=3, consolidated=False)
    edit(store / "a/zarr.json", codecs=[{"name": "nonsense", "configuration": {}}])
    found = told(store)
    assert problems(found).keys() == {"a"}
    assert names(found) == ["b", "m", "s"]
    assert names(told(store, "--variables", "a,m")) == ["m"]
    assert names(told(store, "--variables", "a")) == []


def test_chunks_outside_the_shape(store):
    grid = {"name": "regular", "configuration": {"chunk_shape": [20, 4, 3]}}
    edit(store / "b/zarr.json", chunk_grid=grid)
    text = problems(told(store))["b"]
    assert text.startswith("4 chunks outside the shape 40 x 4 x 6, so nothing reads them: ")


def test_an_array_without_metadata(store):
    os.remove(store / "a/zarr.json")
    found = told(store)
    assert problems(found) == {
        "a": "a folder of chunks without zarr.json or .zarray: nothing can read it"
    }
    assert names(found) == ["b", "m"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_metadata_of_the_group_itself(tmp_path, zarr_format):
    store = write(tmp_path / "g.zarr", zarr_format=zarr_format)
    name = "zarr.json" if zarr_format == 3 else ".zgroup"
    assert told(store)["findings"] == []
    (store / name).write_text("{}")
    found = told(store)
    lacking = (
        '"zarr_format": 3 and "node_type": "group"' if zarr_format == 3 else '"zarr_format": 2'
    )
    assert problems(found).keys() == {name}
    assert f"the group's own {name} lacks {lacking}" in problems(found)[name]
    # zarr takes such a group of version 3 for one, and of version 2 for none.
    assert names(found) == (["a", "b", "m"] if zarr_format == 3 else [])
    assert "Warning" not in run(store).stderr
    (store / name).write_text(found["findings"][0]["remedy"].removeprefix("write into it: "))
    assert told(store)["findings"] == []
    (store / name).write_text('{"zarr_format": ')
    assert problems(told(store))[name].startswith(f"the group's own {name} is not JSON")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_is_no_group_and_the_group_above_is_named(tmp_path, zarr_format):
    store = write(tmp_path / "g.zarr", zarr_format=zarr_format)
    result = run(store / "a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this is a single Zarr array" in result.stderr
    assert f"pass the group above it, {store}." in result.stderr
    assert "leave group= out" in run(store, "--group", "a").stderr
    dataset().to_zarr(store, mode="a", group="in/it", zarr_format=zarr_format, consolidated=False)
    assert "pass group='in/it'" in run(store, "--group", "in/it/b").stderr
    with pytest.raises(ArrayNotGroupError, match="the group above it"):
        xloader.open(store / "a")


def test_dimensions_without_names(store):
    edit(store / "a/zarr.json", dimension_names=None)
    found = told(store)
    assert problems(found) == {"a": "its dimensions have no names, which xarray needs"}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata:")
def test_consolidated_metadata_that_are_behind(tmp_path, zarr_format):
    store = write(tmp_path / "c.zarr", consolidated=True, zarr_format=zarr_format)
    assert told(store)["findings"] == []
    last = "zarr.json" if zarr_format == 3 else ".zarray"
    edit(store / "a" / last, shape=[50, 4, 6])
    os.remove(store / "b" / last)
    found = problems(told(store))
    assert found["a"] == "consolidated metadata say shape (40, 4, 6), its own metadata (50, 4, 6)"
    assert found["b"].startswith("its zarr.json or .zarray is gone")


def test_labels_that_cannot_be_read(store):
    data = (store / "time/c/0").read_bytes()
    (store / "time/c/0").write_bytes(data[: len(data) // 2])
    found = told(store)
    assert problems(found).keys() == {"time"}
    assert names(found) == ["a", "b", "m"]


def test_nothing_there_is_an_error(tmp_path):
    for path, words in (
        (tmp_path / "none.zarr", "nothing at this path"),
        (tmp_path, ""),
        ("nowhere://bucket/store.zarr", "there is no file system for this kind of URL"),
    ):
        result = run(path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr


def test_the_number_of_chunks_is_checked(store):
    result = run("--nan", store)
    assert result.exit_code == 2
    assert "Write --nan after STORE" in result.stderr


def test_a_group_further_down(tmp_path):
    dataset().to_zarr(tmp_path / "d.zarr", group="deep/er", zarr_format=3, consolidated=False)
    found = told(tmp_path / "d.zarr", "--group", "deep/er", "--nan")
    assert names(found) == ["a", "b", "m"]
    assert found["findings"] == []
    os.remove(tmp_path / "d.zarr/deep/er/a/zarr.json")
    found = inspect_store(tmp_path / "d.zarr", group="deep/er")
    assert [own.subject for own in found.problems] == ["a"]


# --- files


def test_a_file(tmp_path):
    ds = dataset()[["m"]]
    encoding = {"m": {"zlib": True, "complevel": 3, "shuffle": True, "chunksizes": (10, 4, 3)}}
    ds.to_netcdf(tmp_path / "m.nc", encoding=encoding)
    found = told(tmp_path / "m.nc", "--nan")
    (own,) = found["variables"]
    assert found["file_nbytes"] == (tmp_path / "m.nc").stat().st_size
    assert own["path"] == "block by block through xarray: file; zlib 3, shuffle"
    assert own["nans"]["share"] == 0.25
    assert own["num_objects"] is None


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_real_files(data_folder):
    found = told(data_folder / "eraint_uvz.nc", "--nan")
    assert problems(found) == {}
    assert names(found) == ["z", "u", "v"]
    assert {own["stored_dtype"] for own in found["variables"]} == {"int16"}
    assert labels_of(found, "longitude")["step"] == "0.75"
    found = told(data_folder / "sst.mnmean.nc", "--nan")
    with xr.open_dataset(data_folder / "sst.mnmean.nc") as ds:
        share = float(np.isnan(ds["sst"].values).mean())
    assert found["variables"][0]["nans"]["share"] == pytest.approx(share)
    assert labels_of(found, "time")["step"] == "1 month"
    assert labels_of(found, "time")["gaps"] == ""
