"""Decompressors: each fills memory of a known size exactly, or raises an error.

The stored bytes are never trusted. The size that a compressed header declares is checked before
anything is decoded. A stream without a declared size is decoded with a bound. Nothing is written
past the end of the target. Every failure is a ``ValueError``, ``RuntimeError`` or ``EOFError``.
"""

from __future__ import annotations

import bz2
import importlib
import struct
from collections.abc import Callable
from typing import Any, Final

import numcodecs.blosc
import numcodecs.lz4
import numcodecs.zstd
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

BLOSC_HEADER_NBYTES: Final = 16
LZ4_HEADER_NBYTES: Final = 4
ZSTD_MAGIC: Final = 0xFD2FB528
GZIP_WINDOW_BITS: Final = 31
"""zlib's code for a gzip header and trailer, with the largest window."""


def _find_zlib() -> Any:
    """The fastest module for zlib that can be imported."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return importlib.import_module("zlib")


ZLIB: Final[Any] = _find_zlib()
"""Intel's module where it is installed (extra "fast"), twice as fast as Python's own."""


def unblosc(data: Bytes, into: Bytes) -> None:
    """Decompress a blosc chunk into ``into``. Bytes after it are ignored, as blosc does."""
    if data.size < BLOSC_HEADER_NBYTES:
        raise ValueError(f"a blosc chunk of {data.size} bytes has no header")
    declared, _, stored = struct.unpack_from("<III", data[:BLOSC_HEADER_NBYTES].tobytes(), 4)
    _check_declared(declared, into.size)
    if stored > data.size:
        raise ValueError(f"blosc declares {stored} stored bytes, but there are {data.size}")
    numcodecs.blosc.decompress(data, into)


def unlz4(data: Bytes, into: Bytes) -> None:
    """Decompress an lz4 block into ``into``. Its size precedes it, as numcodecs writes it."""
    if data.size <= LZ4_HEADER_NBYTES:
        raise ValueError(f"{data.size} bytes are too few for an lz4 block")
    declared = int.from_bytes(data[:LZ4_HEADER_NBYTES].tobytes(), "little")
    _check_declared(declared, into.size)
    numcodecs.lz4.decompress(data, into)


def unzstd(data: Bytes, into: Bytes) -> None:
    """Decompress one or more zstd frames into ``into``. The first may declare its size."""
    declared = zstd_content_size(data)
    if declared is not None and declared > into.size:
        _check_declared(declared, into.size)
    numcodecs.zstd.decompress(data, into)
    if declared is not None and declared != into.size:
        # There are several frames. numcodecs accepts a target that is too large for them, but
        # refuses one that is too small before it decodes. The frames fill the target if
        # numcodecs refuses a target that is one byte shorter.
        try:
            numcodecs.zstd.decompress(data, into[:-1])
        except (ValueError, RuntimeError):
            return
        raise ValueError(f"zstd frames end before the chunk's {into.size} bytes")


def zstd_content_size(data: Bytes) -> int | None:
    """Size in bytes that the first zstd frame declares; None if it declares none.

    A frame that only carries metadata declares 0.
    """
    head = data[:18].tobytes()
    magic = int.from_bytes(head[:4], "little")
    if len(head) >= 8 and magic & ~0xF == 0x184D2A50:
        return 0
    if len(head) < 6 or magic != ZSTD_MAGIC:
        raise ValueError(f"the {data.size} bytes do not start with a zstd frame")
    descriptor = head[4]
    is_single_segment = bool(descriptor & 0x20)
    dictionary_size = (0, 1, 2, 4)[descriptor & 3]
    size = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if not size:
        return None
    begin = 5 + (not is_single_segment) + dictionary_size
    declared = int.from_bytes(head[begin : begin + size], "little")
    return declared + 256 if size == 2 else declared


def ungzip(data: Bytes, into: Bytes) -> None:
    """Decompress gzip members into ``into``. Zeros between and after them are skipped."""
    filled, rest = 0, data.tobytes()
    while rest:
        member = ZLIB.decompressobj(wbits=GZIP_WINDOW_BITS)
        filled += _unstream(member, "gzip", rest, into[filled:])
        rest = member.unused_data.lstrip(b"\0")
    _check_declared(filled, into.size)


def unzlib(data: Bytes, into: Bytes) -> None:
    """Decompress a zlib stream into ``into``. Bytes after it are ignored, as zlib does."""
    _check_declared(_unstream(ZLIB.decompressobj(), "zlib", data.data, into), into.size)


def unbz2(data: Bytes, into: Bytes) -> None:
    """Decompress bz2 streams into ``into``. Other bytes after them are ignored, as bz2 does."""
    filled, rest = 0, data.tobytes()
    num_streams = 0
    while rest:
        stream = bz2.BZ2Decompressor()
        try:
            filled += _unstream(stream, "bz2", rest, into[filled:])
        except OSError as error:
            if num_streams:
                break
            # Callers take an OSError for a store that cannot be read.
            raise ValueError(f"bz2: {error}") from error
        num_streams += 1
        rest = stream.unused_data
    _check_declared(filled, into.size)


def _unstream(stream: Any, name: str, data: memoryview | bytes, into: Bytes) -> int:
    """Decompress one stream into the front of ``into``, and return its size in bytes."""
    # Asking for one byte more than fits reveals a stream that is too long.
    try:
        decoded = stream.decompress(data, into.size + 1)
    except ZLIB.error as error:
        raise ValueError(f"{name}: {error}") from error
    if len(decoded) > into.size or not stream.eof:
        raise ValueError(f"{name} does not end at the end of the chunk")
    into[: len(decoded)] = np.frombuffer(decoded, np.uint8)
    return len(decoded)


def _check_declared(declared: int, expected: int) -> None:
    if declared != expected:
        raise ValueError(f"{declared} bytes when decoded, but the chunk has {expected}")


COMPRESSORS: Final[dict[str, Callable[[Bytes, Bytes], None]]] = {
    "blosc": unblosc,
    "zstd": unzstd,
    "lz4": unlz4,
    "gzip": ungzip,
    "zlib": unzlib,
    "bz2": unbz2,
}
"""The function for each compressor. It fills its target exactly, or raises."""
