"""A mesh of processes: the ranks of a group share samples as slabs, and groups share an epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.trainers.cases import NUM_SAMPLES, read_ranks, run_ranks
from xloader.testing import write_store

pytest.importorskip("torch", reason="torchrun comes with PyTorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
]


def test_groups_of_a_mesh(tmp_path: Path) -> None:
    from tests.trainers import meshed

    num_groups, group_size = meshed.SHAPE
    shape = (NUM_SAMPLES, meshed.NUM_LATS, 2)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    store = tmp_path / "a.zarr"
    write_store(xr.Dataset({"t": (("time", "lat", "lon"), values)}), {"t": (4, 1, 2)}, store)
    run_ranks(num_groups * group_size, "meshed.py", store, tmp_path)
    ranks = read_ranks(tmp_path, num_groups * group_size)
    real_ids = []
    for number in range(num_groups):
        group = ranks[number * group_size : (number + 1) * group_size]
        with meshed.make_loader(meshed.open_samples(store), number, num_groups) as loader:
            whole = [meshed.seen(batch) for batch in loader]
        parts = zip(*(batches for batches, _, _ in group), strict=True)
        for (ids, is_padding, inputs), own in zip(whole, parts, strict=True):
            assert all(seen[:2] == [ids, is_padding] for seen in own)
            joined = np.concatenate([seen[2] for seen in own], axis=3)
            np.testing.assert_array_equal(joined, np.array(inputs))
            real_ids += [i for i, padded in zip(ids, is_padding, strict=True) if not padded]
    assert sorted(real_ids) == list(range(NUM_SAMPLES))
    for batches, state, rest in ranks:
        assert state == ranks[0][1]
        assert rest == batches[state["step"] :]
        assert 0 < len(rest) < len(batches)
