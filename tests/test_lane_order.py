"""An order equals its definition: every key computed one by one, and sorted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xloader.order.lane_order
from tests.ground import all_ids, footprints, line_footprint, shuffle_of
from xloader.compiled.library import load_library
from xloader.core.counter_rng import derive_key, draw_below
from xloader.order.lane_order import PHASE_STEPS, LaneOrder
from xloader.order.shuffle import Pace


@pytest.fixture(params=["compiled", "numpy"], scope="module")
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Segments are sorted by the compiled library, or by NumPy."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "compiled" and load_library()[0] is None:
            pytest.skip(load_library()[1])
        if request.param == "numpy":
            patched.setattr(xloader.order.lane_order, "find_function", lambda *_: None)
        yield


@st.composite
def paces(draw: st.DrawFn, num_dims: int) -> Pace:
    tiling = draw(st.lists(st.integers(0, 3), min_size=num_dims, max_size=num_dims))
    return Pace(
        tuple(tiling),
        run_dim=draw(st.integers(0, num_dims - 1)),
        run=draw(st.integers(1, 6)),
        streams=draw(st.integers(1, 4)),
        spread=draw(st.integers(0, 30)),
        lanes=draw(st.integers(1, 4)),
        visits=draw(st.sampled_from([1, 1, 2, 3, 7])),
    )


@st.composite
def lane_orders(draw: st.DrawFn) -> list[LaneOrder]:
    """Draw all lanes of an epoch of a random footprint."""
    footprint = draw(footprints())
    pace = draw(paces(len(footprint.windows.dims)))
    shuffle = shuffle_of(footprint, pace, draw(st.integers(0, 9)), draw(st.integers(0, 9)))
    return [shuffle.lane(lane, pace.spread) for lane in range(pace.lanes)]


def slow_keys(order: LaneOrder, entry: int) -> list[float]:
    """Return ``start + length * (rank + phase) / count`` for each rank."""
    start, length = int(order.start[entry]), int(order.length[entry])
    count, phase = int(order.count[entry]), int(order.phase[entry]) / PHASE_STEPS
    return [start + length * ((rank + phase) / count) for rank in range(count)]


def slow_line(order: LaneOrder) -> list[tuple[float, int, int, int]]:
    """Return (key, cohort, entry, rank) of every sample, sorted: the definition of the order."""
    return sorted(
        (key, int(order.cohort[entry]), entry, rank)
        for entry in range(len(order.cohort))
        for rank, key in enumerate(slow_keys(order, entry))
    )


@pytest.mark.usefixtures("library")
@given(lane_orders(), st.integers(1, 40))
def test_an_order_is_its_samples_sorted_by_key(lanes: list[LaneOrder], segment_size: int) -> None:
    # With short segments, small cases have many edges too.
    with patch.object(xloader.order.lane_order, "_SEGMENT_SIZE", segment_size):
        for lane in lanes:
            expected = [(entry, rank) for _, _, entry, rank in slow_line(lane)]
            places = [
                pair
                for entries, ranks in lane.places()
                for pair in zip(entries.tolist(), ranks.tolist(), strict=True)
            ]
            assert places == expected
            told = [entry for _, entries in lane.segments() for entry in entries.tolist()]
            assert told == [entry for entry, _ in expected]


def line_of(lane: LaneOrder) -> tuple[list[tuple[int, int]], int]:
    """Entries and ranks in the order of a lane, and how often NumPy sorted them."""
    sort, made = LaneOrder._by_spread_key, []

    def recorded(*args: Any) -> Any:
        made.append(sort(*args))
        return made[-1]

    with patch.object(LaneOrder, "_by_spread_key", recorded):
        (places,) = lane.places()
    return list(zip(*(part.tolist() for part in places), strict=True)), made.count(None)


def lane_of(num_samples: int, chunk: int) -> LaneOrder:
    footprint = line_footprint(num_samples, chunk, 1)
    return shuffle_of(footprint, Pace((1,), 0, 1, 1, 9, 1), 0, 0).lane(0, 9)


@pytest.mark.usefixtures("library")
def test_keys_that_crowd_together_are_sorted_too() -> None:
    """One entry goes on for a million moments, and all others share the first moment."""
    lane = lane_of(6400, 16)
    length = np.ones(len(lane.count), np.int32)
    length[-1] = 1 << 20
    lane = replace(lane, start=np.zeros_like(length), length=length)
    # The compiled function gives up.
    assert line_of(lane) == ([(entry, rank) for _, _, entry, rank in slow_line(lane)], 1)


@pytest.mark.usefixtures("library")
def test_keys_are_rounded_after_each_operation(request: pytest.FixtureRequest) -> None:
    """Keys that would be equal without rounding differ in their last bit, which decides."""
    lane = lane_of(6300, 15)
    lane = replace(lane, phase=np.zeros_like(lane.phase))
    line = slow_line(lane)
    keys = np.array([key for key, *_ in line])
    assert 0 < np.diff(keys)[np.diff(keys) > 0].min() < 1e-12
    num_by_numpy = int("numpy" in request.node.name)
    assert line_of(lane) == ([(entry, rank) for _, _, entry, rank in line], num_by_numpy)


@pytest.mark.usefixtures("library")
def test_a_segment_from_anywhere_of_an_order_of_many_segments() -> None:
    footprint = line_footprint(160_000, 16, 3)
    lane = shuffle_of(footprint, Pace((1,), 0, 48, 20, 20, 2), 0, 3).lane(1, 20)
    whole = all_ids(lane)
    num_segments = sum(1 for _ in lane.segments())
    assert num_segments >= 3
    for begin in (0, 15, 4095, 4096, 4097, 16_384, 16_385, len(whole) - 1, len(whole)):
        assert all_ids(lane, begin) == whole[begin:]


@pytest.mark.usefixtures("library")
@given(lane_orders(), st.data())
def test_samples_before_a_place_are_counted(lanes: list[LaneOrder], data: st.DataObject) -> None:
    lane = data.draw(st.sampled_from(lanes))
    line = slow_line(lane)
    place = data.draw(st.integers(0, len(line) + 2))
    expected = Counter(entry for _, _, entry, _ in line[:place])
    found = lane.counts_before(place)
    assert {e: n for e, n in enumerate(found.tolist()) if n} == expected


def test_how_many_come_before_a_key_is_not_one_off_by_rounding() -> None:
    """The count is exact at the keys of samples, where a plain estimate is often wrong by one."""
    size = 300
    some, numbers = shuffle_of(line_footprint(800, 2, 2), Pace((1,)), 0, 0), np.arange(size)
    lane = replace(
        some.lane(0, 0),
        cohort=numbers,
        count=draw_below(derive_key(1), numbers, 999) + 1,
        start=numbers.astype(np.int32),
        length=draw_below(derive_key(2), numbers, 60).astype(np.int32),
        phase=draw_below(derive_key(3), numbers, PHASE_STEPS).astype(np.int32),
    )
    for entry in range(size):
        keys = slow_keys(lane, entry)
        rank = entry % len(keys)
        found = lane.num_before(np.array([entry]), keys[rank])
        assert found.tolist() == [sum(key < keys[rank] for key in keys)]


def test_a_place_in_a_long_moment_is_found_without_passing_all_before_it() -> None:
    footprint = line_footprint(5_000_000, 1_000_000, 3)
    lane = shuffle_of(footprint, Pace((1,), 0, 2, 1, 2), 0, 0).lane(0, 2)
    for begin in (600_000, 2_700_001, 4_999_990):
        ids, _ = next(lane.segments(begin))
        assert len(ids) >= 2
        num_passed = lane._first_edge(begin)[1]
        assert 0 <= num_passed < 20_000
