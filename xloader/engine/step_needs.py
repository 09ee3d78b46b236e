"""The steps of an epoch: the rows of each, the blocks to load for them, and the parts they take.

The needs of thousands of rows are found at once, so that a small batch costs little.

Terms: an *entry* is a cohort, or the part of one that a lane owns. A *residence* is one stay of a
block in memory, from its load until it is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.demand import Access
from xloader.core.footprint import Footprint, Group, expand_ranges
from xloader.engine.overlaps import Hits, find_hits
from xloader.order.step_dealer import Dealer
from xloader.planning.epoch import Lane
from xloader.planning.mixing import count_regions

_TASKS_PER_LOOK = 16
"""Tasks that the steps which are found at once are divided among, if steps are small."""

_PIECE_SIZE = 1 << 16
"""Number of members that are counted in one call."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a residence: a block that must be loaded because a row of this step needs it.

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
        The first row of the step that needs it.
    """

    group: int
    residence: int
    block: tuple[int, ...]
    read_nbytes: int
    num_samples: int
    row: int


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch of one process, lane by lane.

    Parameters
    ----------
    index : int
        Number of the step among the process's steps.
    ids : numpy.ndarray of int64, shape (n,)
        The sample of each row.
    entries : numpy.ndarray of int64, shape (n,)
        The entry of each row, counted over all lanes.
    hits : tuple of (tuple of Hits)
        Per group and access, the parts of blocks that the rows take.
    begins : list of Begin
        The blocks to load, in the order of the first row that needs each.
    num_regions : int, optional
        Number of distinct regions of its samples.
    occurrences : numpy.ndarray of int64, shape (n,), optional
        Which time in the epoch each sample occurs. By default, every sample occurs for the first
        time.
    last_occurrence : int
        The occurrence of the last row so far. That row fills up a batch that is short of rows.
    """

    index: int
    ids: Ints
    entries: Ints
    hits: tuple[tuple[Hits, ...], ...]
    begins: list[Begin]
    num_regions: int | None = None
    occurrences: Ints | None = None
    last_occurrence: int = 0

    def occurrences_in(self, num_rows: int) -> Ints | None:
        """The occurrences of a batch that is filled up with the last row so far.

        Parameters
        ----------
        num_rows : int
            Rows of the batch, including those that fill it up.

        Returns
        -------
        numpy.ndarray of int64, shape (num_rows,), or None
            None if every sample occurs for the first time.
        """
        if self.occurrences is None:
            return None
        filled = np.full(num_rows, self.last_occurrence)
        filled[: len(self.occurrences)] = self.occurrences
        return filled


class Walker:
    """The steps of an epoch in order, each with the blocks that its rows need.

    Parameters
    ----------
    footprint : Footprint
        The groups of variables that samples need.
    accesses : sequence of (tuple of Access)
        Per group, the accesses with which fields take its variables.
    lanes : sequence of Lane
        The lanes of this process.
    share : int
        Rows that each lane gives to a step.
    num_steps : int
        Number of steps.
    is_resident : bool
        Whether blocks stay in memory and lanes share them. Then each block is one residence.
    region_dim : int, optional
        The windowed dimension along which regions are counted. By default, they are not counted.
    """

    def __init__(
        self,
        footprint: Footprint,
        accesses: Sequence[tuple[Access, ...]],
        lanes: Sequence[Lane],
        share: int,
        num_steps: int,
        *,
        is_resident: bool,
        region_dim: int | None = None,
    ) -> None:
        self.num_steps = num_steps
        self._region_dim = region_dim
        self.groups = [
            GroupNeeds(group, lanes, number, is_resident=is_resident)
            for number, group in enumerate(footprint.groups)
        ]
        self._footprint = footprint
        self._accesses = accesses
        self._dealer = Dealer([lane.order for lane in lanes], share)
        self.entry_counts = _joined([lane.order.count for lane in lanes])
        self._is_begun = np.zeros(len(self.entry_counts), np.bool_)
        self._last_occurrence = 0

    @property
    def num_at_once(self) -> int:
        """Number of steps that one task takes up: about 256 rows, or one step."""
        return max(1, self._dealer.steps_at_once // _TASKS_PER_LOOK)

    def steps(self, known: Sequence[NDArray[np.bool_]]) -> Iterator[BatchRows]:
        """The steps in order.

        Parameters
        ----------
        known : sequence of numpy.ndarray of bool
            Per group, whether each residence is already loaded or being loaded. It is changed: new
            residences are marked.

        Yields
        ------
        BatchRows
            The rows of one step.
        """
        per_look = self._dealer.steps_at_once
        for first in range(0, self.num_steps, per_look):
            yield from self._look(first, min(per_look, self.num_steps - first), known)

    def _look(
        self, first: int, num_steps: int, known: Sequence[NDArray[np.bool_]]
    ) -> Iterator[BatchRows]:
        dealt = self._dealer.take(num_steps)
        ids, entries, edges = dealt.ids, dealt.entries, dealt.edges
        positions = self._footprint.positions_of(ids)
        begins: list[list[Begin]] = [[] for _ in range(num_steps)]
        new = np.flatnonzero(~self._is_begun[entries])
        if len(new):
            new_entries, at = np.unique(entries[new], return_index=True)
            self._is_begun[new_entries] = True
            for needs, is_known in zip(self.groups, known, strict=True):
                needs.begin(new_entries, new[at], edges, is_known, begins)
        firsts = self._footprint.windows.firsts_of(positions)
        cut = [
            [hits.cut(edges) for hits in self._hits(number, entries, firsts)]
            for number in range(len(self.groups))
        ]
        regions: list[int | None] = [None] * num_steps
        if self._region_dim is not None:
            regions = count_regions(self._footprint, self._region_dim, positions, edges).tolist()
        for index, (lo, hi) in enumerate(itertools.pairwise(edges.tolist())):
            begins[index].sort(key=lambda begin: (begin.row, begin.group, begin.residence))
            hits = tuple(tuple(own[index] for own in accesses) for accesses in cut)
            rows = slice(lo, hi)
            times = None if dealt.occurrences is None else dealt.occurrences[rows]
            if times is not None and len(times):
                self._last_occurrence = int(times[-1])
            yield BatchRows(
                first + index,
                ids[rows],
                entries[rows],
                hits,
                begins[index],
                regions[index],
                times,
                self._last_occurrence,
            )

    def _hits(self, number: int, entries: Ints, firsts: Ints) -> Iterator[Hits]:
        needs = self.groups[number]
        for access in self._accesses[number]:
            hits, blocks = find_hits(needs.group, access, firsts)
            hits.residences[:] = needs.residences_of(entries, hits.rows, blocks)
            yield hits


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
    offsets, members : numpy.ndarray of int64, and of int32 unless blocks stay in memory
        Entry ``e`` needs the residences ``members[offsets[e]:offsets[e + 1]]``.
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
            offsets = _joined([r.offsets[:-1] for r in own], ends)
            self.offsets = np.append(offsets, ends[-1])
        if is_resident:
            self.members = _joined([r.block[r.members] for r in own])
            self.blocks: Ints = np.arange(group.num_blocks)
            self._num_samples = np.zeros(group.num_blocks, np.int64)
        else:
            members = _joined(
                [r.members for r in own], np.cumsum([0, *(len(r.block) for r in own)])
            )
            self.members = members.astype(np.int32, copy=False)
            self.blocks = _joined([r.block for r in own])
            self._num_samples = _joined([r.num_samples for r in own])

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
        edges : numpy.ndarray of int64, shape (num_steps + 1,)
            The rows of step ``i`` are ``[edges[i], edges[i + 1])``.
        known : numpy.ndarray of bool, shape (num_residences,)
            As in `Walker.steps`, for this group. It is changed.
        begins : list of (list of Begin)
            Per step. The residences are added to these lists.
        """
        at, residences = self.members_of(entries)
        is_new = ~known[residences]
        at, residences = rows[at[is_new]], residences[is_new]
        by_row = np.argsort(at, kind="stable")
        residences, first = np.unique(residences[by_row], return_index=True)
        at = at[by_row][first]
        known[residences] = True
        blocks = self.blocks[residences]
        steps = np.searchsorted(edges, at, side="right") - 1
        columns = (
            residences.tolist(),
            zip(*(i.tolist() for i in np.unravel_index(blocks, self.group.shape)), strict=True),
            self.group.read_nbytes(blocks).tolist(),
            self._num_samples[residences].tolist(),
            (at - edges[steps]).tolist(),
        )
        for step, *rest in zip(steps.tolist(), *columns, strict=True):
            begins[step].append(Begin(self._number, *rest))


def _joined(parts: Sequence[Ints], shifts: Ints | None = None) -> Ints:
    if len(parts) == 1:
        return parts[0]
    if shifts is None:
        return np.concatenate(parts)
    return np.concatenate([part + shift for part, shift in zip(parts, shifts, strict=False)])
