"""Subsets: new ids, and draws by weight with exact numbers and fair averages."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from xloader.core.subset import Subset, count_occurrences


def test_near_samples_are_not_drawn_in_step() -> None:
    """If half of the samples are drawn, neighbours come together as often as by chance."""
    subset = Subset(64, None, np.ones(64), 32)
    is_drawn = np.zeros((2000, 64), np.bool_)
    for epoch in range(2000):
        is_drawn[epoch, subset.drawn(3, epoch)] = True
    both = (is_drawn[:, :-1] & is_drawn[:, 1:]).mean()
    assert both == pytest.approx(32 * 31 / (64 * 63), abs=0.01)


def test_each_part_of_a_store_gives_its_share() -> None:
    subset = Subset(40_000, None, np.ones(40_000), 10_000)
    drawn = subset.drawn(0, 0)
    per_stratum = np.bincount(drawn // 4096, minlength=10)[:9]
    assert np.abs(per_stratum - 1024).max() <= 1


def test_rounding_loses_no_draw() -> None:
    weights = np.full(100_003, 0.1)
    for epoch in range(20):
        assert len(Subset(100_003, None, weights, 99_991).drawn(0, epoch)) == 99_991


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1.0, 1e308, np.finfo("f8").max])
def test_the_scale_of_weights_changes_nothing(weight: float) -> None:
    """The scale does not matter even if sums would overflow or shares would underflow."""
    subset = Subset(64, None, np.full(64, weight), 640)
    assert np.bincount(subset.drawn(3, 1), minlength=64).tolist() == [10] * 64


def test_equal_where_all_is_equal() -> None:
    subset = Subset(10, np.array([1, 2]), np.array([1.0, 2.0]), 5)
    others = [
        Subset(11, np.array([1, 2]), np.array([1.0, 2.0]), 5),
        Subset(10, np.array([1, 3]), np.array([1.0, 2.0]), 5),
        Subset(10, np.array([1, 2]), np.array([1.0, 2.5]), 5),
        Subset(10, np.array([1, 2]), np.array([1.0, 2.0]), 6),
        Subset(10, np.array([1, 2])),
        Subset(10),
    ]
    assert pickle.loads(pickle.dumps(subset)) == subset
    assert hash(subset) == hash(pickle.loads(pickle.dumps(subset)))
    assert len({subset, *others}) == 7


def test_repeats_are_counted_from_nought_and_none_where_nothing_repeats() -> None:
    occurrences = count_occurrences(np.array([4, 4, 7, 1, 1, 1]))
    assert occurrences is not None
    assert occurrences.tolist() == [0, 1, 0, 0, 1, 2]
    assert count_occurrences(np.array([4, 7, 1])) is None
