"""Chains of codecs: how the bytes of a chunk become its values.

::

    stored bytes -> steps on bytes -> bytes of known size -> turns of arrays -> values

Which chain an array has is read in `xloader.sources.zarr.allowed_codecs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import Cut
from xloader.sources.chunk_slices import take
from xloader.sources.zarr.compressors import COMPRESSORS, Bytes
from xloader.sources.zarr.decode import Compressed, Scratch, Step, checksums_nbytes, decode

SPARE_NBYTES: Final = 64 * 1024
"""What a compressor may add to a chunk that it cannot make smaller, beside as much again."""


class ArrayCodec(Protocol):
    """A codec of numcodecs that works on the values of an array."""

    def decode(self, buf: NDArray[Any]) -> NDArray[Any]:
        """The decoded values, of any shape."""
        ...


@dataclass(frozen=True)
class CastView:
    """A turn that takes memory as an array of another dtype and shape."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same memory, contiguous before and after."""
        return array.reshape(-1).view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Transposed:
    """A turn that puts the dimensions in another order."""

    axes: tuple[int, ...]

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """A view of the array, whose dimension ``i`` is the given one's ``axes[i]``."""
        return array.transpose(self.axes)


@dataclass(frozen=True)
class Filtered:
    """A turn that undoes a filter of numcodecs.

    Parameters
    ----------
    codec : ArrayCodec
        The filter.
    shape : tuple of int, optional
        Shape of what it gives; None leaves it as it comes.
    """

    codec: ArrayCodec
    shape: tuple[int, ...] | None = None

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The decoded values."""
        # A filter computes with whatever is stored, and zarr takes what comes of it.
        with np.errstate(all="ignore"):
            decoded = np.asarray(self.codec.decode(array))
        return decoded if self.shape is None else decoded.reshape(self.shape)


Turn: TypeAlias = CastView | Transposed | Filtered


@dataclass(frozen=True)
class Chain:
    """The codecs of one array, as our own decoding undoes them.

    Parameters
    ----------
    steps : tuple of Step
        The codecs that work on bytes, in the order of decoding.
    nbytes : int
        Size of what they give, in bytes.
    turns : tuple of Turn
        What makes an array of it, in the order of decoding.
    """

    steps: tuple[Step, ...]
    nbytes: int
    turns: tuple[Turn, ...]

    @property
    def is_fixed_size(self) -> bool:
        """Whether all chunks take the same number of bytes as stored."""
        return not any(isinstance(step, Compressed) for step in self.steps)

    @property
    def stored_nbytes(self) -> int:
        """The most bytes that a chunk can take as stored: all of them where sizes are fixed."""
        fixed = self.nbytes + checksums_nbytes(self.steps)
        return fixed if self.is_fixed_size else 2 * fixed + SPARE_NBYTES

    def decode(self, data: Bytes, scratch: Scratch) -> NDArray[Any]:
        """The whole decoded chunk, which may lie in the scratch memory.

        Raises
        ------
        ValueError, TypeError, RuntimeError, EOFError
            If the bytes do not decode to a chunk.
        """
        return self._turn(decode(data, self.steps, self.nbytes, None, scratch))

    def decode_into(self, data: Bytes, cut: Cut, out: NDArray[Any], scratch: Scratch) -> None:
        """Decode the part ``cut`` of a chunk into ``out``; raises as `decode` does."""
        target = None
        view = self._view
        # A cut increases, so one as large as the chunk is all of it.
        if (
            view is not None
            and out.shape == view.shape
            and out.dtype == view.dtype
            and out.flags.c_contiguous
        ):
            target = out.reshape(-1).view(np.uint8)
            if self._decompress is not None:
                self._decompress(data, target)
                return
        decoded = decode(data, self.steps, self.nbytes, target, scratch)
        if decoded is not target:
            out[...] = take(self._turn(decoded), cut)

    @cached_property
    def _view(self) -> CastView | None:
        """The only turn, where what is decoded lies in memory as the values do."""
        turn = self.turns[0] if len(self.turns) == 1 else None
        return turn if isinstance(turn, CastView) else None

    @cached_property
    def _decompress(self) -> Callable[[Bytes, Bytes], None] | None:
        """The only step, where it is one that fills its target."""
        step = self.steps[0] if len(self.steps) == 1 else None
        return COMPRESSORS[step.name] if isinstance(step, Compressed) else None

    def _turn(self, array: NDArray[Any]) -> NDArray[Any]:
        for turn in self.turns:
            array = turn.undo(array)
        return array


@dataclass(frozen=True)
class Sharding:
    """How chunks lie in the shards of one shape.

    Parameters
    ----------
    chunks_per_shard : tuple of int
        Number of chunks of such a shard along each dimension.
    index_chain : Chain
        How the index of a shard is stored: offset and size of each chunk, in bytes.
    is_at_start : bool
        Whether the index lies before the chunks.
    """

    chunks_per_shard: tuple[int, ...]
    index_chain: Chain
    is_at_start: bool

    @property
    def num_chunks(self) -> int:
        """Number of chunks of a whole shard."""
        return math.prod(self.chunks_per_shard)

    @property
    def index_nbytes(self) -> int:
        """Size of an index in memory, in bytes."""
        return self.index_chain.nbytes

    @property
    def index_stored_nbytes(self) -> int:
        """Size of an index as stored, in bytes."""
        return self.index_chain.stored_nbytes

    @property
    def is_checked(self) -> bool:
        """Whether damage to an index shows in a checksum."""
        return checksums_nbytes(self.index_chain.steps) > 0

    def number_of(self, place: tuple[int, ...]) -> int:
        """Row of a chunk in the index, by its place within the shard."""
        number = 0
        for i, n in zip(place, self.chunks_per_shard, strict=True):
            number = number * n + i
        return number
