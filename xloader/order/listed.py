"""An order given as a list of ids: of a subset without a shuffle, or passed by a user.

Successive samples that need the same chunks form a *visit*. Visits are the entries of this order,
from which a schedule is made. Each visit has its own slot::

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
    """An order given as a list of sample ids.

    Parameters
    ----------
    listed : numpy.ndarray of int64, shape (n,)
        Sample ids in order.
    begins : numpy.ndarray of int64, shape (num_visits,)
        Index in ``listed`` of the first sample of each visit.
    boxes : Boxes
        Position of the first sample of each visit.
    occurrences : numpy.ndarray of int, shape (n,), optional
        For each of ``listed``, how often the sample has occurred in the epoch before; by default
        0 for all.
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
        """Make the order of some ids: find the visits.

        Parameters
        ----------
        footprint : Footprint
            The chunks that samples need.
        listed : numpy.ndarray of int64, shape (n,)
            Sample ids in order.
        occurrences : numpy.ndarray of int, shape (n,), optional
            As for the class.
        """
        boxes = Boxes.at(footprint.positions_of(listed))
        is_new = np.zeros(len(listed), np.bool_)
        is_new[:1] = True
        for group in footprint.groups:
            for lo, hi in footprint.block_ranges(group, boxes):
                is_new[1:] |= (np.diff(lo) != 0) | (np.diff(hi) != 0)
        begins = np.flatnonzero(is_new)
        return cls(listed, begins, boxes.take(begins), occurrences)

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Position of the first sample of each given visit."""
        return self.boxes.take(entries)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.listed)

    @property
    def num_slots(self) -> int:
        """Number of slots, one for each visit."""
        return len(self.begins)

    @property
    def count(self) -> Ints:
        """Number of samples of each visit."""
        return np.diff(np.append(self.begins, len(self.listed)))

    @property
    def first_slot(self) -> Ints:
        """Slot of each visit: its number."""
        return np.arange(len(self.begins))

    @property
    def last_slot(self) -> Ints:
        """Slot of each visit, equal to `first_slot`."""
        return self.first_slot

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """Sample ids by visit (``entries``) and index in the visit (``ranks``); int64, ``(n,)``."""
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """Sample ids as `ids`, and their occurrences, or None if each is its sample's first."""
        places, times = self.begins[entries] + ranks, self.occurrences
        ids = np.asarray(self.listed[places], np.int64)
        return ids, None if times is None else times[places].astype(np.int64)

    def places(self, begin: int = 0, size: int = _SEGMENT_SIZE) -> Iterator[tuple[Ints, Ints]]:
        """Yield the visit of each sample, and its index in the visit, in pieces.

        Parameters
        ----------
        begin : int
            Index of the first sample in the order.
        size : int
            Number of samples of a piece; the last may have fewer.

        Yields
        ------
        visits, ranks : numpy.ndarray of int64, shape (n,)
            Number of the visit, and index in it.
        """
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
