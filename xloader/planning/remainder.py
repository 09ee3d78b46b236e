"""What is left of an epoch from a step on: what comes, and what has to be read for it.

Which samples came before a place is arithmetic, so nothing is walked through::

    place      0 . . . . . . begin . . . . . .
    entry a    * * * *       |                      done: nothing is read for it
    entry b      *   *   *   |*   *                 two are left, of chunks that were in memory
    entry c                  |  *   *   *           has not begun
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xloader.core.axis import Ints
from xloader.core.footprint import Boxes, Footprint
from xloader.order.lane_spans import SubLanes
from xloader.order.protocol import AnyOrder
from xloader.planning.epoch import Epoch, Lane
from xloader.planning.plan import Plan
from xloader.planning.schedule import make_schedule


@dataclass(frozen=True)
class RemainingOrder:
    """An order from a place on.

    Parameters
    ----------
    whole : AnyOrder
    begin : int
        The first place that is left.
    end : int
        Places from here on are left out.
    """

    whole: AnyOrder
    begin: int
    end: int

    @property
    def num_samples(self) -> int:
        """Samples that are left."""
        return max(self.whole.num_samples - self.begin, 0)

    @property
    def num_slots(self) -> int:
        """Slots of the whole order."""
        return self.whole.num_slots

    @cached_property
    def count(self) -> Ints:
        """Per entry, the samples that are left and not left out."""
        return self.whole.counts_before(self.end) - self.whole.counts_before(self.begin)

    @property
    def boxes(self) -> Boxes:
        """Per entry, the positions of its cohort."""
        return self.whole.boxes

    @property
    def first_slot(self) -> Ints:
        """Per entry, the slot of the first sample that it has in the whole order."""
        return self.whole.first_slot

    @property
    def last_slot(self) -> Ints:
        """Per entry, the slot of its last sample."""
        return self.whole.last_slot

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """The sample id at a rank of an entry, of all that it has in the whole order."""
        return self.whole.ids(entries, ranks)

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """As `ids`, and which time in the whole epoch it is that each comes."""
        return self.whole.identify(entries, ranks)

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """The ids from place ``begin`` of the remainder on, with the entry of each."""
        return self.whole.segments(self.begin + begin)

    def places(self, begin: int = 0, size: int = 1 << 14) -> Iterator[tuple[Ints, Ints]]:
        """As `segments`, with the entry and the rank of each sample, about ``size`` at a time."""
        return self.whole.places(self.begin + begin, size)

    def counts_before(self, place: int) -> Ints:
        """Per entry, how many of the samples that are left come before ``place``."""
        begun = self.whole.counts_before(self.begin)
        return self.whole.counts_before(self.begin + place) - begun


@dataclass(frozen=True)
class Remainder:
    """An epoch from a step on, or what a slab of its samples needs; it answers as an `Epoch` does.

    Parameters
    ----------
    whole : Epoch
    first_step : int
        The first step of each rank that is left.
    footprint : Footprint
        What samples need, as far as they are read here.
    """

    whole: Epoch
    first_step: int
    footprint: Footprint

    @property
    def plan(self) -> Plan:
        """The plan of the whole epoch."""
        return self.whole.plan

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.whole.epoch

    @property
    def num_steps(self) -> int:
        """Steps that every rank has left."""
        return self.whole.num_steps - self.first_step

    @property
    def sublanes(self) -> SubLanes:
        """How the line of samples is divided, and where each part goes on."""
        return replace(self.whole.sublanes, first_step=self.first_step)

    def num_steps_of(self, numbers: Sequence[int]) -> int:
        """Steps that a process has left, given its sublanes."""
        return self.sublanes.num_steps_of(numbers[0])

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """What is left of lanes, by number as of `sublanes`."""
        numbers = list(chosen)
        for number, lane in zip(numbers, self.whole.lanes(numbers), strict=True):
            if number not in self._lanes:
                self._lanes[number] = self._left_of(number, lane)
        return [self._lanes[number] for number in numbers]

    @cached_property
    def _lanes(self) -> dict[int, Lane]:
        return {}

    def _left_of(self, number: int, lane: Lane) -> Lane:
        sublanes, plan = self.sublanes, self.plan
        begin = sublanes.num_done_of(number) * sublanes.share
        if not begin and self.footprint is self.whole.footprint:
            return lane
        order = RemainingOrder(lane.order, begin, begin + sublanes.most_samples(number))
        schedule = make_schedule(
            self.footprint,
            order,
            plan.lane_pool_nbytes,
            is_resident=plan.is_resident,
            is_needed=order.count > 0,
        )
        return Lane(order, schedule)
