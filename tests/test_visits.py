"""Several visits of each tile: every sample once, in parts, at the predicted reads."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.ground import (
    all_ids,
    box_footprint,
    line_footprint,
    plan_of,
)
from tests.test_search import amplification, mixing, room_for
from xloader.core.footprint import Footprint
from xloader.loader.ranks.state import sign
from xloader.order.shuffle import Pace, deal_visits
from xloader.planning.epoch import Epoch
from xloader.planning.reduced_model import PlanGoal
from xloader.planning.search import find_plan
from xloader.testing import CountingStore, write_store


def test_which_passes_a_rare_cohort_takes_part_in_is_drawn() -> None:
    count = np.ones(9000, np.int64)
    *_, edges = deal_visits(count, count * 100, 6, 5, np.arange(9000))
    found = np.diff(edges)
    assert found.sum() == 9000
    assert np.abs(found - 1500).max() < 200


def test_each_pass_has_another_order_and_hands_out_its_share() -> None:
    footprint = line_footprint(1600, 16, 1)
    (lane,) = Epoch(footprint, plan_of(Pace((1,), visits=4)), 0, 0).lanes([0])
    ids = np.array(all_ids(lane.order))
    passes = (ids // 16).reshape(4, 400)
    for tiles in passes:
        assert set(Counter(tiles.tolist()).values()) == {4}
    lines = [list(dict.fromkeys(tiles.tolist())) for tiles in passes]
    assert len({tuple(line) for line in lines}) == 4
    assert max(np.corrcoef(lines)[np.triu_indices(4, 1)]) < 0.4
    # Which of a tile's samples come in a pass does not follow from their place in it.
    firsts = np.sort((ids[:400] % 16).reshape(-1))
    assert (np.bincount(firsts) > 10).all()


@pytest.mark.parametrize(("window", "least"), [(1, 3.0), (3, 2.9)])
def test_reads_buy_mixing_where_memory_holds_two_tiles_of_ninety(window: int, least: float) -> None:
    footprint, room = line_footprint(1440, 16, window), room_for(2 * 16)
    strict = find_plan(footprint, room, PlanGoal(16, 1, 1.05))
    loose = find_plan(footprint, room, PlanGoal(16, 1, 4.0))
    assert strict.pace.visits == 1 < loose.pace.visits
    for epoch in range(4):
        assert amplification(footprint, loose, 0, epoch) <= 4.0
    several, single = (
        np.mean([mixing(footprint, plan, 0, epoch) for epoch in range(4)])
        for plan in (loose, strict)
    )
    assert several >= least * single


@pytest.mark.parametrize("lanes", [1, 3])
def test_more_reads_allowed_never_mix_worse(lanes: int) -> None:
    footprint = line_footprint(960, 8, 2)
    found = []
    for allowed in (1.05, 2.0, 3.0, 5.0, 8.0):
        plan = find_plan(footprint, room_for(3 * 8, lanes=lanes), PlanGoal(12, lanes, allowed))
        found.append(np.mean([mixing(footprint, plan, 0, epoch) for epoch in range(3)]))
    assert all(after >= 0.97 * before for before, after in itertools.pairwise(found))
    assert found[-1] > 1.5 * found[0]


def test_no_visits_where_one_is_a_full_shuffle() -> None:
    one_sample_a_tile = find_plan(
        line_footprint(64, 4, 4, stride=4), room_for(20), PlanGoal(8, 1, 9.0)
    )
    all_in_memory = find_plan(line_footprint(64, 4, 1), room_for(400), PlanGoal(8, 1, 9.0))
    assert one_sample_a_tile.pace.visits == all_in_memory.pace.visits == 1


def test_predicted_reads_are_the_counted_ones() -> None:
    values = np.arange(360 * 24, dtype=np.float32).reshape(360, 24)
    store = CountingStore(write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (8, 24)}))
    windows = xloader.open(store).window(time=3, stride=1)
    options = {
        "batch_size": 8,
        "memory": 14_000,
        "output": "numpy",
        "plan": xloader.PlanRules(max_amplification=4.0),
    }
    with windows.loader(**options) as loader:
        expected = loader.explain()
        assert expected.visits > 1
        assert f"{expected.visits} visits of each tile" in str(expected)
        assert expected.num_reads > 2 * 45
        store.reset()
        ids = [int(i) for batch in loader for i in batch.ids]
        assert sorted(ids) == list(range(358))
        assert sum(store.reads.values()) == loader.report().num_reads == expected.num_reads


@pytest.mark.parametrize(
    ("footprint", "room", "batch"),
    [
        # A batch of 32 takes samples of as many tiles, however a tile's 1000 samples are parted.
        (line_footprint(2_000_000, 1000, 1), 17 * 1000, 32),
        (line_footprint(2_000_000, 1000, 1), 800 * 1000, 32),
        (box_footprint((240, 240), (24, 24), (1, 1)), 6 * 576, 16),
    ],
)
def test_no_reads_are_spent_where_they_buy_no_mixing(
    footprint: Footprint, room: int, batch: int
) -> None:
    plans = [
        find_plan(footprint, room_for(room), PlanGoal(batch, 1, allowed))
        for allowed in (1.05, 2.0, 4.0)
    ]
    assert [plan.pace for plan in plans] == [plans[0].pace] * 3


@pytest.mark.parametrize("allowed", [2.0, 3.0, 8.0])
def test_visits_need_no_runs_where_tiles_share_nothing(allowed: float) -> None:
    footprint, room = line_footprint(23_040, 256, 1), room_for(4 * 256)
    plan = find_plan(footprint, room, PlanGoal(32, 1, allowed))
    assert plan.pace.run == 1
    # Two visits mix hardly better than one here.
    assert (plan.pace.visits > 1) == (allowed > 2)


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
def test_blocks_that_only_other_visits_use_are_freed() -> None:
    """A row may take a block that is its whole window; the others of its tile go all the same."""
    field, line = np.zeros((14, 4, 19), "f4"), np.zeros((4, 14), "f4")
    dims = ("time", "y", "x")
    dataset = xr.Dataset({"a": (dims, field), "b": (dims, field), "c": (("y", "time"), line)})
    store = write_store(dataset, {"a": (6, 5, 2), "b": (1, 2, 1), "c": (1, 4)})
    samples = xloader.open(store).window(time=1, stride={"time": 2})
    loader = samples.loader(batch_size=2, seed=4, memory=8379, output="numpy", threads=1)
    state = loader.state_dict()
    state["plan"]["pace"]["visits"], state["plan"]["max_amplification"] = 3, 3.0
    loader.load_state_dict(sign(state))
    with loader:
        assert sorted(np.concatenate([batch.ids for batch in loader])) == list(range(7))
