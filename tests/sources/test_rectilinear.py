"""Chunks of several sizes along a dimension are read directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from packaging.version import Version
from zarr.storage import LocalStore

import xloader
from tests.sources import kinds
from xloader.errors import UnsupportedDataError
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr.stored_grid import StoredGrid
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
has_rectilinear = pytest.mark.skipif(
    Version(zarr.__version__) < Version("3.2"), reason="this zarr reads no rectilinear chunk grids"
)
SETTING = "array.rectilinear_chunks"
EDGES = (5, 1, 9, 2, 2, 11, 10)


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    values = np.arange(40 * 6, dtype="f4").reshape(40, 6)
    return xr.Dataset({"t": (("time", "x"), values), "u": (("time", "x"), values.astype("i4"))})


def write(dataset: xr.Dataset, path: Path) -> Path:
    """Write one variable in chunks of several sizes, the other in shards of several sizes."""
    chunks = {"t": (EDGES, (4, 2)), "u": (2, 3)}
    write_store(dataset, chunks, path, encoding={"u": {"shards": ((6, 2, 12, 20), 6)}})
    return path


def check_epoch(loader: Any, dataset: xr.Dataset, window: int) -> list[int]:
    """Compare every batch with xarray and return the ids."""
    ids = []
    for batch in loader:
        for row, index in enumerate(batch.ids.tolist()):
            part = dataset.isel(time=slice(index, index + window))
            np.testing.assert_array_equal(batch.t[row], part.t)
            np.testing.assert_array_equal(batch.u[row], part.u)
        ids += batch.ids.tolist()
    return ids


@has_rectilinear
@pytest.mark.parametrize("setting", [False, True])
def test_chunks_are_read_directly_whatever_the_setting_says(
    dataset: xr.Dataset, tmp_path: Path, setting: bool
):
    path = write(dataset, tmp_path / "a.zarr")
    with zarr.config.set({SETTING: setting}):
        source = open_source(path)
        assert zarr.config.get(SETTING) is setting
        assert source.variables["t"].chunks == (EDGES, 4)
        assert source.variables["u"].chunks == (2, 3)
        assert source.path_of("t").startswith("direct: zarr v3, bytes")
        assert source.path_of("u").startswith("direct: zarr v3, sharding_indexed")
        for name in ("t", "u"):
            np.testing.assert_array_equal(kinds.read_all(source, name), dataset[name])


@has_rectilinear
@pytest.mark.parametrize("window", [1, 3, 12])
def test_predicted_reads_are_counted_reads(dataset: xr.Dataset, tmp_path: Path, window: int):
    store = CountingStore(LocalStore(write(dataset, tmp_path / "a.zarr"), read_only=True))
    samples = xloader.open(store).window(time=window, stride=1)
    options = {"batch_size": 4, "memory": "64KiB", "output": "numpy", "threads": 2}
    with samples.loader(shuffle=True, **options) as loader:
        for _ in range(2):
            expected = loader.explain()
            ids = check_epoch(loader, dataset, window)
            assert sorted(ids) == list(range(len(samples)))
            assert loader.report().num_reads == expected.num_reads


@has_rectilinear
@pytest.mark.parametrize("size", [33, 30, 7])
def test_an_array_that_was_made_shorter_ends_within_a_chunk(
    dataset: xr.Dataset, tmp_path: Path, size: int
):
    path = write(dataset, tmp_path / "a.zarr")
    with zarr.config.set({SETTING: True}):
        for name in ("t", "u"):
            zarr.open_array(path / name, mode="r+").resize((size, 6))
    source = open_source(path)
    for name in ("t", "u"):
        expected = dataset[name].isel(time=slice(0, size))
        np.testing.assert_array_equal(kinds.read_all(source, name), expected)


@pytest.mark.skipif(
    Version(zarr.__version__) < Version("3.3"), reason="this zarr writes no such grid"
)
def test_one_number_stands_for_chunks_of_one_size(dataset: xr.Dataset, tmp_path: Path):
    path = write(dataset, tmp_path / "a.zarr")
    with zarr.config.set({SETTING: True}):
        array = zarr.open_group(path).create_array(
            "t", shape=(40, 6), chunks=[EDGES, 4], dtype="f4", dimension_names=("time", "x"),
            overwrite=True,
        )  # fmt: skip
        array[...] = dataset["t"].to_numpy()
    grid = json.loads((path / "t" / "zarr.json").read_text())["chunk_grid"]["configuration"]
    assert grid["chunk_shapes"][1] == 4
    source = open_source(path)
    assert source.path_of("t").startswith("direct")
    np.testing.assert_array_equal(kinds.read_all(source, "t"), dataset["t"])


@has_rectilinear
def test_an_absent_chunk_is_the_fill_value_and_counted(dataset: xr.Dataset, tmp_path: Path):
    path = write(dataset, tmp_path / "a.zarr")
    (path / "t" / "c" / "2" / "0").unlink()
    source = open_source(path, on_missing="fill")
    expected = dataset["t"].to_numpy().copy()
    expected[6:15, :4] = 0
    np.testing.assert_array_equal(kinds.read_all(source, "t"), expected)
    assert source.num_missing == 1


@pytest.mark.skipif(
    Version(zarr.__version__) >= Version("3.2"), reason="this zarr reads rectilinear chunk grids"
)
def test_a_zarr_that_cannot_says_which_can(dataset: xr.Dataset, tmp_path: Path):
    write_store(dataset, {"t": (4, 3), "u": (2, 3)}, tmp_path / "a.zarr")
    document = tmp_path / "a.zarr" / "t" / "zarr.json"
    regular = '"name": "regular"'
    assert regular in document.read_text()
    document.write_text(document.read_text().replace(regular, '"name": "rectilinear"'))
    with pytest.raises(UnsupportedDataError, match=r"zarr 3\.2 or newer.*Python 3\.12"):
        open_source(tmp_path / "a.zarr")


def test_the_last_chunk_is_stored_whole_and_holds_what_is_left() -> None:
    grid = StoredGrid((10,), ((2, 5, 5),))
    assert grid.chunks == ((2, 5, 3),)
    assert (grid.stored_shape((2,)), grid.shape_of((2,))) == ((5,), (3,))


def test_shards_of_several_sizes_hold_chunks_of_one_size() -> None:
    grid = StoredGrid((12,), ((4, 8),), (2,))
    assert grid.chunks == (2,)
    assert (grid.object_of((3,)), grid.first_chunk((1,))) == ((1,), (2,))
    assert grid.chunks_per_object((1,)) == (4,)
