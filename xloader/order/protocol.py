"""The interface of an order of samples, as planning and the engine use it.

An order is a list of *entries*, each a cohort or a part of one, with the samples that it hands
out. A sample is named by its entry and its *rank*, its index among the entry's samples. Moments
count units of time within an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes


class Entries(Protocol):
    """The part of an order that a schedule uses: the chunks that entries need, and when."""

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Box of the positions of each given entry's samples."""

    @property
    def count(self) -> Ints:
        """Number of samples that each entry hands out."""

    @property
    def first_moment(self) -> Ints:
        """Moment of each entry's first sample."""

    @property
    def last_moment(self) -> Ints:
        """Moment of each entry's last sample."""


class AnyOrder(Entries, Protocol):
    """The order of one lane in one epoch: its entries, and the sequence of their samples."""

    @property
    def num_samples(self) -> int:
        """Number of samples that the lane hands out."""

    @property
    def num_moments(self) -> int:
        """Number of moments."""

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """Sample ids by entry and rank; int64, of the shape of ``entries``."""

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """Sample ids as `ids`, and their occurrences, or None if each is its sample's first.

        An occurrence is the number of times that the sample comes earlier in the epoch.
        """

    def places(self, begin: int = 0, size: int = ...) -> Iterator[tuple[Ints, Ints]]:
        """Yield the entry and the rank of each sample, about ``size`` samples at a time."""

    def counts_before(self, place: int) -> Ints:
        """Number of samples of each entry that come before index ``place`` of the order."""


_PIECE_SIZE = 1 << 13
"""Most samples that are asked for in one call."""


def take_places(order: AnyOrder, begin: int, size: int) -> tuple[Ints, Ints]:
    """Entries and ranks of ``size`` samples of an order from a place on, fewer at its end."""
    entries, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if size > 0:
        for some_entries, some_ranks in order.places(begin, min(size, _PIECE_SIZE)):
            entries.append(some_entries[:size])
            ranks.append(some_ranks[:size])
            size -= len(entries[-1])
            if not size:
                break
    return np.concatenate(entries), np.concatenate(ranks)
