"""Stores for tests of PyTorch's doors, and samples of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import xloader
from xloader import Samples
from xloader.testing import write_store

MEMORY = "200KiB"
"""Memory for some of the chunks only. With more, later epochs would read nothing."""


def make_dataset(num_steps: int) -> xr.Dataset:
    """Random values of two variables."""
    values = np.random.default_rng(0).normal(size=(2, num_steps, 6, 10)).astype(np.float32)
    return xr.Dataset(
        {name: (("time", "y", "x"), own) for name, own in zip("tu", values, strict=True)}
    )


def write_waves(path: Path, num_steps: int) -> Path:
    write_store(make_dataset(num_steps), {"t": (16, 6, 10), "u": (16, 6, 10)}, path)
    return path


def write_times(path: Path) -> Path:
    """Write 240 steps of one variable, whose value at each time is the sample's id."""
    values = np.repeat(np.arange(240.0), 12).reshape(240, 3, 4)
    write_store(xr.Dataset({"t": (("time", "y", "x"), values)}), {"t": (16, 3, 4)}, path)
    return path


def samples_of(source: object, window: int = 1) -> Samples:
    """Windows of one variable as inputs, and of the other one as targets."""
    return xloader.open(source).window(time=window, stride=1).inputs("t").targets("u")


def ids_of(batches: Iterable[Any]) -> list[int]:
    return [int(i) for batch in batches for i in batch.ids]


def check_values(dataset: xr.Dataset, batch: Any, window: int = 1) -> None:
    """Compare the values of a batch with those of the dataset."""
    for row, index in enumerate(batch.ids.tolist()):
        part = dataset.isel(time=slice(index, index + window))
        np.testing.assert_array_equal(batch.inputs[row, 0], part.t)
        np.testing.assert_array_equal(batch.targets[row, 0], part.u)


def contents(batch: Any) -> list[Any]:
    """Return all that two batches must have in common."""
    values = [np.asarray(array).tobytes() for array in batch]
    return [batch.ids.tolist(), batch.is_padding.tolist(), *values]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))
