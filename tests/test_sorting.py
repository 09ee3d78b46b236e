"""Sorted integers, with and without the compiled library."""

from __future__ import annotations

import numpy as np
import pytest

from xloader.compiled.library import load_library
from xloader.core import sorting
from xloader.core.sorting import (
    digit_order,
    distinct_near,
    number_rows,
    sort_integers,
)


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and load_library()[0] is None:
        pytest.skip(load_library()[1])
    if request.param == "numpy":
        monkeypatch.setattr(sorting, "find_function", lambda *_: None)


@pytest.mark.parametrize("size", [0, 1, 1999, 2000, 70_001])
@pytest.mark.parametrize("num_bits", [1, 11, 12, 22, 23, 40, 63])
def test_integers_are_sorted_in_place(size: int, num_bits: int) -> None:
    values = np.random.default_rng(size).integers(0, 1 << num_bits, size)
    values[size // 2 :: 3] = (1 << num_bits) - 1
    expected = np.sort(values)
    sort_integers(values, num_bits)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("bound", [1, 2, 300, 1 << 16, (1 << 16) + 1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("size", [0, 1, 63, 5000])
def test_orders_by_digits_are_stable_orders(size: int, bound: int) -> None:
    keys = np.random.default_rng(size).integers(0, bound, size)
    keys[size // 2 :: 3] = bound - 1
    np.testing.assert_array_equal(digit_order(keys, bound), np.argsort(keys, kind="stable"))


def test_numbers_of_rows_sort_as_their_columns_do() -> None:
    columns = [np.array([5, 5, 7]), np.array([0, 2, 0])]
    assert number_rows(columns, 3).tolist() == [0, 2, 6]


def test_integers_close_together_are_distinct_with_those_between() -> None:
    distinct, which = distinct_near(np.array([7, 9, 7]))
    assert distinct.tolist() == [7, 8, 9]
    assert distinct[which].tolist() == [7, 9, 7]
