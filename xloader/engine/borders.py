"""Padded borders: what windows take from outside an array.

Only the part inside is read. After it is copied to its row, the rest of the row is filled from it::

    element    -2 -1 | 0  1  2
    row               a  b  c        as gathered
    edge        a  a  a  b  c
    reflect     c  b  a  b  c
    a number    0  0  a  b  c

These are the meanings that the words have for `numpy.pad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.windows import Pad, Windows
from xloader.engine.buffers import Arrays
from xloader.recipe.layout import FieldLayout


class Borders:
    """Fills what rows take from outside, along all padded dimensions of all fields.

    Along several dimensions, one is padded after the other, in the order of ``windows.dims``.

    Parameters
    ----------
    windows : Windows
        The windows.
    layouts : tuple of FieldLayout
        The layouts of the fields, as gathered.
    """

    def __init__(self, windows: Windows, layouts: tuple[FieldLayout, ...]) -> None:
        self._windows = windows
        # The field, the axis of its array (axis 0 is that of the rows), the number of the dimension
        # and the value of elements outside.
        self._borders = [
            (layout.name, 1 + layout.dims.index(name), dim, pad)
            for layout in layouts
            for dim, (name, pad) in enumerate(zip(windows.dims, windows.pads, strict=True))
            if pad is not None and name in layout.dims
        ]

    def __bool__(self) -> bool:
        return bool(self._borders)

    def fill(self, arrays: Arrays, firsts: Ints) -> None:
        """Fill what rows take from outside.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The fields, by name. They are changed.
        firsts : numpy.ndarray of int64, shape (n, num_dims)
            Offset of the first element of each of the first ``n`` rows; below 0 before the array.
        """
        for field, axis, dim, pad in self._borders:
            own = firsts[:, dim]
            # From here on the dimension is the last axis, so that all others need no index.
            array = np.moveaxis(arrays[field][: len(firsts)], axis, -1)
            span, size = array.shape[-1], self._windows.dim_sizes[dim]
            for rows, num in _alike(np.maximum(-own, 0)):
                _fill_front(array, rows, num, pad)
            for rows, num in _alike(np.maximum(own + span - size, 0)):
                _fill_front(array[..., ::-1], rows, num, pad)


def _alike(counts: Ints) -> Iterator[tuple[Ints, int]]:
    """The rows of each number of elements outside, without those that have none."""
    for num in np.unique(counts).tolist():
        if num:
            yield np.flatnonzero(counts == num), num


def _fill_front(array: NDArray[Any], rows: Ints, num: int, pad: Pad) -> None:
    """Fill the first elements of some rows, from those after them."""
    match pad:
        case "edge":
            array[rows, ..., :num] = array[rows, ..., num : num + 1]
        case "reflect":
            array[rows, ..., :num] = array[rows, ..., 2 * num : num : -1]
        case _:
            array[rows, ..., :num] = pad
