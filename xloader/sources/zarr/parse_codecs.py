"""Translation of an array's codecs from its metadata to a `Chain` that xloader decodes itself.

A user may register a codec of their own under the name of one of zarr's or numcodecs' codecs. Its
class comes from another package, and the array is then left to zarr.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numcodecs
import numcodecs.registry
import numpy as np
import zarr
import zarr.errors
from numcodecs.errors import UnknownCodecError
from zarr.abc.codec import Codec

from xloader.errors import UnsupportedDataError
from xloader.sources.zarr.codec_chain import (
    COMPRESSORS,
    CastView,
    Chain,
    Checked,
    Compressed,
    Filtered,
    Sharding,
    Shuffled,
    Step,
    Transposed,
    Turn,
)

Metadata: TypeAlias = Any
"""Metadata of a Zarr array, v2 or v3, as ``zarr.Array.metadata`` has them. zarr has no public
class for them.
"""

_PREFIX: Final = "numcodecs."
"""Prefix of the names of numcodecs' codecs in the metadata of Zarr v3."""

_NUMERIC: Final = frozenset(
    {"blosc", "zstd", "lz4", "gzip", "zlib", "bz2", "lzma", "pcodec", "zfpy", "base64"}
    | {"delta", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround", "shuffle"}
    | {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
)
"""Codecs of numcodecs that can only give numbers, whatever the stored bytes are."""

_PACKAGES: Final = {
    "gribberish": "gribberish",
    "gribscan": "gribscan",
    **dict.fromkeys(("grib", "fill_hdf_strings", "FITS", "record_member"), "kerchunk"),
    "imagecodecs": "imagecodecs",
    "pcodec": "pcodec",
    "zfpy": "zfpy",
}
"""The package of some codecs, by how their names begin; longer ones come first."""

_OF_OBJECTS: Final = frozenset(
    {"pickle", "json2", "msgpack2", "categorize", "vlen-utf8", "vlen-bytes", "vlen-array"}
)
"""Codecs that build Python objects from the bytes. pickle runs code that the bytes hold."""


def codecs_in_words(array: zarr.Array[Any]) -> str:
    """The format version and the codecs of an array: ``"zarr v3, bytes, zstd"``."""
    names = (_name_of(codec) for codec in _codecs_of(array.metadata, with_index=False))
    return ", ".join([f"zarr v{array.metadata.zarr_format}", *names])


def check_codecs(array: zarr.Array[Any]) -> None:
    """Refuse an array of numbers whose codecs may do more than decode numbers.

    zarr's own codecs and the numeric codecs of numcodecs are allowed. So are codecs of other
    packages, because the user installed them. Codecs that build Python objects are refused by
    their names, of whatever package: pickle runs any code that the chunks hold.
    """
    for codec in _codecs_of(array.metadata, with_index=True):
        name = _name_of(codec).removeprefix(_PREFIX)
        package = type(codec).__module__.partition(".")[0]
        is_numeric = package != "numcodecs" or name in _NUMERIC
        if name in _OF_OBJECTS or not is_numeric:
            raise _refusal(f"array {array.path!r}", name)
        if isinstance(codec, Codec) and package == "zarr":
            _check_settings(array.path, cast("Mapping[str, Any]", codec.to_dict()))


def numcodec_of(codec: Mapping[str, Any]) -> object:
    """Make the codec of numcodecs that an entry in the metadata of Zarr v3 describes.

    None if it is not a codec of numcodecs.
    """
    name = str(codec["name"])
    if not name.startswith(_PREFIX):
        return None
    config = {"id": name.removeprefix(_PREFIX), **codec.get("configuration", {})}
    return numcodecs.registry.get_codec(config)


def _check_settings(path: str, codec: Mapping[str, Any]) -> None:
    """Refuse a codec of numcodecs that cannot be made. zarr would only fail when decoding."""
    try:
        numcodec_of(codec)
    # Each codec raises errors of its own for bad settings, or lets NumPy raise.
    except Exception as error:
        raise UnsupportedDataError(
            f"array {path!r} has a codec with invalid settings ({error})",
            given=dict(codec),
            remedy="write the array again, or correct its zarr.json",
        ) from error


def unknown_codec_error(error: Exception, name: str) -> UnsupportedDataError | None:
    """Translate an error of zarr at opening; None if it is not about a codec."""
    if isinstance(error, UnknownCodecError | zarr.errors.UnknownCodecError):
        # The codec's name is the only quoted text in numcodecs' error, and the first in zarr's.
        quoted = re.search(r"['\"]+([^'\"]+)['\"]+", str(error))
        codec = quoted.group(1) if quoted else str(error)
        short_name = codec.removeprefix(_PREFIX)
        if short_name in _OF_OBJECTS:
            return _refusal(f"an array of {name}", codec)
        package = next((p for start, p in _PACKAGES.items() if short_name.startswith(start)), "")
        return UnsupportedDataError(
            f"{name} has an array with an unknown codec",
            given=repr(codec),
            remedy=f"install the package that provides this codec: pip install {package}"
            if package
            else "install the package that provides this codec, and import it if needed",
        )
    # For numbers stored with a codec of objects, zarr raises that it finds no dtype.
    of_objects = re.search(r"'object_codec_id': '([^']+)'", str(error))
    if isinstance(error, ValueError) and of_objects:
        return _refusal(f"an array of {name}", of_objects.group(1))
    return None


def _refusal(what: str, codec: str) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"{what} is stored with a codec that makes Python objects, and may run code",
        given=f"codec {codec!r}",
        remedy="write the array again as numbers, with codecs such as blosc or zstd",
    )


def _codecs_of(metadata: Metadata, *, with_index: bool) -> Iterator[object]:
    """Every codec of an array, with those inside shards, and if asked those of their indexes."""
    if metadata.zarr_format == 2:
        yield from metadata.filters or ()
        if metadata.compressor is not None:
            yield metadata.compressor
        return
    codecs = list(metadata.codecs)
    while codecs:
        codec = codecs.pop(0)
        yield codec
        # A sharding codec of any package may contain codecs of its own.
        codecs[:0] = getattr(codec, "codecs", ())
        codecs[:0] = getattr(codec, "index_codecs", ()) if with_index else ()


def _name_of(codec: object) -> str:
    if isinstance(codec, Codec):
        return str(codec.to_dict()["name"])
    return str(cast(Any, codec).get_config()["id"])


NUMBERS: Final = "biuf"
"""Kinds of NumPy dtype that are decoded here: bool, integers and floats."""

_STEPS: Final[dict[str, Step]] = {
    **{name: Compressed(name) for name in ("blosc", "zstd", "gzip")},
    "crc32c": Checked("crc32c"),
}
"""The step for each of zarr's own codecs on bytes, by their names in metadata."""

_CHECKSUMS: Final = frozenset({"crc32", "adler32", "crc32c"})

_FILTERS: Final = frozenset(
    {"delta", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround"}
)
"""Filters of numcodecs that are undone here."""

_UNKNOWN: Final = (AttributeError, KeyError, NotImplementedError, TypeError, ValueError)
"""Errors that are raised when metadata in an unknown form are read."""

_OWN_PACKAGES: Final = frozenset({"zarr", "numcodecs"})


def chain_of(metadata: Metadata, shape: tuple[int, ...]) -> Chain | None:
    """Read the codec chain of an array.

    None if xloader's own decoding does not know the codecs.
    """
    try:
        if metadata.zarr_format == 2:
            return _chain_v2(metadata, shape)
        if metadata.storage_transformers:
            return None
        codecs = metadata.codecs
        sharding = _sharding_document(codecs)
        described = [codec.to_dict() for codec in codecs]
        if sharding is not None:
            described = sharding["codecs"]
            codecs = cast(Any, codecs[0]).codecs
        if not all(map(_is_own, codecs)):
            return None
        return _chain_v3(described, shape, np.dtype(metadata.data_type.to_native_dtype()))
    except _UNKNOWN:
        # The metadata are unusual or invalid. zarr reads the array, or raises its own error.
        return None


def sharding_of(metadata: Metadata, chunks_per_shard: tuple[int, ...]) -> Sharding | None:
    """Read how the chunks lie in the shards of an array.

    None if the array has no shards, or if their index is stored in an unknown way.
    """
    try:
        if metadata.zarr_format == 2 or metadata.storage_transformers:
            return None
        document = _sharding_document(metadata.codecs)
        if document is None or not all(map(_is_own, cast(Any, metadata.codecs[0]).index_codecs)):
            return None
        chain = _chain_v3(document["index_codecs"], (*chunks_per_shard, 2), np.dtype("u8"))
    except _UNKNOWN:
        return None
    if chain is None or not chain.is_fixed_size:
        return None
    return Sharding(chunks_per_shard, chain, document.get("index_location") == "start")


def _sharding_document(codecs: Sequence[Codec]) -> Mapping[str, Any] | None:
    """The configuration of zarr's sharding codec, if it is the array's only codec."""
    if len(codecs) != 1 or not _is_own(codecs[0]):
        return None
    document = cast("Mapping[str, Any]", codecs[0].to_dict())
    return document["configuration"] if document["name"] == "sharding_indexed" else None


def _is_own(codec: object) -> bool:
    return type(codec).__module__.partition(".")[0] in _OWN_PACKAGES


def _chain_v2(metadata: Metadata, shape: tuple[int, ...]) -> Chain | None:
    dtype = np.dtype(metadata.dtype.to_native_dtype())
    if dtype.kind not in NUMBERS:
        return None
    nbytes = math.prod(shape) * dtype.itemsize
    is_turned = metadata.order == "F" and len(shape) > 1
    turns: list[Turn] = [Transposed(tuple(range(len(shape)))[::-1])] if is_turned else []
    turns.append(CastView(dtype, shape[::-1] if is_turned else shape))
    steps: list[Step] = []
    compressor = () if metadata.compressor is None else (metadata.compressor,)
    # In the order of encoding, so that each size follows from the chunk's size.
    for codec in (*(metadata.filters or ()), *compressor):
        step = _step_of(codec)
        if step is not None:
            steps.append(step)
            continue
        name = _numcodecs_name(codec)
        if name not in _FILTERS or steps:
            return None
        if name != "bitround":
            nbytes = _filtered_nbytes(name, codec, nbytes)
            turns.append(Filtered(codec))
    return _make_chain(steps, nbytes, turns)


def _chain_v3(
    codecs: Sequence[Mapping[str, Any]], shape: tuple[int, ...], dtype: np.dtype
) -> Chain | None:
    """The chain of the codecs that metadata describe, for chunks of a shape and a dtype."""
    turns: list[Turn] = []
    rest = list(codecs)
    while rest and rest[0]["name"] != "bytes":
        codec = rest.pop(0)
        if dtype.kind not in NUMBERS:
            return None
        if codec["name"] == "transpose":
            order = [int(axis) for axis in codec["configuration"]["order"]]
            shape = tuple(shape[axis] for axis in order)
            axes = tuple(int(axis) for axis in np.argsort(order))
            if axes != tuple(range(len(axes))):
                turns.append(Transposed(axes))
            continue
        inner = numcodec_of(codec)
        name = _numcodecs_name(inner)
        if name not in _FILTERS:
            return None
        turns.append(Filtered(inner, shape))
        # Shape and dtype once it has encoded a chunk. zarr assumes that the others keep the dtype.
        if name == "packbits":
            shape, dtype = (1 + -(-math.prod(shape) // 8),), np.dtype("u1")
        elif name == "astype":
            dtype = cast(Any, inner).encode_dtype
        elif name in ("delta", "fixedscaleoffset"):
            dtype = cast(Any, inner).astype
    if not rest or dtype.kind not in NUMBERS:
        return None
    endian = rest[0].get("configuration", {}).get("endian")
    if endian is None and dtype.itemsize > 1:
        return None
    if endian is not None:
        dtype = dtype.newbyteorder(">" if endian == "big" else "<")
    turns.append(CastView(dtype, shape))
    steps = [_STEPS.get(codec["name"]) or _step_of(numcodec_of(codec)) for codec in rest[1:]]
    return _make_chain(steps, math.prod(shape) * dtype.itemsize, turns)


def _make_chain(steps: Sequence[Step | None], nbytes: int, turns: Sequence[Turn]) -> Chain | None:
    """Make a chain of steps and turns given in the order of encoding; None if unknown."""
    known = tuple(step for step in steps if step is not None)
    if len(known) < len(steps) or sum(isinstance(step, Compressed) for step in known) > 1:
        return None
    # A shuffle of elements of one byte changes nothing.
    known = tuple(s for s in known if not isinstance(s, Shuffled) or s.itemsize > 1)
    return Chain(known[::-1], nbytes, tuple(turns[::-1]))


def _numcodecs_name(codec: object) -> str:
    """The name of a codec of numcodecs itself; empty for one of any other package."""
    is_numcodecs = type(codec).__module__.startswith(_PREFIX)
    return str(cast(Any, codec).codec_id) if is_numcodecs else ""


def _step_of(codec: object) -> Step | None:
    name = _numcodecs_name(codec)
    if name in COMPRESSORS:
        return Compressed(name)
    if name == "fletcher32":
        return Checked(name)
    if name in _CHECKSUMS:
        return Checked(name, cast(Any, codec).location == "start")
    if name == "shuffle":
        return Shuffled(int(cast(Any, codec).elementsize))
    return None


def _filtered_nbytes(name: str, codec: Any, nbytes: int) -> int:
    """Size in bytes of ``nbytes`` bytes once a filter has encoded them."""
    if name == "packbits":
        return 1 + -(-nbytes // 8)
    if name == "astype":
        decoded, encoded = codec.decode_dtype, codec.encode_dtype
    else:
        decoded, encoded = codec.dtype, codec.astype
    num_elements, rest = divmod(nbytes, decoded.itemsize)
    if rest or decoded.kind not in NUMBERS or encoded.kind not in NUMBERS:
        raise ValueError(f"a filter of {decoded} and {encoded} on {nbytes} bytes")
    return int(num_elements * encoded.itemsize)
