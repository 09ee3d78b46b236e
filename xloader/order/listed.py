"""An order given as a list of ids: of a subset without a shuffle, or passed by a user.

Successive samples that need the same chunks form a *visit*. Visits are the entries of this order,
from which a schedule is made. Each visit has its own moment::

    id      4  4  7  8  8  8  1
    chunk   0  0  1  1  1  1  0
    visit   0  0  1  1  1  1  2

The order without a shuffle: sample ids ascend.

Ids count positions in C order. If the first dimension is cut into pieces and the others are not
cut, the ids of each piece follow those of the piece before. Then the memory must hold the chunks
of one piece: a slab of the array. If that is too much, the first dimension is cut into single
positions and the second into pieces, and so on. ``depth`` is the dimension cut into pieces::

    depth 0   piece x whole x whole          memory holds one slab of chunks
    depth 1   position x piece x whole       memory holds one row of chunks
    depth 2   position x position x piece    memory holds the chunks of one sample
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.subset import count_occurrences
from xloader.order.cohorts import Cohorts, Pieces, cut_cohorts
from xloader.order.lane_order import LaneOrder, SubLanes, lane_part
from xloader.order.protocol import AnyOrder

_SEGMENT_SIZE = 1 << 16


@dataclass(frozen=True, eq=False)
class ListedOrder:
    """An order given as a list of sample ids."""

    listed: Ints | range
    begins: Ints
    boxes: Boxes
    occurrences: NDArray[np.integer[Any]] | None = None

    @classmethod
    def of(
        cls, footprint: Footprint, listed: Ints, occurrences: NDArray[np.integer[Any]] | None = None
    ) -> ListedOrder:
        """Make the order of some ids: find the visits."""
        boxes = Boxes.at(footprint.positions_of(listed))
        begins = np.flatnonzero(_is_new(footprint, boxes))
        return cls(listed, begins, boxes.take(begins), occurrences)

    @classmethod
    def ascending(cls, footprint: Footprint, begin: int, end: int) -> ListedOrder:
        """Make the order of the ids ``begin`` to ``end`` of a subset whose ids ascend with windows.

        Nothing is listed for each id, unless visits are as short as a few ids.
        """
        firsts = _possible_begins(footprint, begin, end)
        if firsts is None:
            return cls.of(footprint, np.arange(begin, end))
        boxes = Boxes.at(footprint.positions_of(firsts))
        visits = np.flatnonzero(_is_new(footprint, boxes))
        return cls(range(begin, end), firsts[visits] - begin, boxes.take(visits))

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Position of the first sample of each given visit."""
        return self.boxes.take(entries)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.listed)

    @property
    def num_moments(self) -> int:
        """Number of moments, one for each visit."""
        return len(self.begins)

    @property
    def count(self) -> Ints:
        """Number of samples of each visit."""
        return np.diff(np.append(self.begins, len(self.listed)))

    @property
    def first_moment(self) -> Ints:
        """Moment of each visit: its number."""
        return np.arange(len(self.begins))

    @property
    def last_moment(self) -> Ints:
        """Moment of each visit, equal to `first_moment`."""
        return self.first_moment

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """Sample ids by visit (``entries``) and index in the visit (``ranks``); int64, ``(n,)``."""
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """Sample ids as `ids`, and their occurrences, or None if each is its sample's first."""
        places, times = self.begins[entries] + ranks, self.occurrences
        listed = self.listed
        ids = places + listed.start if isinstance(listed, range) else listed[places]
        occurrences = None if times is None else times[places].astype(np.int64)
        return np.asarray(ids, np.int64), occurrences

    def places(self, begin: int = 0, size: int = _SEGMENT_SIZE) -> Iterator[tuple[Ints, Ints]]:
        """Yield the visit of each sample, and its index in the visit, in pieces."""
        for first in range(begin, len(self.listed), size):
            places = np.arange(first, min(first + size, len(self.listed)))
            visits = np.searchsorted(self.begins, places, side="right") - 1
            yield visits, places - self.begins[visits]

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """Yield the ids of the samples from index ``begin`` on, and their visits, in pieces."""
        for visits, ranks in self.places(begin):
            yield self.ids(visits, ranks), visits

    def counts_before(self, place: int) -> Ints:
        """Number of samples of each visit that come before index ``place`` of the order."""
        return np.clip(place - self.begins, 0, self.count)


def _is_new(footprint: Footprint, boxes: Boxes) -> NDArray[np.bool_]:
    """Whether each box is the first one, or needs other blocks than the box before it."""
    is_new = np.zeros(len(boxes), np.bool_)
    is_new[:1] = True
    for group in footprint.groups:
        for lo, hi in footprint.block_ranges(group, boxes):
            is_new[1:] |= (np.diff(lo) != 0) | (np.diff(hi) != 0)
    return is_new


def _possible_begins(footprint: Footprint, begin: int, end: int) -> Ints | None:
    """The ids in a range with which visits may begin; None if these are as many as the ids.

    Along the last dimension, visits begin at the edges of blocks only.
    """
    subset = footprint.subset
    assert subset is not None
    if begin == end:
        return np.zeros(0, np.int64)
    row_size, starts = footprint.windows.num_positions[-1], footprint.block_starts[-1]
    first, last = (subset.windows_of(np.array([begin, end - 1])) // row_size).tolist()
    if (last + 1 - first) * (len(starts) - 1) > end - begin:
        return None
    possible = [np.array([begin])]
    at_once = max(_SEGMENT_SIZE // len(starts), 1)
    for row in range(first, last + 1, at_once):
        rows = np.arange(row, min(row + at_once, last + 1))[:, None]
        before = subset.ids_before(rows * row_size + starts)
        ids = before[:, :-1][np.diff(before, axis=1) > 0]
        possible.append(ids[(ids > begin) & (ids < end)])
    return np.concatenate(possible)


@dataclass(frozen=True)
class Ascent:
    """Ascending order of an epoch's samples, divided into sub-lanes.

    `sublanes`: division of the ascending ids into sub-lanes.
    """

    footprint: Footprint
    depth: int
    sublanes: SubLanes
    seed: int = 0
    epoch: int = 0

    @cached_property
    def _drawn(self) -> tuple[Ints, NDArray[np.integer[Any]] | None]:
        """Ids of a subset's samples in this epoch, and their occurrences as `count_occurrences`."""
        assert self.footprint.subset is not None
        drawn = self.footprint.subset.drawn(self.seed, self.epoch)
        return drawn, count_occurrences(drawn)

    @cached_property
    def cohorts(self) -> Cohorts:
        """Cohorts of all windows, cut as ``depth`` says. Their ids follow each other."""
        num_dims = len(self.footprint.windows.dims)
        cut = cut_cohorts(self.footprint, (1,) * num_dims)
        pieces = []
        for dim, count in enumerate(self.footprint.windows.num_positions):
            if dim < self.depth:
                pieces.append(_plain_pieces(np.arange(count + 1)))
            elif dim == self.depth:
                pieces.append(_plain_pieces(cut.pieces[dim].starts))
            else:
                pieces.append(_plain_pieces(np.array([0, count])))
        return Cohorts(tuple(pieces))

    def lane(self, number: int) -> AnyOrder:
        """Make the order of one sub-lane by its number; its ids ascend."""
        subset = self.footprint.subset
        if subset is not None:
            begin, end = self.sublanes.span(number)
            if subset.is_ascending:
                return ListedOrder.ascending(self.footprint, begin, end)
            drawn, times = self._drawn
            times = None if times is None else times[begin:end]
            return ListedOrder.of(self.footprint, drawn[begin:end], times)
        every = np.arange(len(self.cohorts))
        total = np.cumsum(self.cohorts.num_samples)
        entries, count, first_rank = lane_part(every, total, self.sublanes.span(number))
        ones = np.ones(len(entries), np.int32)
        return LaneOrder(
            windows=self.footprint.windows,
            cohorts=self.cohorts,
            cohort=entries,
            first_rank=first_rank,
            count=count,
            start=np.arange(len(entries), dtype=np.int32),
            length=ones,
            phase=ones * 0,
            permutation_key=None,
        )


def _plain_pieces(starts: Ints) -> Pieces:
    """Pieces without tiles, because `Ascent` only needs the first position of each piece."""
    none = np.zeros((0, len(starts) - 1), np.int64)
    return Pieces(
        tile_edges=starts,
        starts=starts,
        home=np.arange(len(starts) - 1),
        touch_lo=none,
        touch_hi=none,
        reach=0,
        is_beyond_homes=np.zeros(len(starts) - 1, np.bool_),
    )
