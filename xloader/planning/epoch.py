"""One epoch of a plan, or the rest of one from a step on: order, schedule and chunks needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import ClassVar

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.order.cohorts import Cohorts, cut_cohorts
from xloader.order.lane_order import LaneOrder, SubLanes
from xloader.order.listed import Ascent
from xloader.order.protocol import AnyOrder
from xloader.order.shuffle import Shuffle
from xloader.planning.plan import Plan
from xloader.planning.schedule import Schedule


@dataclass(frozen=True)
class Lane:
    """One sub-lane of one epoch."""

    order: AnyOrder
    schedule: Schedule


@dataclass(frozen=True)
class Epoch:
    """One epoch of a plan, made sub-lane by sub-lane.

    Each lane has one sub-lane per worker. With one worker, sub-lanes are lanes.
    """

    footprint: Footprint
    plan: Plan
    seed: int
    epoch: int
    drop_last: bool = False
    spread_is_fixed: bool = False
    cut: Cohorts | None = None
    turn: int = 0
    first_step: ClassVar[int] = 0

    @property
    def whole(self) -> Epoch:
        """The epoch itself, as `Remainder.whole`."""
        return self

    @property
    def num_steps(self) -> int:
        """Steps that every rank takes."""
        return self.plan.num_steps(self.footprint.num_samples, drop_last=self.drop_last)

    @cached_property
    def sublanes(self) -> SubLanes:
        """The division of the epoch's samples into one sub-lane for each lane and worker."""
        num_samples, plan = self.footprint.num_samples, self.plan
        lanes, share, steps = plan.pace.lanes, plan.lane_share, self.num_steps
        return SubLanes(num_samples, lanes, plan.workers, share, steps, turn=self.turn)

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """Make some sub-lanes, by their numbers in `sublanes`.

        Each has the largest spread whose chunks fit, at most the plan's. Runs are cut differently
        in each epoch, so the bytes needed at a time vary by a tile or two.
        """
        return self.drawn(self._number, chosen)

    def lane(self, number: int) -> Lane:
        """Make one sub-lane, as in `lanes`."""
        return self.lanes(range(number, number + 1))[0]

    def without_lanes(self) -> Epoch:
        """Copy without the sub-lanes made so far, which take memory. It keeps which draw it is."""
        copy = replace(self)
        if "_number" in self.__dict__:
            # To find the draw again, the sub-lanes of several draws would be made.
            copy.__dict__["_number"] = self._number
        return copy

    def drawn(self, number: int, chosen: Iterable[int]) -> list[Lane]:
        """Make sub-lanes as in `lanes`, with a given draw of the line of runs."""
        chosen, known = list(chosen), self._lines.setdefault(number, {})
        missing = [lane for lane in chosen if lane not in known]
        if missing:
            make = self._maker(number)
            known.update((lane, make(lane)) for lane in missing)
        return [known[lane] for lane in chosen]

    @cached_property
    def num_needed(self) -> int:
        """Number of distinct (variable, chunk) pairs that the epoch needs, if all steps are taken.

        Where epochs draw few samples, each needs some only of those that any epoch needs.
        """
        footprint = self.footprint
        if not footprint.is_drawn:
            return footprint.num_needed
        # All samples of a cohort need the same blocks.
        boxes = self._cohorts.boxes(self._cohorts.used)
        return sum(
            len(np.unique(footprint.needs(group, boxes)[1])) * group.num_reads_per_block
            for group in footprint.groups
        )

    @cached_property
    def _lines(self) -> dict[int, dict[int, Lane]]:
        """The sub-lanes made so far, by draw of the line of runs and by number."""
        return {}

    @cached_property
    def _number(self) -> int:
        """The draw of the epoch: the first with few enough reads, else the one with fewest."""
        pace = self.plan.pace
        if pace.draws == 1:
            return 0
        enough = self.plan.max_amplification * self.num_needed
        num_reads: list[int] = []
        for number in range(pace.draws):
            lanes = self.drawn(number, range(self.sublanes.num))
            num_reads.append(sum(lane.schedule.num_reads for lane in lanes))
            if num_reads[-1] <= enough:
                break
        best = num_reads.index(min(num_reads))
        for number in self._lines.keys() - {best}:
            del self._lines[number]
        return best

    def _maker(self, number: int) -> Callable[[int], Lane]:
        """The function that makes a sub-lane from its number, with one draw of the line of runs."""
        pace, seed, epoch = self.plan.pace, self.seed, self.epoch
        if pace.is_shuffled:
            windows = self.footprint.windows
            shuffle = Shuffle(windows, self._cohorts, pace, seed, epoch, number, self.sublanes)
            return partial(self._fitting_lane, shuffle)
        ascent = Ascent(self.footprint, self.plan.depth, self.sublanes, seed, epoch)

        def ascend(lane: int) -> Lane:
            """One sub-lane in ascending order of ids."""
            order = ascent.lane(lane)
            return Lane(order, self._schedule(order, lane))

        return ascend

    @cached_property
    def _cohorts(self) -> Cohorts:
        tiling = self.plan.pace.tiling
        return self.cut or cut_cohorts(self.footprint, tiling, seed=self.seed, epoch=self.epoch)

    def _fitting_lane(self, shuffle: Shuffle, lane: int) -> Lane:
        spread = self.plan.pace.spread
        while True:
            order = shuffle.lane(lane, spread)
            schedule = self._schedule(order, lane)
            is_final = self.plan.is_resident or self.spread_is_fixed or spread == 0
            if is_final or self._surely_fits(order):
                return Lane(order, schedule)
            if schedule.at_work_nbytes <= self.plan.lane_pool_nbytes:
                return Lane(order, schedule)
            spread = min(spread, order.num_moments) - 1

    def _surely_fits(self, order: LaneOrder) -> bool:
        """Whether the chunks fit even if no two entries need the same one.

        If so, what is at work in each moment need not be counted, which takes long for an epoch of
        which only a part is left.
        """
        most = self.footprint.most_nbytes(self._cohorts.most_positions)
        # Rounding may put an entry's last sample into the moment after its interval.
        return 2 * order.most_under_way * most <= self.plan.lane_pool_nbytes

    def _schedule(self, order: AnyOrder, lane: int) -> Schedule:
        cutoff = self.sublanes.most_samples(lane)
        is_needed = order.counts_before(cutoff) > 0 if cutoff < order.num_samples else None
        return Schedule(
            self.footprint,
            order,
            self.plan.lane_pool_nbytes,
            is_resident=self.plan.is_resident,
            is_needed=is_needed,
        )


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


def lane_left(footprint: Footprint, plan: Plan, order: AnyOrder) -> Lane:
    """A part of a lane, with the schedule of the samples that it has left."""
    is_needed = order.count > 0
    pool_nbytes, is_resident = plan.lane_pool_nbytes, plan.is_resident
    return Lane(order, Schedule(footprint, order, pool_nbytes, is_resident, is_needed))


@dataclass(frozen=True)
class Remainder:
    """An epoch from a step on, with the properties and methods of `Epoch` that loaders use.

    It also serves a rank that reads slabs of the samples, from any step on.
    """

    whole: Epoch
    first_step: int
    footprint: Footprint
    processes: tuple[Sequence[int], ...]

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

    @cached_property
    def sublanes(self) -> SubLanes:
        """The division of the epoch's samples into sub-lanes, with the first step that is left.

        Padding repeats the last row of the process before it. A process that has only padding left
        therefore makes its step before that again, without delivering it.
        """
        left = replace(self.whole.sublanes, first_step=self.first_step)
        padded = (numbers for numbers in self.processes if left.has_padding_only(numbers))
        return replace(left, made_again=frozenset(chain.from_iterable(padded)))

    def without_lanes(self) -> Remainder:
        """Copy without the sub-lanes made so far, as `Epoch.without_lanes`."""
        return replace(self, whole=self.whole.without_lanes())

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
        sublanes = self.sublanes
        begin = sublanes.num_done_of(number) * sublanes.share
        if not begin and self.footprint is self.whole.footprint:
            return lane
        order = RemainingOrder(lane.order, begin, begin + sublanes.most_samples(number))
        return lane_left(self.footprint, self.plan, order)
