"""Ranks of torchrun with a training loop that uses no trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.trainers.cases import (
    NUM_SAMPLES,
    all_rows,
    make_loader,
    make_store,
    read_ranks,
    row,
    together,
)
from tests.trainers.ranks import run_script
from xloader.testing import write_store

pytest.importorskip("torch", reason="torchrun comes with PyTorch")
pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


class Ranks(NamedTuple):
    """The store, and what the ranks have noted: of epochs, and of a slab in a group."""

    store: Path
    epochs: list[Any]
    slabs: list[Any]


@pytest.fixture(scope="module", params=[2, 4], ids=["two ranks", "four ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    from tests.trainers import ranked

    folder, num_ranks = tmp_path_factory.mktemp("ranks"), request.param
    store = make_store(folder / "a.zarr")
    shape = (NUM_SAMPLES, ranked.NUM_LATS, 2)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    levels = xr.Dataset({"t": (("time", "lat", "lon"), values)})
    write_store(levels, {"t": (4, 1, 2)}, f"{store}-levels")
    run_script("ranked.py", store, folder, num_ranks, num_ranks=num_ranks)
    epochs, slabs = zip(*read_ranks(folder, num_ranks), strict=True)
    return Ranks(store, list(epochs), list(slabs))


def test_ranks_share_each_epoch(ranks: Ranks) -> None:
    rows, states = ([rank[number] for rank in ranks.epochs] for number in (0, 1))
    whole = all_rows(ranks.store, 2)
    assert together(rows) == whole
    orders = [[i for epoch, ids in whole if epoch == number for i in ids] for number in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(NUM_SAMPLES))
    assert orders[0] != orders[1]
    assert all(state == states[0] for state in states)
    with make_loader(ranks.store) as loader:
        loader.load_state_dict(states[-1])
        assert [row(1, batch) for batch in loader] == whole[-len(loader) + 2 :]


def test_all_ranks_get_the_same_statistics_of_all_samples(ranks: Ranks) -> None:
    own, whole = ([rank[number] for rank in ranks.epochs] for number in (2, 3))
    assert own[0] != own[1]
    assert all(one == whole[0] for one in whole)
    series = np.concatenate(xloader.open(ranks.store).window(time=1)[:].t).astype("f8")
    assert len(series) == NUM_SAMPLES + 1
    delivered = np.concatenate([series[:-1], series[1:]])
    counts, found = whole[0]
    count, *numbers = found["t"]
    assert count == delivered.size
    wanted = [delivered.mean(), delivered.std(), delivered.min(), delivered.max()]
    np.testing.assert_allclose(numbers, wanted, rtol=1e-12)
    # The last of 45 samples is in a batch with a row for each rank.
    num_padding = -NUM_SAMPLES % len(own)
    assert (counts["num_samples"], counts["num_padding"]) == (NUM_SAMPLES, num_padding)


def test_ranks_of_a_group_share_samples_as_slabs(ranks: Ranks) -> None:
    from tests.trainers import ranked

    num_groups = 2
    group_size = len(ranks.slabs) // num_groups
    samples, real_ids = ranked.open_levels(f"{ranks.store}-levels"), []
    for number in range(num_groups):
        group = ranks.slabs[number * group_size : (number + 1) * group_size]
        with ranked.make_data_loader(samples, number, num_groups) as loader:
            whole = [ranked.seen(batch) for batch in loader]
        parts = zip(*(batches for batches, _, _ in group), strict=True)
        for (ids, is_padding, inputs), own in zip(whole, parts, strict=True):
            assert all(seen[:2] == [ids, is_padding] for seen in own)
            joined = np.concatenate([seen[2] for seen in own], axis=3)
            np.testing.assert_array_equal(joined, np.array(inputs))
            real_ids += [i for i, padded in zip(ids, is_padding, strict=True) if not padded]
    assert sorted(real_ids) == list(range(NUM_SAMPLES))
    for batches, state, rest in ranks.slabs:
        assert state == ranks.slabs[0][1]
        assert rest == batches[state["step"] :]
        assert 0 < len(rest) < len(batches)
