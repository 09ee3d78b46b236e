"""Packed numbers: stored numbers that stand for other values by the CF conventions.

Decoded chunks stay packed in memory until batches are gathered from them. So 16-bit integers take
half the memory of float32::

    value = missing                       where the stored number is a fill value
          = stored * scale + offset       elsewhere

The arithmetic follows xarray's step by step and in the same dtypes. So all values are equal to
xarray's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TABLE_ITEMSIZE = 2
"""Largest size in bytes of packed integers that are unpacked with a table of all values."""

_PART_SIZE = 1 << 17
"""Numbers unpacked at a time: with at most 8 bytes each, temporary arrays take at most 1 MiB."""


@dataclass(frozen=True)
class Packing:
    """The rule by which packed numbers stand for values.

    `scale, offset`: factor of packed numbers, and the number added afterwards; None for neither.
    """

    stored_dtype: np.dtype
    seen_dtype: np.dtype
    fills: tuple[Any, ...]
    scale: Any
    offset: Any
    wide_dtype: np.dtype
    dtype: np.dtype
    change: Callable[[NDArray[Any]], None] | None = None

    def unpack(self, packed: NDArray[Any]) -> NDArray[Any]:
        """Unpack numbers into a new array of the same shape and of `dtype`."""
        values = np.empty(packed.shape, self.dtype)
        self.unpack_into(packed, values)
        return values

    def unpack_into(self, packed: NDArray[Any], out: NDArray[Any]) -> None:
        """Unpack numbers into an existing array."""
        if out.dtype != self.dtype:
            out[...] = self.unpack(packed)
            return
        for part, place in _parts(packed, out):
            if self.table is not None:
                # With mode="clip", NumPy writes without a buffer and releases the GIL. Nothing is
                # clipped, because every number has an entry in the table.
                np.take(self.table, part.view(f"u{part.itemsize}"), out=place, mode="clip")
            else:
                self._compute(part, place)

    def describe(self) -> list[object]:
        """List everything that determines the values, in types that JSON can hold."""
        numbers = (*self.fills, self.scale, self.offset)
        return [
            *(dtype.str for dtype in (self.stored_dtype, self.seen_dtype, self.wide_dtype)),
            *([type(number).__name__, str(number)] for number in numbers),
        ]

    @cached_property
    def table(self) -> NDArray[Any] | None:
        """Value of each possible packed number, indexed by its bits read as unsigned integer.

        None for packed floats, and for integers of more than two bytes.
        """
        if self.stored_dtype.kind not in "iu" or self.stored_dtype.itemsize > _TABLE_ITEMSIZE:
            return None
        bits = 8 * self.stored_dtype.itemsize
        every = np.arange(1 << bits, dtype=f"u{self.stored_dtype.itemsize}")
        table = np.empty(every.shape, self.dtype)
        # Packed numbers that do not occur in the data may overflow.
        with np.errstate(all="ignore"):
            self._compute(every.view(self.stored_dtype), table)
            if self.change is not None:
                self.change(table)
        return table

    def _compute(self, packed: NDArray[Any], out: NDArray[Any]) -> None:
        is_direct = out.dtype == self.wide_dtype
        values = out if is_direct else np.empty(packed.shape, self.wide_dtype)
        np.copyto(values, packed.view(self.seen_dtype), casting="unsafe")
        for fill in self.fills:
            # Packed numbers may be equal in the wide dtype only; xarray masks those as well.
            np.copyto(values, np.nan, where=values == fill)
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        if not is_direct:
            np.copyto(out, values, casting="same_kind")

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out the table, to stay small.
        parts = (self.stored_dtype, self.seen_dtype, self.fills, self.scale, self.offset)
        return Packing, (*parts, self.wide_dtype, self.dtype, self.change)


def _parts(packed: NDArray[Any], out: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut two arrays of the same shape into parts of at most `_PART_SIZE` elements.

    They are cut along leading dimensions, so that parts of contiguous arrays are contiguous.
    """
    if packed.size <= _PART_SIZE:
        yield packed, out
    elif len(packed) == 1:
        yield from _parts(packed[0], out[0])
    else:
        step = max(1, len(packed) * _PART_SIZE // packed.size)
        for begin in range(0, len(packed), step):
            part = slice(begin, begin + step)
            yield from _parts(packed[part], out[part])
