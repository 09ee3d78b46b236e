"""Decoding of several chunks with one compiled call, without Python's lock.

It only does what goes well. Chunks that do not decode, and those whose codecs it does not know, are
left to `Chain.decode_into`, which also tells what is wrong with them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import types
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numcodecs.blosc
import numcodecs.zstd
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, NUMBER, Function, address_of, find_function
from xloader.sources.chunk_sizes import Cut, is_ordered
from xloader.sources.zarr.codec_chain import SCRATCH, Bytes, Chain

_UNKNOWN, _DONE, _RAW, _ZSTD, _BLOSC = range(-2, 3)
"""The codecs, as ``decode_chunks.c`` numbers them, and what it tells of a chunk that is decoded."""

_NOT_HERE: Final = (_UNKNOWN, *(0,) * 7)
"""The numbers of a chunk that is not decoded here."""

_IN_PLACE: Final = (0, 0)
"""No loops and no offset: a chunk that is decompressed straight to its place."""

_FUNCTIONS: Final = {
    "zstd": ("ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressDCtx"),
    "blosc": ("blosc_decompress_ctx",),
}
"""The functions that are taken out of the libraries of numcodecs. They are not part of its public
interface. Where one is missing, chunks are decoded one by one."""


_ARGUMENTS: Final = (ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS)


StoredChunk: TypeAlias = tuple[Bytes, Chain, Cut, NDArray[Any]]
"""A chunk to decode: its stored bytes, its codecs, the part that is wanted, and the array that
receives the values. That array has the shape of the part, and any strides.
"""


@dataclass(frozen=True, eq=False)
class Decoder:
    """The compiled function, with the functions that decompress."""

    function: Function
    codecs: dict[str, int]
    addresses: array[int]

    def decode(self, chunks: Sequence[StoredChunk]) -> list[bool]:
        """Decode chunks into their arrays."""
        rows = [self._row(*chunk) for chunk in chunks]
        width = max(map(len, rows))
        # Only chunks that are decompressed, and not into place, need the scratch memory.
        sizes = [row[3] for row in rows if row[6] and row[0] != _RAW]
        scratch = address_of(SCRATCH.take(max(sizes))) if sizes else None
        numbers: list[int] = []
        for row in rows:
            numbers += row
            numbers += (0,) * (width - len(row))
        # Not an array of NumPy, whose address takes longer to find.
        table = array("q", numbers)
        self.function(
            table.buffer_info()[0], width, len(rows), self.addresses.buffer_info()[0], scratch
        )
        return [codec == _DONE for codec in table[::width]]

    def _row(self, data: Bytes, chain: Chain, cut: Cut, out: NDArray[Any]) -> tuple[int, ...]:
        """The numbers of a chunk for ``decode_chunks.c``."""
        if chain.simple is None:
            return _NOT_HERE
        compressor, dtype, shape = chain.simple
        codec = self.codecs.get(compressor, _UNKNOWN)
        if codec == _UNKNOWN or out.dtype != dtype:
            return _NOT_HERE
        loops: tuple[int, ...] = _IN_PLACE
        if out.shape == shape and is_ordered(cut):
            # The whole chunk.
            if not out.flags.c_contiguous:
                loops = _whole(shape, out.strides, dtype.itemsize)
        elif all(isinstance(elements, slice) for elements in cut):
            loops = _loops(cut, shape, out.shape, out.strides, dtype.itemsize)
        else:
            return _NOT_HERE
        sizes = data.size, chain.nbytes, dtype.itemsize
        return (codec, address_of(data), *sizes, address_of(out), *loops)


def _loops(
    cut: Sequence[Any],
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
) -> tuple[int, ...]:
    """The numbers that describe to ``decode_chunks.c`` how a part of a chunk is copied."""
    offset, step = 0, itemsize * math.prod(shape)
    loops: list[int] = []
    for elements, size, count, to in zip(cut, shape, counts, strides, strict=True):
        step //= size
        start, _, every = elements.indices(size)
        offset += start * step
        loops += (count, every * step, to)
    return (len(counts), offset, *loops)


@functools.lru_cache(maxsize=1 << 10)
def _whole(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The same for a whole chunk. Those that become rows of batches have the same few strides."""
    return _loops([slice(None)] * len(shape), shape, shape, strides, itemsize)


def decoder() -> Decoder | None:
    """The compiled decoder; None if there is none.

    A codec whose function in numcodecs was replaced, as profilers and tests do, is left out.
    """
    return _make(numcodecs.zstd.decompress, numcodecs.blosc.decompress)


@functools.lru_cache(maxsize=4)
def _make(*functions: object) -> Decoder | None:
    """Make the decoder, given what decompresses zstd and blosc at present."""
    function = find_function("xloader_decode_chunks", _ARGUMENTS)
    if function is None:
        return None
    codecs, addresses = {"": _RAW}, []
    modules = {"zstd": (numcodecs.zstd, _ZSTD), "blosc": (numcodecs.blosc, _BLOSC)}
    for (name, (module, number)), decompress in zip(modules.items(), functions, strict=True):
        module_addresses = _addresses(module, _FUNCTIONS[name])
        addresses += module_addresses
        if _is_of(decompress, module) and all(module_addresses):
            codecs[name] = number
    return Decoder(function, codecs, array("q", addresses))


def _is_of(function: object, module: types.ModuleType) -> bool:
    """Whether a function was compiled with a module, so that nobody has replaced it."""
    is_python = isinstance(function, types.FunctionType)
    return not is_python and getattr(function, "__module__", None) == module.__name__


def _addresses(module: types.ModuleType, names: Sequence[str]) -> list[int]:
    """The addresses of functions in a module's library; 0 for those that it does not offer."""
    try:
        library = ctypes.CDLL(str(module.__file__))
    except OSError:
        return [0] * len(names)
    functions = [getattr(library, name, 0) for name in names]
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
