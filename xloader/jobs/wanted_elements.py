"""A mask of elements, such as a land-sea mask: the elements that count as valid."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import ChunkValues, check_memory, sweep_values
from xloader.recipe.recipe import Recipe, find
from xloader.sources.combined.labels import are_same_labels

_REMEDY = 'pass a boolean DataArray over the selected elements, such as mask=ds["lsm"] > 0.5'


@dataclass(frozen=True, eq=False)
class WantedElements:
    """A boolean array over some dimensions of the samples: True where elements count."""

    dims: tuple[str, ...]
    flags: NDArray[np.bool_]
    num_reads: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        # A bit for each element, because pickles are sent to the workers of clusters.
        return _unpacked, (self.dims, np.packbits(self.flags), self.flags.shape, self.num_reads)


def _unpacked(
    dims: tuple[str, ...], packed: NDArray[np.uint8], shape: tuple[int, ...], num_reads: int
) -> WantedElements:
    flags = np.unpackbits(packed, count=math.prod(shape)).view(np.bool_).reshape(shape)
    return WantedElements(dims, flags, num_reads)


def placed_along(
    values: NDArray[Any], own_dims: tuple[str, ...], dims: tuple[str, ...]
) -> NDArray[Any]:
    """Bring the axes of an array into the order of more dimensions, to be broadcast over them."""
    order = sorted(range(len(own_dims)), key=lambda axis: dims.index(own_dims[axis]))
    sizes = dict(zip(own_dims, values.shape, strict=True))
    return values.transpose(order).reshape([sizes.get(dim, 1) for dim in dims])


def cut_along(
    values: NDArray[Any], own_dims: tuple[str, ...], dims: tuple[str, ...], parts: dict[str, slice]
) -> NDArray[Any]:
    """Cut a box out of an array along some dimensions, to be broadcast over more of them."""
    return placed_along(values[tuple(parts[dim] for dim in own_dims)], own_dims, dims)


@dataclass(frozen=True, eq=False)
class MaskArgument:
    """The checked argument ``mask``: a variable's name, or an array; nothing is read yet."""

    recipe: Recipe
    mask: str | xr.DataArray

    def __post_init__(self) -> None:
        mask: Any = self.mask
        if isinstance(mask, str):
            find(mask, self.recipe.variables, "variable")
            dims, dtype = self.recipe.dims_of(mask), self.recipe.variable(mask).dtype
        elif isinstance(mask, xr.DataArray):
            dims, dtype = tuple(map(str, mask.dims)), mask.dtype
            check_fits(self.recipe, mask, "mask")
        else:
            raise OptionError(
                "the mask is neither the name of a variable nor a DataArray",
                given=type(mask).__name__,
                remedy=_REMEDY,
            )
        if dtype.kind != "b" or not dims:
            raise OptionError(
                "the mask is not boolean" if dims else "the mask has no dimensions",
                given=f"dtype {dtype}, dimensions {dims}",
                remedy=_REMEDY,
            )

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the mask."""
        if isinstance(self.mask, str):
            return self.recipe.dims_of(self.mask)
        return tuple(map(str, self.mask.dims))

    @cached_property
    def key(self) -> str:
        """Text that is equal for equal masks of the same samples."""
        if isinstance(self.mask, str):
            return f"variable {self.mask}"
        digest = hashlib.sha256(repr((self.dims, self.mask.shape)).encode())
        digest.update(np.packbits(np.asarray(self.mask)).tobytes())
        return digest.hexdigest()

    def read(self, most_nbytes: int, num_threads: int) -> WantedElements:
        """The flags in memory. Those of a variable are read, each chunk once."""
        sizes = tuple(self.recipe.dim_sizes[dim] for dim in self.dims)
        nbytes = int(np.prod(sizes, dtype=np.int64))
        what = f"the mask of {nbytes} bytes, which is kept as one byte an element"
        check_memory(what, most_nbytes, 2 * nbytes, "pass a mask along fewer dimensions")
        if not isinstance(self.mask, str):
            return WantedElements(self.dims, np.asarray(self.mask))
        flags = np.empty(sizes, np.bool_)
        stored = self.recipe.variable(self.mask).dims

        def keep(chunk: ChunkValues) -> None:
            # Dimensions that the selection drops have one element.
            kept = [axis for axis, dim in enumerate(stored) if dim in self.dims]
            values = chunk.values.reshape([chunk.values.shape[axis] for axis in kept])
            begins = [chunk.begins[axis] for axis in kept]
            pairs = zip(begins, values.shape, strict=True)
            flags[tuple(slice(begin, begin + size) for begin, size in pairs)] = values

        num_reads = sweep_values(self.recipe, self.mask, most_nbytes // 2, num_threads, keep)
        return WantedElements(self.dims, flags, num_reads)


def check_fits(recipe: Recipe, array: xr.DataArray, noun: str) -> None:
    """Check that an array has sizes and labels of the selected elements along its dimensions."""
    sizes = recipe.dim_sizes
    given = ", ".join(f"{dim}: {size}" for dim, size in array.sizes.items())
    wanted = ", ".join(f"{dim}: {size}" for dim, size in sizes.items())
    if any(sizes.get(str(dim)) != size for dim, size in array.sizes.items()):
        raise OptionError(
            f"the shape of the {noun} is not that of the selected elements",
            given=f"{noun} with {given}",
            allowed=f"some of the dimensions {wanted}",
            remedy=f"select the same elements of the {noun} first, as by {noun}.sel(...)",
        )
    coords = recipe.source.coordinates()
    for dim in map(str, array.dims):
        if dim not in array.indexes or dim not in coords.indexes:
            continue
        labels = coords.indexes[dim][np.asarray(recipe.kept_of(dim))]
        if not are_same_labels(labels, array.indexes[dim]):
            raise OptionError(
                f"the labels of the {noun} along {dim!r} are not those of the samples",
                given=f"labels from {array.indexes[dim][0]} to {array.indexes[dim][-1]}, samples "
                f"from {labels[0]} to {labels[-1]}",
                remedy=f"select and order the {noun} by {noun}.sel({dim}=...); or pass "
                f"{noun}.drop_vars({dim!r}), if only the labels are written differently",
            )
