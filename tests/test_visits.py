from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xloader.visits
from tests.ground import footprints, line_footprint, plan_of, slow_needs
from xloader.errors import EmptySamplesError
from xloader.explain import Explanation, explain_epoch
from xloader.footprint import Footprint
from xloader.listed import ListedOrder
from xloader.pace import Pace
from xloader.plan import Epoch, Plan
from xloader.schedule import make_schedule
from xloader.visits import explain_order

PATHS: Mapping[str, str] = {"x": "memory"}


def explain(footprint: Footprint, plan: Plan, ids: list[int]) -> Explanation:
    expected = explain_epoch(Epoch(footprint, plan, 0, 0), [range(1)], PATHS)
    return explain_order(footprint, plan, np.array(ids, np.int64), expected)


def slow_reads(footprint: Footprint, ids: list[int]) -> int:
    """Reads where memory has room for one sample's chunks only."""
    num_reads = 0
    for group in footprint.groups:
        before: set[int] = set()
        for sample in ids:
            needed = slow_needs(footprint.windows, group, sample)
            num_reads += len(needed - before) * group.num_reads_per_block
            before = needed
    return num_reads


@given(footprints(), st.data())
def test_every_change_of_chunk_is_a_read(footprint: Footprint, data: st.DataObject) -> None:
    some_ids = st.integers(0, len(footprint.windows) - 1)
    ids = data.draw(st.lists(some_ids, min_size=1, max_size=25))
    visits = ListedOrder.of(footprint, np.array(ids))
    assert int(visits.count.sum()) == len(ids)
    assert make_schedule(footprint, visits, 0).num_reads == slow_reads(footprint, ids)


@given(footprints(), st.data())
def test_samples_in_a_row_with_the_same_needs_are_one_visit(
    footprint: Footprint, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(footprint.windows) - 1))
    ids = list(range(begin, min(begin + 30, len(footprint.windows))))
    visits = ListedOrder.of(footprint, np.array(ids))
    ends = np.cumsum(visits.count).tolist()
    for lo, hi in zip([0, *ends], ends, strict=False):
        for group in footprint.groups:
            needs = {
                frozenset(slow_needs(footprint.windows, group, sample)) for sample in ids[lo:hi]
            }
            assert len(needs) == 1


def test_an_order_by_chunk_is_few_visits() -> None:
    visits = ListedOrder.of(line_footprint(64, 16, 1), np.arange(64))
    assert visits.count.tolist() == [16] * 4


IDS = [0, 40, 1, 41, 2, 42, 9]


@pytest.mark.parametrize(
    ("pool", "num_reads"),
    [
        pytest.param(0, 7, id="room for the sample's own chunk"),
        pytest.param(16, 7, id="room for one chunk, and one is at work"),
        pytest.param(32, 2, id="room for two chunks"),
    ],
)
def test_figures_of_an_order(pool: int, num_reads: int) -> None:
    footprint = line_footprint(64, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=2, pool=pool)
    found = explain(footprint, plan, IDS)
    assert (found.num_samples, found.num_steps, found.num_reads) == (7, 4, num_reads)
    assert found.read_nbytes == 16 * num_reads
    assert found.read_amplification == num_reads / 2
    assert found.is_exact
    assert (found.run, found.streams, found.spread, found.lanes) == (1, 1, 0, 1)
    budget = plan.budget
    held = 16 if pool < 32 else 32
    assert found.peak_nbytes == budget.batches_nbytes + budget.in_flight_nbytes + held


def test_mixing_of_an_order() -> None:
    footprint = line_footprint(640, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=4)
    # Regions are of 64 elements here: the batches have 1, 2 and 4 of them; the rest is no batch.
    ids = [0, 63, 5, 6, 0, 64, 1, 65, 0, 64, 128, 192, 400, 500]
    assert explain(footprint, plan, ids).mixing == pytest.approx((1 + 2 + 4) / 3)


def test_a_long_order_is_counted_in_part_and_says_so() -> None:
    footprint = line_footprint(64, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=2, pool=0)
    with patch.object(xloader.visits, "_MOST_SAMPLES", 4):
        found = explain(footprint, plan, IDS)
    assert not found.is_exact
    assert (found.num_samples, found.num_reads) == (7, 7)
    assert "first part" in str(found)


def test_an_order_of_nothing_is_refused() -> None:
    plan = plan_of(Pace((1,), spread=2), batch=2)
    with pytest.raises(EmptySamplesError, match=r"names no samples.*To mend it: pass at least"):
        explain(line_footprint(64, 16, 1), plan, [])
