from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ground import (
    box_footprint,
    circle_footprint,
    line_footprint,
    slow_needs,
)
from xloader.core.axis import Axis
from xloader.core.subset import Subset
from xloader.order.cohorts import cut_cohorts, tile_edges


def test_tiles_follow_the_variable_with_the_most_bytes() -> None:
    footprint = box_footprint((24, 9), (5, 3), (2, 2))
    assert footprint.leading_axes[0] == Axis(24, 5, range(24))
    assert tile_edges(footprint, 0, 2).tolist() == [0, 10, 20, 24]
    assert tile_edges(footprint, 1, 0).tolist() == [0, 9]
    assert tile_edges(footprint, 1, 1).tolist() == [0, 3, 6, 9]


def test_the_number_of_cohorts_does_not_grow_with_the_samples() -> None:
    few, many = (cut_cohorts(line_footprint(100 * n, n, 3), (1,)) for n in (10, 10**6))
    assert len(few) == len(many) == 199


@pytest.mark.parametrize("tiling", [0, 1, 2])
@pytest.mark.parametrize("window", [1, 3, 5, 13])
def test_samples_of_a_subset_that_wrap_need_the_same_blocks(window: int, tiling: int) -> None:
    footprint = circle_footprint(13, 2, window)
    footprint = replace(footprint, subset=Subset(13, np.arange(13)))
    cohorts = cut_cohorts(footprint, (tiling,))
    assert cohorts.members is not None
    for cohort, num in enumerate(np.diff(cohorts.members.offsets).tolist()):
        only = np.zeros(num, np.int64)
        ids = cohorts.members.find(np.array([cohort]), only, np.arange(num))[0].tolist()
        needs = {
            frozenset(slow_needs(footprint.windows, group, number))
            for group in footprint.groups
            for number in ids
        }
        assert len(needs) <= 1
