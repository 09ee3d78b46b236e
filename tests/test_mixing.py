from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import (
    all_ids,
    box_footprint,
    circle_footprint,
    footprints,
    line_footprint,
    plan_of,
    slow_block,
    slow_starts,
    slow_stored_chunk,
)
from xloader.core.footprint import Footprint
from xloader.order.cohorts import cut_cohorts
from xloader.order.shuffle import Pace
from xloader.planning import mixing as regions_module
from xloader.planning.epoch import Epoch
from xloader.planning.mixing import Regions, full_mixing, measure_mixing, region_dim


def slow_region(footprint: Footprint, dim: int, sample: int) -> tuple[int, ...]:
    """Return the chunk of the first needed element per dimension; along ``dim``, four make one."""
    windows = footprint.windows
    position = np.unravel_index(sample, windows.num_positions)
    region = []
    for d, first in enumerate(footprint.first_offsets):
        axis = footprint.leading_axes[d]
        if axis is None:
            continue
        element = slow_starts(windows, d)[int(position[d])] + first
        element = max(element, 0) if windows.ends[d] == "pad" else element % axis.size
        if d == dim:
            # Chunks count from the place of the first selected chunk in the array; blocks are
            # dense.
            block = slow_block(axis)[element]
            region.append((block + slow_stored_chunk(axis)[0]) // 4)
        else:
            region.append(slow_block(axis)[element])
    return tuple(region)


@pytest.fixture(params=["looked up", "worked out"], scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether the regions of positions are kept in tables."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "worked out":
            patch.setattr(regions_module, "_MOST_IN_TABLE", 0)
        yield


@pytest.mark.usefixtures("way")
@given(footprints())
def test_regions(footprint: Footprint) -> None:
    dim = region_dim(footprint)
    positions = footprint.windows.positions_of(np.arange(len(footprint.windows)))
    found = Regions(footprint).of(tuple(positions.T)).tolist()
    expected = [slow_region(footprint, dim, i) for i in range(len(footprint.windows))]
    assert len(set(zip(found, expected, strict=True))) == len(set(found)) == len(set(expected))


@pytest.mark.usefixtures("way")
@given(footprints(), st.lists(st.integers(0, 40), max_size=3), st.integers(0, 2**32))
def test_regions_of_batches_are_counted(footprint: Footprint, sizes: list[int], seed: int) -> None:
    dim, edges = region_dim(footprint), np.cumsum([0, *sizes])
    ids = np.random.default_rng(seed).integers(0, len(footprint.windows), edges[-1])
    found = Regions(footprint).count(footprint.windows.positions_of(ids), edges)
    regions = [slow_region(footprint, dim, i) for i in ids.tolist()]
    assert found.tolist() == [len(set(regions[lo:hi])) for lo, hi in pairwise(edges.tolist())]


@pytest.mark.usefixtures("way")
def test_regions_of_windows_that_wrap_before_their_first_element() -> None:
    footprint = circle_footprint(64, 2, 12, span=(9, 1, 2))
    windows = footprint.windows
    found = Regions(footprint).of((np.arange(64),))
    assert found.tolist() == [(start + 9) % 64 // 8 for start in range(64)]
    assert full_mixing(footprint, 64) == pytest.approx(8)
    assert footprint.first_elements(0, np.array([54, 55])).tolist() == [63, 0]
    # The cohorts are cut there too, so that each lies in regions that follow each other.
    cohorts = cut_cohorts(footprint, (0,))
    assert cohorts.pieces[0].starts.tolist() == [0, 55, len(windows)]


def test_regions_lie_along_the_dimension_with_most_chunks() -> None:
    assert region_dim(box_footprint((8, 40, 9), (4, 4, 3), (1, 1, 1))) == 1


@given(footprints(), st.integers(1, 8))
def test_a_full_shuffle_is_every_batch_as_likely(footprint: Footprint, batch_size: int) -> None:
    dim = region_dim(footprint)
    regions = [slow_region(footprint, dim, i) for i in range(len(footprint.windows))]
    total = len(regions)
    drawn = min(batch_size, total)
    sizes = [regions.count(region) for region in set(regions)]
    expected = sum(1 - math.comb(total - size, drawn) / math.comb(total, drawn) for size in sizes)
    assert full_mixing(footprint, batch_size) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("footprint", [line_footprint(900, 6, 2), line_footprint(900, 60, 25)])
def test_mixing_is_counted_over_the_full_batches(footprint: Footprint, lanes: int) -> None:
    plan = plan_of(Pace((1,), 0, 4, 3, 5, lanes), batch=10)
    orders = [lane.order for lane in Epoch(footprint, plan, 0, 0).lanes(range(lanes))]
    share = plan.lane_share
    ids = [all_ids(order) for order in orders]
    num_batches = len(footprint.windows) // 10
    assert len(footprint.windows) % 10, "no batch is short"
    counts = []
    for step in range(num_batches):
        rows = [i for lane in ids for i in lane[step * share : (step + 1) * share]]
        counts.append(len({slow_region(footprint, 0, i) for i in rows}))
    found = measure_mixing(footprint, orders, share)
    assert found == pytest.approx(np.mean(counts))


def test_a_long_epoch_is_looked_at_in_places() -> None:
    footprint = line_footprint(32_000, 16, 3)
    plan = plan_of(Pace((1,), 0, 48, 18, 18), batch=16)
    orders = [Epoch(footprint, plan, 0, 0).lanes(range(1))[0].order]
    whole = measure_mixing(footprint, orders, 16)
    part = measure_mixing(footprint, orders, 16, most_samples=4096)
    assert part != whole
    assert part == pytest.approx(whole, rel=0.08)
