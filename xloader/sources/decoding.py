"""From a chunk's stored bytes to its decoded bytes, straight into the caller's memory.

Nothing here trusts the bytes: the size that a compressed header declares is checked against
the chunk's before anything is decoded, and no step writes past the end of its target. Every
failure is a ``ValueError``, ``RuntimeError`` or ``zlib.error``; the caller names the chunk.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CRC32C: Final = "crc32c"
CRC32C_NBYTES: Final = 4
BLOSC_HEADER_NBYTES: Final = 16
ZSTD_MAGIC: Final = 0xFD2FB528
GZIP_WINDOW_BITS: Final = 31
"""zlib's code for a gzip header and trailer around the largest window."""


class Scratch(threading.local):
    """Memory that each thread reuses: fresh pages cost as much as decoding into them."""

    _buffer: Bytes | None = None

    def take(self, nbytes: int) -> Bytes:
        """Return this thread's buffer of ``nbytes`` bytes, whatever it last held."""
        buffer = self._buffer
        if buffer is None or buffer.size < nbytes:
            # The old one goes before the new one comes: only one is ever held.
            self._buffer = None
            buffer = self._buffer = np.empty(nbytes, np.uint8)
        return buffer[:nbytes]


def decode(
    data: Bytes, steps: Sequence[str], nbytes: int, target: Bytes | None, scratch: Scratch
) -> Bytes:
    """Undo the codecs of one chunk.

    Parameters
    ----------
    data : numpy.ndarray of uint8
        The chunk as stored.
    steps : sequence of str
        Names of the codecs in the order of decoding: ``"crc32c"`` anywhere, and at most one of
        ``COMPRESSORS``.
    nbytes : int
        Size of the decoded chunk in bytes.
    target : numpy.ndarray of uint8, optional
        Contiguous memory of ``nbytes`` to decode into.
    scratch : Scratch
        Where to decode without a target.

    Returns
    -------
    numpy.ndarray of uint8
        The decoded bytes: ``target`` itself where the compressor could write to it, else a
        view of ``data`` or of the scratch memory.

    Raises
    ------
    ValueError, RuntimeError, zlib.error
        If the bytes do not decode to exactly ``nbytes``.
    """
    for done, step in enumerate(steps, start=1):
        if step == CRC32C:
            data = _check_crc32c(data)
            continue
        num_later = len(steps) - done
        into = target if target is not None and not num_later else None
        if into is None:
            into = scratch.take(nbytes + num_later * CRC32C_NBYTES)
        COMPRESSORS[step](data, into)
        data = into
    if data.size != nbytes:
        raise ValueError(f"{data.size} bytes where the chunk has {nbytes}")
    return data


def _check_crc32c(data: Bytes) -> Bytes:
    # Comes with zarr's crc32c codec, and only chunks that carry a checksum need it.
    import google_crc32c

    body, tail = data[:-CRC32C_NBYTES], data[-CRC32C_NBYTES:]
    stored = int.from_bytes(tail.tobytes(), "little")
    computed = google_crc32c.value(body)
    if data.size < CRC32C_NBYTES or computed != stored:
        raise ValueError(f"checksum {computed:#010x} where {stored:#010x} is stored")
    return body


def _unblosc(data: Bytes, into: Bytes) -> None:
    if data.size < BLOSC_HEADER_NBYTES:
        raise ValueError(f"a blosc chunk of {data.size} bytes has no header")
    declared, _, stored = struct.unpack_from("<III", data[:BLOSC_HEADER_NBYTES].tobytes(), 4)
    _check_declared(declared, into.size)
    if stored > data.size:
        raise ValueError(f"blosc declares {stored} stored bytes, and {data.size} are there")
    numcodecs.blosc.decompress(data, into)


def _unzstd(data: Bytes, into: Bytes) -> None:
    declared = zstd_content_size(data)
    if declared is not None and declared > into.size:
        _check_declared(declared, into.size)
    numcodecs.zstd.decompress(data, into)
    if declared is not None and declared != into.size:
        # Several frames. numcodecs refuses a target that is too small for all of them, before
        # it decodes, but takes one that is too large: so it has to refuse one byte less.
        try:
            numcodecs.zstd.decompress(data, into[:-1])
        except (ValueError, RuntimeError):
            return
        raise ValueError(f"zstd frames end before the chunk's {into.size} bytes")


def zstd_content_size(data: Bytes) -> int | None:
    """Size in bytes that the first zstd frame declares, None where it declares none.

    A frame that only carries metadata declares 0.

    Raises
    ------
    ValueError
        If this is no zstd frame.

    Examples
    --------
    >>> packed = numcodecs.zstd.compress(bytes(1000))
    >>> zstd_content_size(np.frombuffer(packed, np.uint8))
    1000
    """
    head = data[:18].tobytes()
    magic = int.from_bytes(head[:4], "little")
    if len(head) >= 8 and magic & ~0xF == 0x184D2A50:
        return 0
    if len(head) < 6 or magic != ZSTD_MAGIC:
        raise ValueError(f"{data.size} bytes that do not start with a zstd frame")
    descriptor = head[4]
    is_single_segment = bool(descriptor & 0x20)
    dictionary_size = (0, 1, 2, 4)[descriptor & 3]
    size = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if not size:
        return None
    begin = 5 + (not is_single_segment) + dictionary_size
    declared = int.from_bytes(head[begin : begin + size], "little")
    return declared + 256 if size == 2 else declared


def _ungzip(data: Bytes, into: Bytes) -> None:
    filled, rest = 0, data.tobytes()
    while rest:
        member = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
        room = into.size - filled
        part = member.decompress(rest, room + 1)
        if len(part) > room or not member.eof:
            raise ValueError(f"gzip does not end at the chunk's {into.size} bytes")
        into[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
        rest = member.unused_data.lstrip(b"\0")
    _check_declared(filled, into.size)


def _check_declared(declared: int, expected: int) -> None:
    if declared != expected:
        raise ValueError(f"{declared} bytes when decoded, where the chunk has {expected}")


COMPRESSORS: Final[dict[str, Callable[[Bytes, Bytes], None]]] = {
    "blosc": _unblosc,
    "zstd": _unzstd,
    "gzip": _ungzip,
}
"""Each fills its target exactly, or raises."""
