"""Running statistics over ranks, gathered with torch.distributed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import xloader
from tests.trainers.cases import NUM_SAMPLES, make_store, read_ranks, run_ranks

pytest.importorskip("torch", reason="torchrun comes with PyTorch")


def test_all_ranks_get_the_same_statistics_of_all_samples(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a.zarr")
    run_ranks(2, "running.py", store, tmp_path)
    first, second = read_ranks(tmp_path, 2)
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    series = np.concatenate(xloader.open(store).window(time=1)[:].t).astype("f8")
    assert len(series) == NUM_SAMPLES + 1
    delivered = np.concatenate([series[:-1], series[1:]])
    count, *numbers = first[2]["t"]
    assert count == delivered.size
    wanted = [delivered.mean(), delivered.std(), delivered.min(), delivered.max()]
    np.testing.assert_allclose(numbers, wanted, rtol=1e-12)
    # Of 45 samples, one rank has 22 and repeats one.
    assert (first[1]["num_samples"], first[1]["num_padding"]) == (NUM_SAMPLES, 1)
