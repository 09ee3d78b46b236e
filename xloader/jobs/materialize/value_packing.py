"""How values are stored in a target: as they are, in another dtype, or packed as integers.

Integers are spread over the values, so the smallest and the largest value are looked for first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import DTypeLike, NDArray

from xloader.core.option_checks import is_number
from xloader.core.packing import Packing
from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import one_sample
from xloader.jobs.statistics.statistics import compute_stats
from xloader.recipe.recipe import Recipe, find

_DTYPES: Final = ("int8", "uint8", "int16", "uint16", "int32")

_REMEDY: Final = (
    'pass pack={"t2m": "int16"}, ("int16", 0.01) with the largest error allowed, or '
    '{"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.0}; see the docs'
)


@dataclass(frozen=True)
class PackRequest:
    """How one variable is to be packed, as the user asked for it."""

    dtype: np.dtype
    max_error: float | None = None
    scale_factor: float | None = None
    add_offset: float = 0.0


def parse_pack(
    pack: Mapping[str, Any] | None, floats: Mapping[str, np.dtype]
) -> dict[str, PackRequest]:
    """Check the option ``pack``."""
    if pack is not None and not isinstance(pack, Mapping):
        raise OptionError(
            "pack= does not say which variables are packed", given=repr(pack), remedy=_REMEDY
        )
    for name in pack or {}:
        find(name, floats, "variable")
        if floats[name].kind != "f":
            raise OptionError(
                f"variable {name!r} does not hold floats, and needs no packing",
                given=f"dtype {floats[name]}",
                remedy=f"leave {name!r} out of pack=",
            )
    return {name: _parse_request(name, request) for name, request in (pack or {}).items()}


def _parse_request(name: str, request: Any) -> PackRequest:
    parts = {"dtype": request}
    if isinstance(request, Mapping):
        parts = dict(request)
    elif isinstance(request, tuple) and len(request) == 2:
        parts = dict(zip(("dtype", "max_error"), request, strict=True))
    numbers = {key: number for key, number in parts.items() if number is not None}
    try:
        # Without a dtype it is one of floats, which is none of those that are allowed.
        dtype = np.dtype(numbers.pop("dtype", None))
    except TypeError:
        dtype = np.dtype(object)
    is_known = dtype.name in _DTYPES and numbers.keys() <= PackRequest.__dataclass_fields__.keys()
    if is_known and all(is_number(n) and math.isfinite(n) for n in numbers.values()):
        packing = PackRequest(dtype, **{key: float(number) for key, number in numbers.items()})
        if all(n is None or n > 0 for n in (packing.max_error, packing.scale_factor)):
            return packing
    raise OptionError(
        f"pack= does not say how {name!r} is packed",
        given=repr(request),
        allowed=f"one of {', '.join(_DTYPES)}, alone, with an error or a scale_factor > 0",
        remedy=_REMEDY,
    )


class ValueBounds(NamedTuple):
    """The smallest and the largest value of a variable; NaN do not count.

    Infinite and the wrong way round where all are NaN.
    """

    least: float = math.inf
    most: float = -math.inf


def bounds_in(stats: xr.Dataset | None, name: str) -> ValueBounds | None:
    """The bounds of a variable in the result of `Samples.stats`; None if they are not in it."""
    if stats is None or name not in stats.data_vars or "stat" not in stats[name].dims:
        return None
    table = stats[name]
    try:
        least, most = table.sel(stat="min").min(), table.sel(stat="max").max()
    except KeyError:
        return None
    return ValueBounds() if np.isnan(least) else ValueBounds(float(least), float(most))


def make_packing(name: str, request: PackRequest, bounds: ValueBounds, dtype: np.dtype) -> Packing:
    """The packing of a variable with values between some bounds.

    The smallest of the integers stands for NaN. The others are spread over the values, so that the
    error is at most half a step, besides the rounding of the floats that are read back.
    """
    limits = np.iinfo(request.dtype)
    # For unsigned integers it is the largest, so that 0 keeps a meaning of its own.
    fill = limits.min if request.dtype.kind == "i" else limits.max
    low, high = (limits.min + 1, limits.max) if fill == limits.min else (0, limits.max - 1)
    if bounds.least > bounds.most:
        bounds = ValueBounds(0.0, 0.0)
    if not (math.isfinite(bounds.least) and math.isfinite(bounds.most)):
        raise OptionError(
            f"variable {name!r} holds infinite values, which integers cannot stand for",
            given=f"values from {bounds.least:g} to {bounds.most:g}",
            remedy=f"leave {name!r} out of pack=, or mask them first",
        )
    scale, offset = request.scale_factor, request.add_offset
    if scale is None:
        scale = (bounds.most - bounds.least) / (high - low) or 1.0
        offset = bounds.least - low * scale
    # With an offset, xarray decodes integers in float64.
    stored, wide = request.dtype, np.dtype(np.float64)
    packing = Packing(stored, stored, (np.int64(fill),), scale, offset, wide, dtype)
    ends = np.array([bounds.least, bounds.most])
    if ((packed := np.rint((ends - offset) / scale)) < low).any() or (packed > high).any():
        raise OptionError(
            f"values of {name!r} lie outside the range of their packing",
            given=f"values from {bounds.least:g} to {bounds.most:g}, scale_factor={scale:g}, "
            f"add_offset={offset:g}",
            allowed=f"values from {offset + low * scale:g} to {offset + high * scale:g} as "
            f"{request.dtype}",
            remedy="pass a larger scale_factor, or let it be found from the values",
        )
    bound = error_bound(packing, bounds)
    if request.max_error is not None and bound > request.max_error:
        raise OptionError(
            f"packed as {request.dtype}, values of {name!r} would differ by too much",
            given=f"up to {bound:.3g}, for values from {bounds.least:g} to {bounds.most:g}",
            allowed=f"up to {request.max_error:g}",
            remedy=f"pack as int32, allow more, or leave {name!r} out of pack=",
        )
    return packing


def error_bound(packing: Packing, bounds: ValueBounds) -> float:
    """The largest difference between a value within bounds and the one that is read back."""
    most = max(abs(bounds.least), abs(bounds.most), abs(packing.offset or 0.0))
    step = packing.scale or 1.0
    packed = max(abs(bounds.least - packing.offset), abs(bounds.most - packing.offset)) / step
    wide, out = np.finfo(packing.wide_dtype).eps, np.finfo(packing.dtype).eps
    # The product and the sum are rounded once each, and the cast to the dtype once more.
    return float(step / 2 + (packed * step + most) * wide + most * out)


def pack_values(
    name: str, values: NDArray[Any], packing: Packing, bound: float
) -> tuple[NDArray[Any], float]:
    """Pack values, and check what is read back."""
    is_nan = np.isnan(values)
    limits, fill = np.iinfo(packing.stored_dtype), packing.fills[0]
    steps = (values.astype(np.float64) - packing.offset) / packing.scale
    np.rint(steps, out=steps)
    steps[is_nan] = fill
    is_out = (steps < limits.min) | (steps > limits.max) | ((steps == fill) & ~is_nan)
    if is_out.any():
        raise OptionError(
            f"a value of {name!r} lies outside the range of its packing",
            given=f"{values[is_out].flat[0]!s}",
            remedy="pass statistics of these very samples, or leave stats= out",
        )
    packed = steps.astype(packing.stored_dtype)
    read = packing.unpack(packed).astype(np.float64)
    error = float(np.max(np.abs(read - values), initial=0.0, where=~is_nan))
    if error > bound:
        raise OptionError(
            f"a value of {name!r} differs by more than its packing allows",
            given=f"{error:g}, where {bound:g} is allowed",
            remedy=f"pack as int32, or leave {name!r} out of pack=",
        )
    return packed, error


def parse_dtype(dtype: DTypeLike | None) -> np.dtype | None:
    """Check the option ``dtype``: a dtype of floats, or None."""
    if dtype is None:
        return None
    try:
        float_dtype = np.dtype(dtype)
    except TypeError:
        float_dtype = np.dtype("V1")
    if float_dtype.kind != "f" or float_dtype.itemsize > 8:
        raise OptionError(
            "values cannot be written in this dtype",
            given=f"dtype={dtype!r}",
            remedy='pass float16, float32, float64 or None; for integers, pack={"t2m": "int16"}',
        )
    return float_dtype.newbyteorder("=")


def read_bounds(
    recipe: Recipe, name: str, memory: int, num_threads: int, client: Any
) -> ValueBounds:
    """The bounds of all values of a variable, each chunk of which is read once."""
    whole, _ = one_sample(recipe, name)
    stats = compute_stats(whole, memory=memory, threads=num_threads, progress=False, client=client)
    assert isinstance(stats, xr.Dataset)
    bounds = bounds_in(stats, name)
    assert bounds is not None
    return bounds


def packings_of(
    requests: Mapping[str, PackRequest], bounds: Mapping[str, ValueBounds]
) -> dict[str, tuple[Packing, float]]:
    """The packing of each variable, and the largest error that it may cause."""
    packings = {}
    for name, request in requests.items():
        # As xloader.open decodes packed integers; see `decoded_dtype`.
        dtype = np.dtype(np.float64 if request.dtype.itemsize >= 4 else np.float32)
        packing = make_packing(name, request, bounds[name], dtype)
        packings[name] = packing, error_bound(packing, bounds[name])
    return packings
