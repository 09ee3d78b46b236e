"""Which way each variable of a Zarr group is read, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr

from xloader.sources import catalog
from xloader.sources._zarr import Metadata, chain_of, chunk_shape_of, codecs_in_words
from xloader.sources.base import Variable

Kind = Literal["direct", "indexed", "decoded"]
"""Our own decoding, zarr's indexing, or xarray's decoding of CF conventions."""

DECODING_KEYS = frozenset({"scale_factor", "add_offset", "missing_value", "_Unsigned"})
"""What xarray leaves in a variable's encoding when it has changed the stored values."""


@dataclass(frozen=True)
class Route:
    """What is fixed about one variable when the source is opened, and pickles with it.

    Parameters
    ----------
    path : str
        Path of its array within the store.
    metadata : ArrayV2Metadata or ArrayV3Metadata
        The array's metadata.
    kind : {"direct", "indexed", "decoded"}
        Which way it is read.
    words : str
        The same in words.
    """

    path: str
    metadata: Metadata
    kind: Kind
    words: str


def array_of(group: zarr.Group, name: str) -> zarr.Array[Any]:
    """The array of a data variable."""
    array = group[name]
    assert isinstance(array, zarr.Array), "xarray makes variables of arrays only"
    return array


def make_variable(decoded: xr.DataArray, array: zarr.Array[Any], dtype: Any) -> Variable:
    """Say what a variable offers.

    Parameters
    ----------
    decoded : xarray.DataArray
        The variable as xarray decodes it, lazily.
    array : zarr.Array
        The array that holds it.
    dtype : dtype-like or None
        What packed integers decode to, as `catalog.decoded_dtype` has it.
    """
    return Variable(
        name=str(decoded.name),
        dims=tuple(str(dim) for dim in decoded.dims),
        shape=tuple(array.shape),
        dtype=catalog.decoded_dtype(decoded, dtype),
        chunks=chunk_shape_of(array),
        attrs=dict(decoded.attrs),
    )


def make_route(decoded: xr.DataArray, array: zarr.Array[Any]) -> Route:
    """Choose the way that a variable is read; see `make_variable`."""
    kind: Kind
    stored = np.dtype(array.dtype).newbyteorder("=")
    is_changed = (
        not DECODING_KEYS.isdisjoint(decoded.encoding)
        or np.dtype(decoded.dtype).newbyteorder("=") != stored
        or _is_masked(decoded, stored)
    )
    if is_changed:
        kind, words = "decoded", "block by block through xarray, for its CF decoding"
    elif chain_of(array.metadata) is None:
        kind, words = "indexed", "chunk by chunk through zarr's own indexing"
    else:
        kind, words = "direct", "direct"
    return Route(array.path, array.metadata, kind, f"{words}: {codecs_in_words(array)}")


def _is_masked(decoded: xr.DataArray, stored: np.dtype) -> bool:
    fill = decoded.encoding.get("_FillValue")
    # Masking NaN as NaN changes nothing.
    return fill is not None and not (stored.kind == "f" and bool(np.isnan(fill)))
