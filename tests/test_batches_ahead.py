"""Small batches are made further ahead than asked for, in memory for bytes in flight."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.testing import write_store

NUM_STEPS, MEMORY = 400, 1 << 20


class MadeBatches:
    """A function of batches that counts its calls."""

    def __init__(self) -> None:
        self.num = 0
        self._lock = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        with self._lock:
            self.num += 1
        return batch

    def settled(self, expected: int) -> int:
        """The number of calls when no more come, of which some are expected."""
        until = time.monotonic() + 60
        while self.num < expected and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.1)
        return self.num


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 3.3 MB in chunks of 16 KB, of which a sixteenth of the memory holds four."""
    values = np.arange(NUM_STEPS * 32 * 64, dtype=np.float32).reshape(NUM_STEPS, 32, 64)
    dataset = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    write_store(dataset, {"t2m": (8, 16, 32)}, tmp_path / "store.zarr")
    return tmp_path / "store.zarr"


def batches_made(path: Path, expected: int, **options: Any) -> int:
    """Number of batches that are made while the loop has asked for one only."""
    made = MadeBatches()
    samples = xloader.open(path).window(time=1, lat=8, lon=8).map(made, per="batch")
    given = {"batch_size": 8, "memory": MEMORY, "threads": 2, "output": "numpy"} | options
    with samples.loader(**given) as loader:
        # It was called before to find out what it returns.
        made.num = 0
        batches = iter(loader)
        next(batches)
        return made.settled(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # One, two as asked for, and two for each thread.
        ({}, 7),
        ({"prefetch": 1}, 6),
        ({"prefetch": 0}, 1),
        ({"threads": 1}, 5),
        # Batches of 64 KB do not fit into what two threads leave of 64 KB.
        ({"batch_size": 256}, 3),
        # Everything stays in memory: nothing is read later.
        ({"memory": 1 << 24}, 3),
    ],
)
def test_small_batches_are_made_further_ahead(path, options, expected):
    assert batches_made(path, expected, **options) == expected
