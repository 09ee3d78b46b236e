"""Threads share the copying of small batches where they have nothing else to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xloader.engine.open_batches import OpenBatches

import xloader
from xloader.compiled.library import load_library
from xloader.testing import write_store

pytestmark = pytest.mark.usefixtures("earlier_engine")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each task that copies rows: how many parts were queued, and how many it took."""
    seen: list[tuple[int, int]] = []
    original = OpenBatches.next_gather

    def next_gather(self: OpenBatches, **options: Any) -> Any:
        before = len(self._gathers)
        task = original(self, **options)
        seen.append((before, before - len(self._gathers)))
        return task

    monkeypatch.setattr(OpenBatches, "next_gather", next_gather)
    return seen


@pytest.mark.skipif(load_library()[0] is None, reason="rows are copied by NumPy")
def test_batches_in_memory_are_shared_by_threads(tmp_path: Path, taken: list[tuple[int, int]]):
    values = np.arange(64 * 16 * 16, dtype=np.float32).reshape(64, 16, 16)
    dataset = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    path = tmp_path / "store.zarr"
    write_store(dataset, {"t2m": (8, 16, 16)}, path)
    samples = xloader.open(path).window(time=1, lat=8, lon=8)
    options = {"batch_size": 8, "memory": "16MB", "threads": 2, "prefetch": 4}
    with samples.loader(**options, output="numpy") as loader:
        list(loader)
        taken.clear()
        # In the second epoch all chunks are in memory, and nothing is left but to copy.
        found = {int(i): batch.t2m[row] for batch in loader for row, i in enumerate(batch.ids)}
    assert max(before for before, _ in taken) >= 4
    assert all(number <= 1 + (before - 1) // 2 for before, number in taken)
    for number, value in found.items():
        np.testing.assert_array_equal(value, samples[number][0])
