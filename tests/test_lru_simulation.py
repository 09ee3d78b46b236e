"""The reads of a least-recently-used cache are simulated, and its memory is budgeted."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import xloader
import xloader.planning.cache_budget
from tests.ground import box_footprint, line_footprint
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.errors import MemoryBudgetError
from xloader.planning.cache_budget import Recent, cache_budget, least_nbytes, simulate
from xloader.recipe.layout import FieldLayout, make_layouts


def test_samples_that_no_epoch_draws_need_nothing() -> None:
    whole = line_footprint(64, 16, 2)
    weights = np.zeros(63)
    weights[3] = 1.0
    drawn = Footprint(whole.windows, whole.groups, Subset(63, weights=weights))
    assert (least_nbytes(whole), least_nbytes(drawn)) == (32, 16)


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = box_footprint((20, 20), (4, 6), (3, 2))
    ids = np.random.default_rng(0).integers(0, footprint.num_samples, 500)
    least = least_nbytes(footprint)
    expected = simulate(footprint, ids, 3 * least, batch_size=4, num_workers=2)
    monkeypatch.setattr(xloader.planning.cache_budget, "_PIECE_SIZE", 3)
    assert simulate(footprint, ids, 3 * least, batch_size=4, num_workers=2) == expected
    assert least_nbytes(footprint) == least


def test_what_could_not_be_read_is_forgotten() -> None:
    recent = Recent(16)
    recent.touch([4, 7], [6, 5], [False, True])
    recent.forget(4)
    assert recent.used_nbytes == 5
    assert recent.touch([4, 7], [6, 5], [False, True]) == ([4], [])


# Memory


def bytes_of_two_steps() -> tuple[FieldLayout, ...]:
    line = xr.Dataset({"x": ("time", np.zeros(64, np.uint8))})
    return make_layouts(xloader.open(line, dtype=None).window(time=2, stride=1).recipe)


LAYOUTS = bytes_of_two_steps()


def cache_nbytes(footprint: Footprint, memory: int, batch_size: int, num_workers: int = 1) -> int:
    budget = cache_budget(footprint, LAYOUTS, memory, batch_size, 2, num_workers=num_workers)
    return budget.lane_nbytes


def test_the_cache_has_what_the_rest_of_the_memory_leaves() -> None:
    footprint = line_footprint(64, 16, 2)
    budget = cache_budget(footprint, LAYOUTS, 8000, 10, 2, num_workers=4)
    assert (budget.memory_nbytes, budget.batches_nbytes) == (2000, 4 * 10 * 2)
    assert cache_nbytes(footprint, 8000, 10, num_workers=4) == 2000 - 80 - 125
    assert cache_nbytes(footprint, 2000, 10) == 2000 - 80 - 125


def test_a_batch_of_more_than_there_is_takes_no_more_memory() -> None:
    footprint = line_footprint(64, 16, 2)
    assert cache_nbytes(footprint, 4000, 10**9) == cache_nbytes(footprint, 4000, 63)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_too_little_memory_is_refused_with_the_least_that_would_do(num_workers: int) -> None:
    footprint = line_footprint(64, 16, 2)
    with pytest.raises(MemoryBudgetError, match=r"chunks of one sample.*memory=7 bytes") as told:
        cache_nbytes(footprint, 7, 10, num_workers=num_workers)
    assert ("shared by 3 workers" in str(told.value)) == (num_workers == 3)
    enough = told.value.minimum_nbytes
    assert cache_nbytes(footprint, enough, 10, num_workers=num_workers) >= 32
    with pytest.raises(MemoryBudgetError):
        cache_nbytes(footprint, enough - 1, 10, num_workers=num_workers)
