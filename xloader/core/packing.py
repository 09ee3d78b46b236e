"""Packed numbers: stored numbers that stand for others by the CF conventions.

Packed values stay packed until they are gathered, which keeps twice as many of them in memory
as float32 would::

    value = missing                       where the stored number is a fill value
          = stored * scale + offset       elsewhere

The arithmetic is xarray's own, step by step and in the same dtype, so that values are the same
to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TABLE_ITEMSIZE = 2
"""Bytes of a packed integer up to which all of its values are looked up in a table."""

_PART_SIZE = 1 << 17
"""Numbers unpacked at a time: what is computed on the way, at most 8 bytes each, stays 1 MiB."""


@dataclass(frozen=True)
class Packing:
    """How numbers are packed.

    Parameters
    ----------
    stored_dtype : numpy.dtype
        The packed dtype, in native byte order.
    seen_dtype : numpy.dtype
        As what the packed bits count: differs from the stored dtype by the sign only.
    fills : tuple of (int, float or numpy scalar)
        Numbers that stand for a missing value, compared in the wide dtype.
    scale, offset : int, float, numpy scalar or None
        What packed numbers are multiplied by, and what is added. Their types count: NumPy
        computes with a ``float`` in the wide dtype, and with a ``numpy.float64`` in that.
    wide_dtype : numpy.dtype
        The dtype in which xarray computes; a float where there are fills.
    dtype : numpy.dtype
        The dtype of the values.

    Examples
    --------
    >>> i2, f4, f8 = np.dtype("i2"), np.dtype("f4"), np.dtype("f8")
    >>> packing = Packing(i2, i2, (-1,), 0.5, 10.0, f8, f4)
    >>> packing.unpack(np.array([-1, 0, 3], "i2")).tolist()
    [nan, 10.0, 11.5]
    """

    stored_dtype: np.dtype
    seen_dtype: np.dtype
    fills: tuple[Any, ...]
    scale: Any
    offset: Any
    wide_dtype: np.dtype
    dtype: np.dtype

    def unpack(self, packed: NDArray[Any]) -> NDArray[Any]:
        """The values of packed numbers: of the same shape, always a new array."""
        values = np.empty(packed.shape, self.dtype)
        self.unpack_into(packed, values)
        return values

    def unpack_into(self, packed: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the values of packed numbers.

        Parameters
        ----------
        packed : numpy.ndarray
            Packed numbers, of the stored dtype.
        out : numpy.ndarray
            Where their values go: the same shape, any strides, any dtype that holds them.
        """
        if out.dtype != self.dtype:
            out[...] = self.unpack(packed)
            return
        for part, place in _parts(packed, out):
            if self._has_table:
                # In this mode NumPy writes to its target without a buffer between, and lets
                # other threads run. There is nothing to clip: every number is in the table.
                np.take(self._table, part.view(f"u{part.itemsize}"), out=place, mode="clip")
            else:
                self._compute(part, place)

    def describe(self) -> list[object]:
        """Everything that fixes the values, as JSON can say it."""
        dtypes = (self.stored_dtype, self.seen_dtype, self.wide_dtype)
        numbers = (*self.fills, self.scale, self.offset)
        return [
            *(dtype.str for dtype in dtypes),
            *([type(number).__name__, str(number)] for number in numbers),
        ]

    @property
    def _has_table(self) -> bool:
        return self.stored_dtype.kind in "iu" and self.stored_dtype.itemsize <= _TABLE_ITEMSIZE

    @cached_property
    def _table(self) -> NDArray[Any]:
        """The value of each packed number, by its bits."""
        bits = 8 * self.stored_dtype.itemsize
        every = np.arange(1 << bits, dtype=f"u{self.stored_dtype.itemsize}")
        table = np.empty(every.shape, self.dtype)
        # Numbers that are not in the data may overflow.
        with np.errstate(all="ignore"):
            self._compute(every.view(self.stored_dtype), table)
        return table

    def _compute(self, packed: NDArray[Any], out: NDArray[Any]) -> None:
        is_direct = out.dtype == self.wide_dtype
        values = out if is_direct else np.empty(packed.shape, self.wide_dtype)
        np.copyto(values, packed.view(self.seen_dtype), casting="unsafe")
        for fill in self.fills:
            # Where several are one number in the wide dtype, xarray masks both as well.
            np.copyto(values, np.nan, where=values == fill)
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        if not is_direct:
            np.copyto(out, values, casting="same_kind")

    def __reduce__(self) -> tuple[object, ...]:
        # The table stays behind, which keeps pickles small.
        parts = (self.stored_dtype, self.seen_dtype, self.fills, self.scale, self.offset)
        return Packing, (*parts, self.wide_dtype, self.dtype)


def _parts(packed: NDArray[Any], out: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut two arrays of one shape along their leading axes, so that parts stay contiguous."""
    if packed.size <= _PART_SIZE:
        yield packed, out
    elif len(packed) == 1:
        yield from _parts(packed[0], out[0])
    else:
        step = max(1, len(packed) * _PART_SIZE // packed.size)
        for begin in range(0, len(packed), step):
            part = slice(begin, begin + step)
            yield from _parts(packed[part], out[part])
