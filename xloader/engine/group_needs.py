"""The stays in memory that the blocks of one group of variables have in an epoch.

Terms: an *entry* is a cohort, or the part of one that a lane owns. A *residence* is one stay of a
block in memory, from its load until it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Group, expand_ranges
from xloader.planning.epoch import Lane

_PIECE_SIZE = 1 << 16
"""Number of members that are counted in one call."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a residence: a block that must be loaded because a row of this tray needs it.

    Parameters
    ----------
    group, residence : int
        Index of the group, and of the residence among those of the group.
    block : tuple of int
        Index of the block along each windowed dimension.
    read_nbytes : int
        Decoded bytes of its chunks, not cut down to the selection.
    num_samples : int
        Samples of the entries that need it; 0 if blocks stay in memory.
    row : int
        The first row of the tray that needs it.
    """

    group: int
    residence: int
    block: tuple[int, ...]
    read_nbytes: int
    num_samples: int
    row: int


class GroupNeeds:
    """The residences of one group in all lanes of a process, and the entries that need them.

    They are numbered one lane after the other.

    Parameters
    ----------
    group : Group
        The group.
    lanes : sequence of Lane
        The lanes of the process.
    number : int
        Index of the group.
    is_resident : bool
        Whether blocks stay in memory. Then each block is one residence.

    Attributes
    ----------
    blocks : numpy.ndarray of int64, shape (num_residences,)
        The block of each residence.
    offsets : numpy.ndarray of int32, or int64 for 2 ** 31 members or more, shape (num_entries + 1,)
    members : numpy.ndarray of int32; if blocks stay in memory, int64 for 2 ** 31 blocks or more
        Entry ``e`` needs the residences ``members[offsets[e]:offsets[e + 1]]``.
    num_samples : numpy.ndarray of int64, shape (num_residences,)
        Samples of the entries that need each; 0 if blocks stay in memory.
    """

    def __init__(
        self, group: Group, lanes: Sequence[Lane], number: int, *, is_resident: bool
    ) -> None:
        self.group = group
        self._number = number
        self._is_resident = is_resident
        own = [lane.schedule.residences[number] for lane in lanes]
        ends = np.cumsum([0, *(len(r.members) for r in own)])
        self.offsets = own[0].offsets
        if len(own) > 1:
            offsets = joined([r.offsets[:-1] for r in own], ends)
            self.offsets = np.append(offsets, ends[-1]).astype(int_dtype(int(ends[-1])))
        if is_resident:
            self.members = joined([r.block[r.members] for r in own])
            self.blocks: Ints = np.arange(group.num_blocks)
            self.num_samples = np.zeros(group.num_blocks, np.int64)
        else:
            members = joined([r.members for r in own], np.cumsum([0, *(len(r.block) for r in own)]))
            self.members = members.astype(np.int32, copy=False)
            self.blocks = joined([r.block for r in own])
            self.num_samples = joined([r.num_samples for r in own])

    def num_entries(self) -> Ints:
        """Number of entries that need each residence."""
        counts = np.zeros(len(self.blocks), np.int32)
        one = np.int32(1)
        # In pieces: there may be millions of members, and NumPy copies what it counts.
        for begin in range(0, len(self.members), _PIECE_SIZE):
            np.add.at(counts, self.members[begin : begin + _PIECE_SIZE], one)
        return counts

    def members_of(self, entries: Ints) -> tuple[Ints, Ints]:
        """All residences that some entries need.

        Parameters
        ----------
        entries : numpy.ndarray of int64, shape (n,)
            The entries.

        Returns
        -------
        rows : numpy.ndarray of int64, shape (m,)
            Indices into `entries`.
        residences : numpy.ndarray of int64, shape (m,)
            For each of these, one residence that the entry needs.
        """
        rows, places = expand_ranges(self.offsets[entries], self.offsets[entries + 1])
        return rows, self.members[places]

    def residences_of(self, entries: Ints, rows: Ints, blocks: Ints) -> Ints:
        """The residence in which each hit finds its block.

        Parameters
        ----------
        entries : numpy.ndarray of int64, shape (num_rows,)
            The entry of each row.
        rows, blocks : numpy.ndarray of int64, shape (n,)
            For each hit, its row and the block.
        """
        if self._is_resident:
            return blocks
        entries = entries[rows]
        # An entry's residences are sorted by block, so one bisection finds those of all entries at
        # once.
        lo = self.offsets[entries]
        num_left = self.offsets[entries + 1] - lo
        while num_left.max(initial=0) > 1:
            half = num_left // 2
            is_above = self.blocks[self.members[lo + half]] <= blocks
            lo = np.where(is_above, lo + half, lo)
            num_left = np.where(is_above, num_left - half, half)
        return self.members[lo]

    def begin(
        self,
        entries: Ints,
        rows: Ints,
        edges: Ints,
        known: NDArray[np.bool_],
        begins: list[list[Begin]],
    ) -> None:
        """Add the residences that begin with entries which occur for the first time.

        Parameters
        ----------
        entries, rows : numpy.ndarray of int64, shape (n,)
            The entries, and the first row of each.
        edges : numpy.ndarray of int64, shape (num_trays + 1,)
            The rows of tray ``i`` are ``[edges[i], edges[i + 1])``.
        known : numpy.ndarray of bool, shape (num_residences,)
            As in `Walker.trays`, for this group. It is changed.
        begins : list of (list of Begin)
            Per tray. The residences are added to these lists.
        """
        at, residences = self.members_of(entries)
        is_new = ~known[residences]
        at, residences = rows[at[is_new]], residences[is_new]
        by_row = np.argsort(at, kind="stable")
        residences, first = np.unique(residences[by_row], return_index=True)
        at = at[by_row][first]
        known[residences] = True
        blocks = self.blocks[residences]
        trays = np.searchsorted(edges, at, side="right") - 1
        columns = (
            residences.tolist(),
            zip(*(i.tolist() for i in np.unravel_index(blocks, self.group.shape)), strict=True),
            self.group.read_nbytes(blocks).tolist(),
            self.num_samples[residences].tolist(),
            (at - edges[trays]).tolist(),
        )
        for tray, *rest in zip(trays.tolist(), *columns, strict=True):
            begins[tray].append(Begin(self._number, *rest))


def joined(parts: Sequence[Ints], shifts: Ints | None = None) -> Ints:
    """One array of all parts, each shifted by its number of ``shifts`` if there are any."""
    if len(parts) == 1:
        return parts[0]
    if shifts is None:
        return np.concatenate(parts)
    return np.concatenate([part + shift for part, shift in zip(parts, shifts, strict=False)])
