"""The stays in memory that the blocks of one group of variables have in an epoch.

Terms: an *entry* is a cohort, or the part of one that a lane owns. A *residence* is one stay of a
block in memory, from its load until it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Group
from xloader.planning.epoch import Lane

_PIECE_SIZE = 1 << 16
"""Number of members that are counted in one call."""


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


def joined(parts: Sequence[Ints], shifts: Ints | None = None) -> Ints:
    """One array of all parts, each shifted by its number of ``shifts`` if there are any."""
    if len(parts) == 1:
        return parts[0]
    if shifts is None:
        return np.concatenate(parts)
    return np.concatenate([part + shift for part, shift in zip(parts, shifts, strict=False)])
