"""As many chunks are read at a time as the memory for reads holds, by what they take."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from numcodecs import Delta, Zstd
from zarr.abc.store import Store
from zarr.codecs import ZstdCodec

import xloader
from xloader.compiled.library import load_library
from xloader.engine.threads import Threads
from xloader.testing import LatencyStore, pretend_disk, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

NEEDS_LIBRARY = pytest.mark.skipif(load_library()[0] is None, reason="there is no library")

NUM_THREADS = 8
MEMORY = 4 << 20
"""Of this, a sixteenth holds two chunks of 128 KiB decoded."""

OPTIONS: dict[str, Any] = {"batch_size": 4, "memory": MEMORY, "output": "numpy"}


def fields(*, is_noise: bool = False) -> xr.Dataset:
    """Make two variables of 240 steps of 64 x 64; noise does not compress."""
    noise = np.random.default_rng(7).integers(0, 2**30, (240, 64, 64), np.int32).view(np.float32)
    steps = np.arange(240, dtype=np.float32)[:, None, None]
    smooth = steps + np.zeros((64, 64), np.float32)
    dims = ("time", "y", "x")
    return xr.Dataset({"t": (dims, smooth), "u": (dims, noise if is_noise else -smooth)})


def store_of(ds: xr.Dataset, path: Path | None = None, *, is_compressed: bool = True) -> Store:
    encoding = {str(name): {"compressors": [ZstdCodec()] if is_compressed else []} for name in ds}
    return write_store(ds, {str(name): (8, 64, 64) for name in ds}, path, encoding=encoding)


def reads_at_a_time(ds: xr.Dataset, path: Path) -> list[int]:
    """How many chunks native threads read at a time, while each batch is waited for."""
    samples = xloader.open(store_of(ds, path / "a.zarr")).window(time=1)
    most, found, is_over = [0], [], threading.Event()
    with samples.loader(**OPTIONS, threads=NUM_THREADS, shuffle=False) as loader:
        batches = iter(loader)

        def look() -> None:
            assert loader._run is not None
            while not is_over.wait(0.001):
                figures, _, _ = loader._run._executor.figures()
                most[0] = max(most[0], figures.num_loading)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            with pretend_disk(10.0):
                for batch in batches:
                    np.testing.assert_array_equal(batch.u[:, 0], ds["u"].values[batch.ids])
                    found.append(most[0])
                    most[0] = 0
        finally:
            is_over.set()
            watcher.join()
        assert loader.report().peak_nbytes <= loader.explain().peak_nbytes <= MEMORY
    return found


@NEEDS_LIBRARY
def test_of_chunks_that_are_stored_in_little_more_are_read_at_a_time(tmp_path: Path) -> None:
    assert max(reads_at_a_time(fields(), tmp_path)) > 2


@NEEDS_LIBRARY
def test_of_others_no_more_than_there_is_memory_for_decoded_ones(tmp_path: Path) -> None:
    """One variable that does not compress is enough."""
    assert max(reads_at_a_time(fields(is_noise=True), tmp_path)) == 2


@NEEDS_LIBRARY
def test_later_chunks_that_take_more_are_read_by_fewer_threads(tmp_path: Path) -> None:
    """After smooth fields comes noise: as few are read at a time as before the first read."""
    ds = fields(is_noise=True)
    ds["u"][:160] = 1
    found = reads_at_a_time(ds, tmp_path)
    assert max(found[:40]) > 2
    assert max(found[-10:]) <= 2


def open_kind(kind: str, ds: xr.Dataset, path: Path) -> xloader.Samples:
    """Open a store of one kind."""
    if kind == "filters":
        filters = {"filters": [Delta(dtype="f4")], "compressors": [Zstd()]}
        chunks, encoding = dict.fromkeys("tu", (8, 64, 64)), dict.fromkeys("tu", filters)
        return xloader.open(write_store(ds, chunks, zarr_format=2, encoding=encoding))
    store = store_of(ds, path / "a.zarr" if kind == "folder" else None, is_compressed=kind != "raw")
    if kind == "far":
        return xloader.open(LatencyStore(store, 0.0))
    if kind == "xarray":
        chunked = xr.open_zarr(store, chunks={}, consolidated=False).astype("f8").astype("f4")
        return xloader.open(chunked)
    return xloader.open(store)


@pytest.mark.parametrize("is_noise", [False, True])
@pytest.mark.parametrize("kind", ["folder", "memory", "far", "raw", "cut", "filters", "xarray"])
def test_the_memory_suffices(executor: str, kind: str, is_noise: bool, tmp_path: Path) -> None:
    threads = NUM_THREADS if is_noise else 3
    # Differences of noise do not add up to the same.
    ds = fields(is_noise=is_noise and kind != "filters")
    samples = open_kind(kind, ds, tmp_path)
    if kind == "cut":
        # Chunks are not decoded into place.
        samples, ds = samples.isel(y=slice(1, None)), ds.isel(y=slice(1, None))
    with samples.window(time=1).loader(**OPTIONS, threads=threads) as loader:
        for batch in loader:
            for name in ds:
                np.testing.assert_array_equal(batch[name][:, 0], ds[name].values[batch.ids])
        report = loader.report()
        assert report.num_reads == 60
        assert report.peak_nbytes <= loader.explain().peak_nbytes <= MEMORY
        assert 1 <= report.num_threads <= threads


def test_absent_chunks_tell_nothing_of_others(executor: str, tmp_path: Path) -> None:
    ds = fields(is_noise=True)
    store_of(ds, tmp_path / "a.zarr")
    for number in range(20):
        (tmp_path / "a.zarr/u/c" / str(number) / "0/0").unlink()
    samples = xloader.open(tmp_path / "a.zarr", on_missing="fill").window(time=1)
    options = {**OPTIONS, "shuffle": False, "threads": NUM_THREADS, "on_nan": "ignore"}
    with samples.loader(**options) as loader:
        assert len(list(loader)) == 60
        report = loader.report()
        assert report.num_missing == 20
        assert report.peak_nbytes <= loader.explain().peak_nbytes <= MEMORY


def test_an_epoch_goes_on_where_the_system_allows_no_more_threads(executor: str) -> None:
    ds, begin, num = fields(), Threads.begin, [0]

    def refuse(self: Threads, *args: Any) -> None:
        num[0] += self._name == "xloader"
        if self._name == "xloader" and num[0] > 1:
            raise RuntimeError("can't start new thread")
        begin(self, *args)

    samples = xloader.open(store_of(ds)).window(time=1)
    with samples.loader(**OPTIONS, threads=NUM_THREADS) as loader:
        with mock.patch.object(Threads, "begin", refuse):
            assert len(list(loader)) == 60
        # It was tried once, not again after each chunk.
        assert num == [2]
