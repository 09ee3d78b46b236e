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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Boxes, Footprint

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
    occurrences : numpy.ndarray of int, optional
        Which time in the epoch it is that each of ``listed`` comes; the first by default.
    """

    listed: Ints
    begins: Ints
    boxes: Boxes
    occurrences: NDArray[np.integer[Any]] | None = None

    @classmethod
    def of(
        cls,
        footprint: Footprint,
        listed: Ints,
        occurrences: NDArray[np.integer[Any]] | None = None,
    ) -> ListedOrder:
        """The order of some ids, cut into visits."""
        boxes = Boxes.at(footprint.positions_of(listed))
        is_new = np.zeros(len(listed), np.bool_)
        is_new[:1] = True
        for group in footprint.groups:
            for lo, hi in footprint.block_ranges(group, boxes):
                is_new[1:] |= (np.diff(lo) != 0) | (np.diff(hi) != 0)
        begins = np.flatnonzero(is_new)
        return cls(listed, begins, boxes.take(begins), occurrences)

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
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """As `ids`, and which time in the epoch it is that each comes; None: always the first."""
        places, times = self.begins[entries] + ranks, self.occurrences
        ids = np.asarray(self.listed[places], np.int64)
        return ids, None if times is None else times[places].astype(np.int64)

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
