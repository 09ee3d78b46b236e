"""The rest of an epoch from a step on: the samples that are left, and the chunks they need.

The samples before a place are found by arithmetic, without walking through the epoch::

    place      0 . . . . . . begin . . . . . .
    entry a    * * * *       |                      done: nothing is read for it
    entry b      *   *   *   |*   *                 two are left, of chunks that were in memory
    entry c                  |  *   *   *           has not begun

Epochs that take only a part of the samples: successive parts of one shuffled pass.

With 22 samples of which an epoch takes 9, in steps of 2::

    pass      0 0 0 0 0 0 0 0 0 . 0 0 0 0 0 0 0 0 0 . . . | 1 1 1 1 1
    epoch     0 0 0 0 0 0 0 0 0   1 1 1 1 1 1 1 1 1       | 2 2 2 2 2

So a sample comes at most once in an epoch, and not again before the next pass. An epoch reads the
chunks of its own samples only, and not those of the whole pass. Each part begins with a whole
step. What is left at the end of a pass is in no epoch of that pass; the next pass has another
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.order.lane_order import SubLanes
from xloader.order.protocol import AnyOrder
from xloader.planning.epoch import Epoch, Lane
from xloader.planning.plan import Plan
from xloader.planning.schedule import Schedule


class EpochPart(NamedTuple):
    """The part of a pass over all samples that is one epoch."""

    epoch: int
    whole: int
    first_step: int
    end_step: int
    end: int


@dataclass(frozen=True)
class EpochParts:
    """The division of passes over all samples into epochs."""

    num_samples: int
    num_taken: int
    lanes: int
    share: int
    is_shuffled: bool

    @classmethod
    def of(cls, plan: Plan, num_samples: int, num_taken: int) -> EpochParts:
        """The division of the passes of a plan."""
        pace = plan.pace
        return cls(num_samples, num_taken, pace.lanes, plan.lane_share, pace.is_shuffled)

    @property
    def num_steps(self) -> int:
        """Number of steps of an epoch."""
        return -(-self._lane_size // self.share)

    @property
    def num_parts(self) -> int:
        """Number of epochs of a pass."""
        if not self.is_shuffled:
            return 1
        left = self.num_samples // self.lanes - self._lane_size
        return 1 + left // (self.num_steps * self.share)

    @property
    def _lane_size(self) -> int:
        return self.num_taken // self.lanes

    def part(self, epoch: int) -> EpochPart:
        """The part of a pass that is an epoch."""
        whole, place = divmod(epoch, self.num_parts)
        # Without a shuffle, the number of a pass changes only how often samples are drawn.
        first = place * self.num_steps
        end = first * self.share + self._lane_size
        return EpochPart(epoch, whole, first, first + self.num_steps, end)


@dataclass(frozen=True)
class RemainingOrder:
    """The order of a lane from a place on.

    Entries, moments and ranks are those of the whole order.
    """

    whole: AnyOrder
    begin: int
    end: int

    @property
    def num_samples(self) -> int:
        """Samples from ``begin`` on, those after ``end`` included."""
        return max(self.whole.num_samples - self.begin, 0)

    @property
    def num_moments(self) -> int:
        """Moments of the whole order."""
        return self.whole.num_moments

    @cached_property
    def count(self) -> Ints:
        """Samples of each entry between ``begin`` and ``end``."""
        return self.whole.counts_before(self.end) - self.whole.counts_before(self.begin)

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Positions of each given entry's samples in the whole order."""
        return self.whole.boxes_of(entries)

    @property
    def first_moment(self) -> Ints:
        """Moment of each entry's first sample in the whole order."""
        return self.whole.first_moment

    @property
    def last_moment(self) -> Ints:
        """Moment of each entry's last sample in the whole order."""
        return self.whole.last_moment

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """The sample ids at the given ranks of entries. Ranks count from the start of the epoch."""
        return self.whole.ids(entries, ranks)

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """The sample ids as `ids` gives them, and which of its sample's occurrences each one is.

        Occurrences of a sample in the whole epoch are numbered from 0. The second value is
        ``None`` if no sample occurs twice.
        """
        return self.whole.identify(entries, ranks)

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """The ids from place ``begin`` of the remainder on, with the entry of each, in pieces."""
        return self.whole.segments(self.begin + begin)

    def places(self, begin: int = 0, size: int = 1 << 14) -> Iterator[tuple[Ints, Ints]]:
        """Entry and rank of each sample from place ``begin`` up to ``end``, ``size`` at a time."""
        num_left = self.end - self.begin - begin
        for entries, ranks in self.whole.places(self.begin + begin, size):
            if num_left <= 0:
                return
            yield entries[:num_left], ranks[:num_left]
            num_left -= len(entries)

    def counts_before(self, place: int) -> Ints:
        """Number of each entry's remaining samples before ``place`` of the remainder."""
        begun = self.whole.counts_before(self.begin)
        return self.whole.counts_before(self.begin + place) - begun


@dataclass(frozen=True)
class Remainder:
    """An epoch from a step on, with the properties and methods of `Epoch` that loaders use.

    It also serves a rank that reads slabs of the samples, from any step on.
    """

    whole: Epoch
    first_step: int
    footprint: Footprint
    processes: tuple[Sequence[int], ...]
    part: EpochPart | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the whole epoch."""
        return self.whole.plan

    @property
    def epoch(self) -> int:
        """Number of the epoch, which is not that of ``whole`` if it is a part of it."""
        return self.whole.epoch if self.part is None else self.part.epoch

    @property
    def num_steps(self) -> int:
        """Steps that every rank has left."""
        end = self.whole.num_steps if self.part is None else self.part.end_step
        return end - self.first_step

    @cached_property
    def sublanes(self) -> SubLanes:
        """The division of the epoch's samples into sub-lanes, with the first step that is left.

        Padding repeats the last row of the process before it. A process that has only padding left
        therefore makes its step before that again, without delivering it.
        """
        left = replace(self.whole.sublanes, first_step=self.first_step)
        if self.part is not None:
            left = replace(left, num_steps=self.part.end_step, end=self.part.end)
        padded = (numbers for numbers in self.processes if left.has_padding_only(numbers))
        return replace(left, made_again=frozenset(chain.from_iterable(padded)))

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """The rest of some sub-lanes, by their numbers in `sublanes`."""
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
        if not begin and self.part is None and self.footprint is self.whole.footprint:
            return lane
        order = RemainingOrder(lane.order, begin, begin + sublanes.most_samples(number))
        schedule = Schedule(
            self.footprint,
            order,
            plan.lane_pool_nbytes,
            is_resident=plan.is_resident,
            is_needed=order.count > 0,
        )
        return Lane(order, schedule)
