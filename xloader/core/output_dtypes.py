"""The dtype in which floating fields are delivered: converted last, after all transforms.

NumPy has no bfloat16. Its numbers are the upper halves of float32 numbers, and arrays of them have
the dtype `BFLOAT16` here, from which PyTorch and JAX take them as what they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError

OutputDtype = Literal["float32", "float16", "bfloat16"]

BFLOAT16: Final = np.dtype([("bfloat16", np.uint16)])
"""Dtype of arrays that hold the bits of bfloat16 numbers."""

_F8: Final = np.dtype("f8")

_BLOCK_SIZE = 1 << 16
"""Elements converted at a time: temporary arrays of this size fit the cache, and need no memory
budget. Blocks of four times this size were slower."""


def converted_dtype(dtype: np.dtype, output_dtype: OutputDtype | None) -> np.dtype:
    """The dtype in which an array of some dtype is delivered."""
    if output_dtype is None or dtype.kind != "f":
        return dtype
    return BFLOAT16 if output_dtype == "bfloat16" else np.dtype(output_dtype)


def convert_floats(
    arrays: Mapping[str, NDArray[Any]],
    output_dtype: OutputDtype | None,
    *,
    is_own: bool,
    left_out: Collection[str] = (),
) -> dict[str, NDArray[Any]]:
    """Convert the floating fields of a batch."""
    if output_dtype is None:
        return dict(arrays)
    converted = {}
    for name, array in arrays.items():
        dtype = array.dtype if name in left_out else converted_dtype(array.dtype, output_dtype)
        if dtype == array.dtype:
            converted[name] = array
            continue
        fits = is_own and dtype.itemsize <= array.dtype.itemsize
        out = _front_of(array, dtype) if fits else np.empty(array.shape, dtype)
        try:
            _convert(array if is_own else np.ascontiguousarray(array), out)
        except FloatingPointError as error:
            raise OptionError(
                f"a value of the field {name!r} is too large for {output_dtype}",
                given=f"a finite value of {array.dtype}",
                allowed=f"values between -{_largest(dtype):g} and {_largest(dtype):g}",
                remedy="normalise the field with .normalize(...), or pass another dtype: bfloat16 "
                "holds values as large as float32 does, with fewer digits than float16",
            ) from error
        converted[name] = out
    return converted


def largest_of(output_dtype: OutputDtype | None) -> float:
    """The largest number of a dtype for delivery; infinity if values keep their own dtype."""
    return math.inf if output_dtype is None else _largest(converted_dtype(_F8, output_dtype))


def _largest(dtype: np.dtype) -> float:
    return float(np.finfo(np.float32 if dtype == BFLOAT16 else dtype).max)


def _front_of(array: NDArray[Any], dtype: np.dtype) -> NDArray[Any]:
    """The front of an array's memory, as an array of the same shape and a dtype not larger."""
    flat = array.reshape(-1).view(np.uint8)[: array.size * dtype.itemsize]
    return flat.view(dtype).reshape(array.shape)


def _convert(array: NDArray[Any], out: NDArray[Any]) -> None:
    """Convert an array, which may begin at the same address as the result."""
    source, target = array.reshape(-1), out.reshape(-1)
    for begin in range(0, source.size, _BLOCK_SIZE):
        part = slice(begin, begin + _BLOCK_SIZE)
        # First into an array of its own: the place of the result may overlap the numbers.
        with np.errstate(over="raise"):
            if target.dtype == BFLOAT16:
                target["bfloat16"][part] = _upper_halves(source[part])
            else:
                target[part] = source[part].astype(target.dtype)


def _upper_halves(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers; of two equally near ones, that with an even bit."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    halves = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        # Rounding could turn a NaN into an infinite number.
        halves[is_nan] = 0x7FC0
    return halves
