"""Where windows begin along one dimension: conversion between positions and elements."""

from __future__ import annotations

import numpy as np

from xloader.core.axis import Ints
from xloader.core.windows import Windows


def starts_of(windows: Windows, dim: int, positions: Ints) -> Ints:
    """The first element of the window at each position along a dimension; ascending positions.

    Examples
    --------
    >>> windows = Windows(("time",), (11,), (3,), (4,), (2,))
    >>> starts_of(windows, 0, np.array([0, 1])).tolist()
    [0, 4]
    """
    return np.asarray(positions * windows.strides[dim], np.int64)


def positions_from(windows: Windows, dim: int, elements: Ints) -> Ints:
    """The first position whose window begins at or after each element; their number if none does.

    Examples
    --------
    >>> windows = Windows(("time",), (11,), (3,), (4,), (2,))
    >>> positions_from(windows, 0, np.array([-3, 0, 1, 5])).tolist()
    [0, 0, 1, 2]
    """
    found = -(-elements // windows.strides[dim])
    return np.clip(found, 0, windows.num_positions[dim]).astype(np.int64)
