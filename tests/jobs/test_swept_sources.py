"""is_valid reads any source by the ways, limits and retries of an epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.hanging import HangingAsync, HangingSync, released
from xloader.errors import (
    ChunkError,
    ChunkWarning,
    CorruptChunkError,
    MissingChunkError,
    ReadTimeoutError,
    StoreChangedError,
)
from xloader.testing import FaultyStore, LatencyStore, truncate, write_store

CHUNKS = {"t": (5, 3)}


def make_dataset() -> xr.Dataset:
    values = np.arange(120.0).reshape(30, 4)
    values[[3, 17, 18, 29], [0, 1, 2, 3]] = np.nan
    return xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(30)})


WANTED = [bool(make_dataset().t[i : i + 3].notnull().all()) for i in range(28)]


def of_shards(folder: Path) -> xloader.Samples:
    encoding = {"t": {"shards": (10, 6)}}
    return xloader.open(write_store(make_dataset(), CHUNKS, folder / "s", encoding=encoding))


def of_netcdf(folder: Path) -> xloader.Samples:
    pytest.importorskip("h5netcdf")
    encoding = {"t": {"chunksizes": (5, 3)}}
    make_dataset().to_netcdf(folder / "t.nc", engine="h5netcdf", encoding=encoding)
    return xloader.open(folder / "t.nc")


def of_dask(folder: Path) -> xloader.Samples:
    return xloader.open((make_dataset().chunk(time=5, x=3) + 1.0) * 2.0)


def of_parts(folder: Path) -> xloader.Samples:
    ds = make_dataset()
    parts = [ds.isel(time=slice(0, 10)), ds.isel(time=slice(10, None))]
    return xloader.concat([write_store(part, CHUNKS) for part in parts], dim="time")


@pytest.mark.parametrize("make", [of_shards, of_netcdf, of_dask, of_parts])
def test_any_source(make: Callable[[Path], xloader.Samples], tmp_path: Path) -> None:
    mask = make(tmp_path).window(time=3, stride=1).is_valid()
    assert np.asarray(mask).tolist() == WANTED
    assert mask.num_reads == 12


def test_a_dataset_in_memory() -> None:
    mask = xloader.open(make_dataset()).window(time=3, stride=1).is_valid()
    assert np.asarray(mask).tolist() == WANTED


def test_a_read_that_fails_for_a_while_is_tried_again() -> None:
    inner = write_store(make_dataset(), CHUNKS)
    store = FaultyStore(inner, {"t/c/3/1": TimeoutError("slow")}, times=1)
    samples = xloader.open(store).window(time=3, stride=1)
    assert np.asarray(samples.is_valid()).tolist() == WANTED
    assert store.num_faults == 1
    store = FaultyStore(inner, {"t/c/3/1": TimeoutError("slow")})
    samples = xloader.open(store, max_retries=1).window(time=3, stride=1)
    with pytest.raises(ChunkError, match=r"variable 't', chunk \(3, 1\)"):
        samples.is_valid()


@pytest.fixture
def _release() -> Iterator[None]:
    # Other tests leave the event of theirs set.
    released.append(threading.Event())
    yield
    released[-1].set()


@pytest.mark.usefixtures("_release")
@pytest.mark.parametrize("kind", [HangingSync, HangingAsync])
def test_a_read_that_never_returns(kind: type) -> None:
    store = kind(write_store(make_dataset(), {"t": (5, 4)}))
    samples = xloader.open(store, read_timeout=0.2, max_retries=1).window(time=3)
    with pytest.raises(ReadTimeoutError, match=r"chunk \(3, 0\)"):
        samples.is_valid()


def test_absent_chunks_are_the_fill_value() -> None:
    """NaN here, so that their samples are not valid; told or refused as everywhere."""
    store = FaultyStore(write_store(make_dataset(), CHUNKS), {"t/c/0/0": None})
    samples = xloader.open(store).window(time=3, stride=1)
    with pytest.warns(ChunkWarning):
        mask = samples.is_valid()
    assert np.asarray(mask).tolist() == [False] * 5 + WANTED[5:]
    with pytest.raises(MissingChunkError):
        xloader.open(store, on_missing="raise").window(time=3).is_valid()


def test_a_store_that_changed(tmp_path: Path) -> None:
    write_store(make_dataset(), CHUNKS, tmp_path / "s")
    samples = xloader.open(tmp_path / "s").window(time=3)
    write_store(make_dataset().isel(time=slice(0, 20)), CHUNKS, tmp_path / "s")
    with pytest.raises(StoreChangedError):
        samples.is_valid()


def test_bytes_that_came_short_are_fetched_once_more() -> None:
    inner = LatencyStore(write_store(make_dataset(), CHUNKS), 0.0)
    store = FaultyStore(inner, {"t/c/2/0": truncate}, times=1)
    samples = xloader.open(store).window(time=3, stride=1)
    if not samples.recipe.source.is_waiting("t"):
        pytest.skip("this zarr reads such a store on the calling thread")
    assert np.asarray(samples.is_valid()).tolist() == WANTED
    with pytest.raises(CorruptChunkError, match=r"chunk \(2, 0\)"):
        xloader.open(FaultyStore(inner, {"t/c/2/0": truncate})).window(time=3).is_valid()
