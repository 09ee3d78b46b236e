"""Samples as a TensorDataset, and PyTorch's own tools to combine and split it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils.data import (
    TensorDataset,
)

import xloader
from xloader.errors import MemoryBudgetError, OptionError, UnsupportedDataError
from xloader.tensors.collate import hand_over
from xloader.testing import CountingStore, write_store
from xloader.torch import tensor_dataset


def make_samples(store: object | None = None) -> xloader.Samples:
    """Make 20 windows of 3 over chunks of 4, each with the next number as target."""
    return (
        xloader.open(make_store() if store is None else store)
        .window(time=4, stride=2)
        .inputs("a", time=slice(0, 3))
        .targets("b", time=3)
    )


def make_store() -> CountingStore:
    a = np.arange(42 * 3, dtype=np.float32).reshape(42, 3)
    dataset = xr.Dataset({"a": (("time", "x"), a), "b": ("time", np.arange(42, dtype=np.int16))})
    return CountingStore(write_store(dataset, {"a": (4, 3), "b": (4,)}))


def test_each_row_is_the_sample_of_its_id() -> None:
    samples = make_samples()
    dataset = tensor_dataset(samples, memory="1MiB")
    assert type(dataset) is TensorDataset
    assert len(dataset) == len(samples) == 20
    assert [tensor.dtype for tensor in dataset.tensors] == [torch.float32, torch.int16]
    for index in range(len(samples)):
        for tensor, array in zip(dataset[index], samples[index], strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_it_reads_each_chunk_once() -> None:
    store = make_store()
    samples = make_samples(store)
    store.reset()
    tensor_dataset(samples, memory="1MiB")
    assert len(store.reads) == 22
    assert set(store.reads.values()) == {1}


def test_selected_and_mapped_samples() -> None:
    samples = make_samples().select([7, 3, 3]).map(lambda ds: ds.assign(inputs=ds.inputs * 2))
    inputs, targets = tensor_dataset(samples, "1MiB").tensors
    np.testing.assert_array_equal(inputs.numpy(), samples[[0, 1, 2]].inputs)
    assert targets.ravel().tolist() == [17, 9, 9]


def test_what_does_not_fit_is_refused_before_it_is_read() -> None:
    store = make_store()
    samples = make_samples(store)
    store.reset()
    with pytest.raises(MemoryBudgetError, match=r"do not fit in memory.*\.select fewer") as caught:
        tensor_dataset(samples, memory=500)
    assert "20 samples of 38 bytes" in str(caught.value)
    assert store.num_reads == 0
    enough = caught.value.minimum_nbytes
    assert len(tensor_dataset(samples, memory=enough)) == 20
    with pytest.raises(MemoryBudgetError, match=re.escape(str(enough))):
        tensor_dataset(samples, memory=enough - 1)


def test_errors() -> None:
    with pytest.raises(
        OptionError, match=r"drawn samples cannot become a dataset.*before \.weighted or \.random"
    ):
        tensor_dataset(make_samples().weighted(np.ones(20)))
    with pytest.raises(OptionError, match="not a number of bytes"):
        tensor_dataset(make_samples(), memory="much")
    with pytest.raises(
        UnsupportedDataError, match=r"'x' holds values that a tensor cannot hold.*<U3"
    ):
        hand_over(np.empty(2, "<U3"), "x")


def test_a_foreign_byte_order_is_made_native() -> None:
    samples = make_samples().map(lambda ds: ds.assign(inputs=ds.inputs.astype(">f8")))
    assert not samples.dtypes["inputs"].isnative
    inputs = tensor_dataset(samples, "1MiB").tensors[0]
    np.testing.assert_array_equal(inputs.numpy(), samples[list(range(20))].inputs)
