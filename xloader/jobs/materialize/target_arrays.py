"""The arrays of a store that is written for training, with its metadata and coordinates.

The metadata are made in memory first. All processes that write parts of a store make the same
objects, and put them at one stroke each. So it does not matter which comes first.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from xloader.core.axis import Axis
from xloader.core.messages import warn_caller
from xloader.core.option_checks import MOST, check_whole
from xloader.core.packing import Packing
from xloader.errors import (
    MemoryBudgetError,
    OptionError,
    TargetWarning,
    UnsupportedDataError,
    XloaderError,
)
from xloader.jobs.materialize.rechunking import Rechunking, SectionAxis, plan_sections
from xloader.jobs.materialize.value_packing import pack_values
from xloader.recipe.recipe import Recipe, find
from xloader.sources.arrays.catalog import DECODING_KEYS, DEFAULT_DTYPE
from xloader.sources.open.from_zarr import WRITTEN_BY
from xloader.sources.open.open_source import open_source

Sizes = Mapping[str, Any]
"""Sizes by dimension, or by variable and then by dimension."""


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
        # xarray would decode values again that are stored as they are.
        attrs={key: value for key, value in stored.attrs.items() if key not in DECODING_KEYS},
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


ORIGIN: Final = "xloader_origin_fingerprint"

_KEPT_KEYS: Final = ("units", "calendar", "dtype", "_FillValue", "scale_factor", "add_offset")
"""Keys of a coordinate's encoding that say how its labels are stored."""


class TargetMetadata:
    """The objects of a store without its chunks.

    `compressors`: compressors for Zarr; None for none.
    """

    def __init__(
        self,
        recipe: Recipe,
        arrays: Sequence[TargetArray],
        compressors: Any,
        attrs: Mapping[str, Any],
    ) -> None:
        self.arrays, self._compressors = list(arrays), compressors
        coords = _coordinates_of(recipe, self.arrays).assign_attrs(attrs)
        packed = {a.name for a in arrays if a.packing is not None and not a.bound}
        try:
            differing = self._write(coords)
        except (XloaderError, ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
            if not packed:
                raise UnsupportedDataError(
                    f"the variables or labels would not read from Zarr as they are now "
                    f"({type(error).__name__}: {error})",
                    given=", ".join(a.name for a in arrays),
                    remedy="open it by xr.open_dataset, or groups of a DataTree one by one",
                ) from error
            differing = packed
        if differing and differing <= packed:
            # xarray would read these packed numbers otherwise than they are read now.
            self.arrays = [a.unpacked() if a.name in differing else a for a in arrays]
            differing = self._write(coords)
        if differing:
            raise UnsupportedDataError(
                "a variable would read otherwise from the target",
                given=", ".join(sorted(differing)),
                remedy='open the source with dtype="float32", or leave the variable out',
            )

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects by key, without that of the store itself."""
        objects = {key: bytes(buffer.to_bytes()) for key, buffer in self._held.items()}
        del objects["zarr.json"]
        return objects

    def of_array(self, name: str) -> bytes:
        """The metadata of an array."""
        return bytes(self._held[f"{name}/zarr.json"].to_bytes())

    def root(self, job: Mapping[str, Any], *, is_complete: bool) -> bytes:
        """The object of the store itself; with consolidated metadata when all is written."""
        held = dict(self._held)
        store = MemoryStore(held)
        with warnings.catch_warnings():
            # zarr says that consolidated metadata are no part of the format yet. xarray looks for
            # them.
            warnings.simplefilter("ignore")
            zarr.open_group(store, mode="r+").attrs.update({WRITTEN_BY: dict(job)})
            if is_complete:
                zarr.consolidate_metadata(store)
        return bytes(held["zarr.json"].to_bytes())

    def _write(self, coords: xr.Dataset) -> set[str]:
        """Write the metadata and labels; the arrays whose values would read otherwise."""
        # Arrays without elements: of whole ones, xarray would write values, or want dask for the
        # metadata alone, which loads 13 MiB more of libraries.
        variables = {
            a.name: xr.Variable(
                a.dims, np.zeros([0] * len(a.dims), a.dtype), self._attrs_of(a, coords)
            )
            for a in self.arrays
        }
        encodings = {a.name: self._encoding_of(a) for a in self.arrays}
        held: dict[str, Any] = {}
        self._held = held
        store = MemoryStore(held)
        options: Any = {"zarr_format": 3, "consolidated": False}
        with warnings.catch_warnings():
            # zarr says that some dtypes of labels are no part of the format yet.
            warnings.simplefilter("ignore")
            empty = xr.Dataset(variables)
            empty.to_zarr(store, mode="w", encoding=encodings, safe_chunks=False, **options)
            for array in self.arrays:
                _set_shape(held, array)
            coords.to_zarr(store, mode="a", **options)
            _check_labels(held, coords)
        read = open_source(store, variables=list(variables), dtype=DEFAULT_DTYPE).variables
        return {
            array.name
            for array in self.arrays
            if read[array.name].dtype != array.dtype
            or _facts(read[array.name].packing) != _facts(array.packing)
        }

    def _attrs_of(self, array: TargetArray, coords: xr.Dataset) -> dict[str, Any]:
        """The attributes of an array; as in CF, they name the coordinates that are no index."""
        names = [
            str(name)
            for name, coord in coords.coords.items()
            # Names are divided by spaces, so xarray leaves out those that hold one.
            if not (name in coords.dims or " " in str(name) or set(coord.dims) - set(array.dims))
        ]
        return {**array.attrs, **({"coordinates": " ".join(sorted(names))} if names else {})}

    def _encoding_of(self, array: TargetArray) -> dict[str, Any]:
        encoding: dict[str, Any] = {"chunks": array.chunks, "compressors": self._compressors}
        if array.shards is not None:
            encoding["shards"] = array.shards
        if array.packing is not None:
            encoding |= _packed_encoding(array.packing)
        return encoding


def _set_shape(held: dict[str, Any], array: TargetArray) -> None:
    """Give an array that was written without elements its shape."""
    key = f"{array.name}/zarr.json"
    document = json.loads(held[key].to_bytes()) | {"shape": list(array.shape)}
    held[key] = type(held[key]).from_bytes(json.dumps(document, indent=2).encode())
    for written in [name for name in held if name.startswith(f"{array.name}/c")]:
        del held[written]


def _packed_encoding(packing: Packing) -> dict[str, Any]:
    given = list(packing.fills)
    encoding: dict[str, Any] = {"dtype": packing.stored_dtype}
    if packing.seen_dtype != packing.stored_dtype:
        limits = np.iinfo(packing.stored_dtype)
        # The other one is the same number with the other sign, which xarray finds by itself.
        given = [fill for fill in given if limits.min <= fill <= limits.max]
        encoding["_Unsigned"] = "true" if packing.seen_dtype.kind == "u" else "false"
    fills = [packing.stored_dtype.type(fill) for fill in given]
    if len(fills) > 1:
        raise OptionError("xarray encodes one fill value only", given=str(fills))
    if fills:
        encoding |= {"_FillValue": fills[0], "fill_value": fills[0].item()}
    if packing.scale is not None:
        encoding["scale_factor"] = packing.scale
    if packing.offset is not None:
        encoding["add_offset"] = packing.offset
    return encoding


def _facts(packing: Packing | None) -> object:
    """Everything that fixes the values of a packing."""
    # Older releases of xarray store a bool as an integer of one byte, which has the same bits.
    if packing is None or (packing.dtype == bool and packing.stored_dtype.itemsize == 1):
        return None
    numbers = (packing.scale, packing.offset)
    return (
        packing.stored_dtype,
        packing.seen_dtype,
        packing.wide_dtype,
        packing.dtype,
        [float(fill) for fill in packing.fills],
        [(type(number).__name__, str(number)) for number in numbers],
    )


def _coordinates_of(recipe: Recipe, arrays: Sequence[TargetArray]) -> xr.Dataset:
    """The labels of the part that is kept, in memory."""
    coords = recipe.source.coordinates()
    kept: dict[str, Any] = {}
    for dim, elements in recipe.selection:
        if dim in coords.dims:
            kept[dim] = elements if isinstance(elements, int) else np.asarray(elements, np.int64)
    coords = coords.isel(kept)
    dims = {dim for array in arrays for dim in array.dims}
    names = [name for name, coord in coords.coords.items() if set(map(str, coord.dims)) <= dims]
    # Labels of one dimension may lie along several, as those of points do.
    labels = coords.drop_vars([name for name in coords.coords if name not in names]).load()
    for name in list(labels.coords):
        index = labels.indexes.get(name)
        if index is not None and index.nlevels > 1:
            raise UnsupportedDataError(
                "labels of several levels cannot be stored in Zarr",
                given=f"the coordinate {name!r} with the levels {list(index.names)}",
                remedy=f"open ds.reset_index({name!r}) instead",
            )
        labels[name].encoding = _label_encoding(labels[name])
    labels.attrs = {}
    return labels


def _label_encoding(label: xr.DataArray) -> dict[str, Any]:
    encoding = {key: label.encoding[key] for key in _KEPT_KEYS if key in label.encoding}
    # Text of a fixed length, as in netCDF, becomes Zarr's own text.
    is_number = np.dtype(encoding.get("dtype", label.dtype)).kind in "biuf"
    return encoding if is_number else {}


def _check_labels(held: dict[str, Any], coords: xr.Dataset) -> None:
    """See that labels read as they were, and store them anew by xarray's own choice if not."""
    store = MemoryStore(held)
    read = xr.open_zarr(store, consolidated=False)
    differing = [
        str(name)
        for name, coord in coords.coords.items()
        if name not in read.coords
        or coord.dims != read[name].dims
        or not coord.variable.equals(read[name].variable)
    ]
    for key in [key for key in held if key.split("/")[0] in differing]:
        del held[key]
    if differing:
        again = coords[differing].drop_encoding()
        again.to_zarr(store, mode="a", zarr_format=3, consolidated=False)


def parse_compressors(compressor: Any, *, checksum: bool) -> tuple[BytesBytesCodec, ...] | None:
    """The codecs that a chunk's bytes go through."""
    codecs: list[BytesBytesCodec]
    if compressor is None:
        codecs = []
    elif isinstance(compressor, str) and compressor in ("zstd", "lz4"):
        blosc = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
        codecs = [ZstdCodec(level=3) if compressor == "zstd" else blosc]
    elif isinstance(compressor, BytesBytesCodec):
        codecs = [compressor]
    elif isinstance(compressor, list | tuple) and all(
        isinstance(codec, BytesBytesCodec) for codec in compressor
    ):
        codecs = list(compressor)
    else:
        raise OptionError(
            "the compressor is not known",
            given=repr(compressor),
            remedy='pass "zstd", "lz4", None, or bytes-to-bytes codecs of zarr.codecs',
        )
    if checksum and not any(isinstance(codec, Crc32cCodec) for codec in codecs):
        codecs.append(Crc32cCodec())
    return tuple(codecs) or None
