"""Batches under PyTorch: pinned, moved to a device, and sent from workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from xloader import Batch
from xloader.errors import UnsupportedDataError
from xloader.loader.batches.row_list import Rows
from xloader.tensors.collate import collate


def make_batch(first: int = 0) -> Batch:
    """Make three rows of arrays, the last of them padding."""
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2) + first
    ids = np.array([first, first + 1, first + 1])
    return Batch([x, ids * 2], ["x", "y"], ids, np.array([False, False, True]))


def assert_same(actual: Batch, expected: Batch) -> None:
    assert isinstance(actual, Batch)
    assert actual.names == expected.names
    np.testing.assert_array_equal(actual.ids, expected.ids, strict=True)
    np.testing.assert_array_equal(actual.is_padding, expected.is_padding, strict=True)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), strict=True)


def test_a_batch_moves_to_a_device() -> None:
    moved = collate(make_batch()).to("meta", non_blocking=True)
    assert [tensor.device.type for tensor in moved] == ["meta", "meta"]
    assert moved.ids.tolist() == [0, 1, 1]
    assert repr(moved) == "Batch(x=float32 (3, 2), y=int64 (3,), num_samples=3)"


class _Batches:
    """Whole batches, and at the end a tensor on a device, which a worker must not make."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            return make_batch().with_arrays([torch.empty(3, 2, device="meta"), make_batch().y])
        return [collate(make_batch(0)), Rows(make_batch(3)), make_batch(6)][index]


class _CollateBatches:
    """Leaves rows as they are and collates all else."""

    def __call__(self, samples: Any) -> Any:
        return samples if isinstance(samples, Rows) else collate(samples)


def test_batches_come_whole_from_workers() -> None:
    loader = DataLoader(
        _Batches(),
        batch_size=None,
        collate_fn=_CollateBatches(),
        num_workers=2,
        multiprocessing_context="forkserver",
    )
    batches = iter(loader)
    tensors, rows, collated = (next(batches) for _ in range(3))
    for batch, first in ((tensors, 0), (collated, 6)):
        assert_same(batch, make_batch(first))
        assert all(tensor.is_shared() for tensor in batch)
    assert type(rows) is Rows
    assert_same(rows.batch, make_batch(3))
    assert np.shares_memory(rows[2][0], rows.batch.x)
    with pytest.raises(UnsupportedDataError, match=r"'x' holds a tensor.*'meta' in worker 1"):
        next(batches)
    # In this process, unlike in a worker, a tensor may be on a device.
    assert collate(_Batches()[3]).x.device.type == "meta"
