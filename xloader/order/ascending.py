"""The order without a shuffle: sample ids ascend.

Ids count positions in C order. If the first dimension is cut into pieces and the others are not
cut, the ids of each piece follow those of the piece before. Then the memory must hold the chunks
of one piece: a slab of the array. If that is too much, the first dimension is cut into single
positions and the second into pieces, and so on. ``depth`` is the dimension cut into pieces::

    depth 0   piece x whole x whole          memory holds one slab of chunks
    depth 1   position x piece x whole       memory holds one row of chunks
    depth 2   position x position x piece    memory holds the chunks of one sample
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint
from xloader.core.subset import count_occurrences
from xloader.order.cohorts import Cohorts, Pieces, cut_cohorts
from xloader.order.lane_order import LaneOrder, SubLanes, lane_part
from xloader.order.listed import ListedOrder
from xloader.order.protocol import AnyOrder


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
