"""Runs, streams, positions and intervals equal their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import (
    all_ids,
    box_footprint,
    line_footprint,
    shuffle_of,
)
from xloader.core.counter_rng import permutation
from xloader.errors import OptionError
from xloader.order.shuffle import RUN_ORDER, Pace, Shuffle, positions
from xloader.planning.epoch import Epoch
from xloader.planning.plan import Budget
from xloader.planning.reduced_model import PlanGoal
from xloader.planning.search import find_plan


def slow_runs(shuffle: Shuffle) -> list[list[int]]:
    """Return the runs of an epoch in order."""
    runs: dict[int, list[int]] = {}
    for tile, rank in zip(*(part.tolist() for part in shuffle._tiles_and_runs), strict=True):
        runs.setdefault(rank, []).append(tile)
    return list(runs.values())


def slow_positions(runs: list[list[int]], num_streams: int) -> dict[int, int]:
    """Deal each run to the shortest stream; then take one tile of each stream in turn."""
    streams: list[list[int]] = [[] for _ in range(num_streams)]
    for run in runs:
        min(streams, key=len).extend(run)
    turns = [
        stream[turn]
        for turn in range(max(map(len, streams), default=0))
        for stream in streams
        if turn < len(stream)
    ]
    return {tile: position for position, tile in enumerate(turns)}


@given(st.lists(st.integers(1, 7), min_size=1, max_size=15), st.integers(1, 6))
def test_positions_of_unequal_runs(sizes: list[int], streams: int) -> None:
    """Unequal runs make cycles longer than two, so an inverse by mistake shows."""
    runs = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    expected = slow_positions([run.tolist() for run in runs], streams)
    found = positions(np.repeat(np.arange(len(sizes)) * 3, sizes), streams)
    assert found.tolist() == [expected[tile] for tile in range(sum(sizes))]


@pytest.mark.parametrize("run", [1, 3])
def test_runs_come_in_the_order_of_their_permutation(run: int) -> None:
    """The run with the first rank comes first; using the permutation's inverse would fail here."""
    cycles = 0
    for epoch in range(8):
        shuffle = shuffle_of(line_footprint(52, 4, 2), Pace((1,), 0, run, 2, 4), 1, epoch)
        runs = slow_runs(shuffle)
        drawn = permutation(shuffle._keys[RUN_ORDER], len(runs))
        by_tile = sorted(range(len(runs)), key=lambda place: min(runs[place]))
        assert [by_tile[number] for number in drawn] == list(range(len(runs)))
        cycles += drawn.tolist() != np.argsort(drawn).tolist()
        line = [tile for run in runs for tile in run]
        assert shuffle._place[line].tolist() == list(range(len(line)))
    assert cycles >= 6


@pytest.mark.parametrize("run_dim", [0, 1])
def test_a_run_is_neighbours_either_way_round(run_dim: int) -> None:
    footprint = box_footprint((44, 30), (2, 2), (2, 2))
    turned = []
    for epoch in range(6):
        shuffle = shuffle_of(footprint, Pace((1, 1), run_dim, 4, 3, 9), 0, epoch)
        runs = slow_runs(shuffle)
        assert sorted(t for run in runs for t in run) == list(range(shuffle.cohorts.num_tiles))
        for run in runs:
            index = np.array(np.unravel_index(run, shuffle.cohorts.home_shape))
            steps = np.diff(index, axis=1)
            assert (steps[1 - run_dim] == 0).all()
            assert (steps[run_dim] == 1).all() or (steps[run_dim] == -1).all()
            is_at_end = {0, shuffle.cohorts.home_shape[run_dim] - 1} & set(index[run_dim].tolist())
            assert len(run) == 4 or (is_at_end and len(run) < 4)
            turned += [steps[run_dim][0] < 0] if len(run) > 1 else []
    assert 0.4 < np.mean(turned) < 0.6


def test_runs_are_cut_elsewhere_in_every_epoch_and_row() -> None:
    footprint = box_footprint((200, 16), (2, 2), (2, 2))
    first_sizes = []
    for epoch in range(20):
        shuffle = shuffle_of(footprint, Pace((1, 1), 0, 8, 3, 9), 0, epoch)
        in_first = [run for run in slow_runs(shuffle) if min(run) < shuffle.cohorts.home_shape[1]]
        first_sizes.append([len(run) for run in sorted(in_first, key=min)])
    table = np.array(first_sizes)
    assert set(table.reshape(-1).tolist()) == set(range(1, 9))
    assert len({tuple(row) for row in first_sizes}) == 20
    assert all(len(set(column)) > 3 for column in table.T)


@pytest.mark.parametrize(("num_tiles", "room"), [(2000, 24), (90, 20)])
def test_an_epoch_does_not_repeat_the_sweep_of_the_one_before(num_tiles: int, room: int) -> None:
    """The order of tiles differs between epochs, which the mixing of batches cannot show."""
    footprint = line_footprint(16 * num_tiles, 16, 3)
    budget = Budget(room * 16 * 16 // 15 + 2, 0, 4, 0, 1)
    plan = find_plan(footprint, budget, PlanGoal(16, 1))
    places = []
    for epoch in range(8):
        ids = all_ids(Epoch(footprint, plan, 0, epoch).lanes(range(1))[0].order)
        places.append(np.argsort(ids))
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in pairwise(places)]
    assert abs(np.mean(correlations)) < 0.3


@pytest.mark.parametrize("name", ["run", "streams", "spread", "lanes", "draws", "visits"])
def test_a_pace_outside_its_range_is_refused(name: str) -> None:
    least = 0 if name == "spread" else 1
    with pytest.raises(OptionError, match=rf"^{name} is too small\. Given: {least - 1}\."):
        Pace((1,), **{name: least - 1})
