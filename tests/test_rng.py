"""Random numbers that belong to each sample."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from xloader.errors import OptionError
from xloader.transforms.rng import Rng, sample_keys

CALLS = {
    "uniform": lambda rng, **more: rng.uniform((2, 3), **more),
    "normal": lambda rng, **more: rng.normal((2, 3), **more),
    "integers": lambda rng, **more: rng.integers(0, 1 << 31, (2, 3), **more),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


@calls
@given(st.permutations([(3, 0), (3, 1), (9, 0), (0, 0), (1 << 40, 0)]), st.integers(1, 5))
def test_a_sample_gets_the_same_in_any_batch(call, samples, size) -> None:
    whole = call(Rng([3, 3, 9, 0, 1 << 40], [0, 1, 0, 0, 0], seed=5, epoch=2))
    expected = dict(zip([(3, 0), (3, 1), (9, 0), (0, 0), (1 << 40, 0)], whole, strict=True))
    ids, occurrences = zip(*samples[:size], strict=True)
    actual = call(Rng(ids, occurrences, seed=5, epoch=2))
    for sample, numbers in zip(samples, actual, strict=False):
        np.testing.assert_array_equal(numbers, expected[sample])


@calls
def test_all_that_counts_changes_the_numbers(call) -> None:
    def first(**changes) -> tuple[float, ...]:
        options = {"ids": [3], "occurrences": [0], "seed": 0, "epoch": 0, **changes}
        return tuple(call(Rng(options.pop("ids"), options.pop("occurrences"), **options)).ravel())

    changes = [{}, {"ids": [4]}, {"occurrences": [1]}, {"seed": 1}, {"epoch": 1}]
    assert len({first(**change) for change in changes}) == len(changes)
    assert len(set(first())) == 6
    rng = Rng([3])
    assert len({tuple(call(rng).ravel()) for _ in range(3)}) == 3


@calls
def test_a_name_stands_for_a_place_among_the_calls(call) -> None:
    one, other = Rng([3, 4]), Rng([3, 4])
    plain = call(one)
    named = call(one, name="flip")
    np.testing.assert_array_equal(call(other, name="flip"), named)
    np.testing.assert_array_equal(call(other), plain)
    assert not np.array_equal(call(one, name="turn"), named)


def test_neighbours_have_nothing_in_common() -> None:
    """Numbers of neighbouring ids, epochs and places are not correlated."""
    ids = np.arange(20_000)
    values = Rng(ids, epoch=1).uniform(4)
    others = Rng(ids, epoch=2).uniform(4)
    columns = [*values.T, *others.T, np.roll(values[:, 0], 1)]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 5 / np.sqrt(len(ids))


def test_uniform_numbers_are() -> None:
    ids = np.arange(50_000)
    for dtype in ("float64", "float32"):
        values = Rng(ids).uniform((), -1, 3, dtype=dtype)
        assert values.dtype == dtype
        counts, _ = np.histogram(values, 20, (-1, 3))
        assert counts.sum() == len(ids)
        # With 20 cells, chi-square has 19 degrees of freedom; the bound is 6 standard deviations
        # away.
        assert ((counts - 2500) ** 2 / 2500).sum() < 19 + 6 * np.sqrt(38)
    with pytest.raises(OptionError, match=r"cannot draw this dtype. Given: int8"):
        Rng(ids).uniform(dtype="int8")


def test_normal_numbers_are() -> None:
    values = Rng(np.arange(50_000)).normal((), 3, 2)
    ordered = (np.sort(values) - 3) / 2
    stats = pytest.importorskip("scipy.stats")
    assert stats.kstest(ordered, "norm").pvalue > 1e-4
    assert Rng([1]).normal(5, 3, 0).tolist() == [[3.0] * 5]
    with pytest.raises(OptionError, match="standard deviation is negative"):
        Rng([1]).normal((), 0, -1)


def test_integers_are_within_their_bounds() -> None:
    values = Rng(np.arange(30_000)).integers(-2, 4)
    numbers, counts = np.unique(values, return_counts=True)
    assert numbers.tolist() == [-2, -1, 0, 1, 2, 3]
    assert ((counts - 5000) ** 2 / 5000).sum() < 5 + 6 * np.sqrt(10)
    assert set(Rng(np.arange(99)).integers(3).tolist()) == {0, 1, 2}
    for bounds in ((3, 3), (0,), (5, 2), (0, 1 << 32)):
        with pytest.raises(OptionError, match="cannot be drawn between these bounds"):
            Rng([0]).integers(*bounds)


def test_numbers_are_pinned() -> None:
    """A change of these numbers would change every augmentation of earlier runs."""
    rng = Rng([0, 7], [0, 2], seed=3, epoch=1)
    assert sample_keys(3, 1, [0, 7], [0, 2]).tolist() == [7164681954749850934, 6735411458919810696]
    assert rng.integers(1000, shape=2).tolist() == [[772, 893], [106, 747]]
    assert rng.integers(1000, name="turn").tolist() == [41, 537]


def test_ids_come_from_a_dataset_too() -> None:
    ids = xr.DataArray([4, 9], dims="sample")
    np.testing.assert_array_equal(Rng(ids).uniform(), Rng([4, 9]).uniform())
    assert Rng(ids).uniform((0, 2)).shape == (2, 0, 2)
    assert Rng([]).normal((3,)).shape == (0, 3)
    assert repr(Rng(ids)) == "<xloader Rng for 2 samples, after 0 calls>"
    with pytest.raises(
        OptionError,
        match=r"ids differ in shape. Given: occurrences of shape \(1,\), ids of shape",
    ):
        Rng([4, 9], [0])
