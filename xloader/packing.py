"""Packed numbers: small integers that stand for floats by the CF conventions.

Packed values stay packed until they are gathered, which keeps twice as many of them in memory
as float32 would::

    value = missing                       where the packed number is a fill value
          = packed * scale + offset       elsewhere

The arithmetic is xarray's own, step by step and in the same dtype, so that values are the same
to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TABLE_ITEMSIZE = 2
"""Bytes of a packed number up to which all of its values are looked up in a table."""


@dataclass(frozen=True)
class Packing:
    """How numbers are packed.

    Parameters
    ----------
    stored_dtype : numpy.dtype
        The packed dtype, in native byte order.
    seen_dtype : numpy.dtype
        As what the packed bits count: differs from the stored dtype by the sign only.
    fills : tuple of (int or float)
        Packed numbers, as seen, that stand for a missing value.
    scale, offset : int, float, numpy scalar or None
        What packed numbers are multiplied by, and what is added.
    wide_dtype : numpy.dtype
        The float dtype in which xarray computes.
    dtype : numpy.dtype
        The float dtype of the values.

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
        if self.stored_dtype.kind in "iu" and self.stored_dtype.itemsize <= _TABLE_ITEMSIZE:
            unsigned = packed.view(f"u{packed.itemsize}")
            return np.asarray(self._table[unsigned])
        return self._compute(packed)

    @cached_property
    def _table(self) -> NDArray[Any]:
        """The value of each packed number, by its bits."""
        bits = 8 * self.stored_dtype.itemsize
        every = np.arange(1 << bits, dtype=f"u{self.stored_dtype.itemsize}")
        return self._compute(every.view(self.stored_dtype))

    def _compute(self, packed: NDArray[Any]) -> NDArray[Any]:
        seen = packed.view(self.seen_dtype)
        values = seen.astype(self.wide_dtype)
        for fill in self.fills:
            values[seen == fill] = np.nan
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        return values.astype(self.dtype, copy=False)

    def __reduce__(self) -> tuple[object, ...]:
        # The table stays behind, which keeps pickles small.
        parts = (self.stored_dtype, self.seen_dtype, self.fills, self.scale, self.offset)
        return Packing, (*parts, self.wide_dtype, self.dtype)
