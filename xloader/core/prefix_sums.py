"""Sums of all values before each index along an axis of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from xloader.core.axis import Ints


def sums_before(values: NDArray[Any], axis: int, dtype: DTypeLike = np.int64) -> Ints:
    """Sum all values before each index along an axis.

    Parameters
    ----------
    values : numpy.ndarray of bool or int
        The values.
    axis : int
        The axis.
    dtype : dtype-like, default int64
        Dtype of the sums.

    Returns
    -------
    numpy.ndarray
        The sums; the axis is longer by one.

    Examples
    --------
    >>> sums_before(np.array([True, False, True]), 0).tolist()
    [0, 1, 1, 2]
    """
    before = np.zeros([n + (d == axis) for d, n in enumerate(values.shape)], dtype)
    np.cumsum(values, axis=axis, out=before[(slice(None),) * axis + (slice(1, None),)])
    return before
