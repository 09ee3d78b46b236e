"""An order given by a list of ids equals that list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import footprints, line_footprint
from xloader.core.axis import Axis
from xloader.core.footprint import Demand, Footprint
from xloader.core.windows import Windows
from xloader.order.listed import ListedOrder
from xloader.planning.mixing import measure_mixing

Listing = tuple[Footprint, list[int]]


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    """Draw some ids of a footprint, in any order and with repeats."""
    footprint = draw(footprints())
    some_ids = st.integers(0, len(footprint.windows) - 1)
    return footprint, draw(st.lists(some_ids, min_size=1, max_size=30))


@given(listings(), st.integers(0, 31), st.integers(1, 7))
def test_ids_come_as_they_are_listed_from_any_place(
    listing: Listing, begin: int, segment_size: int
) -> None:
    footprint, ids = listing
    order = ListedOrder.of(footprint, np.array(ids))
    visits = np.repeat(np.arange(order.num_moments), order.count)
    ranks = np.arange(len(ids)) - order.begins[visits]
    segments = list(order.segments(begin))
    # With short pieces, small cases have many of them too.
    places = list(order.places(begin, segment_size))
    assert [i for found, _ in segments for i in found.tolist()] == ids[begin:]
    assert [v for _, found in segments for v in found.tolist()] == visits[begin:].tolist()
    assert [v for found, _ in places for v in found.tolist()] == visits[begin:].tolist()
    assert [r for _, found in places for r in found.tolist()] == ranks[begin:].tolist()
    assert max((len(found) for found, _ in places), default=0) <= segment_size
    assert order.ids(visits, ranks).tolist() == ids


@given(listings(), st.integers(0, 31))
def test_samples_before_a_place_are_counted(listing: Listing, place: int) -> None:
    footprint, ids = listing
    order = ListedOrder.of(footprint, np.array(ids))
    visits = np.repeat(np.arange(order.num_moments), order.count)
    found = order.counts_before(place)
    assert found.tolist() == np.bincount(visits[:place], minlength=order.num_moments).tolist()


def test_a_list_of_nothing_has_no_visits() -> None:
    order = ListedOrder.of(line_footprint(12, 5, 1), np.zeros(0, np.int64))
    assert (order.num_samples, order.num_moments) == (0, 0)
    assert order.count.tolist() == []
    assert list(order.segments()) == []
    assert order.counts_before(3).tolist() == []


@pytest.mark.parametrize("share", [2, 5])
def test_mixing_looks_at_each_sample_of_a_visit(share: int) -> None:
    """Samples of one visit may lie in two regions, if another variable has the first element."""
    windows = Windows(("time",), (64,), (4,), (1,), (1,))
    leading = Demand("x", (Axis(64, 4, range(64)),), (), 8, frozenset({((3, 1, 1),)}))
    other = Demand("y", (Axis(64, 64, range(64)),), (), 1, frozenset({((0, 1, 1),)}))
    footprint = Footprint.of(windows, (leading, other))
    # A region has four chunks of 4 elements. Visits begin at 13, 17, 21 and so on.
    ids = np.array([13, 14, 15, 16, 17, 18, 29, 32, 40, 41])
    order = ListedOrder.of(footprint, ids)
    assert order.count.tolist() == [4, 2, 2, 1, 1]
    batches = (ids // 16).reshape(-1, share).tolist()
    expected = np.mean([len(set(batch)) for batch in batches])
    assert measure_mixing(footprint, [order], share) == pytest.approx(expected)
