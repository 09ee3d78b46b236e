"""Differences along time, of elements that lie in one chunk or in two.

Each chunk is read once. The few values of a chunk whose partners lie in another chunk wait until
that has been read, too::

    chunk 0                    chunk 1
    0 1 2 3 4 5 6 7          | 8 9 ...         lead of 2 steps
    `-+-'     6 and 7 wait for 8 and 9
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.jobs.statistics.chunk_reduction import ChunkElements, reduce_elements, run_of
from xloader.jobs.statistics.label_pairs import LeadPairs
from xloader.jobs.statistics.labelled_moments import LabelledMoments, side_by_side


@dataclass(frozen=True, eq=False)
class LeadPieces:
    """Which blocks along time hold differences, and which elements of them."""

    leads: tuple[LeadPairs, ...]
    axis: Axis

    def deltas(self) -> list[tuple[int, Ints]]:
        """How many blocks later elements lie beyond earlier ones, and for which blocks that is."""
        found: dict[int, Ints] = {}
        for pairs in self.leads:
            own = np.flatnonzero(pairs.partner >= 0)
            block = self.axis.block_of(own)
            delta = self.axis.block_of(pairs.partner[own]) - block
            for one in np.unique(delta).tolist():
                occurs = found.setdefault(one, np.zeros(self.axis.num_blocks, np.bool_))
                occurs[block[delta == one]] = True
        return sorted(found.items())

    def places(self, first: int, second: int) -> list[tuple[Ints, Ints]]:
        """For each lead, the places of earlier and later elements within two blocks."""
        begin, end = self.axis.span_of(first)
        other, until = self.axis.span_of(second)
        found = []
        for pairs in self.leads:
            partner = pairs.partner[begin:end]
            own = np.flatnonzero((partner >= other) & (partner < until))
            found.append((own, partner[own] - other))
        return found

    def longest_slab(self) -> int:
        """Most elements along time of a chunk that wait for another one."""
        edges = self.axis.edges
        ends: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        for pairs in self.leads:
            own = np.flatnonzero(pairs.partner >= 0)
            both = own, pairs.partner[own]
            block, other = self.axis.block_of(both[0]), self.axis.block_of(both[1])
            for delta in np.unique(other - block).tolist():
                at = other - block == delta
                for side, begins in enumerate((edges[block], edges[other])):
                    place = (both[side] - begins)[at]
                    # Per block of the earlier elements: first and last element that waits.
                    lo, hi = ends.setdefault((delta, side), _no_bounds(self.axis.num_blocks))
                    np.minimum.at(lo, block[at], place)
                    np.maximum.at(hi, block[at], place)
        return max((int((hi - lo).max()) + 1 for (d, _), (lo, hi) in ends.items() if d), default=0)

    def _bounds(self, piece: tuple[int, int], side: int) -> tuple[int, int]:
        taken = [own[side] for own in self.places(*piece)]
        lo = min(int(own.min()) for own in taken if len(own))
        return lo, max(int(own.max()) for own in taken if len(own)) + 1

    def slab(
        self, elements: ChunkElements, clock: int, piece: tuple[int, int], side: int
    ) -> WaitingElements:
        """The elements of a chunk that wait for another chunk."""
        lo, hi = self._bounds(piece, side)
        return WaitingElements(elements.take(clock, slice(lo, hi), has_rows=True).copy(), lo)

    def reduce(
        self,
        earlier: WaitingElements,
        later: WaitingElements,
        clock: int,
        piece: tuple[int, int],
        kept: tuple[int, ...],
        *,
        has_sketches: bool,
    ) -> LabelledMoments:
        """The statistics of the differences between two chunks, for each lead."""
        found = []
        for pairs, (own, other) in zip(self.leads, self.places(*piece), strict=True):
            first = earlier.elements.take(clock, run_of(own - earlier.begin), has_rows=True)
            if pairs.steps:
                second = later.elements.take(clock, run_of(other - later.begin), has_rows=True)
                first = second.minus(first)
            found.append(reduce_elements(first, kept, clock, has_sketches=has_sketches))
        return side_by_side(found)


@dataclass(frozen=True, eq=False)
class WaitingElements:
    """Elements of a chunk from some place along time on."""

    elements: ChunkElements
    begin: int


def _no_bounds(num_blocks: int) -> tuple[Ints, Ints]:
    return np.full(num_blocks, 1 << 60), np.full(num_blocks, -(1 << 60))
