"""The steps of an epoch: the rows of each, the blocks to load for them, and the parts they take.

The needs of thousands of rows are found at once, so that a small batch costs little. For the same
reason small batches that follow each other are gathered together, as one *tray*.

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
from xloader.core.footprint import Access, Footprint
from xloader.engine.buffers import LeasedPool
from xloader.engine.group_needs import Begin, GroupNeeds, joined
from xloader.engine.overlaps import Hits, finders_of
from xloader.order.step_dealer import Dealer, Dealt
from xloader.planning.epoch import Lane
from xloader.planning.mixing import Regions

_TASKS_PER_LOOK = 16
"""Tasks that the steps which are found at once are divided among, if steps are small."""

_NUM_FREE_TABLES = 4
"""Tables of hits whose memory is kept for the next looks, or one for each access if that is more.
For 4096 rows with three windowed dimensions, each takes 1 MB."""


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch of one process, lane by lane.

    Parameters
    ----------
    index : int
        Number of the step among the process's steps.
    ids : numpy.ndarray of int64, shape (n,)
        The sample of each row.
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


@dataclass(frozen=True)
class TrayRows:
    """The rows of batches that follow each other and are gathered together.

    All batches but the last are full.

    Parameters
    ----------
    batches : list of BatchRows
        The rows of each batch.
    entries : numpy.ndarray of int64, shape (n,)
        The entry of each row, counted over all lanes.
    hits : tuple of (tuple of Hits)
        Per group and access, the parts of blocks that the rows take.
    begins : list of Begin
        The blocks to load, in the order of the first row that needs each.
    """

    batches: list[BatchRows]
    entries: Ints
    hits: tuple[tuple[Hits, ...], ...]
    begins: list[Begin]


class Walker:
    """The steps of an epoch in order, with the blocks that their rows need.

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
    regions : Regions, optional
        Counts the regions of each batch. By default, they are not counted.
    tray_size : int, optional
        Most batches that are gathered together.
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
        regions: Regions | None = None,
        tray_size: int = 1,
    ) -> None:
        self.num_steps = num_steps
        self.tray_size = tray_size
        self._num_full = share * len(lanes)
        self._regions = regions
        self.groups = [
            GroupNeeds(group, lanes, number, is_resident=is_resident)
            for number, group in enumerate(footprint.groups)
        ]
        self._footprint = footprint
        self._finders = finders_of(footprint.groups, accesses)
        self._dealer = Dealer([lane.order for lane in lanes], share)
        self.entry_counts = joined([lane.order.count for lane in lanes])
        self._is_begun = np.zeros(len(self.entry_counts), np.bool_)
        self._last_occurrence = 0
        self._tables = LeasedPool(max(_NUM_FREE_TABLES, sum(map(len, accesses))))

    @property
    def num_at_once(self) -> int:
        """Number of trays that one task takes up: about 256 rows, or one tray."""
        return max(1, self._steps_per_task // self.tray_size)

    @property
    def _steps_per_task(self) -> int:
        return max(1, self._dealer.steps_at_once // _TASKS_PER_LOOK)

    def trays(self, known: Sequence[NDArray[np.bool_]]) -> Iterator[TrayRows]:
        """The steps in order, in trays.

        Parameters
        ----------
        known : sequence of numpy.ndarray of bool
            Per group, whether each residence is already loaded or being loaded. It is changed: new
            residences are marked.

        Yields
        ------
        TrayRows
            The rows of one or more steps.
        """
        # All threads wait for the first look, so it is a short one.
        first, num_steps = 0, self._steps_per_task
        while first < self.num_steps:
            yield from self._look(first, min(num_steps, self.num_steps - first), known)
            first += num_steps
            # No look ends in the middle of a tray.
            num_trays = max(1, self._dealer.steps_at_once // self.tray_size)
            num_steps = num_trays * self.tray_size

    def _look(
        self, first: int, num_steps: int, known: Sequence[NDArray[np.bool_]]
    ) -> Iterator[TrayRows]:
        dealt = self._dealer.take(num_steps)
        ids, entries = dealt.ids, dealt.entries
        cuts = self._cut_into_trays(first, dealt.edges)
        edges = dealt.edges[cuts]
        positions = self._footprint.positions_of(ids)
        begins: list[list[Begin]] = [[] for _ in cuts[1:]]
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
        num_regions: list[int | None] = [None] * num_steps
        if self._regions is not None:
            num_regions = self._regions.count(positions, dealt.edges).tolist()
        batches = [
            self._batch(first + step, slice(lo, hi), dealt, num_regions[step])
            for step, (lo, hi) in enumerate(itertools.pairwise(dealt.edges.tolist()))
        ]
        for index, (lo, hi) in enumerate(itertools.pairwise(edges.tolist())):
            begins[index].sort(key=lambda begin: (begin.row, begin.group, begin.residence))
            hits = tuple(tuple(own[index] for own in accesses) for accesses in cut)
            own = batches[cuts[index] : cuts[index + 1]]
            yield TrayRows(own, entries[lo:hi], hits, begins[index])

    def _cut_into_trays(self, first: int, edges: Ints) -> list[int]:
        """The numbers of the steps at which trays begin and end, given the first step's number.

        The first trays are smaller, so that the first batches need not wait for others.
        """
        is_full = (np.diff(edges) == self._num_full).tolist()
        cuts = [0]
        while (begin := cuts[-1]) < len(is_full):
            end, most = begin + 1, begin + min(self.tray_size, max(1, first + begin))
            while end < min(most, len(is_full)) and is_full[end - 1]:
                end += 1
            cuts.append(end)
        return cuts

    def _batch(self, step: int, rows: slice, dealt: Dealt, num_regions: int | None) -> BatchRows:
        times = None if dealt.occurrences is None else dealt.occurrences[rows]
        if times is not None and len(times):
            self._last_occurrence = int(times[-1])
        return BatchRows(step, dealt.ids[rows], num_regions, times, self._last_occurrence)

    def _hits(self, number: int, entries: Ints, firsts: Ints) -> Iterator[Hits]:
        needs = self.groups[number]
        for finder in self._finders[number]:
            hits, blocks = finder.find(firsts, self._tables)
            hits.residences[:] = needs.residences_of(entries, hits.rows, blocks)
            yield hits
