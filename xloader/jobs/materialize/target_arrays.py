"""The arrays of a store that is written for training: their shapes, chunks, shards and values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.core.messages import warn_caller
from xloader.core.option_checks import MOST, check_whole
from xloader.core.packing import Packing
from xloader.errors import MemoryBudgetError, OptionError, TargetWarning
from xloader.jobs.materialize.rechunking import Rechunking, SectionAxis, plan_sections
from xloader.jobs.materialize.value_packing import pack_values
from xloader.recipe.recipe import Recipe, find

Sizes = Mapping[str, Any]
"""Sizes by dimension, or by variable and then by dimension."""

_DECODING_KEYS: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes by which xarray would decode values again that are stored as they are."""


@dataclass(frozen=True, eq=False)
class TargetArray:
    """An array of the target.

    `shards`: the same of a shard; None if each chunk is an object of its own.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    axes: tuple[Axis, ...]
    kept: tuple[int, ...]
    source_dtype: np.dtype
    unpacking: Packing | None
    dtype: np.dtype
    packing: Packing | None
    bound: float
    attrs: Mapping[str, object]

    @property
    def objects(self) -> tuple[int, ...]:
        """Number of elements of a stored object along each dimension."""
        return self.shards or self.chunks

    @property
    def written_dtype(self) -> np.dtype:
        """Dtype of the numbers in the target."""
        return self.dtype if self.packing is None else self.packing.stored_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array, before it is compressed."""
        return math.prod(self.shape) * self.written_dtype.itemsize

    def rechunking(self) -> Rechunking:
        """The array as it is planned for."""
        axes = [self.axes[number] for number in self.kept]
        dropped = (axis for number, axis in enumerate(self.axes) if number not in self.kept)
        sizes = zip(axes, self.objects, strict=True)
        return Rechunking(
            tuple(SectionAxis(axis.edges, axis.read_sizes, size) for axis, size in sizes),
            self.source_dtype.itemsize,
            self._work_itemsize,
            math.prod(axis.max_read_size for axis in dropped),
        )

    @property
    def _work_itemsize(self) -> int:
        """Bytes at work for each element, beside its value and its encoding."""
        if self.bound:
            # Values are packed, and read back, in several arrays of float64.
            return 12
        if self.dtype.itemsize < self.source_dtype.itemsize:
            # The values in the smaller dtype, and their differences.
            return self.dtype.itemsize + self.source_dtype.itemsize
        return max(self.dtype.itemsize, self.written_dtype.itemsize)

    def key_of(self, shard: Sequence[int]) -> str:
        """The key of a shard in the store."""
        return "/".join((self.name, "c", *map(str, shard)))

    def keys_of(self, shards: NDArray[np.bool_]) -> list[str]:
        """The keys of some shards, given as flags, in order."""
        return [self.key_of(shard) for shard in np.argwhere(shards).tolist()]

    def stored_in(self, chunks: tuple[int, ...]) -> TargetArray:
        """An array of the same numbers as in the source, in other chunks."""
        return replace(
            self,
            chunks=chunks,
            shards=None,
            unpacking=None,
            dtype=self.source_dtype,
            packing=None,
            bound=0.0,
        )

    def unpacked(self) -> TargetArray:
        """The same array, in which values that the source has packed are stored unpacked."""
        assert self.packing is not None
        return replace(self, unpacking=self.packing, packing=None)

    def convert(self, values: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """The numbers to write for values that were read, and by how much these err at most."""
        if self.unpacking is not None:
            values = self.unpacking.unpack(values)
        if self.bound:
            assert self.packing is not None
            return pack_values(self.name, values, self.packing, self.bound)
        if values.dtype == self.written_dtype:
            return values, 0.0
        with np.errstate(over="ignore"):
            cast = values.astype(self.dtype)
        if self.dtype.itemsize < values.dtype.itemsize:
            lost = np.isinf(cast) & ~np.isinf(values)
            if lost.any():
                raise OptionError(
                    f"a value of {self.name!r} is too large for the dtype",
                    given=f"{values[lost].flat[0]!s}",
                    remedy=f"leave dtype= out, or pass pack={{{self.name!r}: 'int16'}}",
                )
            return cast, _largest_difference(values, cast)
        return cast, 0.0


def _largest_difference(values: NDArray[Any], cast: NDArray[Any]) -> float:
    """How much values are changed at most by another dtype. NaN and infinities do not count."""
    difference = cast.astype(values.dtype)
    with np.errstate(invalid="ignore"):
        np.subtract(difference, values, out=difference)
    np.abs(difference, out=difference)
    return max(float(np.fmax.reduce(difference, axis=None, initial=0.0)), 0.0)


def written_names(recipe: Recipe) -> tuple[str, ...]:
    """The stored variables that the fields of samples take; forcings are computed again.

    Without windows, all variables are taken.
    """
    taken = set(recipe.variables)
    if recipe.windows is not None:
        taken = {name for field in recipe.gathered_fields for name in field.variables}
    return tuple(
        name for name in recipe.variables if name in taken and not recipe.variable(name).is_computed
    )


def make_array(
    recipe: Recipe,
    name: str,
    chunks: Sizes,
    shards: Sizes | None,
    dtype: np.dtype | None,
    packing: tuple[Packing, float] | None = None,
) -> TargetArray:
    """Describe the array of a variable."""
    stored = recipe.variable(name)
    dims = recipe.dims_of(name)
    axes = recipe.axes_of(name)
    kept = tuple(number for number, dim in enumerate(stored.dims) if dim in dims)
    shape = tuple(axes[number].size for number in kept)
    whole_chunks = _shape_of(chunks, name, dims, shape)
    whole_shards = None
    if shards is not None:
        wanted_shards = _shape_of(shards, name, dims, shape)
        whole_shards = _whole_shards(name, dims, whole_chunks, wanted_shards, shape)
    unpacking, target, bound = None, stored.packing, 0.0
    values_dtype = stored.dtype
    if packing is not None:
        unpacking = stored.packing
        target, bound = packing
        values_dtype = target.dtype
    elif dtype is not None and stored.dtype.kind == "f" and dtype != stored.dtype:
        unpacking, target, values_dtype = stored.packing, None, dtype
    return TargetArray(
        name=name,
        dims=dims,
        shape=shape,
        chunks=whole_chunks,
        shards=whole_shards,
        axes=axes,
        kept=kept,
        source_dtype=stored.stored_dtype,
        unpacking=unpacking,
        dtype=values_dtype,
        packing=target,
        bound=bound,
        # They are attributes only where the source was opened without decoding.
        attrs={key: value for key, value in stored.attrs.items() if key not in _DECODING_KEYS},
    )


def with_fitting_shards(array: TargetArray, memory: int, num_tasks: int = 1) -> TargetArray:
    """The array in smaller shards, with a warning, where the memory is too small for its own."""
    fitting = array
    while fitting.shards is not None:
        try:
            plan_sections(fitting.rechunking(), memory // num_tasks, 1)
        except MemoryBudgetError:
            fitting = replace(fitting, shards=_smaller_shards(fitting.shards, fitting.chunks))
        else:
            break
    if fitting.shards != array.shards:
        shared = f" for {num_tasks} threads of a worker" if num_tasks > 1 else ""
        shards = fitting.shards or "no shards, each chunk an object"
        warn_caller(
            f"memory={memory} bytes{shared} is too small to write {array.name!r} in the advised "
            f"shards of {array.shards}. It gets {shards}. Pass more memory for the advised ones.",
            TargetWarning,
        )
    return fitting


def _smaller_shards(shards: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...] | None:
    """Half as many chunks along the dimension that has the most; None if a chunk is left."""
    counts = [size // chunk for size, chunk in zip(shards, chunks, strict=True)]
    dim = counts.index(max(counts))
    counts[dim] = -(-counts[dim] // 2)
    if max(counts) == 1:
        return None
    return tuple(count * chunk for count, chunk in zip(counts, chunks, strict=True))


def check_sizes(option: str, sizes: object, recipe: Recipe, names: Sequence[str]) -> None:
    """Check the option ``chunks`` or ``shards``."""
    if not isinstance(sizes, Mapping):
        raise OptionError(
            f"{option} is not a mapping of sizes",
            given=repr(sizes),
            remedy='pass chunks={"time": 8}: dimensions that are not named are not cut',
        )
    dims = {dim for name in names for dim in recipe.dims_of(name)}
    for key, size in sizes.items():
        if isinstance(size, Mapping):
            find(str(key), names, "variable")
            check_sizes(option, size, recipe, [str(key)])
            continue
        find(str(key), sorted(dims), "dimension")
        if size != -1:
            check_whole(f"{option} of {key!r}", size, 1, MOST)


def _shape_of(
    sizes: Sizes, name: str, dims: Sequence[str], shape: Sequence[int]
) -> tuple[int, ...]:
    requested = {**sizes, **sizes.get(name, {})} if isinstance(sizes.get(name), Mapping) else sizes
    chosen = []
    for dim, size in zip(dims, shape, strict=True):
        given = requested.get(dim, -1)
        is_size = not isinstance(given, Mapping) and given != -1
        chosen.append(max(min(int(given), size), 1) if is_size else max(size, 1))
    return tuple(chosen)


def _whole_shards(
    name: str,
    dims: Sequence[str],
    chunks: Sequence[int],
    shards: Sequence[int],
    shape: Sequence[int],
) -> tuple[int, ...]:
    whole = []
    for dim, chunk, shard, size in zip(dims, chunks, shards, shape, strict=True):
        if shard >= size:
            # A shard may reach beyond the array, and must hold whole chunks.
            shard = -(-size // chunk) * chunk
        if shard % chunk:
            raise OptionError(
                f"a shard of {name!r} does not hold whole chunks along {dim!r}",
                given=f"shards of {shard} elements, chunks of {chunk}",
                remedy=f"pass shards={{{dim!r}: {-(-shard // chunk) * chunk}}}",
            )
        whole.append(shard)
    return tuple(whole)
