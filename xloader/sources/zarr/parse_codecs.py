"""Translation of an array's codecs from its metadata to a `Chain` that xloader decodes itself.

A user may register a codec of their own under the name of one of zarr's or numcodecs' codecs. Its
class comes from another package, and the array is then left to zarr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numcodecs
import numpy as np
from zarr.abc.codec import Codec

from xloader.sources.zarr.allowed_codecs import Metadata, numcodec_of
from xloader.sources.zarr.codec_chain import CastView, Chain, Filtered, Sharding, Transposed, Turn
from xloader.sources.zarr.plain_decoding import Checked, Compressed, Shuffled, Step

NUMBERS: Final = "biuf"
"""Kinds of NumPy dtype that are decoded here: bool, integers and floats."""

_STEPS: Final[dict[str, Step]] = {
    **{name: Compressed(name) for name in ("blosc", "zstd", "gzip")},
    "crc32c": Checked("crc32c"),
}
"""The step for each of zarr's own codecs on bytes, by their names in metadata."""

_COMPRESSORS: Final[dict[type, str]] = {
    numcodecs.blosc.Blosc: "blosc",
    numcodecs.zstd.Zstd: "zstd",
    numcodecs.lz4.LZ4: "lz4",
    numcodecs.gzip.GZip: "gzip",
    numcodecs.zlib.Zlib: "zlib",
    numcodecs.bz2.BZ2: "bz2",
}
_CHECKSUMS: Final[dict[type, str]] = {
    numcodecs.checksum32.CRC32: "crc32",
    numcodecs.checksum32.Adler32: "adler32",
}
_FILTERS: Final = frozenset(
    {
        numcodecs.delta.Delta,
        numcodecs.fixedscaleoffset.FixedScaleOffset,
        numcodecs.quantize.Quantize,
        numcodecs.astype.AsType,
        numcodecs.packbits.PackBits,
        numcodecs.bitround.BitRound,
    }
)
# numcodecs has this class only if the library for it is installed.
if (_crc32c := getattr(numcodecs.checksum32, "CRC32C", None)) is not None:
    _CHECKSUMS[_crc32c] = "crc32c"

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
        if type(codec) not in _FILTERS or steps:
            return None
        nbytes = _filtered_nbytes(codec, nbytes)
        if type(codec) is not numcodecs.bitround.BitRound:
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
        if type(inner) not in _FILTERS:
            return None
        turns.append(Filtered(inner, shape))
        shape, dtype = _filtered(inner, shape, dtype)
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


def _filtered(
    codec: Any, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of a chunk once a filter has encoded it, as zarr assumes them."""
    if type(codec) is numcodecs.packbits.PackBits:
        return (1 + -(-math.prod(shape) // 8),), np.dtype("u1")
    if type(codec) is numcodecs.astype.AsType:
        return shape, codec.encode_dtype
    if type(codec) in (numcodecs.delta.Delta, numcodecs.fixedscaleoffset.FixedScaleOffset):
        return shape, codec.astype
    # zarr assumes that quantizing and rounding keep the dtype.
    return shape, dtype


def _make_chain(steps: Sequence[Step | None], nbytes: int, turns: Sequence[Turn]) -> Chain | None:
    """Make a chain of steps and turns given in the order of encoding; None if unknown."""
    known = tuple(step for step in steps if step is not None)
    if len(known) < len(steps) or sum(isinstance(step, Compressed) for step in known) > 1:
        return None
    # A shuffle of elements of one byte changes nothing.
    known = tuple(s for s in known if not isinstance(s, Shuffled) or s.itemsize > 1)
    return Chain(known[::-1], nbytes, tuple(turns[::-1]))


def _step_of(codec: object) -> Step | None:
    codec_type = type(codec)
    if codec_type in _COMPRESSORS:
        return Compressed(_COMPRESSORS[codec_type])
    if codec_type is numcodecs.fletcher32.Fletcher32:
        return Checked("fletcher32")
    if codec_type in _CHECKSUMS:
        return Checked(_CHECKSUMS[codec_type], cast(Any, codec).location == "start")
    if codec_type is numcodecs.shuffle.Shuffle:
        return Shuffled(int(cast(Any, codec).elementsize))
    return None


def _filtered_nbytes(codec: Any, nbytes: int) -> int:
    """Size in bytes of ``nbytes`` bytes once a filter has encoded them."""
    if type(codec) is numcodecs.packbits.PackBits:
        return 1 + -(-nbytes // 8)
    if type(codec) is numcodecs.bitround.BitRound:
        return nbytes
    if type(codec) is numcodecs.astype.AsType:
        decoded, encoded = codec.decode_dtype, codec.encode_dtype
    else:
        decoded, encoded = codec.dtype, codec.astype
    num_elements, rest = divmod(nbytes, decoded.itemsize)
    if rest or decoded.kind not in NUMBERS or encoded.kind not in NUMBERS:
        raise ValueError(f"a filter of {decoded} and {encoded} on {nbytes} bytes")
    return int(num_elements * encoded.itemsize)
