"""The reads of a least-recently-used cache are simulated, and its memory is budgeted."""

from __future__ import annotations

import numpy as np
import pytest

import xloader
import xloader.planning.cache_budget
from tests.ground import box_footprint, line_footprint
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.planning.cache_budget import Recent, least_nbytes, simulate


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
