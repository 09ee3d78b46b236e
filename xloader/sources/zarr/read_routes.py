"""The way in which each variable of a Zarr group is read, and its description.

A variable is decoded by xloader itself if its codecs are known, else by zarr or by xarray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr

from xloader.sources import zarr_adapter
from xloader.sources.arrays import catalog
from xloader.sources.base import Variable
from xloader.sources.zarr.allowed_codecs import Metadata, codecs_in_words
from xloader.sources.zarr.parse_codecs import chain_of, sharding_of
from xloader.sources.zarr.stored_grid import StoredGrid, grid_of

Kind = Literal["direct", "indexed", "decoded"]
"""Decoding by xloader itself, by zarr's indexing, or by xarray for its CF conventions."""


@dataclass(frozen=True)
class Route:
    """How one variable is read. It is fixed at opening, and pickled with the source."""

    path: str
    metadata: Metadata
    grid: StoredGrid
    kind: Kind
    words: str

    @cached_property
    def is_sharded(self) -> bool:
        """Whether xloader itself reads the variable's chunks out of shards."""
        return self.kind == "direct" and self.grid.is_sharded

    @cached_property
    def compressor(self) -> str | None:
        """The compressor of chunks that are at most compressed, or an empty text; else None."""
        chain = chain_of(self.metadata, self.grid.largest_shape) if self.kind == "direct" else None
        simple = None if chain is None else chain.simple
        return None if simple is None else simple.compressor

    def object_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the stored object that xloader reads for a chunk."""
        return self.grid.object_of(chunk) if self.is_sharded else chunk


def make_variable(decoded: xr.DataArray, array: zarr.Array[Any], dtype: Any) -> Variable:
    """Describe a variable as the source offers it."""
    values_dtype = catalog.decoded_dtype(decoded, dtype)
    grid = grid_of(array)
    inside = math.prod(map(min, array.shape, grid.largest_shape))
    return Variable(
        name=str(decoded.name),
        dims=tuple(str(dim) for dim in decoded.dims),
        shape=tuple(array.shape),
        dtype=values_dtype,
        chunks=grid.chunks,
        attrs=dict(decoded.attrs),
        packing=catalog.coding_of(decoded, np.dtype(array.dtype), values_dtype).packing,
        # A chunk may be far larger than its array, and is decoded at its full size.
        thinning=max(1, math.prod(grid.largest_shape) // max(1, inside)),
    )


def make_route(decoded: xr.DataArray, array: zarr.Array[Any]) -> Route:
    """Choose how a variable is read."""
    kind: Kind
    coding = catalog.coding_of(decoded, np.dtype(array.dtype))
    grid = grid_of(array)
    if coding.xarray_only:
        kind = "decoded"
        words = f"block by block through xarray, because of its CF decoding ({coding.xarray_only})"
    elif not _is_decoded_here(array.metadata, grid):
        kind, words = "indexed", "chunk by chunk through zarr's own indexing"
    else:
        kind, words = "direct", "direct"
    packed = f"; packed as {coding.packing.stored_dtype}" if coding.packing else ""
    words = f"{words}: {codecs_in_words(array)}{packed}"
    return Route(array.path, array.metadata, grid, kind, words)


def _is_decoded_here(metadata: Metadata, grid: StoredGrid) -> bool:
    if not (zarr_adapter.is_known() and grid.is_known):
        return False
    if chain_of(metadata, grid.largest_shape) is None:
        return False
    if not grid.is_sharded:
        return True
    sizes = grid.chunks_per_object((0,) * len(grid.shape))
    return sharding_of(metadata, sizes) is not None
