"""The number of threads follows from what reading a chunk takes, once that is known."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from numcodecs import Delta, Zstd
from xloader.engine.block_loads import BlockLoads
from zarr.abc.store import Store
from zarr.codecs import ZstdCodec

import xloader
from xloader.engine.threads import Threads
from xloader.testing import LatencyStore, write_store

pytestmark = [
    pytest.mark.usefixtures("earlier_engine"),
    pytest.mark.filterwarnings("ignore::xloader.errors.MixingWarning"),
]

NUM_THREADS = 8
MEMORY = 4 << 20
"""Of this, a sixteenth holds two chunks of 128 KiB decoded."""


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


def report_of(
    samples: xloader.Samples, ds: xr.Dataset, threads: int = NUM_THREADS
) -> xloader.loader.reports.report.Report:
    """Compare an epoch with the dataset, and return its report."""
    options: dict[str, Any] = {"batch_size": 4, "memory": MEMORY, "output": "numpy"}
    with samples.loader(**options, threads=1) as loader:
        order = [batch.ids.tolist() for batch in loader]
    with samples.loader(**options, threads=threads) as loader:
        ids = []
        for batch in loader:
            ids.append(batch.ids.tolist())
            for name in ds:
                found = getattr(batch, str(name))[:, 0]
                np.testing.assert_array_equal(found, ds[name].values[batch.ids])
        assert ids == order
        report = loader.report()
        assert report.peak_nbytes <= loader.explain().peak_nbytes <= MEMORY
    return report


@pytest.mark.parametrize("place", ["folder", "memory", "far"])
def test_chunks_that_are_stored_in_little_let_more_threads_work(place: str, tmp_path: Path) -> None:
    ds = fields()
    store = store_of(ds, tmp_path / "a.zarr" if place == "folder" else None)
    samples = xloader.open(LatencyStore(store, 0.0) if place == "far" else store).window(time=1)
    report = report_of(samples, ds)
    # What is fetched ahead takes the memory for reads in flight. And of files, helpers read some.
    expected = {"folder": (4, NUM_THREADS - 4), "memory": (NUM_THREADS, 0), "far": (2, 0)}
    assert (report.num_threads, report.num_helpers) == expected[place]


def test_no_more_threads_than_were_asked_for() -> None:
    ds = fields()
    assert report_of(xloader.open(store_of(ds)).window(time=1), ds, 3).num_threads == 3


@pytest.mark.parametrize("is_compressed", [False, True])
def test_chunks_that_are_stored_in_as_much_do_not(is_compressed: bool) -> None:
    """One variable that does not compress is enough, and so is a store without a codec."""
    ds = fields(is_noise=is_compressed)
    store = store_of(ds, is_compressed=is_compressed)
    assert report_of(xloader.open(store).window(time=1), ds).num_threads == 2


def test_chunks_that_are_not_decoded_into_place_do_not() -> None:
    ds = fields()
    samples = xloader.open(store_of(ds)).isel(y=slice(1, None)).window(time=1)
    assert report_of(samples, ds.isel(y=slice(1, None))).num_threads == 2


def test_chunks_with_filters_do_not() -> None:
    ds = fields()
    filters = {"filters": [Delta(dtype="f4")], "compressors": [Zstd()]}
    chunks, encoding = dict.fromkeys("tu", (8, 64, 64)), dict.fromkeys("tu", filters)
    store = write_store(ds, chunks, zarr_format=2, encoding=encoding)
    assert report_of(xloader.open(store).window(time=1), ds).num_threads == 2


def test_absent_chunks_tell_nothing_of_others(tmp_path: Path) -> None:
    ds = fields(is_noise=True)
    store_of(ds, tmp_path / "a.zarr")
    for number in range(20):
        (tmp_path / "a.zarr/u/c" / str(number) / "0/0").unlink()
    samples = xloader.open(tmp_path / "a.zarr", on_missing="fill").window(time=1)
    options = {"batch_size": 4, "memory": MEMORY, "output": "numpy", "shuffle": False}
    with samples.loader(threads=NUM_THREADS, on_nan="ignore", **options) as loader:
        assert len(list(loader)) == 60
        assert loader.report().num_missing == 20
        assert loader.report().num_threads == 2


def test_later_chunks_that_take_more_are_read_by_fewer_threads() -> None:
    """After smooth fields comes noise: as many threads are left as before the first read."""
    ds = fields(is_noise=True)
    ds["u"][:160] = 1
    numbers, lock, num, decode = [], threading.Lock(), [0], BlockLoads._decode_one

    def note(self: BlockLoads, *args: Any) -> Any:
        with lock:
            num[0] += 1
            numbers.append((self._read_room.num_threads, num[0]))
        try:
            return decode(self, *args)
        finally:
            with lock:
                num[0] -= 1

    options = {"batch_size": 4, "memory": MEMORY, "output": "numpy", "shuffle": False}
    with (
        mock.patch.object(BlockLoads, "_decode_one", note),
        xloader.open(store_of(ds)).window(time=1).loader(threads=NUM_THREADS, **options) as loader,
    ):
        found = np.concatenate([batch.u[:, 0] for batch in loader])
        np.testing.assert_array_equal(found, ds["u"].values)
        assert loader.report().num_threads == NUM_THREADS
    assert max(limit for limit, _ in numbers) == NUM_THREADS
    # The last reads begin after those that were under way when the noise came.
    assert numbers[-1][0] == 2
    assert numbers[-1][1] <= 2


def test_blocks_that_are_read_through_xarray_do_not() -> None:
    ds = fields()
    chunked = xr.open_zarr(store_of(ds), chunks={}, consolidated=False).astype("f8").astype("f4")
    assert report_of(xloader.open(chunked).window(time=1), ds).num_threads == 2


def test_an_epoch_goes_on_where_the_system_allows_no_more_threads() -> None:
    ds, begin, num = fields(), Threads.begin, [0]

    def refuse(self: Threads, *args: Any) -> None:
        num[0] += self._name == "xloader"
        if self._name == "xloader" and num[0] > 4:
            raise RuntimeError("can't start new thread")
        begin(self, *args)

    samples = xloader.open(store_of(ds)).window(time=1)
    with samples.loader(batch_size=4, memory=MEMORY, threads=NUM_THREADS, output="numpy") as loader:
        with mock.patch.object(Threads, "begin", refuse):
            assert len(list(loader)) == 60
        assert loader.report().num_threads == 4
        # It was tried once, not again after each chunk.
        assert num == [5]
