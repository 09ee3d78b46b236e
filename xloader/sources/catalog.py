"""The choice of a dataset's variables, their dtypes, and the digest that identifies a source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import xarray as xr
from numpy.typing import DTypeLike

from xloader.core.messages import closest
from xloader.errors import OptionError, UnknownNameError, UnsupportedDataError
from xloader.sources.base import Variable
from xloader.sources.cf import factors_of

READABLE_KINDS: Final = "biuf"
"""Kinds of NumPy dtype that can be read: bool, signed and unsigned integers, and floats."""


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


def choose(
    dataset: xr.Dataset, variables: Iterable[str] | str | None, source: str
) -> tuple[str, ...]:
    """Choose the data variables that a source offers."""
    there = {str(name): array.dtype for name, array in dataset.data_vars.items()}
    readable = [name for name, dtype in there.items() if is_readable(dtype)]
    if variables is None:
        if not readable:
            raise UnsupportedDataError(
                f"{source} has no numeric data variable",
                given={name: str(dtype) for name, dtype in there.items()} or "no data variable",
                allowed="bool, integer and float data variables",
                remedy="open another group with group=, or convert them with xarray's astype",
            )
        variables = readable
    asked = (variables,) if isinstance(variables, str) else tuple(dict.fromkeys(variables))
    if not asked:
        raise OptionError(
            "variables= is empty",
            given=asked,
            allowed=", ".join(readable),
            remedy="leave variables= out to take them all",
        )
    for name in asked:
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
                allowed="variables whose sizes are known",
                remedy=f"call ds[{name!r}].data.compute_chunk_sizes() first, which computes it "
                "once; or leave it out with variables=[...]",
            )
    return asked


def _unknown(name: str, readable: list[str], dataset: xr.Dataset, source: str) -> UnknownNameError:
    close = closest(name, readable)
    if close:
        remedy = f"did you mean {close!r}?"
    elif name in dataset.coords:
        remedy = f"{name!r} is a coordinate: open the dataset and use reset_coords({name!r})"
    else:
        remedy = "pass one of these names"
    return UnknownNameError(
        f"{source} has no data variable {name!r}",
        given=name,
        allowed=", ".join(readable) or "none: no data variable holds numbers",
        remedy=remedy,
    )


def decoded_dtype(array: xr.DataArray, dtype: DTypeLike | None) -> np.dtype:
    """The dtype of a variable's values when they are read, in native byte order."""
    own: np.dtype = np.dtype(array.dtype).newbyteorder("=")
    if dtype is None:
        return own
    try:
        asked = np.dtype(str(dtype) if isinstance(dtype, str) else dtype).newbyteorder("=")
    except TypeError:
        asked = np.dtype("V1")
    if asked.kind != "f":
        raise OptionError(
            "packed integers cannot be decoded to this dtype",
            given=f"dtype={dtype!r}",
            allowed="float16, float32, float64, or None for xarray's choice",
            remedy="open with mask_and_scale=False to keep the packed integers",
        )
    stored = array.encoding.get("dtype")
    if not isinstance(stored, np.dtype) or stored.kind not in "iu" or own.kind != "f":
        return own
    if factors_of(array) == (None, None):
        return own
    if isinstance(dtype, DefaultDtype) and stored.itemsize >= 4:
        return np.dtype(np.float64)
    return asked


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
