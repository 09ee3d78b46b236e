"""Sums of all values before each index along an axis of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from xloader.core.axis import Ints


def sums_before(values: NDArray[Any], axis: int, dtype: DTypeLike = np.int64) -> Ints:
    """Sum all values before each index along an axis."""
    before = np.zeros([n + (d == axis) for d, n in enumerate(values.shape)], dtype)
    np.cumsum(values, axis=axis, out=before[(slice(None),) * axis + (slice(1, None),)])
    return before
