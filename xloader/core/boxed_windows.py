"""A set of windows, counted and numbered box by box.

The positions along each dimension are cut into pieces; a *box* combines one piece of each. Boxes
are numbered in C order of their pieces, and so are the windows within a box::

    pieces 2 x 2      a a | b b b      boxes a, b, c, d; bits in the order of the boxes:
    of 2 x 5          a a | b b b      a a a a  b b b b b b  c c ...
    windows           ----+------
                      c c | d d d

How many windows of the set are in each box, and which is the n-th one there, is then rank and nth
on bits in this order: one bit for each window, however many boxes there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from xloader.core.axis import Ints
from xloader.core.window_sets import (
    BitPacker,
    Flags,
    WindowBits,
    WindowSet,
    smallest_of_bits,
    smallest_of_list,
)

_BLOCK_SIZE: Final = 1 << 20
"""Number of windows that are put in the order of boxes together, which bounds the memory."""

_GROUP_SIZE: Final = 1 << 16
"""Number of windows up to which several pieces make a block."""

_LONG_ROW: Final = 1 << 12
"""Neighbouring windows from which on unpacking a range is faster than looking up each window."""

_MOST_WASTE: Final = 16
"""Unpacking so many windows for each one needed is as fast as looking it up."""

_LOOK_UP_SIZE: Final = 1 << 16
"""Number of windows that are looked up in one call: the arrays for them fit a core's cache."""

_MOST_KNOWN: Final = 1 << 22
"""Windows of all orders within a block that are remembered. Chunks of one size need few orders."""

_FEW: Final = 128
"""With fewer than one window in so many, a list of them takes less memory than bits."""

Starts = tuple[Ints, ...]
"""Per dimension, the first position of each piece, then the number of positions."""


class BoxedWindows:
    """The windows of a set by box; their ids are those of the set."""

    def __init__(self, windows: WindowSet, shape: tuple[int, ...], starts: Starts) -> None:
        self._windows = windows
        self._shape, self._starts = shape, starts
        self._num_pieces = tuple(len(own) - 1 for own in starts)
        self._bits: WindowBits | None = None
        boxes = np.arange(math.prod(self._num_pieces))
        if is_in_order(shape, starts):
            # Each box is a range of windows, and boxes follow each other: ids are places already.
            line: WindowSet = windows
        else:
            line = self._bits = _in_box_order(windows.as_bits(), shape, starts)
        firsts = np.append(self._firsts(boxes)[0], windows.size)
        self.offsets = line.rank(firsts)

    def find(self, boxes: Ints, which: Ints, ranks: Ints) -> tuple[Ints, None]:
        """Ids of some windows, given the box of each and how many of its windows come before."""
        places = self.offsets[boxes][which] + ranks
        if self._bits is None:
            return places, None
        firsts, lows, sizes = self._firsts(boxes)
        left = self._bits.nth(places) - firsts[which]
        windows = np.zeros(len(ranks), np.int64)
        weight = 1
        for low, size, count in zip(lows[::-1], sizes[::-1], self._shape[::-1], strict=True):
            left, along = np.divmod(left, size[which])
            windows += (along + low[which]) * weight
            weight *= count
        return self._windows.rank(windows), None

    def _firsts(self, boxes: Ints) -> tuple[Ints, list[Ints], list[Ints]]:
        """Per box: all windows in the boxes before it; and its first positions and its sizes."""
        is_line = len(self._shape) == 1
        indices = (boxes,) if is_line else np.unravel_index(boxes, self._num_pieces)
        firsts, before = np.zeros(len(boxes), np.int64), np.ones(len(boxes), np.int64)
        lows, sizes = [], []
        weight = math.prod(self._shape)
        for starts, index, count in zip(self._starts, indices, self._shape, strict=True):
            weight //= count
            lows.append(starts[index].astype(np.int64))
            sizes.append(starts[index + 1] - lows[-1])
            firsts += before * lows[-1] * weight
            before = before * sizes[-1]
        return firsts, lows, sizes


def cut_box(
    windows: WindowSet, shape: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...]
) -> WindowSet:
    """The windows of a set in a box of positions, numbered in C order within the box."""
    sizes = tuple(high - low for low, high in zip(lo, hi, strict=True))
    if _FEW * len(windows) >= windows.size:
        packer = BitPacker(math.prod(sizes))
        for flags in box_flags(windows.as_bits(), shape, lo, hi):
            packer.add(flags)
        return smallest_of_bits(packer.bits())
    kept = [np.zeros(0, np.int64)]
    for piece in windows.pieces():
        along = [own - low for own, low in zip(np.unravel_index(piece, shape), lo, strict=True)]
        pairs = zip(along, sizes, strict=True)
        is_within = np.logical_and.reduce([(own >= 0) & (own < size) for own, size in pairs])
        inside = tuple(own[is_within] for own in along)
        kept.append(np.asarray(np.ravel_multi_index(inside, sizes), np.int64))
    return smallest_of_list(math.prod(sizes), np.concatenate(kept))


def is_worth_boxing(windows: WindowSet, shape: tuple[int, ...], starts: Starts) -> bool:
    """Whether boxing a set takes less memory than a list of all its windows."""
    return is_in_order(shape, starts) or _FEW * len(windows) >= windows.size


def is_in_order(shape: tuple[int, ...], starts: Starts) -> bool:
    """Whether the windows of each box follow each other, and boxes follow each other, too."""
    # Along the first dimensions, boxes hold one position; along one, pieces; then everything.
    is_single = [len(own) - 1 == count for own, count in zip(starts, shape, strict=True)]
    is_whole = [len(own) == 2 for own in starts]
    first = next((d for d, single in enumerate(is_single) if not single), len(shape))
    return all(is_whole[first + 1 :])


def _in_box_order(bits: WindowBits, shape: tuple[int, ...], starts: Starts) -> WindowBits:
    """The bits of all windows, in the order of the boxes."""
    packer = BitPacker(bits.size)
    known: dict[tuple[bytes, ...], Ints] = {}
    for block in _blocks(shape, starts, (), 0):
        pairs = list(zip(starts, block, strict=True))
        lo = tuple(int(own[begin]) for own, (begin, _) in pairs)
        hi = tuple(int(own[end]) for own, (_, end) in pairs)
        parts = box_flags(bits, shape, lo, hi)
        if math.prod(end - begin for begin, end in block) == 1:
            for part in parts:
                packer.add(part)
            continue
        sizes = tuple(np.diff(own[begin : end + 1]) for own, (begin, end) in pairs)
        key = tuple(own.tobytes() for own in sizes)
        if key not in known:
            if sum(map(len, known.values())) >= _MOST_KNOWN:
                known.clear()
            known[key] = _order_within(sizes)
        packer.add(np.concatenate(list(parts))[known[key]])
    return packer.bits()


def _blocks(
    shape: tuple[int, ...], starts: Starts, above: tuple[tuple[int, int], ...], dim: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield blocks of neighbouring boxes in order: per dimension, a half-open range of pieces.

    A block of several boxes has `_BLOCK_SIZE` windows at most. ``above`` is the range along each
    dimension before ``dim``, a single piece.
    """
    width = math.prod(
        int(own[end] - own[begin]) for own, (begin, end) in zip(starts[:dim], above, strict=True)
    )
    most = _BLOCK_SIZE // (width * math.prod(shape[dim + 1 :]))
    num_pieces, longest = len(starts[dim]) - 1, int(np.diff(starts[dim]).max())
    if longest <= most or dim == len(shape) - 1:
        # Short pieces are taken together. Blocks of one piece need fewer orders to be known.
        step = max(min(most * _GROUP_SIZE // _BLOCK_SIZE, most) // longest, 1)
        below = tuple((0, len(own) - 1) for own in starts[dim + 1 :])
        for begin in range(0, num_pieces, step):
            yield (*above, (begin, min(begin + step, num_pieces)), *below)
        return
    for piece in range(num_pieces):
        yield from _blocks(shape, starts, (*above, (piece, piece + 1)), dim + 1)


def _order_within(sizes: tuple[Ints, ...]) -> Ints:
    """For each window of a block in the order of its boxes, its place in C order."""
    box = np.zeros((1,) * len(sizes), np.int64)
    for dim, own in enumerate(sizes):
        along = np.repeat(np.arange(len(own)), own)
        box = box * len(own) + along.reshape([-1 if d == dim else 1 for d in range(len(sizes))])
    numbers = box.reshape(-1)
    if len(numbers) and numbers[-1] < 1 << 16:
        # NumPy sorts 16-bit integers by counting.
        numbers = numbers.astype(np.uint16)
    return np.argsort(numbers, kind="stable").astype(np.int32)


def box_flags(
    bits: WindowBits, shape: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...]
) -> Iterator[Flags]:
    """Yield whether the windows of a box are in a set, in C order, in parts of bounded size."""
    # Neighbouring windows form a row: along the dimensions that are taken whole, and one more.
    dim = len(shape) - 1
    while dim and hi[dim] - lo[dim] == shape[dim]:
        dim -= 1
    inner = math.prod(shape[dim + 1 :])
    begin, end, size = lo[dim] * inner, hi[dim] * inner, shape[dim] * inner
    if dim and end - begin < _LONG_ROW and size > _MOST_WASTE * (end - begin):
        # Short rows far from each other: they are looked up together.
        counts = [high - low for low, high in zip(lo[:dim], hi[:dim], strict=True)]
        at_once = max(_LOOK_UP_SIZE // (end - begin), 1)
        for first in range(0, math.prod(counts), at_once):
            places = np.unravel_index(
                np.arange(first, min(first + at_once, math.prod(counts))), counts
            )
            shifted = tuple(own + low for own, low in zip(places, lo, strict=False))
            rows = np.ravel_multi_index(shifted, shape[:dim])[:, None] * size
            yield bits.contains((rows + np.arange(begin, end)).reshape(-1))
        return
    for first, num_rows in _row_ranges(shape[:dim], lo[:dim], hi[:dim], size):
        if num_rows == 1 or end - begin >= _LONG_ROW:
            for row in range(first * size, (first + num_rows) * size, size):
                for part in range(row + begin, row + end, _BLOCK_SIZE):
                    yield bits.flags(part, min(part + _BLOCK_SIZE, row + end))
        else:
            flags = bits.flags(first * size, (first + num_rows) * size)
            yield flags.reshape(-1, size)[:, begin:end].reshape(-1)


def _row_ranges(
    shape: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...], size: int
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of ranges of rows that follow each other.

    Rows are numbered over ``shape``; a range has `_BLOCK_SIZE` windows of ``size`` a row at most.
    """
    if not shape:
        yield 0, 1
        return
    most = max(_BLOCK_SIZE // size, 1)
    for outer in itertools.product(*map(range, lo[:-1], hi[:-1])):
        row = 0
        for index, count in zip(outer, shape[:-1], strict=True):
            row = row * count + index
        row *= shape[-1]
        for begin in range(row + lo[-1], row + hi[-1], most):
            yield begin, min(most, row + hi[-1] - begin)
