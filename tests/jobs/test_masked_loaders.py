"""Loaders over masks keep the laws: each valid sample once, and reads as predicted."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def make() -> tuple[np.ndarray, CountingStore, xloader.Samples]:
    """Patches of a map with a continent, of which the valid ones are kept."""
    rng = np.random.default_rng(3)
    values = np.arange(24 * 20 * 24, dtype="f4").reshape(24, 20, 24)
    values[:, 4:12, 6:15] = np.nan
    values[rng.random(values.shape) < 0.002] = np.nan
    ds = xr.Dataset({"sst": (("time", "lat", "lon"), values)})
    store = CountingStore(write_store(ds, {"sst": (8, 10, 8)}))
    samples = xloader.open(store).window(time=2, lat=4, lon=4, stride=1)
    return values, store, samples.dropna("sst")


def windows_of(values: np.ndarray, samples: xloader.Samples) -> np.ndarray:
    """The values of each sample."""
    at = samples.positions(range(len(samples)))
    views = np.lib.stride_tricks.sliding_window_view(values, (2, 4, 4))
    return views[tuple(at[dim].values for dim in ("time", "lat", "lon"))]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("memory", ["40KiB", "80KiB", "2MiB"])
def test_values_reads_and_no_nan(memory: str, shuffle: bool) -> None:
    values, store, samples = make()
    expected_values = windows_of(values, samples)
    with samples.loader(
        batch_size=16, memory=memory, shuffle=shuffle, output="numpy", on_nan="raise"
    ) as loader:
        for _ in range(2):
            expected = loader.explain()
            store.reset()
            ids = []
            for batch in loader:
                np.testing.assert_array_equal(batch.sst, expected_values[batch.ids])
                ids += batch.ids.tolist()
            assert store.num_reads == expected.num_reads == loader.report().num_reads
            assert sorted(ids) == list(range(len(samples)))
            assert (ids == sorted(ids)) == (not shuffle)
    assert "kept by is_valid('sst', at_least=1)" in str(expected)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [2, 6])
def test_ranks_and_resuming(lanes: int, shuffle: bool) -> None:
    """The global batches are the same on 1 and on 2 ranks, and after a state from the middle."""
    _, _, samples = make()
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "plan": xloader.PlanRules(lanes=lanes),
        "memory": "400KiB",
        "output": "numpy",
        "seed": 4,
    }

    def batches(world_size: int, steps: int | None = None) -> list[list[int]]:
        found: list[list[int]] = []
        for rank in range(world_size):
            place = {"world": xloader.World(rank, world_size), "batch_size": 12 // world_size}
            loader = samples.loader(**options, **place)
            if steps is not None:
                state = _state_at(samples, options, world_size, rank, steps)
                loader.load_state_dict(state)
            with loader:
                for number, batch in enumerate(loader):
                    if number == len(found):
                        found.append([])
                    found[number] += batch.ids[~batch.is_padding].tolist()
        return found

    one = batches(1)
    assert sorted(itertools.chain(*one)) == list(range(len(samples)))
    two = batches(2)
    assert [sorted(own) for own in two] == [sorted(own) for own in one]
    assert batches(2, 20) == two[20:]


def _state_at(
    samples: xloader.Samples, options: dict[str, Any], world_size: int, rank: int, steps: int
) -> Any:
    place = {"world": xloader.World(rank, world_size), "batch_size": 12 // world_size}
    with samples.loader(**options, **place) as loader:
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        return json.loads(json.dumps(loader.state_dict()))


def test_workers_of_a_dataloader() -> None:
    pytest.importorskip("torch")
    from xloader.torch import data_loader

    values, _, samples = make()
    batches = data_loader(samples, batch_size=32, num_workers=2, memory="1MiB", seed=1)
    found = []
    for (sst,) in batches:
        assert not np.isnan(sst.numpy()).any()
        found += sst[:, 0, 0, 0].tolist()
    assert sorted(found) == sorted(windows_of(values, samples)[:, 0, 0, 0].tolist())
