"""Sorting small integers: by their digits, which takes a third to a tenth of comparing them.

Slots, blocks and tiles count from 0 and rarely need more than 32 bits. NumPy sorts 16-bit
numbers by counting, so an order of larger ones is found digit by digit, the lowest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.grid import Ints

_DIGIT_BITS = 16
_FEW_A_DIGIT = 64
"""Keys a digit below which NumPy's calls cost more than comparing does."""
_FEW_KEYS = 1000


def digit_order(keys: Ints, bound: int) -> NDArray[np.intp]:
    """The stable order of keys.

    Parameters
    ----------
    keys : numpy.ndarray of int, shape (n,)
        In ``[0, bound)``.
    bound : int

    Returns
    -------
    numpy.ndarray of int, shape (n,)
        As of ``np.argsort(keys, kind="stable")``.

    Examples
    --------
    >>> digit_order(np.array([70_000, 3, 70_000, 0]), 70_001).tolist()
    [3, 1, 0, 2]
    """
    num_digits = -(-max(bound - 1, 1).bit_length() // _DIGIT_BITS)
    if len(keys) < _FEW_A_DIGIT * num_digits:
        return np.argsort(keys, kind="stable")
    order = np.argsort(_digit(keys, 0), kind="stable")
    for place in range(1, num_digits):
        order = order[np.argsort(_digit(keys, place)[order], kind="stable")]
    return order


def spread_order(keys: NDArray[np.float64]) -> NDArray[np.intp]:
    """The stable order of finite keys that are spread about evenly.

    Returns
    -------
    numpy.ndarray of int, shape (n,)
        As of ``np.argsort(keys, kind="stable")``.

    Examples
    --------
    >>> spread_order(np.array([0.5, 0.25, 0.5, 0.0])).tolist()
    [3, 1, 0, 2]
    """
    if len(keys) < _FEW_KEYS:
        return np.argsort(keys, kind="stable")
    first = keys.min()
    span = keys.max() - first
    if span == 0:
        return np.arange(len(keys))
    # Rounded to one digit they are nearly in order, and what is nearly in order sorts fast.
    digits = (keys - first) / span * ((1 << _DIGIT_BITS) - 1)
    nearly = np.argsort(digits.astype(np.uint16), kind="stable")
    return nearly[np.argsort(keys[nearly], kind="stable")]


def is_first(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Of sorted values, whether each is the first of those that are equal.

    Examples
    --------
    >>> is_first(np.array([4, 4, 7])).tolist()
    [True, False, True]
    """
    found = np.empty(len(values), np.bool_)
    found[:1] = True
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def _digit(keys: Ints, place: int) -> NDArray[np.uint16]:
    return (keys >> (place * _DIGIT_BITS) if place else keys).astype(np.uint16)
