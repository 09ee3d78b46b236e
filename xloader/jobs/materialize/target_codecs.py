"""The codecs of a store that is written for training."""

from __future__ import annotations

from typing import Any, Final

from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from xloader.errors import OptionError

_NAMES: Final = ("zstd", "lz4")


def parse_compressors(compressor: Any, *, checksum: bool) -> tuple[BytesBytesCodec, ...] | None:
    """The codecs that a chunk's bytes go through."""
    found: list[BytesBytesCodec]
    if compressor is None:
        found = []
    elif isinstance(compressor, str) and compressor in _NAMES:
        named = {"zstd": ZstdCodec(level=3)}
        blosc = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
        found = [named.get(compressor, blosc)]
    elif isinstance(compressor, BytesBytesCodec):
        found = [compressor]
    elif isinstance(compressor, list | tuple) and all(
        isinstance(codec, BytesBytesCodec) for codec in compressor
    ):
        found = list(compressor)
    else:
        raise OptionError(
            "the compressor is not known",
            given=repr(compressor),
            allowed='"zstd", "lz4", None, or one or more of the bytes-to-bytes codecs of '
            "zarr.codecs",
            remedy='leave it out for "zstd"',
        )
    if checksum and not any(isinstance(codec, Crc32cCodec) for codec in found):
        found.append(Crc32cCodec())
    return tuple(found) or None
