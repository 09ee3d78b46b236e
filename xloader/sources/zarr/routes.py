"""Which way each variable of a Zarr group is read, and what it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr

from xloader.sources import catalog
from xloader.sources.base import Variable
from xloader.sources.cf import coding_of
from xloader.sources.zarr.arrays import chunk_shape_of
from xloader.sources.zarr.codec_chains import chain_of
from xloader.sources.zarr.codecs import Metadata, codecs_in_words

Kind = Literal["direct", "indexed", "decoded"]
"""Our own decoding, zarr's indexing, or xarray's decoding of CF conventions."""


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

    Raises
    ------
    UnsupportedDataError
        If a factor or an offset is not one finite number, or chunks are not all of one shape.
    """
    values_dtype = catalog.decoded_dtype(decoded, dtype)
    chunks = chunk_shape_of(array)
    inside = math.prod(min(size, chunk) for size, chunk in zip(array.shape, chunks, strict=True))
    return Variable(
        name=str(decoded.name),
        dims=tuple(str(dim) for dim in decoded.dims),
        shape=tuple(array.shape),
        dtype=values_dtype,
        chunks=chunks,
        attrs=dict(decoded.attrs),
        packing=coding_of(decoded, np.dtype(array.dtype), values_dtype).packing,
        # A chunk may be stored, and is decoded, far larger than the array that it holds.
        thinning=max(1, math.prod(chunks) // max(1, inside)),
    )


def make_route(decoded: xr.DataArray, array: zarr.Array[Any]) -> Route:
    """Choose the way that a variable is read; see `make_variable`."""
    kind: Kind
    coding = coding_of(decoded, np.dtype(array.dtype))
    if coding.xarray_only:
        kind = "decoded"
        words = f"block by block through xarray, for its CF decoding ({coding.xarray_only})"
    elif chain_of(array.metadata) is None:
        kind, words = "indexed", "chunk by chunk through zarr's own indexing"
    else:
        kind, words = "direct", "direct"
    packed = f"; packed as {coding.packing.stored_dtype}" if coding.packing else ""
    return Route(array.path, array.metadata, kind, f"{words}: {codecs_in_words(array)}{packed}")
