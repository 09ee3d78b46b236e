"""The work of a search for a plan is bounded: it is counted, because no test may use a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from tests.ground import box_footprint, line_footprint
from tests.test_search import room_for
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.order import cohorts
from xloader.order.protocol import AnyOrder
from xloader.planning import reduced_model
from xloader.planning.epoch import Epoch
from xloader.planning.explain import explain_epoch
from xloader.planning.plan import Plan
from xloader.planning.reduced_model import PlanGoal
from xloader.planning.schedule import Schedule
from xloader.planning.search import find_plan

MOST_ENTRIES = 100_000
"""Entries of all schedules that a search along one dimension may simulate."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Record the number of entries of each schedule that is made."""
    found: list[int] = []
    make = Epoch._schedule

    def schedule(epoch: Epoch, order: AnyOrder, lane: int) -> Schedule:
        found.append(len(order.count))
        return make(epoch, order, lane)

    with patch.object(Epoch, "_schedule", schedule):
        yield found


@pytest.mark.parametrize(
    ("num_tiles", "room"), [(500, 12), (500, 400), (2000, 40), (20_000, 12), (200_000, 400)]
)
def test_the_work_of_a_search_does_not_grow_with_the_tiles(num_tiles: int, room: int) -> None:
    footprint = line_footprint(16 * num_tiles, 16, 3)
    with counted() as entries:
        plan = find_plan(footprint, room_for(room * 16), PlanGoal(16, 1))
    assert not plan.is_resident
    assert 0 < len(entries) <= 60
    assert sum(entries) <= MOST_ENTRIES


@pytest.mark.parametrize(("num_tiles", "lanes"), [(20, 1), (20, 8), (90, 2), (250, 1)])
def test_few_tiles_are_drawn_often_but_are_few(num_tiles: int, lanes: int) -> None:
    footprint = line_footprint(16 * num_tiles * lanes, 16, 3)
    with counted() as entries:
        find_plan(
            footprint, room_for(max(num_tiles // 5, 6) * 16, lanes=lanes), PlanGoal(16, lanes)
        )
    assert sum(entries) <= 2 * MOST_ENTRIES


@pytest.mark.parametrize("num_rows", [6, 40])
def test_a_search_in_three_dimensions_is_bounded_too(num_rows: int) -> None:
    footprint = box_footprint((8 * num_rows, 8 * num_rows, 64), (8, 8, 8), (1, 3, 3))
    with counted() as entries:
        find_plan(footprint, room_for(64 * 8**3), PlanGoal(16, 1))
    assert len(entries) <= 250
    assert sum(entries) <= 4 * MOST_ENTRIES


def test_without_straddling_nothing_is_tried() -> None:
    with counted() as entries:
        find_plan(line_footprint(16 * 5000, 16, 1), room_for(40 * 16), PlanGoal(16, 1))
    assert entries == []


def test_runs_of_many_tiles_are_longer_than_the_models() -> None:
    """The model has a few of a million tiles. Longer real runs read less at run ends."""

    def plan_of(num_tiles: int) -> Plan:
        footprint = line_footprint(16 * num_tiles, 16, 3)
        return find_plan(footprint, room_for(40 * 16), PlanGoal(16, 1))

    few, many = plan_of(1000).pace, plan_of(100_000).pace
    assert many.run >= 20 * few.run
    assert many.streams >= few.streams


@pytest.mark.parametrize(
    ("num_tiles", "window", "room", "most_reads", "least_streams"),
    [(20_000, 3, 114, 1.05, 106), (200, 6, 50, 1.01, 36)],
    ids=["long runs", "too many reads at first"],
)
def test_streams_are_as_many_as_reads_allow(
    num_tiles: int, window: int, room: int, most_reads: float, least_streams: int
) -> None:
    footprint = line_footprint(16 * num_tiles, 16, window)
    plan = find_plan(footprint, room_for(room * 16), PlanGoal(64, 1, max_amplification=most_reads))
    assert plan.pace.streams >= least_streams


def test_pieces_are_cut_once_for_all_tilings_and_epochs() -> None:
    footprint = box_footprint((400, 16, 64), (8, 8, 8), (1, 3, 3))
    with patch.object(cohorts, "_cut_dim", wraps=cohorts._cut_dim) as cut:
        plan = find_plan(footprint, room_for(30 * 8**3), PlanGoal(16, 1))
        found = [call.args[1:] for call in cut.call_args_list if call.args[0] is footprint]
        for number in range(3):
            Epoch(footprint, plan, 0, number).lane(0)
        assert len(found) == len(set(found)) > 3
        assert [c.args[1:] for c in cut.call_args_list if c.args[0] is footprint] == found


def test_to_explain_an_epoch_no_residence_is_worked_out() -> None:
    footprint = line_footprint(16 * 500, 16, 3)
    plan = find_plan(footprint, room_for(18 * 16), PlanGoal(16, 1))
    epoch = Epoch(footprint, plan, 0, 0)
    expected = explain_epoch(epoch, [[0]], {})
    schedule = epoch.lane(0).schedule
    assert "residences" not in vars(schedule)
    (stays,) = schedule.residences
    assert expected.num_reads == len(stays.block)
    assert expected.read_nbytes == stays.group.read_nbytes(stays.block).sum()


def test_a_search_cuts_what_weights_draw_once_an_epoch() -> None:
    plain = line_footprint(16 * 300, 16, 3)
    weights = np.arange(len(plain.windows)) % 5 + 1.0
    footprint = Footprint(plain.windows, plain.groups, Subset(len(weights), weights=weights))
    cuts: Counter[tuple[int, int]] = Counter()
    drawn = set()

    def cut(own: Footprint, tiling: tuple[int, ...], **key: int) -> cohorts.Cohorts:
        found = cohorts.cut_cohorts(own, tiling, **key)
        if key:
            cuts[key["seed"], key["epoch"]] += 1
            assert found.members is not None
            drawn.add(found.members.ids.tobytes())
        return found

    with patch.object(reduced_model, "cut_cohorts", cut):
        find_plan(footprint, room_for(40 * 16), PlanGoal(16, 1))
    assert len(cuts) > 1
    assert set(cuts.values()) == {1}
    # Each epoch draws other samples.
    assert len(drawn) == len(cuts)
