"""Decoding of a chunk's stored bytes to its decoded bytes, directly into the caller's memory.

The size of each step's result is known before the step runs. Damaged bytes therefore raise an
error, and never cause a large allocation or a read past the end. Every failure is a
``ValueError``, ``RuntimeError`` or ``EOFError``; the caller adds the chunk's name.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numcodecs.fletcher32 import Fletcher32
from numcodecs.shuffle import Shuffle

from xloader.sources.zarr.compressors import COMPRESSORS, Bytes

CHECKSUM_NBYTES: Final = 4


@dataclass(frozen=True)
class Compressed:
    """Step that decompresses."""

    name: str


@dataclass(frozen=True)
class Checked:
    """Step that compares a checksum of four bytes with the data, and removes it."""

    name: str
    is_at_start: bool = False


@dataclass(frozen=True)
class Shuffled:
    """Step that undoes a byte shuffle: the bytes of each element are put together again."""

    itemsize: int


Step: TypeAlias = Compressed | Checked | Shuffled


class Scratch(threading.local):
    """Buffers that each thread reuses, because fresh memory costs as much as decoding into it."""

    def __init__(self) -> None:
        self._buffers: dict[int, Bytes] = {}

    def take(self, nbytes: int, number: int = 0) -> Bytes:
        """Return one of this thread's buffers, with arbitrary contents."""
        buffer = self._buffers.get(number)
        if buffer is None or buffer.size < nbytes:
            # The old buffer is freed before the new one is allocated, to keep the peak low.
            del buffer
            self._buffers.pop(number, None)
            buffer = self._buffers[number] = np.empty(nbytes, np.uint8)
        return buffer[:nbytes]

    @property
    def decoding_nbytes(self) -> int:
        """Bytes of this thread's buffers that chunks were decoded in."""
        return self.size(0) + self.size(1)

    def size(self, number: int) -> int:
        """Bytes that this thread's buffer of a number has now."""
        buffer = self._buffers.get(number)
        return 0 if buffer is None else buffer.size


def checksums_nbytes(steps: Sequence[Step]) -> int:
    """Number of bytes that the checksums among some steps take."""
    return CHECKSUM_NBYTES * sum(isinstance(step, Checked) for step in steps)


SCRATCH: Final = Scratch()
"""Scratch memory shared by all sources: a thread that reads many files has one set of
buffers.
"""


def decode(
    data: Bytes, steps: Sequence[Step], nbytes: int, target: Bytes | None, scratch: Scratch
) -> Bytes:
    """Undo those codecs of one chunk that work on bytes."""
    number = 0
    for done, step in enumerate(steps, start=1):
        if isinstance(step, Checked):
            data = _check(data, step)
            continue
        later = steps[done:]
        if isinstance(step, Shuffled) and any(isinstance(s, Compressed) for s in later):
            size = data.size
        else:
            size = nbytes + checksums_nbytes(later)
        into = target
        if into is None or later:
            into = scratch.take(size, number)
            # The next step must not write to the buffer that it reads from.
            number = 1 - number
        if isinstance(step, Compressed):
            COMPRESSORS[step.name](data, into)
        else:
            _unshuffle(data, into, step.itemsize)
        data = into
    if data.size != nbytes:
        raise ValueError(f"{data.size} bytes, but the chunk has {nbytes}")
    return data


def _check(data: Bytes, step: Checked) -> Bytes:
    if data.size < CHECKSUM_NBYTES:
        raise ValueError(f"{data.size} bytes are too few for a checksum")
    if step.is_at_start:
        body, stored_bytes = data[CHECKSUM_NBYTES:], data[:CHECKSUM_NBYTES]
    else:
        body, stored_bytes = data[:-CHECKSUM_NBYTES], data[-CHECKSUM_NBYTES:]
    if step.name == "fletcher32":
        # numcodecs computes this checksum only when it also compares it.
        Fletcher32().decode(data)
        return body
    computed = checksum(step.name, body)
    stored = int.from_bytes(stored_bytes.tobytes(), "little")
    if computed != stored:
        raise ValueError(f"checksum {computed:#010x}, but {stored:#010x} is stored")
    return body


def checksum(name: str, data: Bytes) -> int:
    """The checksum of some bytes: ``"crc32c"``, ``"crc32"`` or ``"adler32"``."""
    if name == "crc32c":
        # Imported here because only chunks with this checksum need it. zarr's codec installs it.
        import google_crc32c

        return int(google_crc32c.value(data))
    return zlib.crc32(data.data) if name == "crc32" else zlib.adler32(data.data)


def _unshuffle(data: Bytes, into: Bytes, itemsize: int) -> None:
    if data.size != into.size:
        raise ValueError(f"{data.size} shuffled bytes, but the chunk has {into.size}")
    Shuffle(itemsize).decode(data, out=into)
