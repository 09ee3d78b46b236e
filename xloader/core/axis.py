"""Conversion between elements and chunks along one dimension of a stored array.

One dimension of 10 stored elements in chunks of 4, with the selection ``range(3, 9)``::

    stored element   0  1  2  3 | 4  5  6  7 | 8  9
    stored chunk     0          | 1          | 2
    selected offset           0 | 1  2  3  4 | 5
    block                     0 | 1          | 2

*Offsets* count the selected elements. *Blocks* count the chunks that hold at least one selected
element. A block is the selected part of one stored chunk. Block numbers have no gaps, even where
the selection skips chunks.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError

MOST_BLOCKS: Final = 10**8
"""Largest number of chunks that are listed; a plan takes more than a hundred bytes for each."""

Ints = NDArray[np.signedinteger[Any]]
"""Array of offsets, blocks, ids or counts: int64, or int32 where all values are small."""
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


class ElementList(Sequence[int]):
    """Element numbers that never decrease, kept in one array.

    Neighbours differ by few and mostly equal steps. So a pickle holds the compressed steps: a
    million elements, each repeated six times, take about two kilobytes.
    """

    def __init__(self, elements: Any) -> None:
        values = np.asarray(elements, np.int64)
        assert values.ndim == 1
        assert not len(values) or (values[0] >= 0 and (np.diff(values) >= 0).all())
        is_narrow = not len(values) or values[-1] < 1 << 31
        self._values = values.astype(np.int32 if is_narrow else np.int64)
        self._values.setflags(write=False)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> ElementList: ...
    def __getitem__(self, index: int | slice) -> int | ElementList:
        if isinstance(index, slice):
            return ElementList(self._values[index])
        return int(self._values[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self._values if dtype is None else self._values.astype(dtype, copy=False)
        return values.copy() if copy else values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ElementList) and np.array_equal(self._values, other._values)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        if len(self) <= 10:
            return f"ElementList({self._values.tolist()})"
        return f"ElementList({len(self)} from {self[0]} to {self[-1]}, {self._digest})"

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._values.astype("<i8").tobytes()).hexdigest()[:32]

    def __reduce__(self) -> tuple[object, ...]:
        steps = np.diff(self._values.astype(np.int64), prepend=0)
        most = int(steps.max(initial=0))
        dtype = np.min_scalar_type(most).str[1:]
        return _unpickle, (zlib.compress(steps.astype(f"<{dtype}").tobytes()), dtype)


def as_range(elements: Ints) -> range | None:
    """Numbers as a range; None unless they are equally spaced and increase."""
    steps = np.diff(elements)
    step = int(steps[0]) if len(steps) else 1
    if len(elements) and step > 0 and (steps == step).all():
        return range(int(elements[0]), int(elements[-1]) + 1, step)
    return None


def as_elements(elements: Any) -> range | ElementList:
    """A range where the numbers are equally spaced and increase, else a list of them."""
    values = np.asarray(elements, np.int64)
    spaced = as_range(values)
    return ElementList(values) if spaced is None else spaced


def _unpickle(compressed: bytes, dtype: str) -> ElementList:
    steps = np.frombuffer(zlib.decompress(compressed), f"<{dtype}")
    return ElementList(np.cumsum(steps, dtype=np.int64))


Selection = range | tuple[int, ...] | ElementList
"""Selected elements of a dimension: a range with positive step, or different indices.

Indices may come in another order than stored, if those of each chunk follow each other: blocks are
then numbered in that order, and a block has its elements in that order.
"""


def int_dtype(most: int) -> np.dtype[np.signedinteger[Any]]:
    """The dtype for integers from 0 to ``most``: int32 if it holds them, else int64."""
    return _INT32 if most < 1 << 31 else _INT64


@dataclass(frozen=True)
class Axis:
    """One dimension of a stored array: its chunk sizes and its selected elements."""

    stored_size: int
    chunks: int | tuple[int, ...]
    selection: Selection

    def __post_init__(self) -> None:
        sizes = self.chunks if isinstance(self.chunks, tuple) else (self.chunks,)
        if min(sizes, default=1) < 1 or (
            isinstance(self.chunks, tuple) and sum(sizes) != self.stored_size
        ):
            what = f"the chunk sizes are not 1 or more that add up to {self.stored_size}"
            raise OptionError(what, given=self.chunks)
        if not self._is_readable:
            raise OptionError(
                f"positions do not lie in [0, {self.stored_size}), or come back to a chunk",
                given=self.selection,
            )

    @property
    def _is_readable(self) -> bool:
        """Whether each chunk gives one block."""
        kept = self.selection
        if isinstance(kept, range):
            return not kept or (kept.step >= 1 and kept[0] >= 0 and kept[-1] < self.stored_size)
        elements = np.asarray(kept, np.int64)
        if (np.diff(elements) > 0).all():
            return not kept or (kept[0] >= 0 and kept[-1] < self.stored_size)
        if elements.min() < 0 or elements.max() >= self.stored_size:
            return False
        chunks = self._chunk_of_stored(elements)
        num_visits = 1 + np.count_nonzero(np.diff(chunks))
        return len(np.unique(elements)) == len(kept) and len(np.unique(chunks)) == num_visits

    @property
    def size(self) -> int:
        """Number of selected elements."""
        return len(self.selection)

    @property
    def num_blocks(self) -> int:
        """Number of chunks that the selection touches."""
        kept, chunks = self.selection, self.chunks
        if not kept:
            return 0
        if not isinstance(kept, range) or not isinstance(chunks, int):
            return len(self.edges) - 1
        # A step longer than a chunk skips whole chunks, which are not counted as blocks.
        return len(kept) if kept.step > chunks else kept[-1] // chunks - kept[0] // chunks + 1

    @cached_property
    def edges(self) -> Ints:
        """Offset of the first element of every block, then ``size``; ``(num_blocks + 1,)``."""
        if not self.size:
            return np.zeros(1, np.int64)
        if isinstance(self.selection, range):
            if isinstance(self.chunks, int):
                self._check_num_blocks()
            start, step = self.selection.start, self.selection.step
            if isinstance(self.chunks, int) and step > self.chunks:
                return np.arange(self.size + 1, dtype=np.int64)
            first, last = self._chunk_of_stored(np.array([start, self.selection[-1]]))
            bounds = self._chunk_bounds(np.arange(first, last + 2, dtype=np.int64))
            edges = np.clip(-(-(bounds - start) // step), 0, self.size)
            return edges if isinstance(self.chunks, int) or step == 1 else np.unique(edges)
        stored_chunks = self._chunk_of_stored(np.asarray(self.selection, np.int64))
        begins = np.flatnonzero(np.diff(stored_chunks, prepend=-1))
        return np.append(begins, self.size)

    @cached_property
    def read_sizes(self) -> Ints:
        """Size in elements of the stored chunk of each block; int64, shape ``(num_blocks,)``."""
        if not self.size:
            return np.zeros(0, np.int64)
        kept = self.selection
        if isinstance(kept, range):
            firsts = kept.start + kept.step * self.edges[:-1]
        else:
            firsts = np.asarray(kept, np.int64)[self.edges[:-1]]
        chunks = self._chunk_of_stored(firsts)
        return self._chunk_bounds(chunks + 1) - self._chunk_bounds(chunks)

    @cached_property
    def max_read_size(self) -> int:
        """Size in elements of the largest stored chunk of any block; 0 without blocks."""
        kept, chunks = self.selection, self.chunks
        if not isinstance(chunks, int) or not isinstance(kept, range) or not kept:
            return int(self.read_sizes.max(initial=0))
        first = kept[0] // chunks
        return min(chunks, self.stored_size - first * chunks)

    @cached_property
    def total_read_size(self) -> int:
        """Number of elements of the stored chunks of all blocks together."""
        kept, chunks = self.selection, self.chunks
        if not isinstance(chunks, int) or not isinstance(kept, range) or not kept:
            return int(self.read_sizes.sum())
        # Only the last chunk may be shorter, where the array ends.
        short = (kept[-1] // chunks + 1) * chunks - self.stored_size
        return self.num_blocks * chunks - max(short, 0)

    @cached_property
    def min_inner_block_size(self) -> int:
        """Number of elements of the shortest block between two others; ``size`` without any."""
        kept, chunks = self.selection, self.chunks
        if isinstance(kept, range) and isinstance(chunks, int) and not 1 < kept.step <= chunks:
            # With a step longer than a chunk, each block is a single element.
            return (chunks if kept.step == 1 else 1) if self.num_blocks > 2 else self.size
        inner = np.diff(self.edges)[1:-1]
        return int(inner.min()) if len(inner) else self.size

    @cached_property
    def division(self) -> tuple[int, int, int] | None:
        """Numbers with which ``(offset * scale + shift) // chunk`` is the block of an offset.

        None if blocks are no multiples of one size, so that they must be looked for.
        """
        kept, chunks = self.selection, self.chunks
        if not isinstance(chunks, int) or not isinstance(kept, range):
            return None
        # A step longer than a chunk skips whole chunks, so each element is a block.
        return (1, 0, 1) if kept.step > chunks else (kept.step, kept.start % chunks, chunks)

    def block_of(self, offsets: Ints) -> Ints:
        """Find the block of each offset. It is not checked that offsets lie in ``[0, size)``."""
        if self.division is not None:
            scale, shift, chunk = self.division
            if chunk == 1:
                return np.asarray(offsets, np.int64)
            stored = offsets if scale == 1 else offsets * scale
            return np.asarray((stored + shift) // chunk, np.int64)
        return np.asarray(np.searchsorted(self.edges, offsets, side="right") - 1, np.int64)

    def span_of(self, block: int) -> tuple[int, int]:
        """Offsets of a block as a half-open range ``(begin, end)``."""
        kept, chunks = self.selection, self.chunks
        if not isinstance(kept, range) or not isinstance(chunks, int):
            begin, end = self.edges[block : block + 2].tolist()
            return begin, end
        if kept.step > chunks:
            return block, block + 1
        # Stored elements from the first selected one to the chunk's start; may be negative.
        before = (kept.start // chunks + block) * chunks - kept.start
        begin = max(-(-before // kept.step), 0)
        return begin, min(-(-(before + chunks) // kept.step), len(kept))

    def size_of(self, block: int) -> int:
        """Number of elements of a block."""
        begin, end = self.span_of(block)
        return end - begin

    def stored_chunk(self, block: int) -> int:
        """Index of the stored chunk that a block is cut from."""
        return self.stored_part(block)[0]

    def cut(self, block: int) -> slice | Ints:
        """Elements of its stored chunk that a block keeps, counted from the chunk's start."""
        return self.stored_part(block)[1]

    def stored_part(self, block: int) -> tuple[int, slice | Ints, int]:
        """The stored chunk of a block, as `stored_chunk`; its `cut`; and its number of elements."""
        begin, end = self.span_of(block)
        kept = self.selection[begin:end]
        # Python integers are faster than arrays here, and this is called for each chunk read.
        if isinstance(self.chunks, int):
            chunk, origin = kept[0] // self.chunks, kept[0] // self.chunks * self.chunks
        else:
            chunk = int(self._chunk_of_stored(np.array(kept[:1]))[0])
            origin = int(self._stored_edges[chunk])
        if isinstance(kept, range):
            return chunk, slice(kept[0] - origin, kept[-1] + 1 - origin, kept.step), len(kept)
        return chunk, np.asarray(kept, np.int64) - origin, len(kept)

    def stored_parts(self, sizes: int | tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
        """For all blocks: the stored chunk, the first element taken of it, and its encoded size.

        The selection is a range. `sizes`: the sizes of chunks as they are encoded.
        """
        assert isinstance(self.selection, range), "elements of a list have no step"
        firsts = self.selection.start + self.selection.step * self.edges[:-1]
        chunks = self._chunk_of_stored(firsts)
        encoded = np.full(len(chunks), sizes) if isinstance(sizes, int) else np.array(sizes)[chunks]
        return chunks, firsts - self._chunk_bounds(chunks), encoded

    def _check_num_blocks(self) -> None:
        num_blocks = self.num_blocks
        if num_blocks > MOST_BLOCKS:
            raise OptionError(
                "a dimension has too many chunks to plan for",
                given=f"{num_blocks} chunks of {self.chunks} elements",
                allowed=f"up to {MOST_BLOCKS}",
                remedy=f"store it in chunks of {-(-self.stored_size // MOST_BLOCKS)} elements or "
                "more, or select less of it",
            )

    @cached_property
    def _stored_edges(self) -> Ints:
        sizes = self.chunks if isinstance(self.chunks, tuple) else ()
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def _chunk_of_stored(self, elements: Ints) -> Ints:
        if isinstance(self.chunks, int):
            return np.asarray(elements // self.chunks, np.int64)
        return np.searchsorted(self._stored_edges, elements, side="right") - 1

    def _chunk_bounds(self, chunks: Ints) -> Ints:
        if isinstance(self.chunks, int):
            return np.minimum(chunks * self.chunks, self.stored_size)
        return np.asarray(self._stored_edges[np.minimum(chunks, len(self.chunks))], np.int64)


Ends = Literal["stop", "wrap", "pad"]
"""At the ends of a dimension, windows stay within it, run on at the other end, or reach out."""


@dataclass(frozen=True)
class Line:
    """A windowed dimension as windows meet it.

    An axis that closes on itself is unrolled to two turns. No window is longer than the circle, so
    two turns hold all windows that start in the first.
    """

    axis: Axis
    end: Ends = "stop"

    @property
    def num_blocks(self) -> int:
        """Number of blocks; on a circle, those of both turns."""
        return self.axis.num_blocks * (2 if self.end == "wrap" else 1)

    @cached_property
    def edges(self) -> Ints:
        """Offset of the first element of every block, then the size of all; int64."""
        edges = self.axis.edges
        return np.concatenate([edges, edges[1:] + self.axis.size]) if self.end == "wrap" else edges

    @property
    def division(self) -> tuple[int, int, int] | None:
        """As `Axis.division`; None where windows reach beyond the axis."""
        return self.axis.division if self.end == "stop" else None

    @cached_property
    def min_inner_block_size(self) -> int:
        """As `Axis.min_inner_block_size`. On a circle, each block lies between two others."""
        if self.end == "wrap":
            return int(np.diff(self.axis.edges).min(initial=self.axis.size))
        return self.axis.min_inner_block_size

    def block_of(self, offsets: Ints) -> Ints:
        """Find the block of each offset: outside padded borders, the nearest one; int64."""
        match self.end:
            case "wrap":
                turn = np.asarray(offsets, np.int64) // self.axis.size
                blocks = self.axis.block_of(offsets - turn * self.axis.size)
                return np.asarray(blocks + turn * self.axis.num_blocks)
            case "pad":
                offsets = np.clip(offsets, 0, self.axis.size - 1)
        return self.axis.block_of(offsets)


def lines_of(axes: Sequence[Axis | None], ends: Sequence[Ends]) -> tuple[Line | None, ...]:
    """The lines of some axes, given what windows do at their ends."""
    pairs = zip(axes, ends, strict=True)
    return tuple(None if axis is None else Line(axis, end) for axis, end in pairs)


def fold_blocks(blocks: Ints, lines: tuple[Line | None, ...]) -> Ints:
    """Convert numbers of n-d blocks along lines to numbers of the blocks that are stored.

    `lines`: the line of each dimension; None where there is one block.
    """
    if not any(line is not None and line.end == "wrap" for line in lines):
        return blocks
    unrolled = np.unravel_index(blocks, [1 if line is None else line.num_blocks for line in lines])
    folded = np.zeros(len(blocks), np.int64)
    for line, index in zip(lines, unrolled, strict=True):
        if line is not None:
            folded = folded * line.axis.num_blocks + index % line.axis.num_blocks
    return folded
