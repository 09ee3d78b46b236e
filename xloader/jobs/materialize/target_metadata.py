"""The metadata and coordinates of a store that is written for training, made in memory first.

All processes that write parts of a store make the same objects, and put them at one stroke each. So
it does not matter which comes first.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from xloader.core.packing import Packing
from xloader.errors import OptionError, UnsupportedDataError, XloaderError
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.recipe.recipe import Recipe
from xloader.sources.arrays.catalog import DEFAULT_DTYPE
from xloader.sources.open.from_zarr import WRITTEN_BY
from xloader.sources.open.open_source import open_source

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
        self._compressors = compressors
        self.arrays = list(arrays)
        coords = _coordinates_of(recipe, self.arrays)
        self._held = self._checked(coords, dict(attrs))

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects by key, without that of the store itself."""
        objects = {key: bytes(buffer.to_bytes()) for key, buffer in self._held.items()}
        del objects["zarr.json"]
        return objects

    def codecs_of(self, name: str) -> Any:
        """The codecs of an array, as JSON holds them."""
        return json.loads(self.objects[f"{name}/zarr.json"])["codecs"]

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

    def _checked(self, coords: xr.Dataset, attrs: dict[str, Any]) -> dict[str, Any]:
        """Write the metadata, and see that everything reads as it should."""
        try:
            held = self._written(coords, attrs)
            differing = self._differing(held)
        except (XloaderError, ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
            packed = [a.name for a in self.arrays if a.packing is not None and not a.bound]
            if not packed:
                raise UnsupportedDataError(
                    f"the variables or labels would not read from Zarr as they are now "
                    f"({type(error).__name__}: {error})",
                    given=", ".join(a.name for a in self.arrays),
                    remedy="open it by xr.open_dataset, or groups of a DataTree one by one",
                ) from error
            differing = packed
        kept = {a.name for a in self.arrays if a.packing is not None and not a.bound}
        if differing and set(differing) <= kept:
            # xarray would read these packed numbers otherwise than they are read now.
            self.arrays = [a.unpacked() if a.name in differing else a for a in self.arrays]
            held = self._written(coords, attrs)
            differing = self._differing(held)
        if differing:
            raise UnsupportedDataError(
                "a variable would read otherwise from the target",
                given=", ".join(differing),
                remedy='open the source with dtype="float32", or leave the variable out',
            )
        return held

    def _written(self, coords: xr.Dataset, attrs: dict[str, Any]) -> dict[str, Any]:
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
        store = MemoryStore(held)
        options: Any = {"zarr_format": 3, "consolidated": False}
        with warnings.catch_warnings():
            # zarr says that some dtypes of labels are no part of the format yet.
            warnings.simplefilter("ignore")
            empty = xr.Dataset(variables)
            empty.to_zarr(store, mode="w", encoding=encodings, safe_chunks=False, **options)
            for array in self.arrays:
                _set_shape(held, array)
            coords.assign_attrs(attrs).to_zarr(store, mode="a", **options)
            _check_labels(held, coords)
        return held

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

    def _differing(self, held: dict[str, Any]) -> list[str]:
        """The arrays whose values would read otherwise than they are meant."""
        names = [array.name for array in self.arrays]
        variables = open_source(MemoryStore(held), variables=names, dtype=DEFAULT_DTYPE).variables
        return [
            array.name
            for array in self.arrays
            if variables[array.name].dtype != array.dtype
            or _facts(variables[array.name].packing) != _facts(array.packing)
        ]


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
