"""Sets of windows, kept as bits, as runs or as a list: whichever takes least memory.

The windows of a set have new ids, ``0, 1, 2, ...``, in ascending order of the windows. *Rank* and
*nth* convert between the two::

    window     0  1  2  3  4  5  6
    in the set .  x  .  x  x  x  .
    id            0     1  2  3         rank(4) = 2: windows of the set below window 4
                                        nth(2) = 4: the window of id 2
    bits       0101110                  one bit for each window, and 4 bytes for each 64
    runs       [1, 2) [3, 6)            24 bytes for each run of neighbouring windows
    list       1 3 4 5                  8 bytes for each window of the set

Sources
-------
Jacobson, "Space-efficient static trees and graphs", FOCS 1989, for rank and select by counts of
blocks.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype
from xloader.core.sorting import digit_order, is_first

_PIECE_SIZE: Final = 1 << 20
"""Number of windows that are handled in one call, which bounds the memory for them."""

_WORD: Final = 64
"""Bits of a word: bit ``i`` of word ``w`` stands for window ``64 * w + i``."""

_RUN_NBYTES: Final = 24

_SPEED: Final = 2
"""Bits may take so many times as much memory as runs or a list, because they answer faster."""

Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]


class WindowSet(ABC):
    """A set of windows, in ascending order."""

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def __len__(self) -> int:
        """Number of windows in the set."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory that the set takes, in bytes."""

    @abstractmethod
    def rank(self, windows: Ints) -> Ints:
        """Number of windows of the set below each of ``windows``, which are in ``[0, size]``."""

    @abstractmethod
    def nth(self, ids: Ints) -> Ints:
        """The window of each id; int64. Ids are in ``[0, len(self))``."""

    def contains(self, windows: Ints) -> Flags:
        """Whether each of ``windows``, in ``[0, size)``, is in the set."""
        return np.asarray(self.rank(windows + 1) > self.rank(windows))

    def pieces(self) -> Iterator[Ints]:
        """Yield all windows of the set, ascending, in pieces of bounded size."""
        for begin in range(0, len(self), _PIECE_SIZE):
            yield self.nth(np.arange(begin, min(begin + _PIECE_SIZE, len(self))))

    def as_bits(self) -> WindowBits:
        """The same set, kept as bits."""
        return WindowBits.of_pieces(self.size, self.pieces())


class WindowBits(WindowSet):
    """A set of windows with one bit for each window."""

    def __init__(self, size: int, words: Words) -> None:
        super().__init__(size)
        self.words = words

    @staticmethod
    def words_nbytes(size: int) -> int:
        """Bytes of the words of a set of ``size`` windows."""
        return 8 * (size // _WORD + 1)

    @classmethod
    def of_flags(cls, flags: Flags) -> WindowBits:
        """Pack one flag for each window, shape ``(size,)``."""
        packer = BitPacker(len(flags))
        packer.add(flags)
        return packer.bits()

    @classmethod
    def of_pieces(cls, size: int, pieces: Iterable[Ints]) -> WindowBits:
        """Pack windows, all different, that come in pieces in ascending order."""
        words = np.zeros(size // _WORD + 1, "<u8")
        for windows in pieces:
            if not len(windows):
                continue
            place = windows // _WORD
            bits = np.left_shift(np.uint64(1), (windows % _WORD).astype(np.uint64))
            firsts = np.flatnonzero(np.diff(place, prepend=-1))
            words[place[firsts]] |= np.bitwise_or.reduceat(bits, firsts)
        return cls(size, words)

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out cached properties.
        return WindowBits, (self.size, self.words)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        parts = range(0, len(self.words), _PIECE_SIZE)
        return sum(int(np.bitwise_count(self.words[b : b + _PIECE_SIZE]).sum()) for b in parts)

    @property
    def nbytes(self) -> int:
        """Memory that the set takes, in bytes, its counts included."""
        return bits_nbytes(self.size)

    @cached_property
    def _before(self) -> Ints:
        """Number of windows of the set before each word."""
        before = np.zeros(len(self.words), int_dtype(len(self)))
        np.cumsum(np.bitwise_count(self.words[:-1]), dtype=before.dtype, out=before[1:])
        return before

    @cached_property
    def num_runs(self) -> int:
        """Number of runs of neighbouring windows."""
        num = last = 0
        for begin in range(0, len(self.words), _PIECE_SIZE):
            words = self.words[begin : begin + _PIECE_SIZE]
            # The bit below each one: that of the word before for the lowest bit.
            below = words << np.uint64(1)
            below[1:] |= words[:-1] >> np.uint64(_WORD - 1)
            below[:1] |= np.uint64(last)
            num += int(np.bitwise_count(words & ~below).sum())
            last = int(words[-1] >> np.uint64(_WORD - 1))
        return num

    def rank(self, windows: Ints) -> Ints:
        """Number of windows of the set below each of ``windows``."""
        words = windows >> 6
        mask = np.left_shift(np.uint64(1), (windows & (_WORD - 1)).astype(np.uint64)) - np.uint64(1)
        num_below: Ints = self._before[words].astype(np.int64)
        num_below += np.bitwise_count(self.words[words] & mask)
        return num_below

    def nth(self, ids: Ints) -> Ints:
        """The window of each id."""
        # Of one dtype: otherwise NumPy would convert all of the counts at each call.
        before = self._before
        place = np.searchsorted(before, ids.astype(before.dtype), side="right") - 1
        bit = _nth_bit(self.words[place], ids - before[place])
        return np.asarray(place * _WORD + bit, np.int64)

    def contains(self, windows: Ints) -> Flags:
        """Whether each of ``windows`` is in the set."""
        octets = self.words.view(np.uint8)[windows >> 3]
        octets >>= (windows & 7).astype(np.uint8)
        octets &= np.uint8(1)
        return np.asarray(octets.view(np.bool_))

    def flags(self, begin: int, end: int) -> Flags:
        """Whether each window of a range is in the set."""
        packed = self.words.view(np.uint8)[begin // 8 : -(-end // 8)]
        flags = np.unpackbits(packed, bitorder="little")
        return flags[begin % 8 : begin % 8 + end - begin].view(np.bool_)

    def pieces(self) -> Iterator[Ints]:
        """Yield all windows of the set, ascending, in pieces of bounded size."""
        for begin in range(0, self.size, _PIECE_SIZE):
            yield begin + np.flatnonzero(self.flags(begin, min(begin + _PIECE_SIZE, self.size)))

    def as_bits(self) -> WindowBits:
        """The set itself."""
        return self

    def __and__(self, windows: WindowBits) -> WindowBits:
        return WindowBits(self.size, self.words & windows.words)

    def __or__(self, windows: WindowBits) -> WindowBits:
        return WindowBits(self.size, self.words | windows.words)

    def __invert__(self) -> WindowBits:
        words = ~self.words
        words[-1] &= np.uint64((1 << self.size % _WORD) - 1)
        return WindowBits(self.size, words)

    def runs(self) -> WindowRuns:
        """The same set, kept as runs."""
        edges = []
        was_in = False
        for begin in range(0, self.size, _PIECE_SIZE):
            flags = self.flags(begin, min(begin + _PIECE_SIZE, self.size))
            edges.append(begin + np.flatnonzero(np.diff(flags, prepend=was_in)))
            was_in = bool(flags[-1])
        bounds = np.concatenate([*edges, [self.size] * was_in]).astype(np.int64)
        return WindowRuns(self.size, bounds[::2].copy(), bounds[1::2].copy())


class WindowRuns(WindowSet):
    """A set of windows as runs of neighbours.

    `begins, ends`: half-open ranges of windows, ascending, none empty, no two touching.
    """

    def __init__(self, size: int, begins: Ints, ends: Ints) -> None:
        super().__init__(size)
        self.begins, self.ends = begins, ends
        self._before = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)

    def __reduce__(self) -> tuple[object, ...]:
        return WindowRuns, (self.size, self.begins, self.ends)

    def __len__(self) -> int:
        return int(self._before[-1])

    @property
    def nbytes(self) -> int:
        """Memory that the set takes, in bytes."""
        return _RUN_NBYTES * len(self.begins)

    def rank(self, windows: Ints) -> Ints:
        """Number of windows of the set below each of ``windows``."""
        run = np.maximum(np.searchsorted(self.begins, windows, side="right") - 1, 0)
        if not len(self.begins):
            return np.zeros(len(windows), np.int64)
        inside = np.clip(windows, self.begins[run], self.ends[run]) - self.begins[run]
        return np.asarray(self._before[run] + inside, np.int64)

    def nth(self, ids: Ints) -> Ints:
        """The window of each id."""
        run = np.searchsorted(self._before, ids, side="right") - 1
        return np.asarray(self.begins[run] + ids - self._before[run], np.int64)

    def pieces(self) -> Iterator[Ints]:
        """Yield all windows of the set, ascending, in pieces of bounded size."""
        for begin in range(0, len(self), _PIECE_SIZE):
            ids = np.arange(begin, min(begin + _PIECE_SIZE, len(self)))
            first, last = (np.searchsorted(self._before, ids[[0, -1]], side="right") - 1).tolist()
            runs = slice(first, last + 1)
            edges = self._before[first : last + 2].clip(ids[0], ids[-1] + 1)
            yield ids + np.repeat(self.begins[runs] - self._before[runs], edges[1:] - edges[:-1])

    def as_bits(self) -> WindowBits:
        """The same set, kept as bits."""
        packer = BitPacker(self.size)
        for begin in range(0, self.size, _PIECE_SIZE):
            end = min(begin + _PIECE_SIZE, self.size)
            # The runs that reach into this range, and the gaps before and after them.
            first = np.searchsorted(self.ends, begin, side="right")
            last = np.searchsorted(self.begins, end)
            edges = np.empty(2 * (last - first) + 2, np.int64)
            edges[0], edges[-1] = begin, end
            edges[1:-1:2], edges[2:-1:2] = self.begins[first:last], self.ends[first:last]
            is_in = np.arange(len(edges) - 1) % 2 > 0
            packer.add(np.repeat(is_in, np.diff(edges.clip(begin, end))))
        return packer.bits()


class WindowList(WindowSet):
    """A set of windows as a list.

    `windows`: the windows of the set, ascending, each once.
    """

    def __init__(self, size: int, windows: Ints) -> None:
        super().__init__(size)
        self.windows = windows

    def __reduce__(self) -> tuple[object, ...]:
        return WindowList, (self.size, self.windows)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def nbytes(self) -> int:
        """Memory that the set takes, in bytes."""
        return 8 * len(self.windows)

    def rank(self, windows: Ints) -> Ints:
        """Number of windows of the set below each of ``windows``."""
        return np.asarray(np.searchsorted(self.windows, windows, side="left"), np.int64)

    def nth(self, ids: Ints) -> Ints:
        """The window of each id."""
        return np.asarray(self.windows[ids], np.int64)


class BitPacker:
    """Packs flags into bits, piece by piece."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._words: Words = np.zeros(size // _WORD + 1, "<u8")
        self._num_packed = 0

    def add(self, flags: Flags) -> None:
        """Append the flags of the next windows."""
        octets = self._words.view(np.uint8)
        first, num_kept = divmod(self._num_packed, 8)
        self._num_packed += len(flags)
        if num_kept:
            kept = np.unpackbits(octets[first : first + 1], bitorder="little")[:num_kept]
            flags = np.concatenate([kept.view(np.bool_), flags])
        packed = np.packbits(flags, bitorder="little")
        octets[first : first + len(packed)] = packed

    def bits(self) -> WindowBits:
        """The set of windows whose flags were True."""
        return WindowBits(self._size, self._words)


def bits_nbytes(size: int) -> int:
    """Memory of a set of windows that is kept as bits: 12 bytes for each 64 windows."""
    return 12 * (size // _WORD + 1)


def smallest_of_bits(bits: WindowBits) -> WindowSet:
    """The same set in the form that takes least memory, or as bits if these take little more."""
    run_nbytes, list_nbytes = _RUN_NBYTES * bits.num_runs, 8 * len(bits)
    if bits.nbytes <= _SPEED * min(run_nbytes, list_nbytes):
        return bits
    if run_nbytes < list_nbytes:
        return bits.runs()
    return WindowList(bits.size, np.concatenate([np.zeros(0, np.int64), *bits.pieces()]))


def smallest_of_list(size: int, windows: Ints) -> WindowSet:
    """The set of some windows, ascending and different, kept as `smallest_of_bits` chooses."""
    begins = np.flatnonzero(is_first(windows - np.arange(len(windows))))
    run_nbytes, list_nbytes = _RUN_NBYTES * len(begins), 8 * len(windows)
    if bits_nbytes(size) <= _SPEED * min(run_nbytes, list_nbytes):
        return WindowBits.of_pieces(size, [windows])
    if run_nbytes < list_nbytes:
        ends = windows[np.append(begins[1:], len(windows)) - 1] + 1
        return WindowRuns(size, windows[begins].astype(np.int64), ends.astype(np.int64))
    return WindowList(size, np.asarray(windows, np.int64))


def _nth_bit(words: Words, numbers: Ints) -> Ints:
    """The place of the bit of each word that has ``numbers`` set bits below it."""
    place = np.zeros(len(words), np.int64)
    for half in (32, 16, 8, 4, 2, 1):
        low = np.bitwise_count(words & np.uint64((1 << half) - 1))
        is_above = numbers >= low
        numbers = numbers - np.where(is_above, low, 0)
        words = np.where(is_above, words >> np.uint64(half), words)
        place += np.where(is_above, half, 0)
    return place


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
        self._num_pieces = tuple(len(edges) - 1 for edges in starts)
        self._order: WindowSet | None = None
        boxes = np.arange(math.prod(self._num_pieces))
        if is_in_order(shape, starts):
            # Each box is a range of windows, and boxes follow each other: ids are places already.
            in_order: WindowSet = windows
        elif len(windows) == windows.size:
            # All windows are the same set in any order.
            in_order = self._order = windows
        else:
            in_order = self._order = _in_box_order(windows.as_bits(), shape, starts)
        firsts = np.append(self._firsts(boxes)[0], windows.size)
        self.offsets = in_order.rank(firsts)

    def find(self, boxes: Ints, which: Ints, ranks: Ints) -> tuple[Ints, None]:
        """Ids of some windows, given the box of each and how many of its windows come before."""
        places = self.offsets[boxes][which] + ranks
        if self._order is None:
            return places, None
        firsts, lows, sizes = self._firsts(boxes)
        left = self._order.nth(places) - firsts[which]
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
        along = [
            places - low for places, low in zip(np.unravel_index(piece, shape), lo, strict=True)
        ]
        pairs = zip(along, sizes, strict=True)
        is_within = np.logical_and.reduce(
            [(places >= 0) & (places < size) for places, size in pairs]
        )
        inside = tuple(places[is_within] for places in along)
        kept.append(np.asarray(np.ravel_multi_index(inside, sizes), np.int64))
    return smallest_of_list(math.prod(sizes), np.concatenate(kept))


def is_worth_boxing(windows: WindowSet, shape: tuple[int, ...], starts: Starts) -> bool:
    """Whether boxing a set takes less memory than a list of all its windows."""
    return is_in_order(shape, starts) or _FEW * len(windows) >= windows.size


def is_in_order(shape: tuple[int, ...], starts: Starts) -> bool:
    """Whether the windows of each box follow each other, and boxes follow each other, too."""
    # Along the first dimensions, boxes hold one position; along one, pieces; then everything.
    is_single = [len(edges) - 1 == count for edges, count in zip(starts, shape, strict=True)]
    is_whole = [len(edges) == 2 for edges in starts]
    first = next((d for d, single in enumerate(is_single) if not single), len(shape))
    return all(is_whole[first + 1 :])


def _in_box_order(bits: WindowBits, shape: tuple[int, ...], starts: Starts) -> WindowBits:
    """The bits of all windows, in the order of the boxes."""
    packer = BitPacker(bits.size)
    known: dict[tuple[bytes, ...], Ints] = {}
    for block in _blocks(shape, starts, (), 0):
        pairs = list(zip(starts, block, strict=True))
        lo = tuple(int(edges[begin]) for edges, (begin, _) in pairs)
        hi = tuple(int(edges[end]) for edges, (_, end) in pairs)
        pieces = box_flags(bits, shape, lo, hi)
        if math.prod(end - begin for begin, end in block) == 1:
            for piece in pieces:
                packer.add(piece)
            continue
        sizes = tuple(np.diff(edges[begin : end + 1]) for edges, (begin, end) in pairs)
        key = tuple(edges.tobytes() for edges in sizes)
        if key not in known:
            if sum(map(len, known.values())) >= _MOST_KNOWN:
                known.clear()
            known[key] = _order_within(sizes)
        packer.add(np.concatenate(list(pieces))[known[key]])
    return packer.bits()


def _blocks(
    shape: tuple[int, ...], starts: Starts, above: tuple[tuple[int, int], ...], dim: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield blocks of neighbouring boxes in order: per dimension, a half-open range of pieces.

    A block of several boxes has `_BLOCK_SIZE` windows at most. ``above`` is the range along each
    dimension before ``dim``, a single piece.
    """
    width = math.prod(
        int(edges[end] - edges[begin])
        for edges, (begin, end) in zip(starts[:dim], above, strict=True)
    )
    most = _BLOCK_SIZE // (width * math.prod(shape[dim + 1 :]))
    num_pieces, longest = len(starts[dim]) - 1, int(np.diff(starts[dim]).max())
    if longest <= most or dim == len(shape) - 1:
        # Short pieces are taken together. Blocks of one piece need fewer orders to be known.
        step = max(min(most * _GROUP_SIZE // _BLOCK_SIZE, most) // longest, 1)
        below = tuple((0, len(edges) - 1) for edges in starts[dim + 1 :])
        for begin in range(0, num_pieces, step):
            yield (*above, (begin, min(begin + step, num_pieces)), *below)
        return
    for piece in range(num_pieces):
        yield from _blocks(shape, starts, (*above, (piece, piece + 1)), dim + 1)


def _order_within(sizes: tuple[Ints, ...]) -> Ints:
    """For each window of a block in the order of its boxes, its place in C order."""
    box = np.zeros((1,) * len(sizes), np.int64)
    for dim, pieces in enumerate(sizes):
        along = np.repeat(np.arange(len(pieces)), pieces)
        box = box * len(pieces) + along.reshape([-1 if d == dim else 1 for d in range(len(sizes))])
    return digit_order(box.reshape(-1), math.prod(map(len, sizes))).astype(np.int32)


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
            shifted = tuple(index + low for index, low in zip(places, lo, strict=False))
            rows = np.ravel_multi_index(shifted, shape[:dim])[:, None] * size
            yield bits.contains((rows + np.arange(begin, end)).reshape(-1))
        return
    for first, num_rows in _row_ranges(shape[:dim], lo[:dim], hi[:dim], size):
        if num_rows == 1 or end - begin >= _LONG_ROW:
            for row in range(first * size, (first + num_rows) * size, size):
                for first_of_piece in range(row + begin, row + end, _BLOCK_SIZE):
                    yield bits.flags(first_of_piece, min(first_of_piece + _BLOCK_SIZE, row + end))
        else:
            flags = bits.flags(first * size, (first + num_rows) * size)
            yield flags.reshape(-1, size)[:, begin:end].reshape(-1)


def _row_ranges(
    shape: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...], size: int
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of ranges of rows that follow each other.

    A range has `_BLOCK_SIZE` windows, of ``size`` a row, at most.
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
