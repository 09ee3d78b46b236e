"""The choice of a dataset's variables, how their numbers are decoded, and a source's digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import DTypeLike

from xloader.core.messages import unknown
from xloader.core.packing import Packing
from xloader.errors import OptionError, UnknownNameError, UnsupportedDataError
from xloader.sources.base import Variable

READABLE_KINDS: Final = "biuf"
"""Kinds of NumPy dtype that can be read: bool, signed and unsigned integers, and floats."""

DECODING_KEYS: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes that say how stored numbers are decoded."""


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
    values_dtype: np.dtype = np.dtype(decoded.dtype).newbyteorder("=")
    try:
        seen = _seen_dtype(decoded.encoding, stored)
        fills = _fills(decoded.encoding, stored, seen)
        num_factors = (scale is not None) + (offset is not None)
        _check_known(stored, seen, values_dtype, bool(fills), num_factors)
    except _XarrayOnlyError as reason:
        return Coding(None, str(reason))
    native = stored.newbyteorder("=")
    if not fills and not num_factors and values_dtype == native:
        return Coding(None)
    return Coding(Packing(native, seen, fills, scale, offset, values_dtype, dtype or values_dtype))


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
            remedy="correct the attribute, or pass mask_and_scale=False for the stored numbers",
        )
    if value.ndim:
        return value.item()
    return given[()] if isinstance(given, np.ndarray) else given


def _fills(encoding: Mapping[Any, Any], stored: np.dtype, seen: np.dtype) -> tuple[Any, ...]:
    """The numbers that stand for a missing value, of the types that xarray compares with."""
    fills: set[Any] = set()
    for attribute in ("missing_value", "_FillValue"):
        if attribute in encoding:
            # NumPy scalars: Python numbers would be compared in another dtype.
            given = np.ravel(encoding[attribute])
            fills |= {fill for fill in given if fill is not None and fill == fill}
    fill = encoding.get("_FillValue")
    if seen.kind != stored.kind and fill is not None:
        # xarray converts ``_FillValue`` but not ``missing_value``. The unconverted number may
        # stay in the set: no value with the other sign is ever equal to it.
        converted = np.array(fill, stored).view(seen) if stored.kind == "i" else seen.type(fill)
        fills.add(converted.item())
    if not all(np.asarray(fill).dtype.kind in "biuf" for fill in fills):
        raise _XarrayOnlyError("a fill value that is not a number")
    return tuple(sorted(fills))


def _seen_dtype(encoding: Mapping[Any, Any], stored: np.dtype) -> np.dtype:
    """The dtype in which stored integers are seen: of the other sign if an attribute says so."""
    if (stored.kind, encoding.get("_Unsigned")) in (("i", "true"), ("u", "false")):
        return np.dtype(f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}")
    return stored.newbyteorder("=")


def _check_known(
    stored: np.dtype, seen: np.dtype, decoded_to: np.dtype, is_masked: bool, num_factors: int
) -> None:
    """Raise `_XarrayOnlyError` where xarray computes in other steps than a `Packing`."""
    if decoded_to.kind == "b" and stored.kind != "b" and (is_masked or num_factors):
        raise _XarrayOnlyError("packed numbers decoded to bool")
    if is_masked and decoded_to.kind != "f":
        # For units of time, xarray keeps integers and marks missing values by the smallest one.
        raise _XarrayOnlyError(f"missing values in {decoded_to}")
    is_wide = stored.kind in "iu" and stored.itemsize == 4
    if is_wide and is_masked and num_factors == 2 and decoded_to == np.dtype("f4"):
        # For units of time, xarray chooses a dtype twice: float64 for the mask, then float32.
        raise _XarrayOnlyError("masked in float64, scaled in float32")
    if not is_masked and not num_factors and decoded_to.kind != "b" and decoded_to != seen:
        raise _XarrayOnlyError(f"{stored} to {decoded_to}")


class DefaultDtype(str):
    """A default dtype, which is replaced where it is too narrow for the values.

    A plain ``"float32"`` was asked for by the user and is kept. ``DefaultDtype("float32")``
    becomes float64 for packed integers of four bytes or more, because float32 cannot tell all
    their values apart.
    """

    __slots__ = ()


DEFAULT_DTYPE: Final = DefaultDtype("float32")
"""Default dtype of unpacked integers. Those of four bytes or more become float64."""


def is_readable(dtype: object) -> bool:
    """Whether values of a dtype can be read: bool, integers and floats."""
    return isinstance(dtype, np.dtype) and dtype.kind in READABLE_KINDS


def chosen_names(variables: Iterable[str] | str | None, offered: Iterable[str]) -> tuple[str, ...]:
    """The names that a user has chosen, each once; by default all that are offered."""
    if variables is None:
        return tuple(offered)
    chosen = (variables,) if isinstance(variables, str) else tuple(dict.fromkeys(variables))
    if not chosen:
        raise OptionError(
            "variables= is empty",
            given=chosen,
            allowed=", ".join(offered),
            remedy="leave variables= out to take them all",
        )
    return chosen


def choose(
    dataset: xr.Dataset, variables: Iterable[str] | str | None, source: str
) -> tuple[str, ...]:
    """Choose the data variables that a source offers."""
    there = {str(name): array.dtype for name, array in dataset.data_vars.items()}
    readable = [name for name, dtype in there.items() if is_readable(dtype)]
    if variables is None and not readable:
        raise UnsupportedDataError(
            f"{source} has no numeric data variable",
            given={name: str(dtype) for name, dtype in there.items()} or "no data variable",
            remedy="open another group with group=, or convert them with xarray's astype",
        )
    chosen = chosen_names(variables, readable)
    for name in chosen:
        if name not in there:
            raise _unknown(name, readable, dataset, source)
        if not is_readable(there[name]):
            raise UnsupportedDataError(
                f"variable {name!r} of {source} does not hold numbers",
                given=f"dtype {there[name]}",
                allowed=f"bool, integer and float variables: {', '.join(readable) or 'none here'}",
                remedy=f"convert it with ds[{name!r}].astype(...), or leave it out",
            )
        if np.isnan(dataset[name].shape).any():
            raise UnsupportedDataError(
                f"variable {name!r} of {source} has dask chunks of unknown size",
                given=", ".join(f"{dim}: {size}" for dim, size in dataset[name].sizes.items()),
                remedy=f"call ds[{name!r}].data.compute_chunk_sizes() first, or leave it out",
            )
    return chosen


def _unknown(name: str, readable: list[str], dataset: xr.Dataset, source: str) -> UnknownNameError:
    remedy = "pass one of these names"
    if name in dataset.coords:
        remedy = f"{name!r} is a coordinate: open the dataset and use reset_coords({name!r})"
    what = f"{source} has no data variable {name!r}"
    return unknown(name, readable, "data variable of numbers", what, remedy)


def decoded_dtype(array: xr.DataArray, dtype: DTypeLike | None) -> np.dtype:
    """The dtype of a variable's values when they are read, in native byte order."""
    values_dtype: np.dtype = np.dtype(array.dtype).newbyteorder("=")
    if dtype is None:
        return values_dtype
    try:
        wanted_dtype = np.dtype(str(dtype) if isinstance(dtype, str) else dtype).newbyteorder("=")
    except TypeError:
        wanted_dtype = np.dtype("V1")
    if wanted_dtype.kind != "f":
        raise OptionError(
            "packed integers cannot be decoded to this dtype",
            given=f"dtype={dtype!r}",
            allowed="float16, float32, float64, or None for xarray's choice",
            remedy="open with mask_and_scale=False to keep the packed integers",
        )
    stored = array.encoding.get("dtype")
    if not isinstance(stored, np.dtype) or stored.kind not in "iu" or values_dtype.kind != "f":
        return values_dtype
    if factors_of(array) == (None, None):
        return values_dtype
    if isinstance(dtype, DefaultDtype) and stored.itemsize >= 4:
        return np.dtype(np.float64)
    return wanted_dtype


def fingerprint(
    variables: Mapping[str, Variable], stored: Mapping[str, object], version: str = ""
) -> str:
    """Compute a digest of what was opened, without where it is stored."""
    described = {
        name: [
            *(variable.dims, variable.shape, variable.dtype.str, variable.chunks),
            stored.get(name),
            *([] if variable.packing is None else variable.packing.describe()),
        ]
        for name, variable in variables.items()
    }
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(f"{version}{text}".encode()).hexdigest()
