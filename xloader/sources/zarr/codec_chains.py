"""Reading the codecs of an array as a chain that our own decoding undoes.

Codecs are recognised by their exact class, so that one which a user registered in the place of
zarr's or numcodecs' own is left to zarr.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numcodecs.astype
import numcodecs.bitround
import numcodecs.blosc
import numcodecs.bz2
import numcodecs.checksum32
import numcodecs.delta
import numcodecs.fixedscaleoffset
import numcodecs.fletcher32
import numcodecs.gzip
import numcodecs.lz4
import numcodecs.packbits
import numcodecs.quantize
import numcodecs.registry
import numcodecs.shuffle
import numcodecs.zlib
import numcodecs.zstd
import numpy as np
import zarr.codecs.numcodecs as wrapped
from zarr.abc.codec import Codec
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs.sharding import ShardingCodecIndexLocation
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.chunk_grids import RegularChunkGrid
from zarr.core.metadata import ArrayV2Metadata
from zarr.dtype import UInt64

from xloader.sources.zarr.chains import Chain, Filtered, Sharding, Transposed, Turn, View
from xloader.sources.zarr.codecs import Metadata
from xloader.sources.zarr.decoding import Checked, Compressed, Shuffled, Step

NUMBERS: Final = "biuf"
"""Kinds of dtype that are decoded here: bool, signed, unsigned, float."""

_COMPRESSORS: Final[dict[type, str]] = {
    BloscCodec: "blosc",
    ZstdCodec: "zstd",
    GzipCodec: "gzip",
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
# numcodecs leaves it out where the library behind it is missing.
if (_crc32c := getattr(numcodecs.checksum32, "CRC32C", None)) is not None:
    _CHECKSUMS[_crc32c] = "crc32c"

_WRAPPERS_OF_BYTES: Final = frozenset(
    {wrapped.Blosc, wrapped.LZ4, wrapped.Zstd, wrapped.Zlib, wrapped.GZip, wrapped.BZ2}
    | {wrapped.Shuffle, wrapped.CRC32, wrapped.CRC32C, wrapped.Adler32, wrapped.Fletcher32}
)
_WRAPPERS_OF_ARRAYS: Final = frozenset(
    {wrapped.Delta, wrapped.FixedScaleOffset, wrapped.Quantize}
    | {wrapped.AsType, wrapped.PackBits, wrapped.BitRound}
)


def chain_of(metadata: Metadata) -> Chain | None:
    """Read the codec chain of an array; None where our own decoding does not know it."""
    try:
        if isinstance(metadata, ArrayV2Metadata):
            return _chain_v2(metadata)
        if metadata.storage_transformers or not isinstance(metadata.chunk_grid, RegularChunkGrid):
            return None
        shape = metadata.chunk_grid.chunk_shape
        spec = metadata.get_chunk_spec((0,) * len(shape), _config(), default_buffer_prototype())
        if len(metadata.codecs) == 1 and type(metadata.codecs[0]) is ShardingCodec:
            return _chain_of_shards(metadata.codecs[0], spec)
        return _chain_v3(metadata.codecs, spec)
    except (KeyError, NotImplementedError, TypeError, ValueError):
        # Metadata that a codec makes nothing of: whoever reads it with zarr sees zarr's error.
        return None


def _chain_v2(metadata: ArrayV2Metadata) -> Chain | None:
    dtype = np.dtype(metadata.dtype.to_native_dtype())
    if dtype.kind not in NUMBERS:
        return None
    shape = metadata.chunks
    nbytes = math.prod(shape) * dtype.itemsize
    is_turned = metadata.order == "F" and len(shape) > 1
    turns: list[Turn] = [Transposed(tuple(range(len(shape)))[::-1])] if is_turned else []
    turns.append(View(dtype, shape[::-1] if is_turned else shape))
    steps: list[Step] = []
    compressor = () if metadata.compressor is None else (metadata.compressor,)
    # In the order of encoding, so that the size of what each gives follows from the chunk's.
    for codec in (*(metadata.filters or ()), *compressor):
        step = _step_of(codec)
        if step is not None:
            steps.append(step)
            continue
        if type(codec) not in _FILTERS or steps:
            return None
        nbytes = _filtered_nbytes(codec, nbytes)
        if type(codec) is not numcodecs.bitround.BitRound:
            turns.append(Filtered(cast(Any, codec)))
    return _make_chain(steps, nbytes, turns)


def _chain_v3(codecs: Sequence[Codec], spec: ArraySpec) -> Chain | None:
    turns: list[Turn] = []
    rest = list(codecs)
    while rest and type(rest[0]) is not BytesCodec:
        codec = rest.pop(0)
        decoded, spec = spec, codec.resolve_metadata(spec)
        if np.dtype(spec.dtype.to_native_dtype()).kind not in NUMBERS:
            return None
        if type(codec) is TransposeCodec:
            axes = tuple(int(axis) for axis in np.argsort(codec.order))
            if axes != tuple(range(len(axes))):
                turns.append(Transposed(axes))
        elif type(codec) in _WRAPPERS_OF_ARRAYS:
            inner = numcodecs.registry.get_codec(cast(Any, codec).codec_config)
            if type(inner) not in _FILTERS:
                return None
            turns.append(Filtered(inner, decoded.shape))
        else:
            return None
    if not rest:
        return None
    endian = cast(BytesCodec, rest[0]).endian
    dtype = np.dtype(spec.dtype.to_native_dtype())
    if dtype.kind not in NUMBERS or (endian is None and dtype.itemsize > 1):
        return None
    if endian is not None:
        dtype = dtype.newbyteorder(">" if endian.value == "big" else "<")
    turns.append(View(dtype, spec.shape))
    steps = [_step_of(_unwrap(codec)) for codec in rest[1:]]
    return _make_chain(steps, math.prod(spec.shape) * dtype.itemsize, turns)


def _make_chain(steps: Sequence[Step | None], nbytes: int, turns: Sequence[Turn]) -> Chain | None:
    """A chain of what was gathered in the order of encoding."""
    known = tuple(step for step in steps if step is not None)
    if len(known) < len(steps) or sum(isinstance(step, Compressed) for step in known) > 1:
        return None
    # Elements of one byte are not shuffled.
    known = tuple(s for s in known if not isinstance(s, Shuffled) or s.itemsize > 1)
    return Chain(known[::-1], nbytes, tuple(turns[::-1]))


def _chain_of_shards(codec: ShardingCodec, spec: ArraySpec) -> Chain | None:
    per_shard = tuple(
        outer // inner for outer, inner in zip(spec.shape, codec.chunk_shape, strict=True)
    )
    chain = _chain_v3(codec.codecs, replace(spec, shape=codec.chunk_shape))
    index_spec = replace(spec, shape=(*per_shard, 2), dtype=UInt64(), fill_value=0)
    index_chain = _chain_v3(codec.index_codecs, index_spec)
    if chain is None or index_chain is None or not index_chain.is_fixed_size:
        return None
    is_at_start = codec.index_location is ShardingCodecIndexLocation.start
    return replace(chain, sharding=Sharding(per_shard, index_chain, is_at_start))


def _config() -> ArrayConfig:
    return ArrayConfig.from_dict({})


def _unwrap(codec: Codec) -> object:
    """What numcodecs' codec a codec of Zarr v3 runs, if it is one of zarr's wrappers."""
    if type(codec) in _WRAPPERS_OF_BYTES:
        return numcodecs.registry.get_codec(cast(Any, codec).codec_config)
    return codec


def _step_of(codec: object) -> Step | None:
    kind = type(codec)
    if kind in _COMPRESSORS:
        return Compressed(_COMPRESSORS[kind])
    if kind is Crc32cCodec:
        return Checked("crc32c")
    if kind is numcodecs.fletcher32.Fletcher32:
        return Checked("fletcher32")
    if kind in _CHECKSUMS:
        return Checked(_CHECKSUMS[kind], cast(Any, codec).location == "start")
    if kind is numcodecs.shuffle.Shuffle:
        return Shuffled(int(cast(Any, codec).elementsize))
    return None


def _filtered_nbytes(codec: Any, nbytes: int) -> int:
    """Size of what a filter makes of ``nbytes`` bytes."""
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
