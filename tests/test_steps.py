"""Epochs of a number of steps: samples come equally often, reads are predicted, states go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from xloader import PlanRules, Samples, World
from xloader.errors import MemoryBudgetError, OptionError, StateError
from xloader.order.lane_order import SubLanes
from xloader.planning.epoch import Remainder
from xloader.planning.passes import JoinedEpoch
from xloader.planning.residence_times import residence_times
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def make_store(size: int) -> CountingStore:
    values = np.arange(size * 4, dtype=np.float32).reshape(size, 4)
    return CountingStore(write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (8, 4)}))


FEW = settings(max_examples=max(settings().max_examples // 2, 5))
STORE, SMALL = make_store(1000), make_store(90)


def loader_of(samples: Samples, **options: Any) -> Any:
    """A loader with the least memory, if it is not enough."""
    try:
        return samples.loader(output="numpy", **options)
    except MemoryBudgetError as error:
        return samples.loader(output="numpy", **{**options, "memory": error.minimum_nbytes})


def ids_of(loader: Iterable[Any]) -> list[list[int]]:
    """The ids of each batch of an epoch."""
    return [batch.ids.tolist() for batch in loader]


def global_ids(samples: Samples, world_size: int, num_epochs: int, **options: Any) -> Any:
    """The ids of each global batch of some epochs."""
    ranks = []
    for rank in range(world_size):
        with loader_of(samples, world=World(rank, world_size), **options) as loader:
            ranks.append([ids for _ in range(num_epochs) for ids in ids_of(loader)])
    return np.concatenate(ranks, axis=1)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"memory": "6KiB"}])
@pytest.mark.parametrize("window", [1, 3])
def test_ten_epochs_have_each_sample_equally_often(window: int, options: dict[str, Any]) -> None:
    samples = xloader.open(STORE).window(time=window, stride=1)
    batches = []
    with loader_of(samples, batch_size=16, steps=100, **options) as loader:
        for epoch in range(10):
            assert loader.epoch == epoch
            expected = loader.explain()
            STORE.reset()
            taken = ids_of(loader)
            assert STORE.num_reads == expected.num_reads == loader.report().num_reads
            assert len(taken) == len(loader) == expected.num_steps == 100
            assert expected.num_samples == loader.num_samples == 1600
            batches += taken
    assert {len(set(ids)) for ids in batches} == {16}
    counts = np.bincount(np.concatenate(batches), minlength=len(samples))
    assert (counts.min(), counts.max()) == (16000 // len(samples), -(-16000 // len(samples)))


def test_passes_follow_each_other() -> None:
    samples = xloader.open(SMALL).window(time=1)
    with samples.loader(batch_size=7, steps=30, output="numpy") as loader:
        joined = np.concatenate([ids for _ in range(3) for ids in ids_of(loader)])
    with samples.loader(batch_size=7, output="numpy") as loader:
        passes = [np.concatenate(ids_of(loader)) for _ in range(7)]
    for number, order in enumerate(passes):
        taken = joined[number * 90 : (number + 1) * 90]
        assert sorted(taken) == list(range(90))
        # All but the first few come where the pass has them.
        assert np.array_equal(taken[14:], order[14:])
        assert number or np.array_equal(taken, order)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    world_size = draw(st.integers(1, 3))
    return {
        "world_size": world_size,
        "lanes": world_size * draw(st.integers(1, 2)),
        "batch_size": 2 * draw(st.integers(1, 5)),
        "steps": draw(st.integers(1, 40)),
        "memory": draw(st.sampled_from(["1KiB", "4KiB", "1MiB"])),
        "shuffle": draw(st.booleans()),
    }


@FEW
@given(asked=options(), num=st.integers(60, 90), window=st.integers(1, 3), first=st.integers(0, 9))
def test_any_epochs(asked: dict[str, Any], num: int, window: int, first: int) -> None:
    samples = xloader.open(SMALL).isel(time=slice(num)).window(time=window, stride=1)
    world_size, lanes, steps = asked.pop("world_size"), asked.pop("lanes"), asked["steps"]
    size, num_samples = asked["batch_size"] * world_size, len(samples)
    if num_samples < 2 * size:
        with pytest.raises(OptionError, match="two global batches"):
            samples.loader(**asked, world=World(0, world_size), output="numpy")
        return
    ranks: list[list[list[int]]] = []
    for rank in range(world_size):
        rules = PlanRules(lanes=lanes)
        with loader_of(samples, plan=rules, world=World(rank, world_size), **asked) as loader:
            loader.set_epoch(first)
            ranks.append([])
            for _ in range(3):
                expected = loader.explain()
                SMALL.reset()
                ranks[-1] += ids_of(loader)
                report = loader.report()
                assert SMALL.num_reads == expected.num_reads == report.num_reads
                assert report.peak_nbytes <= expected.peak_nbytes
    batches = np.concatenate(ranks, axis=1)
    assert batches.shape == (3 * steps, size)
    if num_samples >= (lanes + 1) * size:
        assert all(len(set(ids)) == size for ids in batches.tolist())
    counts = np.bincount(batches.ravel(), minlength=num_samples)
    # From the middle of a pass on, some have one more and others one less.
    assert counts.max() - counts.min() <= 2


@pytest.mark.parametrize(("num_samples", "shuffle"), [(90, False), (89, True), (83, True)])
def test_ranks_give_the_same_global_batches(num_samples: int, shuffle: bool) -> None:
    samples = xloader.open(SMALL).isel(time=slice(num_samples)).window(time=1)
    batches = [
        np.sort(
            global_ids(
                samples,
                world_size,
                4,
                batch_size=16 // world_size,
                steps=13,
                plan=PlanRules(lanes=4),
                shuffle=shuffle,
            )
        )
        for world_size in (1, 2, 4)
    ]
    assert all(np.array_equal(batches[0], others) for others in batches)
    assert all(len(set(ids)) == 16 for ids in batches[0].tolist())
    counts = np.bincount(batches[0].ravel(), minlength=num_samples)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    "rules", [{}, {"lanes": 2}, {"spread": 1}], ids=["plain", "lanes", "little memory"]
)
@pytest.mark.parametrize("steps", [3, 11, 40])
def test_epochs_go_on_from_anywhere(steps: int, rules: dict[str, int]) -> None:
    samples = xloader.open(SMALL).window(time=2, stride=1)
    asked = {"batch_size": 8, "steps": steps, "memory": "4KiB", "plan": PlanRules(**rules)}
    with loader_of(samples, **asked) as loader:
        whole = [ids_of(loader) for _ in range(6)]
        for epoch in (5, 2, 4):
            loader.set_epoch(epoch)
            assert ids_of(loader) == whole[epoch]
    for epoch, step in ((0, 1), (3, 2), (5, steps - 1)):
        with loader_of(samples, **asked) as first:
            first.set_epoch(epoch)
            for taken, _ in enumerate(first, 1):
                if taken == step:
                    break
            state = first.state_dict()
        with loader_of(samples, **asked) as second:
            second.load_state_dict(state)
            expected = second.explain()
            SMALL.reset()
            assert ids_of(second) == whole[epoch][step:]
            assert SMALL.num_reads == expected.num_reads
            assert epoch == 5 or ids_of(second) == whole[epoch + 1]


def test_a_state_goes_on_with_other_ranks() -> None:
    samples = xloader.open(SMALL).window(time=1)
    asked = {"steps": 17, "output": "numpy", "plan": PlanRules(lanes=2)}
    with samples.loader(batch_size=8, **asked) as loader:
        whole = np.sort(ids_of(loader))
        state = loader.state_dict()
        rest = ids_of(loader)
    ranks = []
    for rank in range(2):
        with samples.loader(batch_size=4, world=World(rank, 2), **asked) as loader:
            loader.load_state_dict(state)
            ranks.append(ids_of(loader))
    assert np.array_equal(np.sort(np.concatenate(ranks, axis=1)), np.sort(rest))
    assert whole.shape == (17, 8)


def test_a_state_of_other_steps_is_refused() -> None:
    samples = xloader.open(SMALL).window(time=1)
    states = {}
    for steps in (None, 5):
        with samples.loader(batch_size=8, steps=steps, output="numpy") as loader:
            states[steps] = loader.state_dict()
    for steps, other in ((None, 5), (5, None)):
        with (
            samples.loader(batch_size=8, steps=steps, output="numpy") as loader,
            pytest.raises(StateError, match=f"another steps.*pass steps={other}"),
        ):
            loader.load_state_dict(states[other])


def test_random_transforms_differ_each_time() -> None:
    samples = xloader.open(SMALL).window(time=1)
    random = samples.map(lambda ds, rng: ds.assign(r=("sample", rng.uniform())), random=True)
    with random.loader(batch_size=10, steps=30, output="numpy") as loader:
        values = np.concatenate([batch.r for batch in loader])
    assert len(np.unique(values)) == 300


def test_worker_processes_make_the_same_batches() -> None:
    samples = xloader.open(SMALL).window(time=1)
    with samples.loader(batch_size=8, steps=15, output="numpy") as loader:
        plain = [ids_of(loader) for _ in range(2)]
    with samples.loader(batch_size=8, steps=15, output="numpy", processes=1) as loader:
        assert [ids_of(loader) for _ in range(2)] == plain


def test_weights_and_slabs_and_drop_last() -> None:
    samples = xloader.open(SMALL).window(time=1)
    weighted = samples.weighted(np.arange(90) % 3 + 0.0)
    with weighted.loader(batch_size=8, steps=90, output="numpy", drop_last=True) as loader:
        counts = np.bincount(np.concatenate(ids_of(loader)), minlength=90)
    # Eight passes of 90 draws each.
    assert counts.sum() == 720
    assert np.array_equal(counts, np.arange(90) % 3 * 8)
    asked = {"batch_size": 8, "steps": 15, "output": "numpy", "world": World()}
    with samples.loader(**asked) as whole, samples.slab("x", 1, 2).loader(**asked) as half:
        for both, part in zip(whole, half, strict=True):
            assert both.ids.tolist() == part.ids.tolist()
            np.testing.assert_array_equal(part.t, both.t[..., 2:])


def test_the_plot_counts_steps_from_pass_to_pass() -> None:
    samples = xloader.open(SMALL).window(time=1)
    with loader_of(samples, batch_size=6, steps=20, memory="1KiB") as loader:
        left = loader._resolver.rank_plan.remainder(1, 0)
        assert isinstance(left, JoinedEpoch)
        times = residence_times(left, [range(1)])
        assert np.isfinite(times.load).all()
        assert (times.load <= times.drop).all()
        assert times.load.min() == 0
        assert times.drop.max() == 20
        rest = loader._resolver.rank_plan.remainder(1, 12)
        assert isinstance(rest, Remainder)
        assert residence_times(rest, [range(1)]).load.min() == 12


@given(num_samples=st.integers(1, 50), lanes=st.integers(1, 12), num_passes=st.integers(1, 30))
def test_lanes_take_turns(num_samples: int, lanes: int, num_passes: int) -> None:
    given_by_lane = np.zeros(lanes, np.int64)
    for number in range(num_passes):
        sublanes = SubLanes(num_samples, lanes, turn=number % lanes)
        spans = [sublanes.span(lane) for lane in range(lanes)]
        assert [0, *(end for _, end in spans)] == [*(begin for begin, _ in spans), num_samples]
        given_by_lane += [end - begin for begin, end in spans]
        assert given_by_lane.max() - given_by_lane.min() <= 1


def test_where_there_are_no_steps() -> None:
    samples = xloader.open(SMALL).window(time=1)
    with pytest.raises(OptionError, match="num_samples="):
        xloader.interleave({"a": (samples, 1), "b": (samples, 1)}).loader(steps=3, output="numpy")
    with pytest.raises(OptionError, match="at least 92 samples"):
        samples.loader(batch_size=46, steps=3, output="numpy")
    for steps in (0, 1.5, True):
        with pytest.raises(OptionError, match="steps"):
            samples.loader(steps=steps, output="numpy")


def test_a_dataloader_has_no_steps() -> None:
    torch = pytest.importorskip("torch")
    assert torch
    from xloader.torch import ChunkSampler, data_loader

    samples = xloader.open(SMALL).window(time=1)
    for make in (data_loader, ChunkSampler):
        with pytest.raises(OptionError, match=r"samples\.loader"):
            make(samples, batch_size=8, steps=3)
