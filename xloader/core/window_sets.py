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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype

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
            own = np.left_shift(np.uint64(1), (windows % _WORD).astype(np.uint64))
            firsts = np.flatnonzero(np.diff(place, prepend=-1))
            words[place[firsts]] |= np.bitwise_or.reduceat(own, firsts)
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
        found = last = 0
        for begin in range(0, len(self.words), _PIECE_SIZE):
            words = self.words[begin : begin + _PIECE_SIZE]
            # The bit below each one: that of the word before for the lowest bit.
            below = words << np.uint64(1)
            below[1:] |= words[:-1] >> np.uint64(_WORD - 1)
            below[:1] |= np.uint64(last)
            found += int(np.bitwise_count(words & ~below).sum())
            last = int(words[-1] >> np.uint64(_WORD - 1))
        return found

    def rank(self, windows: Ints) -> Ints:
        """Number of windows of the set below each of ``windows``."""
        words = windows >> 6
        mask = np.left_shift(np.uint64(1), (windows & (_WORD - 1)).astype(np.uint64)) - np.uint64(1)
        found: Ints = self._before[words].astype(np.int64)
        found += np.bitwise_count(self.words[words] & mask)
        return found

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

    def __and__(self, other: WindowBits) -> WindowBits:
        return WindowBits(self.size, self.words & other.words)

    def __or__(self, other: WindowBits) -> WindowBits:
        return WindowBits(self.size, self.words | other.words)

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
        line = np.concatenate([*edges, [self.size] * was_in]).astype(np.int64)
        return WindowRuns(self.size, line[::2].copy(), line[1::2].copy())


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
            own = slice(first, last + 1)
            edges = self._before[first : last + 2].clip(ids[0], ids[-1] + 1)
            yield ids + np.repeat(self.begins[own] - self._before[own], edges[1:] - edges[:-1])

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
    found = [np.zeros(0, np.int64), *bits.pieces()]
    return WindowList(bits.size, np.concatenate(found))


def smallest_of_list(size: int, windows: Ints) -> WindowSet:
    """The set of some windows, ascending and different, kept as `smallest_of_bits` chooses."""
    is_begin = np.ones(len(windows), np.bool_)
    np.not_equal(windows[1:], windows[:-1] + 1, out=is_begin[1:])
    begins = np.flatnonzero(is_begin)
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
