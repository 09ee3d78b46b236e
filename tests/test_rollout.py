"""Windows that grow with the epoch: each length gets its own plan, and any step can resume."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from xloader import Samples
from xloader.errors import OptionError, StateError
from xloader.samples.rollout import Rollout
from xloader.testing import CountingStore, write_store

OPTIONS = {
    "batch_size": 8,
    "memory": "16KiB",
    "output": "numpy",
    "plan": xloader.PlanRules(max_amplification=4.0),
}


def make_store() -> CountingStore:
    values = np.arange(100 * 8, dtype=np.float32).reshape(100, 8)
    return CountingStore(write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (10, 8)}))


STORE = make_store()


def make(epoch: int) -> Samples:
    return xloader.open(STORE).window(time=2 + epoch // 2, stride=1)


def contents(batch: Any) -> tuple[list[int], bytes]:
    return batch.ids.tolist(), batch.t.tobytes()


@functools.cache
def epochs(num: int) -> list[list[tuple[list[int], bytes]]]:
    with Rollout(make, **OPTIONS) as loader:
        return [[contents(batch) for batch in loader] for _ in range(num)]


def test_windows_grow_and_every_epoch_is_whole() -> None:
    with Rollout(make, **OPTIONS) as loader:
        for epoch in range(5):
            assert loader.epoch == epoch
            expected, size = loader.explain(), 2 + epoch // 2
            STORE.reset()
            batches = list(loader)
            assert STORE.num_reads == expected.num_reads == loader.report().num_reads
            assert {batch.t.shape[1:] for batch in batches} == {(size, 8)}
            assert sorted(i for batch in batches for i in batch.ids) == list(range(101 - size))
            assert len(batches) == expected.num_steps


@settings(max_examples=max(settings().max_examples // 2, 5))
@given(epoch=st.integers(0, 4), step=st.integers(0, 12))
def test_a_stop_anywhere_changes_nothing(epoch: int, step: int) -> None:
    whole = epochs(6)
    with Rollout(make, **OPTIONS) as loader:
        for _ in range(epoch):
            list(loader)
        batches = iter(loader)
        for _ in range(min(step, len(whole[epoch]))):
            next(batches)
        given = loader.state_dict()
        state = json.loads(json.dumps(given))
        assert state == given
    with Rollout(make, **OPTIONS, seed=5) as loader:
        loader.load_state_dict(state)
        rest = [contents(batch) for batch in loader]
        if step < len(whole[epoch]):
            assert rest == whole[epoch][step:]
            rest = [contents(batch) for batch in loader]
        assert rest == whole[epoch + 1]


def test_an_epoch_is_chosen() -> None:
    whole = epochs(4)
    with Rollout(make, **OPTIONS) as loader:
        loader.sampler.set_epoch(3)
        assert [contents(batch) for batch in loader] == whole[3]


def test_what_is_no_state_and_no_samples() -> None:
    with pytest.raises(OptionError, match=r"did not return samples for epoch 0.*int"):
        Rollout(lambda epoch: epoch, **OPTIONS)  # type: ignore[arg-type, return-value]
    loader = Rollout(make, **OPTIONS)
    for state in (None, {}, {"epoch": -1}, {"epoch": 0}):
        with pytest.raises(StateError):
            loader.load_state_dict(state)  # type: ignore[arg-type]
    # A state of windows of another length.
    other = Rollout(lambda epoch: make(9), **OPTIONS).state_dict()
    with pytest.raises(StateError, match="windows"):
        loader.load_state_dict(other)
    assert len(list(loader)) == 13


@pytest.mark.parametrize(
    "other",
    [
        {"memory": "32KiB"},
        {"prefetch": 3},
        {"plan": xloader.PlanRules(max_amplification=4.0, spread=0)},
    ],
)
def test_options_that_would_plan_later_epochs_otherwise_are_refused(other: Any) -> None:
    state = Rollout(make, **OPTIONS).state_dict()
    loader = Rollout(make, **{**OPTIONS, **other})
    with pytest.raises(StateError, match="another plan than the state's"):
        loader.load_state_dict(state)
    assert loader.epoch == 0


def test_without_lanes_another_number_of_ranks_is_refused() -> None:
    def state(options: dict[str, Any]) -> dict[str, Any]:
        return Rollout(make, **options, world=xloader.World(1, 2)).state_dict()

    alone = {**OPTIONS, "batch_size": 16}
    with pytest.raises(StateError, match=r"with lanes,"):
        Rollout(make, **alone).load_state_dict(state(OPTIONS))
    plan = xloader.PlanRules(max_amplification=4.0, lanes=2)
    Rollout(make, **{**alone, "plan": plan}).load_state_dict(state({**OPTIONS, "plan": plan}))


@pytest.mark.parametrize("is_mapped", [False, True])
def test_functions_that_are_others_each_time_change_nothing(is_mapped: bool) -> None:
    def scaled(epoch: int) -> Samples:
        samples = make(epoch)
        if is_mapped:
            return samples.map(lambda ds: ds * (1 + epoch))
        return samples.where(xr.DataArray(np.arange(8) < 4, dims="x"), 0.0)

    with Rollout(scaled, **OPTIONS) as loader:
        whole = [[contents(batch) for batch in loader] for _ in range(3)]
    with Rollout(scaled, **OPTIONS) as loader:
        for epoch in range(3):
            for step, batch in enumerate(loader):
                assert contents(batch) == whole[epoch][step]
                state = loader.state_dict()
                is_last = step + 1 == len(whole[epoch])
                assert (state["epoch"], state["step"]) == (
                    (epoch + 1, 0) if is_last else (epoch, step + 1)
                )
                if not is_last:
                    assert len(loader) == len(whole[epoch])
        assert loader.epoch == 3


def test_an_iterator_follows_the_epoch_until_its_first_batch() -> None:
    whole = epochs(5)
    with Rollout(make, **OPTIONS) as loader:
        batches = iter(loader)
        loader.set_epoch(4)
        assert loader.state_dict()["epoch"] == 4
        assert [contents(batch) for batch in batches] == whole[4]
