"""A store that changes while PyTorch's doors read it raises an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from xloader.errors import StoreChangedError
from xloader.testing import write_store
from xloader.torch import IterableDataset, MapDataset, data_loader

TIMES, WIDTH = 480, 8

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:epoch 0 begins anew"),
]


def write(path: Path, first: float, chunks: tuple[int, int]) -> None:
    values = first + np.arange(TIMES * WIDTH, dtype="f4").reshape(TIMES, WIDTH)
    write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": chunks}, path)


def mapped(samples: xloader.Samples, num_workers: int) -> Any:
    return data_loader(samples, batch_size=4, memory="64KiB", num_workers=num_workers)


def iterable(samples: xloader.Samples, num_workers: int) -> Any:
    dataset = IterableDataset(samples, batch_size=4, memory="64KiB")
    return DataLoader(dataset, batch_size=None, num_workers=num_workers)


def plain(samples: xloader.Samples, num_workers: int) -> Any:
    """Make a DataLoader that reads through the cache."""
    return DataLoader(
        MapDataset(samples, memory="64KiB"), batch_size=4, shuffle=True, num_workers=num_workers
    )


def check_first_values(batches: Iterable[Any]) -> None:
    for batch in batches:
        values = batch.t if hasattr(batch, "t") else batch[0]
        assert float(values.max()) < 1e6


@pytest.mark.parametrize(
    ("make", "num_workers"), [(mapped, 2), (iterable, 2), (plain, 0), (plain, 2)]
)
def test_no_wrong_value_comes(make: Callable[..., Any], num_workers: int, tmp_path: Path) -> None:
    """The new chunks have as many bytes and decode, but to other elements; no wrong value comes."""
    path, other = tmp_path / "a.zarr", tmp_path / "b.zarr"
    write(path, 0, (8, 8))
    write(other, 1e6, (16, 4))
    batches = iter(make(xloader.open(path).window(time=1), num_workers))
    for _ in range(3):
        next(batches)
    path.rename(tmp_path / "old.zarr")
    other.rename(path)
    with pytest.raises(StoreChangedError, match=r"chunk_grid was .*\[16, 4\]|gone"):
        check_first_values(batches)


@pytest.mark.parametrize(("make", "num_workers"), [(mapped, 0), (mapped, 2), (iterable, 2)])
def test_as_the_next_epoch_begins(
    make: Callable[..., Any], num_workers: int, tmp_path: Path
) -> None:
    path, other = tmp_path / "a.zarr", tmp_path / "b.zarr"
    write(path, 0, (8, 8))
    write(other, 1e6, (16, 4))
    loader = make(xloader.open(path).window(time=1), num_workers)
    assert sum(1 for _ in loader) == TIMES // 4
    path.rename(tmp_path / "old.zarr")
    other.rename(path)
    with pytest.raises(StoreChangedError, match=r"chunk_grid was .*\[16, 4\]"):
        next(iter(loader))
