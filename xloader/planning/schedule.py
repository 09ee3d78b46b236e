"""The schedule of a lane: when each block of chunks is loaded and when it is dropped.

::

    entry needs block 7    |----|   |-----|            |---|
                                |------|
    residence of block 7   |--------------|   gap      |---|    two reads; one, if kept

A residence runs from the first to the last moment in which some entry needs the block. During a gap
the block is kept in memory if there is room. Otherwise it is dropped and read again after the gap.
If there is too little room, the blocks whose next use is farthest ahead are dropped first (Belady,
"A study of replacement algorithms", 1966). Residences are stored in arrays, without an event per
batch or per sample, so the cost grows with the number of chunks only.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Footprint, Group
from xloader.core.sorting import digit_order, sort_integers
from xloader.order.protocol import Entries
from xloader.show.cost_figures import GroupReads

_PIECE_SIZE: Final = 1 << 15
"""Number of entries whose needs are found in one call: the arrays for them fit a core's cache."""

_MOST_BITS: Final = 63
"""Bits of a number that holds a block and two moments. One more is the sign."""


@dataclass(frozen=True)
class BlockUses:
    """The entries of an order that need blocks of one group, and when.

    `needed`: the entries that hand out any sample, ascending; by default all of them.
    """

    footprint: Footprint
    group: Group
    entries: Entries
    first_moment: NDArray[np.int32]
    needed: Ints | None = None

    def pieces(self) -> Iterator[tuple[slice | Ints, Ints, Ints]]:
        """Yield some entries, and the pairs (index among them, block that it needs), sorted."""
        num_entries = len(self.first_moment if self.needed is None else self.needed)
        for begin in range(0, num_entries, _PIECE_SIZE):
            piece = slice(begin, min(begin + _PIECE_SIZE, num_entries))
            some = piece if self.needed is None else self.needed[piece]
            yield some, *self.footprint.needs(self.group, self.entries.boxes_of(some))


@dataclass(frozen=True)
class Stays:
    """The stays of one group's blocks, by block and then moment."""

    uses: BlockUses
    block: Ints
    first: NDArray[np.int32]
    last: NDArray[np.int32]

    @property
    def group(self) -> Group:
        """The variables whose chunks form the blocks."""
        return self.uses.group

    @property
    def nbytes(self) -> Ints:
        """Decoded bytes of the block of each stay, cut down to the selection; int64."""
        return self.group.block_nbytes(self.block)


def find_stays(uses: BlockUses, last_moment: NDArray[np.int32]) -> Stays:
    """Find the stays of a group's blocks."""
    num_moments = int(last_moment.max(initial=-1)) + 1
    # One more moment than there are: places of different blocks must not follow each other.
    moment_bits = num_moments.bit_length()
    # The block is the upper part of a place, so that one running maximum serves all blocks.
    reached = -2
    none = np.zeros(0, np.int64)
    parts = [(none, none)]
    for begins, ends in _sorted_places(uses, last_moment, moment_bits):
        np.maximum.accumulate(ends, out=ends)
        before = np.concatenate([[reached], ends[:-1]])
        np.maximum(before, reached, out=before)
        is_new = begins > before + 1
        parts.append((begins[is_new], before[is_new]))
        reached = max(reached, int(ends[-1]))
    firsts, preceding = (np.concatenate(column) for column in zip(*parts, strict=True))
    lasts = np.concatenate([preceding[1:], [reached]])[: len(firsts)]
    in_block = (1 << moment_bits) - 1
    block = (firsts >> moment_bits).astype(int_dtype(uses.group.num_blocks))
    first, last = ((places & in_block).astype(np.int32) for places in (firsts, lasts))
    return Stays(uses, block, first, last)


def _sorted_places(
    uses: BlockUses, last_moment: NDArray[np.int32], moment_bits: int
) -> Iterator[tuple[Ints, Ints]]:
    """Yield the first and the last place of each pair (entry, block), sorted by the first one.

    A place is a block and a moment as one number, block first.
    """
    length_bits = int((last_moment - uses.first_moment).max(initial=0)).bit_length()
    num_bits = uses.group.num_blocks.bit_length() + moment_bits + length_bits
    is_short = num_bits <= _MOST_BITS
    # With its length as the lowest part, a pair is sorted without being moved.
    shift = length_bits if is_short else 0
    parts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for some, rows, blocks in uses.pieces():
        length = last_moment[some] - uses.first_moment[some]
        lowest = uses.first_moment[some].astype(np.int64) << shift
        if is_short:
            lowest |= length
        else:
            lengths.append(length[rows])
        parts.append((blocks << (moment_bits + shift)) + lowest[rows])
    pairs = np.concatenate(parts)
    del parts
    if is_short:
        sort_integers(pairs, num_bits)
    else:
        by_place = np.argsort(pairs, kind="stable")
        pairs, all_lengths = pairs[by_place], np.concatenate(lengths)[by_place]
    for begin in range(0, len(pairs), _PIECE_SIZE):
        piece = slice(begin, begin + _PIECE_SIZE)
        begins = pairs[piece] >> shift
        spans = pairs[piece] & ((1 << shift) - 1) if is_short else all_lengths[piece]
        yield begins, begins + spans


@dataclass(frozen=True)
class Residences:
    """The residences of one group's blocks in one lane."""

    group: Group
    block: Ints
    first_moment: Ints
    last_moment: Ints
    num_samples: Ints
    offsets: Ints
    members: NDArray[np.int32]


@dataclass(frozen=True)
class _Gaps:
    """The gaps between two stays of the same block."""

    row: tuple[Ints, ...]
    begin: Ints
    end: Ints
    nbytes: Ints

    @classmethod
    def of(cls, stays: Sequence[Stays]) -> _Gaps:
        """Find the gaps in the stays of all groups."""
        rows = tuple(np.flatnonzero(stay.block[1:] == stay.block[:-1]) + 1 for stay in stays)
        pairs = list(zip(stays, rows, strict=True))
        return cls(
            rows,
            np.concatenate([stay.last[row - 1] + 1 for stay, row in pairs]),
            np.concatenate([stay.first[row] for stay, row in pairs]),
            np.concatenate([stay.nbytes[row] for stay, row in pairs]),
        )

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True)
class Schedule:
    """The blocks that one lane loads in one epoch, with the time of each.

    Nothing is computed before it is used: first the bytes needed in each moment, because most plans
    that are tried do not fit; then the gaps to keep and the reads; and the residences when the
    lane is read.
    """

    footprint: Footprint
    entries: Entries
    pool_nbytes: int
    is_resident: bool = False
    is_needed: NDArray[np.bool_] | None = None

    @cached_property
    def stays(self) -> tuple[Stays, ...]:
        """The stays of the blocks of each group of the footprint."""
        # Moments always fit int32, which saves memory in a large epoch with many entries.
        first_moment = self.entries.first_moment.astype(np.int32, copy=False)
        last_moment = self.entries.last_moment.astype(np.int32, copy=False)
        needed = None if self.is_needed is None else np.flatnonzero(self.is_needed)
        return tuple(
            find_stays(
                BlockUses(self.footprint, group, self.entries, first_moment, needed), last_moment
            )
            for group in self.footprint.groups
        )

    @cached_property
    def busy(self) -> Ints:
        """Decoded bytes that are needed in each moment, up to the last one; int64."""
        num_moments = 1 + max((int(stay.last.max(initial=-1)) for stay in self.stays), default=-1)
        busy = np.zeros(num_moments, np.int64)
        for stay in self.stays:
            busy += _held(num_moments, stay.first, stay.last + 1, stay.nbytes)
        return busy

    @cached_property
    def at_work_nbytes(self) -> int:
        """The most decoded bytes that are needed in one moment."""
        return int(self.busy.max(initial=0))

    @cached_property
    def peak_nbytes(self) -> int:
        """The most decoded bytes in memory in one moment, with blocks that are kept over gaps."""
        gaps, is_kept = self._kept
        held = _held(len(self.busy), gaps.begin[is_kept], gaps.end[is_kept], gaps.nbytes[is_kept])
        return int((self.busy + held).max(initial=0))

    @property
    def loaded_nbytes(self) -> int:
        """Decoded bytes of all blocks that are loaded, counted once for each load."""
        return sum(
            int(stay.nbytes[_all_but(len(stay.block), rows)].sum())
            for stay, rows in zip(self.stays, self._kept_rows, strict=True)
        )

    @property
    def most_read_nbytes(self) -> int:
        """Upper bound of `read_nbytes`, with every chunk as large as its variable's largest."""
        return sum(
            (len(stay.block) - len(rows)) * stay.group.most_read_nbytes
            for stay, rows in zip(self.stays, self._kept_rows, strict=True)
        )

    @property
    def num_reads(self) -> int:
        """Number of (variable, chunk) pairs that are read."""
        return sum(
            (len(stay.block) - len(rows)) * stay.group.num_reads_per_block
            for stay, rows in zip(self.stays, self._kept_rows, strict=True)
        )

    @property
    def read_nbytes(self) -> int:
        """Decoded bytes of the chunks that are read."""
        return sum(
            reads.num_elements * stay.group.unit_read_nbytes
            for stay, reads in zip(self.stays, self.group_reads, strict=True)
        )

    @cached_property
    def group_reads(self) -> tuple[GroupReads, ...]:
        """The blocks of each group that are needed and loaded."""
        # Stays are listed block by block.
        return tuple(
            GroupReads(
                int(np.count_nonzero(stay.block[1:] != stay.block[:-1])) + bool(len(stay.block)),
                len(stay.block) - len(rows),
                int(stay.group.read_elements(stay.block[_all_but(len(stay.block), rows)]).sum()),
            )
            for stay, rows in zip(self.stays, self._kept_rows, strict=True)
        )

    @cached_property
    def residences(self) -> tuple[Residences, ...]:
        """The residences of each group of the footprint."""
        pairs = zip(self.stays, self._kept_rows, strict=True)
        return tuple(_close_gaps(stay, rows, self.entries.count) for stay, rows in pairs)

    @cached_property
    def _kept(self) -> tuple[_Gaps, NDArray[np.bool_]]:
        """All gaps, and whether the block is kept over each of them."""
        gaps = _Gaps.of(self.stays)
        is_kept = np.ones(len(gaps), np.bool_)
        if len(gaps) and not self.is_resident:
            wanted = _held(len(self.busy), gaps.begin, gaps.end, gaps.nbytes)
            is_kept = _belady(gaps, wanted, self.pool_nbytes - self.busy)
        return gaps, is_kept

    @cached_property
    def _kept_rows(self) -> list[Ints]:
        """Per group, the stays whose block is still in memory from the stay before."""
        gaps, is_kept = self._kept
        parts = np.split(is_kept, np.cumsum([len(row) for row in gaps.row])[:-1])
        return [row[part] for row, part in zip(gaps.row, parts, strict=True)]


def _held(num_moments: int, begins: Ints, ends: Ints, nbytes: Ints) -> Ints:
    """Bytes in each moment of blocks held over the moments ``[begins, ends)``."""
    change = np.zeros(num_moments + 1, np.int64)
    np.add.at(change, begins, nbytes)
    np.subtract.at(change, ends, nbytes)
    return np.cumsum(change[:num_moments], out=change[:num_moments])


def _all_but(size: int, rows: Ints) -> NDArray[np.bool_]:
    is_left = np.ones(size, np.bool_)
    is_left[rows] = False
    return is_left


def _belady(gaps: _Gaps, wanted: Ints, room: Ints) -> NDArray[np.bool_]:
    """Choose the gaps to keep so that the kept blocks fit the room of every moment."""
    is_kept = np.ones(len(gaps), np.bool_)
    excess = wanted - np.maximum(room, 0)
    full = np.flatnonzero(excess > 0)
    num_full = np.concatenate([[0], np.cumsum(excess > 0)])
    # Dropping any other gap frees no bytes in a moment with too little room.
    in_full = np.flatnonzero(num_full[gaps.begin] < num_full[gaps.end])
    by_begin = in_full[digit_order(gaps.begin[in_full], len(room))]
    begins = np.searchsorted(gaps.begin[by_begin], full, side="right")
    by_begin_gaps = zip(
        (-gaps.end[by_begin]).tolist(),
        by_begin.tolist(),
        gaps.nbytes[by_begin].tolist(),
        strict=True,
    )
    farthest: list[tuple[int, int, int]] = []
    dropped: list[tuple[int, int]] = []
    begun = missing = 0
    for moment, until, over in zip(
        full.tolist(), begins.tolist(), excess[full].tolist(), strict=True
    ):
        while dropped and dropped[0][0] <= moment:
            missing -= heapq.heappop(dropped)[1]
        if over <= missing:
            continue
        for gap in itertools.islice(by_begin_gaps, until - begun):
            heapq.heappush(farthest, gap)
        begun = until
        while over > missing:
            before_end, number, nbytes = heapq.heappop(farthest)
            is_kept[number] = False
            heapq.heappush(dropped, (-before_end, nbytes))
            missing += nbytes
    return is_kept


def _close_gaps(stay: Stays, kept: Ints, count: Ints) -> Residences:
    block, first, last, uses = stay.block, stay.first, stay.last, stay.uses
    if len(kept):
        is_begin = _all_but(len(block), kept)
        block, first, last = block[is_begin], first[is_begin], last[np.append(is_begin[1:], True)]
    per_block = np.bincount(block, minlength=stay.group.num_blocks)
    offset = np.concatenate([[0], np.cumsum(per_block)])
    num_moments = int(last.max(initial=0)) + 1
    # Only for blocks with several residences, one of which is found by its first moment.
    has_several = len(block) > np.count_nonzero(per_block)
    places = block.astype(np.int64) * num_moments + first if has_several else None
    num_samples = np.zeros(len(block), int_dtype(int(count.sum())))
    num_members = np.zeros(len(count) + 1, np.int32)
    members = [np.zeros(0, np.int32)]
    for some, rows, blocks in uses.pieces():
        residence = offset[blocks]
        if places is not None:
            again = np.flatnonzero(offset[blocks + 1] - residence > 1)
            moments = uses.first_moment[some][rows[again]]
            after = np.searchsorted(places, blocks[again] * num_moments + moments, side="right")
            residence[again] = after - 1
        members.append(residence.astype(np.int32))
        np.add.at(num_samples, residence, count[some][rows])
        num_needed = num_members[1:][some]
        num_members[1:][some] = np.bincount(rows, minlength=len(num_needed))
    all_members = np.concatenate(members)
    offsets = np.cumsum(num_members, dtype=int_dtype(len(all_members)))
    return Residences(stay.group, block, first, last, num_samples, offsets, all_members)
