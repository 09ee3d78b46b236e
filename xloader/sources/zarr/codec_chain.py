"""Chains of codecs, which turn the stored bytes of a chunk into its values.

::

    stored bytes -> steps on bytes -> bytes of known size -> turns of arrays -> values

`xloader.sources.zarr.parse_codecs` reads from the metadata which chain an array has.

Stored bytes are never trusted. The size of each step's result is known before the step runs, and
the size that a compressed header declares is checked first. Damaged bytes therefore raise an
error, and never cause a large allocation, or a read or a write past the end. Every failure is a
``ValueError``, ``RuntimeError`` or ``EOFError``; the caller adds the chunk's name.
"""

from __future__ import annotations

import bz2
import importlib
import math
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numcodecs.blosc
import numcodecs.lz4
import numcodecs.zstd
import numpy as np
from numcodecs.fletcher32 import Fletcher32
from numcodecs.shuffle import Shuffle
from numpy.typing import NDArray

from xloader.sources.chunk_sizes import Cut, is_ordered, take

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


SPARE_NBYTES: Final = 64 * 1024
"""Part of the bound on stored chunks, as a compressor may enlarge a chunk: at most twice
the chunk's size, and these bytes.
"""


@dataclass(frozen=True)
class CastView:
    """Turn that reinterprets memory as an array of another dtype and shape."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same memory with the new dtype and shape. Input and result are contiguous."""
        return array.reshape(-1).view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Transposed:
    """Turn that puts the dimensions in another order."""

    axes: tuple[int, ...]

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """A view of the array whose dimension ``i`` is the given array's ``axes[i]``."""
        return array.transpose(self.axes)


@dataclass(frozen=True)
class Filtered:
    """Turn that undoes a filter of numcodecs."""

    codec: Any
    shape: tuple[int, ...] | None = None

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The values decoded by the filter."""
        # Stored numbers of any value may overflow here. zarr accepts the result as it is.
        with np.errstate(all="ignore"):
            decoded = np.asarray(self.codec.decode(array))
        return decoded if self.shape is None else decoded.reshape(self.shape)


Turn: TypeAlias = CastView | Transposed | Filtered


class Simple(NamedTuple):
    """How chunks are stored that are at most compressed."""

    compressor: str
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """The codecs of one array, in the form that xloader's own decoding uses."""

    steps: tuple[Step, ...]
    nbytes: int
    turns: tuple[Turn, ...]

    @property
    def is_fixed_size(self) -> bool:
        """Whether all chunks take the same number of bytes as stored."""
        return not any(isinstance(step, Compressed) for step in self.steps)

    @cached_property
    def stored_nbytes(self) -> int:
        """The most bytes that a stored chunk can take: its exact size where sizes are fixed."""
        fixed = self.nbytes + checksums_nbytes(self.steps)
        return fixed if self.is_fixed_size else 2 * fixed + SPARE_NBYTES

    def decode(self, data: Bytes, scratch: Scratch) -> NDArray[Any]:
        """Decode a whole chunk."""
        return self._turn(decode(data, self.steps, self.nbytes, None, scratch))

    def decode_into(self, data: Bytes, cut: Cut, out: NDArray[Any], scratch: Scratch) -> None:
        """Decode a part of a chunk into the caller's array."""
        target = None
        view = self._view
        if (
            view is not None
            and out.shape == view.shape
            and is_ordered(cut)
            and out.dtype == view.dtype
            and out.flags.c_contiguous
        ):
            target = out.reshape(-1).view(np.uint8)
        decoded = decode(data, self.steps, self.nbytes, target, scratch)
        if decoded is not target:
            out[...] = take(self._turn(decoded), cut)

    @cached_property
    def _view(self) -> CastView | None:
        """The only turn, if it is a `CastView`: decoded bytes then lie as the values do."""
        turn = self.turns[0] if len(self.turns) == 1 else None
        return turn if isinstance(turn, CastView) else None

    @cached_property
    def simple(self) -> Simple | None:
        """The compressor and the values, if there is nothing else to undo; None if there is."""
        view = self._view
        if view is None or len(self.steps) > 1:
            return None
        (step,) = self.steps or (None,)
        if step is None:
            return Simple("", view.dtype, view.shape)
        return Simple(step.name, view.dtype, view.shape) if isinstance(step, Compressed) else None

    def _turn(self, array: NDArray[Any]) -> NDArray[Any]:
        for turn in self.turns:
            array = turn.undo(array)
        return array


@dataclass(frozen=True)
class Sharding:
    """Layout of the chunks in the shards of one shape."""

    chunks_per_shard: tuple[int, ...]
    index_chain: Chain
    is_at_start: bool

    @property
    def num_chunks(self) -> int:
        """Number of chunks of a whole shard."""
        return math.prod(self.chunks_per_shard)

    @property
    def is_checked(self) -> bool:
        """Whether the index has a checksum, which reveals damage."""
        return checksums_nbytes(self.index_chain.steps) > 0

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Number of rows of the index between neighbouring chunks along each dimension."""
        sizes = self.chunks_per_shard
        return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
