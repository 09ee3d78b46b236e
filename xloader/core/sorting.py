"""Sorting and numbering of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints

# NumPy sorts 16-bit integers by counting.
_DIGIT_BITS = 16
_FEW_INTEGERS = 2000
"""Number of integers below which NumPy's sort is faster."""

_ARGUMENTS: Final = (ADDRESS, ADDRESS, NUMBER, NUMBER, NUMBER)


def sort_integers(values: Ints, num_bits: int, sorted_bits: int = 0) -> None:
    """Sort integers from 0 on, in place. It needs as much memory again.

    `sorted_bits`: number of the lowest bits by which the integers are sorted already.
    """
    sort = find_function("xloader_sort_integers", _ARGUMENTS)
    if sort is None or len(values) < _FEW_INTEGERS:
        values.sort()
        return
    assert values.dtype == np.int64
    assert values.flags.c_contiguous
    scratch = np.empty_like(values)
    sort(address_of(values), address_of(scratch), len(values), sorted_bits, num_bits)


def digit_order(keys: Ints, bound: int) -> NDArray[np.intp]:
    """Stable sorting order of integers from 0 on."""
    if bound <= 1 << _DIGIT_BITS:
        return np.argsort(keys.astype(np.uint16), kind="stable")
    # With its index as the lower part of each key, keys are sorted without being moved.
    shift = len(keys).bit_length()
    keys_and_places = keys.astype(np.int64) << shift
    keys_and_places |= np.arange(len(keys))
    sort_integers(keys_and_places, shift + (bound - 1).bit_length(), sorted_bits=shift)
    keys_and_places &= (1 << shift) - 1
    return keys_and_places


def is_first(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each of some sorted values is the first of those equal to it."""
    is_new = np.empty(len(values), np.bool_)
    is_new[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return is_new


def distinct_near(entries: Ints) -> tuple[Ints, Ints]:
    """Distinct entries in ascending order, and the index of each entry among them.

    If the entries are close together, the first array is the whole range between them.
    """
    first = int(entries.min()) if len(entries) else 0
    num_near = int(entries.max(initial=0)) + 1 - first
    if num_near <= len(entries):
        # Entries under way are close together, and a range of them needs no sort.
        return np.arange(first, first + num_near), entries - first
    distinct, which = np.unique(entries, return_inverse=True)
    return distinct, which


_MOST_BITS: Final = 62
"""The most bits of a number. One more is the sign."""


def number_rows(columns: Sequence[Ints], num_rows: int) -> Ints:
    """Number the rows of some columns: two numbers are equal exactly if all columns are.

    The numbers sort as the rows do, by the first column first. int64, of shape ``(num_rows,)``.
    """
    numbers, radix = np.zeros(num_rows, np.int64), 1
    for column in columns if num_rows else ():
        least, size = int(column.min()), int(np.ptp(column)) + 1
        if size == 1:
            continue
        if (radix * size).bit_length() > _MOST_BITS:
            numbers = np.unique(numbers, return_inverse=True)[1]
            radix = int(numbers.max()) + 1
        numbers, radix = numbers * size + (column - least), radix * size
    return numbers
