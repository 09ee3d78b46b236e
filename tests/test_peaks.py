"""Peak memory: the prediction for the data at hand, and the measurement in the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.planning.explain import Explanation
from xloader.sources.open.open_source import open_source
from xloader.testing import LatencyStore, SourceRecorder, write_store
from xloader.torch import (
    ChunkSampler,
    IterableDataset,
    MapDataset,
    data_loader,
    iterable_dataset,
    sampler_passes,
)
from xloader.torch.lent_slots import MORE_SLOTS

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

STEP = 250 * 4
"""Bytes of one sample."""


def samples_of(num_steps: int = 64, chunk: int = 8, *, is_waiting: bool = False) -> Any:
    values = np.arange(num_steps * 250, dtype=np.float32).reshape(num_steps, 250)
    store = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (chunk, 250)})
    return xloader.open(LatencyStore(store, 0.0) if is_waiting else store).window(time=1)


def peaks(samples: Any, num_epochs: int = 2, **options: Any) -> tuple[list[int], list[int]]:
    """Return the predicted and the measured peak of each epoch."""
    expected, measured = [], []
    with samples.loader(output="numpy", **options) as loader:
        for _ in range(num_epochs):
            expected.append(loader.explain().peak_nbytes)
            for _ in loader:
                pass
            measured.append(loader.report().peak_nbytes)
    return expected, measured


@pytest.mark.parametrize("is_waiting", [False, True])
def test_small_data_in_much_memory_needs_little(is_waiting: bool) -> None:
    samples = samples_of(is_waiting=is_waiting)
    expected, measured = peaks(samples, batch_size=4, memory="1TiB")
    # First epoch: all decoded data, four batches, and all data in flight. Later epochs read
    # nothing.
    assert expected == [(64 + 4 * 4 + 64) * STEP, (64 + 4 * 4) * STEP]
    for most, found in zip(expected, measured, strict=True):
        assert 64 * STEP <= found <= most


def test_batches_that_never_are_take_no_memory() -> None:
    options = {"memory": "1GiB", "prefetch": 8}
    expected, measured = peaks(samples_of(), num_epochs=1, batch_size=32, **options)
    # The options allow ten waiting batches, and the epoch has two.
    assert expected == [(64 + 2 * 32 + 64) * STEP]
    assert (64 + 32) * STEP <= measured[0] <= expected[0]


def test_lanes_that_other_ranks_carry_take_no_memory() -> None:
    """Each rank's peak counts its own lanes only, although one rank must be able to carry all."""
    own = {"memory": "1GiB", "batch_size": 4, "plan": xloader.PlanRules(lanes=4), "output": "numpy"}
    loaders = [samples_of().loader(**own, world=xloader.World(rank, 4)) for rank in range(4)]
    told = loaders[0].explain()
    # A lane has 16 samples: two or three chunks of eight, and batches of its own four rows.
    assert (16 + 4 * 4) * STEP <= told.peak_nbytes <= (2 * 24 + 4 * 4) * STEP
    world = loaders[0].explain(scope="world")
    assert world.peak_nbytes == sum(loader.explain().peak_nbytes for loader in loaders)


def test_what_is_left_of_an_epoch_needs_less() -> None:
    with samples_of().loader(batch_size=4, memory="1GiB", output="numpy") as loader:
        whole = loader.explain().peak_nbytes
        for _ in loader:
            state = loader.state_dict()
            if state["step"] == 15:
                break
    with samples_of().loader(batch_size=4, memory="1GiB", output="numpy") as other:
        other.load_state_dict(state)
        left = other.explain().peak_nbytes
        for _ in other:
            pass
        assert other.report().peak_nbytes <= left
    # One batch is left, and its samples need four chunks at most.
    assert left <= (2 * 32 + 4) * STEP < whole


@settings(max_examples=max(settings().max_examples // 2, 5))
@given(case=cases(), rank=st.integers(0, 2), data=st.data())
def test_what_was_measured_is_within_what_was_expected(
    case: Case, rank: int, data: st.DataObject
) -> None:
    rank %= case.world_size
    memory = case.options["memory"] * data.draw(st.sampled_from([1, 1, 100, 10**6]))
    with case.loader(rank, memory=memory) as loader:
        for _ in range(2):
            expected = loader.explain()
            for _ in loader:
                pass
            assert 0 <= loader.report().peak_nbytes <= expected.peak_nbytes <= memory
        step = data.draw(st.integers(0, len(loader)))
        own = zip(range(step), loader, strict=False)
        state = loader.state_dict()
        for _ in own:
            state = loader.state_dict()
    with case.loader(rank, memory=memory) as other:
        other.load_state_dict(state)
        expected = other.explain()
        for _ in other:
            pass
        if expected.num_steps:
            assert other.report().peak_nbytes <= expected.peak_nbytes <= memory


@pytest.mark.parametrize("workers", [0, 2])
def test_every_door_tells_what_is_needed(workers: int) -> None:
    samples, least = samples_of(), (64 + 16) * STEP
    options: dict[str, Any] = {"batch_size": 4, "memory": "1TiB"}
    stream = IterableDataset(samples, **options)
    told: list[Explanation] = [
        ChunkSampler(samples, num_workers=workers, **options).explain(),
        stream.explain(num_workers=workers),
        data_loader(samples, num_workers=workers, **options).explain(),
    ]
    for expected in told:
        # Two workers both read the chunks at the cut between their parts.
        assert least <= expected.peak_nbytes <= 3 * least
    MapDataset(samples).close()


@pytest.mark.parametrize("door", [ChunkSampler, IterableDataset])
def test_the_slots_of_workers_are_counted(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each worker's ``prefetch_factor + 3``, the plan knows all but one."""
    counted = []
    for num_more in (MORE_SLOTS, 0):
        monkeypatch.setattr(sampler_passes, "MORE_SLOTS", num_more)
        monkeypatch.setattr(iterable_dataset, "MORE_SLOTS", num_more)
        for workers in (0, 2):
            options: dict[str, Any] = {"batch_size": 2, "memory": "1TiB"}
            if door is ChunkSampler:
                told = door(samples_of(), num_workers=workers, **options).explain()
            else:
                told = door(samples_of(), **options).explain(num_workers=workers)
            counted.append(told.peak_nbytes)
    assert counted[0] == counted[2]
    assert counted[1] == counted[3] + 2 * 2 * STEP


def test_an_order_of_your_own_is_told_alike() -> None:
    samples, order = samples_of(), np.arange(64)
    one = samples.explain(order, memory="1TiB", batch_size=4)
    assert one.peak_nbytes <= (64 + 4 * 4 + 64) * STEP
    cached = samples.explain(order, memory="1TiB", batch_size=4, cache="lru", num_workers=2)
    assert cached.peak_nbytes <= 2 * (64 + 4 * 4 + 64) * STEP
    few = samples.explain(order[:2], memory="1TiB", batch_size=2, cache="lru", num_workers=4)
    assert few.peak_nbytes == (8 + 2 + 8) * STEP


def test_two_ways_of_reading_share_the_bytes_in_flight() -> None:
    """Bytes fetched ahead and bytes read by threads share one part of the memory."""
    values = np.arange(64 * 250, dtype=np.float32).reshape(64, 250)
    remote = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (1, 250)})
    with xr.open_zarr(LatencyStore(remote, 0.0), chunks=None, consolidated=False) as opened:
        both = opened.assign(b=(("time", "x"), values)).chunk({"time": 1})
        source = SourceRecorder(open_source(both.assign(a=opened["a"])))
        assert {source.is_waiting(name) for name in "ab"} == {True, False}
        samples = xloader.open(source).window(time=1)
        with samples.loader(batch_size=2, memory="64KiB", output="numpy", threads=64) as loader:
            budget = loader.plan.budget
            assert not loader.plan.is_resident
            for _ in loader:
                pass
            assert loader.report().num_threads * STEP <= budget.in_flight_nbytes // 2
            assert loader.plan.pool_nbytes(1) > 0
            assert loader.report().peak_nbytes <= loader.explain().peak_nbytes
