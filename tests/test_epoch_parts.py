"""Epochs that take a part of the samples: no repeats within a pass, predicted reads, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from tests.flat_options import grouped
from xloader import Samples
from xloader.errors import EmptySamplesError, MemoryBudgetError, StateError
from xloader.loader.interleaved.sample_sets import num_samples_of, taking
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def make_store() -> CountingStore:
    values = np.arange(90 * 4, dtype=np.float32).reshape(90, 4)
    return CountingStore(write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (8, 4)}))


STORE = make_store()


def part_of(num_samples: int, window: int = 1) -> Samples:
    samples = xloader.open(STORE).window(time=window, stride=1)
    return replace(samples, recipe=taking(samples.recipe, num_samples))


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    ranks = draw(st.integers(1, 3))
    return {
        "world_size": ranks,
        "lanes": ranks * draw(st.integers(1, 2)),
        "batch_size": 2 * draw(st.integers(1, 6)),
        "memory": draw(st.sampled_from(["1KiB", "4KiB", "1MiB"])),
        "prefetch": draw(st.integers(0, 2)),
        "output": "numpy",
        "shuffle": draw(st.booleans()),
    }


def loader_of(samples: Samples, asked: dict[str, Any], rank: int) -> Any:
    try:
        return samples.loader(**grouped(**asked, rank=rank))
    except MemoryBudgetError as error:
        asked["memory"] = error.minimum_nbytes
        return samples.loader(**grouped(**asked, rank=rank))


@given(asked=options(), each=st.integers(1, 14), window=st.integers(1, 3))
def test_a_pass_has_each_sample_once_and_reads_are_predicted(
    asked: dict[str, Any], each: int, window: int
) -> None:
    samples = part_of(each * asked["lanes"], window)
    size, lanes = len(samples), asked["lanes"]
    share = asked["batch_size"] * asked["world_size"] // lanes
    num_steps = -(-each // share)
    num_parts = 1 + (size // lanes - each) // (num_steps * share) if asked["shuffle"] else 1
    taken: list[list[int]] = [[] for _ in range(num_parts + 1)]
    for rank in range(asked["world_size"]):
        with loader_of(samples, asked, rank) as loader:
            for own in taken:
                expected = loader.explain()
                STORE.reset()
                batches = list(loader)
                assert STORE.num_reads == expected.num_reads == loader.report().num_reads
                assert loader.report().peak_nbytes <= expected.peak_nbytes
                assert len(batches) == len(loader) == expected.num_steps == num_steps
                real = [int(i) for batch in batches for i in batch.ids[~batch.is_padding]]
                assert len(real) == expected.num_samples
                own += real
    assert {len(own) for own in taken} == {each * lanes}
    whole = [i for own in taken[:-1] for i in own]
    assert len(set(whole)) == len(whole)
    assert len(set(taken[-1])) == len(taken[-1])
    if not asked["shuffle"]:
        assert taken[0] == taken[1]


def test_a_part_reads_the_chunks_of_its_own_samples_only() -> None:
    with part_of(16).loader(
        batch_size=8, output="numpy", memory="1KiB", plan=xloader.PlanRules(spread=1)
    ) as loader:
        assert loader.explain().num_reads <= 5
        assert loader.explain().num_samples == loader.num_samples == 16


def test_more_samples_than_there_are_come_equally_often() -> None:
    samples = part_of(200)
    with samples.loader(batch_size=20, output="numpy") as loader:
        ids = np.concatenate([batch.ids for batch in loader])
    counts = np.bincount(ids, minlength=90)
    assert (counts.min(), counts.max(), counts.sum()) == (2, 3, 200)
    assert num_samples_of(samples.recipe) == 200


def test_slabs_take_as_many() -> None:
    whole = xloader.open(STORE).window(time=1)
    cut = whole.slab("x", 1, 2)
    taken = replace(cut, recipe=taking(cut.recipe, 20))
    with (
        taken.loader(batch_size=5, output="numpy", world=xloader.World()) as loader,
        part_of(20).loader(batch_size=5, output="numpy") as other,
    ):
        for own, both in zip(loader, other, strict=True):
            assert own.ids.tolist() == both.ids.tolist()
            np.testing.assert_array_equal(own.t, both.t[..., 2:])


def test_a_state_of_another_part_is_refused() -> None:
    with part_of(28).loader(batch_size=3, output="numpy") as loader:
        state = loader.state_dict()
    with pytest.raises(StateError, match="samples of an epoch"):
        part_of(30).loader(batch_size=3, output="numpy").load_state_dict(state)


def test_fewer_samples_than_ranks() -> None:
    with pytest.raises(EmptySamplesError):
        part_of(2).loader(batch_size=4, world=xloader.World(0, 3), output="numpy")
