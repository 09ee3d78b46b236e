"""An order that is a list of ids: of subsets without a shuffle, and of orders made by others.

Samples that follow each other with the same needs are one *visit*, which is what a schedule
looks at. Each visit has a slot of its own::

    id      4  4  7  8  8  8  1
    chunk   0  0  1  1  1  1  0
    visit   0  0  1  1  1  1  2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xloader.footprint import Boxes, Footprint
from xloader.grid import Ints

_SEGMENT_SIZE = 1 << 16


@dataclass(frozen=True, eq=False)
class ListedOrder:
    """Samples in a given order.

    Parameters
    ----------
    listed : numpy.ndarray of int64
        Sample ids in order.
    begins : numpy.ndarray of int64
        Where in it each visit begins.
    boxes : Boxes
        The position of the first sample of each visit.
    """

    listed: Ints
    begins: Ints
    boxes: Boxes

    @classmethod
    def of(cls, footprint: Footprint, listed: Ints) -> ListedOrder:
        """The order of some ids, cut into visits."""
        boxes = Boxes.at(footprint.positions_of(listed))
        is_new = np.zeros(len(listed), np.bool_)
        is_new[:1] = True
        for group in footprint.groups:
            for lo, hi in footprint.block_ranges(group, boxes):
                is_new[1:] |= (np.diff(lo) != 0) | (np.diff(hi) != 0)
        begins = np.flatnonzero(is_new)
        return cls(listed, begins, boxes.take(begins))

    @property
    def num_samples(self) -> int:
        """Number of samples in all."""
        return len(self.listed)

    @property
    def num_slots(self) -> int:
        """Number of slots, one for each visit."""
        return len(self.begins)

    @property
    def count(self) -> Ints:
        """Samples of each visit."""
        return np.diff(np.append(self.begins, len(self.listed)))

    @property
    def first_slot(self) -> Ints:
        """The slot of each visit."""
        return np.arange(len(self.begins))

    @property
    def last_slot(self) -> Ints:
        """The slot of each visit."""
        return self.first_slot

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """The sample id at a rank of a visit."""
        return np.asarray(self.listed[self.begins[entries] + ranks], np.int64)

    def places(self, begin: int = 0, size: int = _SEGMENT_SIZE) -> Iterator[tuple[Ints, Ints]]:
        """The visit and the rank there of each sample from place ``begin`` on, in pieces."""
        for first in range(begin, len(self.listed), size):
            places = np.arange(first, min(first + size, len(self.listed)))
            visits = np.searchsorted(self.begins, places, side="right") - 1
            yield visits, places - self.begins[visits]

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """The ids from place ``begin`` on, with the visit of each, in pieces."""
        for visits, ranks in self.places(begin):
            yield self.ids(visits, ranks), visits

    def counts_before(self, place: int) -> Ints:
        """Per visit, how many of its samples come before ``place``."""
        return np.clip(place - self.begins, 0, self.count)
