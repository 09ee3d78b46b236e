"""How a stored variable is decoded by the CF conventions, as far as xarray follows them.

xarray has already decoded the variable lazily. The attributes that it used are in the
variable's encoding: ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value`` and
``_Unsigned``. The stored attributes are therefore never read here, and options such as
``mask_and_scale=False`` take effect without further code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from xloader.core.packing import Packing
from xloader.errors import UnsupportedDataError


class _XarrayOnlyError(Exception):
    """The reason why a `Packing` cannot decode as xarray does."""


@dataclass(frozen=True)
class Coding:
    """How stored numbers become the values that xarray gives.

    `packing`: None where the values are the stored numbers, or where only xarray can decode them.
    """

    packing: Packing | None
    xarray_only: str = ""


def coding_of(decoded: xr.DataArray, stored: np.dtype, dtype: np.dtype | None = None) -> Coding:
    """Find how a stored variable is decoded."""
    scale, offset = factors_of(decoded)
    own: np.dtype = np.dtype(decoded.dtype).newbyteorder("=")
    try:
        fills = _fills(decoded.encoding, stored)
        seen = _seen_dtype(decoded.encoding, stored)
        num_factors = (scale is not None) + (offset is not None)
        _check_known(decoded, stored, own, bool(fills), num_factors)
    except _XarrayOnlyError as reason:
        return Coding(None, str(reason))
    native = stored.newbyteorder("=")
    if not fills and not num_factors and own == native:
        return Coding(None)
    return Coding(Packing(native, seen, fills, scale, offset, own, dtype or own))


def factors_of(decoded: xr.DataArray) -> tuple[Any, Any]:
    """The scale and the offset of a decoded variable, each None where it is absent."""
    return _factor(decoded, "scale_factor"), _factor(decoded, "add_offset")


def _factor(decoded: xr.DataArray, attribute: str) -> Any:
    """A scale or an offset, of the type that xarray computes with."""
    given = decoded.encoding.get(attribute)
    if given is None:
        return None
    value = np.asarray(given)
    if value.size != 1 or value.dtype.kind not in "biuf" or not math.isfinite(value.item()):
        raise UnsupportedDataError(
            f"{attribute!r} of variable {str(decoded.name)!r} is not one finite number",
            given=repr(given),
            allowed="one finite number",
            remedy="correct the attribute, leave the variable out with variables=, or open with "
            "mask_and_scale=False for the stored numbers",
        )
    if value.ndim:
        return value.item()
    return given[()] if isinstance(given, np.ndarray) else given


def _fills(encoding: Mapping[Any, Any], stored: np.dtype) -> tuple[Any, ...]:
    """The numbers that stand for a missing value, of the types that xarray compares with."""
    found: set[Any] = set()
    for attribute in ("missing_value", "_FillValue"):
        if attribute in encoding:
            # NumPy scalars: Python numbers would be compared in another dtype.
            found |= {fill for fill in np.ravel(encoding[attribute]) if not _is_null(fill)}
    fill = encoding.get("_FillValue")
    if _changes_sign(encoding, stored) and fill is not None:
        # xarray converts ``_FillValue`` but not ``missing_value``. The unconverted number may
        # stay in the set: no value with the other sign is ever equal to it.
        other = _other_sign(stored)
        converted = np.array(fill, stored).view(other) if stored.kind == "i" else other.type(fill)
        found.add(converted.item())
    if not all(np.asarray(fill).dtype.kind in "biuf" for fill in found):
        raise _XarrayOnlyError("a fill value that is not a number")
    return tuple(sorted(found))


def _is_null(fill: Any) -> bool:
    return fill is None or bool(fill != fill)


def _changes_sign(encoding: Mapping[Any, Any], stored: np.dtype) -> bool:
    unsigned = encoding.get("_Unsigned")
    return (stored.kind, unsigned) in (("i", "true"), ("u", "false"))


def _other_sign(stored: np.dtype) -> np.dtype:
    return np.dtype(f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}")


def _seen_dtype(encoding: Mapping[Any, Any], stored: np.dtype) -> np.dtype:
    return _other_sign(stored) if _changes_sign(encoding, stored) else stored.newbyteorder("=")


def _check_known(
    decoded: xr.DataArray, stored: np.dtype, own: np.dtype, is_masked: bool, num_factors: int
) -> None:
    """Raise `_XarrayOnlyError` where xarray computes in other steps than a `Packing`."""
    if own.kind == "b" and stored.kind != "b" and (is_masked or num_factors):
        raise _XarrayOnlyError("packed numbers decoded to bool")
    if is_masked and own.kind != "f":
        # For units of time, xarray keeps integers and marks missing values by the smallest one.
        raise _XarrayOnlyError(f"missing values in {own}")
    is_wide = stored.kind in "iu" and stored.itemsize == 4
    if is_wide and is_masked and num_factors == 2 and own == np.dtype("f4"):
        # For units of time, xarray chooses a dtype twice: float64 for the mask, then float32.
        raise _XarrayOnlyError("masked in float64, scaled in float32")
    seen = _seen_dtype(decoded.encoding, stored)
    if not is_masked and not num_factors and own.kind != "b" and own != seen:
        raise _XarrayOnlyError(f"{stored} to {own}")
