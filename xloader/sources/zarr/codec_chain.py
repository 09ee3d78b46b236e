"""Chains of codecs, which turn the stored bytes of a chunk into its values.

::

    stored bytes -> steps on bytes -> bytes of known size -> turns of arrays -> values

`xloader.sources.zarr.parse_codecs` reads from the metadata which chain an array has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import Cut
from xloader.sources.chunk_sizes import is_ordered, take
from xloader.sources.zarr.compressors import COMPRESSORS, Bytes
from xloader.sources.zarr.plain_decoding import Compressed, Scratch, Step, checksums_nbytes, decode

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
            if self.simple is not None and self.simple.compressor:
                COMPRESSORS[self.simple.compressor](data, target)
                return
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
    def index_stored_nbytes(self) -> int:
        """Size of an index as stored, in bytes."""
        return self.index_chain.stored_nbytes

    @property
    def is_checked(self) -> bool:
        """Whether the index has a checksum, which reveals damage."""
        return checksums_nbytes(self.index_chain.steps) > 0

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Number of rows of the index between neighbouring chunks along each dimension."""
        sizes = self.chunks_per_shard
        return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
