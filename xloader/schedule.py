"""When each chunk is loaded and dropped: residences of blocks, as arrays.

::

    entry needs block 7    |----|   |-----|            |---|
                                |------|
    residence of block 7   |--------------|   gap      |---|    two reads; one, if kept

A residence runs from the first to the last slot in which some entry needs the block. Over a
gap the block is kept if there is room, what is needed farthest ahead being dropped first
(Belady, "A study of replacement algorithms", 1966), or else read again. There is no event per
batch and none per sample: the cost grows with the number of chunks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.footprint import Boxes, Footprint, Group
from xloader.grid import Ints


class Entries(Protocol):
    """What a schedule must know of an order: who needs something, and when."""

    @property
    def boxes(self) -> Boxes:
        """Positions of each entry's samples."""
        ...

    @property
    def count(self) -> Ints:
        """Samples that each entry hands out."""
        ...

    @property
    def first_slot(self) -> Ints:
        """Slot of each entry's first sample."""
        ...

    @property
    def last_slot(self) -> Ints:
        """Slot of each entry's last sample."""
        ...


@dataclass(frozen=True)
class Residences:
    """The residences of one group's blocks in one lane.

    Parameters
    ----------
    group : Group
    block : numpy.ndarray of int64, shape (num_residences,)
        Which block.
    first_slot, last_slot : numpy.ndarray of int64
        The slots over which it is in memory, both included.
    num_samples : numpy.ndarray of int64
        Samples of the entries that need it.
    offsets, members : numpy.ndarray of int64
        Entry ``e`` needs the residences ``members[offsets[e]:offsets[e + 1]]``.
    """

    group: Group
    block: Ints
    first_slot: Ints
    last_slot: Ints
    num_samples: Ints
    offsets: Ints
    members: NDArray[np.int32]

    @property
    def num_reads(self) -> int:
        """(variable, chunk) pairs that are read."""
        return len(self.block) * self.group.num_reads_per_block

    @property
    def read_nbytes(self) -> int:
        """Decoded bytes of the chunks that are read."""
        return int(self.group.read_nbytes(self.block).sum())


@dataclass(frozen=True)
class Schedule:
    """What one lane loads in one epoch, and when.

    Parameters
    ----------
    residences : tuple of Residences
        Per group of the footprint.
    peak_nbytes : int
        The most decoded bytes in memory at a time.
    """

    residences: tuple[Residences, ...]
    peak_nbytes: int

    @property
    def num_reads(self) -> int:
        """(variable, chunk) pairs that are read."""
        return sum(r.num_reads for r in self.residences)

    @property
    def read_nbytes(self) -> int:
        """Decoded bytes of the chunks that are read."""
        return sum(r.read_nbytes for r in self.residences)


@dataclass(frozen=True)
class _Stays:
    """Residences of one group before gaps are closed, sorted by block and then slot."""

    group: Group
    block: Ints
    first: Ints
    last: Ints
    nbytes: Ints
    rows: Ints
    stay_of_pair: NDArray[np.int32]


def make_schedule(
    footprint: Footprint,
    entries: Entries,
    pool_nbytes: int,
    *,
    is_resident: bool = False,
    is_needed: NDArray[np.bool_] | None = None,
) -> Schedule:
    """Find the residences of every block that an order needs.

    Parameters
    ----------
    footprint : Footprint
    entries : Entries
    pool_nbytes : int
        Decoded bytes that may be kept; what is at work at a time is kept in any case.
    is_resident : bool
        Whether whatever was read stays until the end.
    is_needed : numpy.ndarray of bool, optional
        Per entry, whether it hands out anything; if not given, all do.
    """
    # There are never as many slots as int32 holds, and a large epoch has many entries.
    first_slot = entries.first_slot.astype(np.int32)
    last_slot = entries.last_slot.astype(np.int32)
    num_slots = int(last_slot.max(initial=-1)) + 1
    stays = [
        _find_stays(footprint, group, entries, first_slot, last_slot, is_needed)
        for group in footprint.groups
    ]
    load = np.zeros(num_slots + 1, np.int64)
    for stay in stays:
        _occupy(load, stay.first, stay.last + 1, stay.nbytes)
    busy = np.cumsum(load)[:num_slots]
    if is_resident:
        kept = [_gaps(stay)[0] for stay in stays]
    else:
        kept = _kept_gaps(stays, busy, pool_nbytes)
    for stay, rows in zip(stays, kept, strict=True):
        _occupy(load, stay.last[rows - 1] + 1, stay.first[rows], stay.nbytes[rows])
    residences = tuple(
        _close_gaps(stay, rows, entries.count) for stay, rows in zip(stays, kept, strict=True)
    )
    return Schedule(residences, int(np.cumsum(load).max(initial=0)))


def _occupy(load: Ints, begins: Ints, ends: Ints, nbytes: Ints) -> None:
    np.add.at(load, begins, nbytes)
    np.subtract.at(load, ends, nbytes)


def _find_stays(
    footprint: Footprint,
    group: Group,
    entries: Entries,
    first_slot: Ints,
    last_slot: Ints,
    is_needed: NDArray[np.bool_] | None,
) -> _Stays:
    rows, blocks = footprint.needs(group, entries.boxes)
    if is_needed is not None:
        rows, blocks = rows[is_needed[rows]], blocks[is_needed[rows]]
    num_slots = int(last_slot.max(initial=-1)) + 1
    by_block = np.argsort(blocks * (num_slots + 1) + first_slot[rows], kind="stable")
    blocks, first, last = blocks[by_block], first_slot[rows][by_block], last_slot[rows][by_block]
    is_new = np.diff(blocks, prepend=-1) != 0
    if not is_new.all():
        # One running maximum for all blocks: each one's slots are lifted above those before it.
        lift = np.cumsum(is_new) * (num_slots + 1)
        last = np.maximum.accumulate(last + lift) - lift
        is_new[1:] |= first[1:] > last[:-1] + 1
    stay_of_pair = np.empty(len(rows), np.int32)
    stay_of_pair[by_block] = np.cumsum(is_new, dtype=np.int32) - 1
    is_end = np.append(is_new[1:], True)[: len(is_new)]
    blocks, first, last = blocks[is_new], first[is_new], last[is_end]
    nbytes = group.block_nbytes(blocks)
    return _Stays(group, blocks, first, last, nbytes, rows, stay_of_pair)


def _gaps(stay: _Stays) -> tuple[Ints, Ints, Ints]:
    """Stays that follow one of the same block, and the gap before each: begin and end slot."""
    rows = np.flatnonzero(np.diff(stay.block) == 0) + 1
    return rows, stay.last[rows - 1] + 1, stay.first[rows]


def _kept_gaps(stays: Sequence[_Stays], busy: Ints, pool_nbytes: int) -> list[Ints]:
    """Per group, the stays whose block is still there from the stay before."""
    gaps = [_gaps(stay) for stay in stays]
    group = np.repeat(np.arange(len(stays)), [len(rows) for rows, _, _ in gaps])
    if not len(group):
        return [rows for rows, _, _ in gaps]
    row, begin, end = (np.concatenate(parts) for parts in zip(*gaps, strict=True))
    nbytes = np.concatenate([s.nbytes[g[0]] for s, g in zip(stays, gaps, strict=True)])
    room = pool_nbytes - busy
    wanted = np.zeros(len(busy) + 1, np.int64)
    _occupy(wanted, begin, end, nbytes)
    is_kept = np.ones(len(group), np.bool_)
    if (np.cumsum(wanted)[:-1] > room).any():
        is_kept = _belady(begin, end, nbytes, room)
    return [row[is_kept & (group == index)] for index in range(len(stays))]


def _belady(begin: Ints, end: Ints, nbytes: Ints, room: Ints) -> NDArray[np.bool_]:
    """Which gaps to keep so that they fit the room of every slot."""
    is_kept = np.ones(len(begin), np.bool_)
    by_begin = np.argsort(begin, kind="stable")
    edges = np.searchsorted(begin[by_begin], np.arange(len(room) + 1))
    by_end = np.argsort(end, kind="stable")
    end_edges = np.searchsorted(end[by_end], np.arange(len(room) + 1))
    held = 0
    farthest: list[tuple[int, int]] = []
    for slot, space in enumerate(room.tolist()):
        for gap in by_end[end_edges[slot] : end_edges[slot + 1]].tolist():
            held -= int(nbytes[gap]) if is_kept[gap] else 0
        for gap in by_begin[edges[slot] : edges[slot + 1]].tolist():
            heapq.heappush(farthest, (-int(end[gap]), gap))
            held += int(nbytes[gap])
        while held > max(space, 0):
            _, gap = heapq.heappop(farthest)
            if end[gap] > slot and is_kept[gap]:
                is_kept[gap] = False
                held -= int(nbytes[gap])
    return is_kept


def _close_gaps(stay: _Stays, kept: Ints, count: Ints) -> Residences:
    block, first, last, members = stay.block, stay.first, stay.last, stay.stay_of_pair
    if len(kept):
        is_begin = np.ones(len(block), np.bool_)
        is_begin[kept] = False
        members = (np.cumsum(is_begin, dtype=np.int32) - 1)[members]
        block, first, last = block[is_begin], first[is_begin], last[np.append(is_begin[1:], True)]
    num_samples = np.zeros(len(block), np.int64)
    np.add.at(num_samples, members, count[stay.rows])
    offsets = np.searchsorted(stay.rows, np.arange(len(count) + 1))
    return Residences(stay.group, block, first, last, num_samples, offsets, members)
