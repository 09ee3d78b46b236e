"""Single samples, read without a plan: xarray's values, and each chunk decoded once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.sources.open.open_source import open_source
from xloader.testing import CountingStore, SourceRecorder, write_store


def dataset(num_steps: int = 960) -> xr.Dataset:
    values = np.random.default_rng(0).normal(size=(num_steps, 50)).astype(np.float32)
    return xr.Dataset({"a": (("time", "x"), values)}, {"time": np.arange(num_steps)})


def test_samples_as_a_dataset_decode_each_chunk_once() -> None:
    source = SourceRecorder(open_source(write_store(dataset(), {"a": (16, 50)})))
    samples = xloader.open(source).window(time=3, stride=1).inputs("a").targets("a", time=2)
    frame = samples.to_xarray(slice(0, 900))
    assert set(source.reads.values()) == {1}
    assert frame.sizes["sample"] == 900


@given(case=cases(), data=st.data())
def test_any_samples_are_those_of_isel(case: Case, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(case.samples) - 1), min_size=1, max_size=40))
    case.store.reset()
    batch = case.samples[ids]
    assert set(case.store.reads.values()) == {1}
    for row, index in enumerate(ids):
        for array, value in zip(batch, case.sample(index), strict=True):
            assert array.dtype == value.dtype
            assert array[row].shape == value.shape
            assert array[row].tobytes() == value.tobytes()


def test_one_chunk_is_in_memory_at_a_time() -> None:
    """Reading 960 samples of one element each keeps only a few decoded chunks in memory."""
    wide = xr.Dataset({"a": (("time", "x"), np.zeros((960, 3125), np.float32))})
    store = CountingStore(
        write_store(wide, {"a": (16, 3125)}, encoding={"a": {"compressors": None}})
    )
    samples = xloader.open(store).isel(x=[0]).window(time=1)
    samples[0]
    tracemalloc.start()
    try:
        batch = samples[:]
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(batch.ids) == 960
    assert peak_nbytes < 5 * 16 * 3125 * 4
