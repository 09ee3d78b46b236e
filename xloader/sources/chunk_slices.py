"""Cuts of chunks: per dimension a slice, or offsets of elements.

Cuts are orthogonal, as in xarray's ``isel``: each dimension is cut independently of the others.
NumPy would pair up several index arrays instead. A cut with more than one index array is
therefore applied one dimension at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import Cut


def take(array: NDArray[Any], cut: Cut) -> NDArray[Any]:
    """Cut an array along each dimension independently."""
    if sum(isinstance(part, np.ndarray) for part in cut) <= 1:
        return np.asarray(array[cut])
    for axis, part in enumerate(cut):
        array = array[(slice(None),) * axis + (part,)]
    return array


def is_ordered(cut: Cut) -> bool:
    """Whether a cut keeps the stored order, so that one as large as its chunk is the chunk."""
    return all(isinstance(part, slice) or bool((np.diff(part) > 0).all()) for part in cut)


def shift(cut: Cut, origin: tuple[int, ...], shape: tuple[int, ...]) -> Cut:
    """Convert offsets within a chunk to offsets within the whole array."""
    moved: list[slice | NDArray[np.int64]] = []
    for part, start, size in zip(cut, origin, shape, strict=True):
        if isinstance(part, slice):
            first, stop, step = part.indices(size)
            moved.append(slice(start + first, start + stop, step))
        else:
            moved.append(part + start)
    return tuple(moved)


def shape_of(cut: Cut, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the part that a cut takes out of an array of the given shape, in elements."""
    return tuple(
        len(range(*part.indices(size))) if isinstance(part, slice) else len(part)
        for part, size in zip(cut, shape, strict=True)
    )
