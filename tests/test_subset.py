"""Subsets: new ids, and draws by weight with exact numbers and fair averages."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.core.subset import Subset, count_occurrences

WEIGHTS = np.array([0.0, 0.2, 1.0, 1.0, 2.5, 0.3, 4.0, 0.0, 1.0, 2.0])


def frequencies(subset: Subset, num_epochs: int, seed: int = 0) -> np.ndarray:
    drawn = [subset.drawn(seed, epoch) for epoch in range(num_epochs)]
    return np.bincount(np.concatenate(drawn), minlength=len(subset))


@given(
    weights=st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=40).filter(any),
    num_draws=st.integers(1, 200),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_an_epoch_has_exactly_its_draws(
    weights: list[float], num_draws: int, seed: int, epoch: int
) -> None:
    subset = Subset(len(weights), None, np.array(weights), num_draws)
    drawn = subset.drawn(seed, epoch)
    assert len(drawn) == subset.num_samples == num_draws
    assert (np.diff(drawn) >= 0).all()
    wanted = num_draws * np.array(weights) / np.sum(weights)
    counts = np.bincount(drawn, minlength=len(weights))
    assert (counts >= np.floor(wanted - 1e-6)).all()
    assert (counts <= np.ceil(wanted + 1e-6)).all()
    assert not counts[np.array(weights) == 0].any()
    assert np.array_equal(subset.drawn(seed, epoch), drawn)


@pytest.mark.parametrize("num_draws", [4, 37])
def test_frequencies_match_the_weights(num_draws: int) -> None:
    counts = frequencies(Subset(10, None, WEIGHTS, num_draws), 1000)
    expected = 1000 * num_draws * WEIGHTS / WEIGHTS.sum()
    # Draws are systematic, so counts vary less than binomial counts.
    assert counts == pytest.approx(expected, abs=4 * np.sqrt(1000 / 4))


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


def test_ids_follow_the_order_given() -> None:
    subset = Subset(10, np.array([7, 2, 5, 2]))
    assert len(subset) == subset.num_samples == 4
    assert subset.windows_of(np.array([2, 0])).tolist() == [5, 7]
    assert subset.ids_of(np.array([2, 9, 7])).tolist() == [1, 3, 0]
    again = subset.select(np.array([3, 0]))
    assert again.windows_of(np.arange(2)).tolist() == [2, 7]
    assert Subset(10).select(np.array([4])).windows_of(np.array([0])).tolist() == [4]


def test_weights_follow_their_samples() -> None:
    subset = Subset(5, None, np.array([0.0, 1, 2, 3, 4]), 7).select(np.array([3, 1]))
    assert subset.weights is not None
    assert subset.weights.tolist() == [3, 1]
    assert subset.num_samples == 7


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
