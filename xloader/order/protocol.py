"""Protocols: what planning and the engine need to know of an order of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from xloader.core.axis import Ints
from xloader.core.footprint import Boxes


class Entries(Protocol):
    """What a schedule must know of an order: who needs something, and when."""

    @property
    def boxes(self) -> Boxes:
        """Positions of each entry's samples."""
        ...

    @property
    def count(self) -> Ints:
        """Samples that each entry hands out."""
        ...

    @property
    def first_slot(self) -> Ints:
        """Slot of each entry's first sample."""
        ...

    @property
    def last_slot(self) -> Ints:
        """Slot of each entry's last sample."""
        ...


class AnyOrder(Entries, Protocol):
    """One lane's order of one epoch: a list of entries, and the samples that they hand out."""

    @property
    def num_samples(self) -> int:
        """Number of samples that the lane hands out."""
        ...

    @property
    def num_slots(self) -> int:
        """Number of slots."""
        ...

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """The sample id at a rank of an entry."""
        ...

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """As `ids`, and which time in the epoch it is that each comes; None: always the first."""
        ...

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """The ids from place ``begin`` on, with the entry of each, in pieces."""
        ...

    def places(self, begin: int = 0, size: int = ...) -> Iterator[tuple[Ints, Ints]]:
        """As `segments`, with the entry and the rank of each sample, about ``size`` at a time."""
        ...

    def counts_before(self, place: int) -> Ints:
        """Per entry, how many of its samples come before ``place``."""
        ...
