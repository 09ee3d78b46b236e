"""One epoch of a plan: the order and the schedule of each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from xloader.core.footprint import Footprint
from xloader.order.ascending import Ascent
from xloader.order.cohorts import Cohorts, cut_cohorts
from xloader.order.lane_spans import SubLanes
from xloader.order.protocol import AnyOrder
from xloader.order.shuffle import Shuffle
from xloader.planning.plan import Plan
from xloader.planning.schedule import Schedule, make_schedule


@dataclass(frozen=True)
class Lane:
    """One lane of one epoch: its order, and what it loads when."""

    order: AnyOrder
    schedule: Schedule


@dataclass(frozen=True)
class Epoch:
    """One epoch of a plan, lane by lane.

    Parameters
    ----------
    footprint : Footprint
    plan : Plan
    seed, epoch : int
    drop_last : bool
        Whether the samples that do not fill a global batch are left out.
    spread_is_fixed : bool
        Whether to keep the plan's spread even where its chunks do not fit.
    cut : Cohorts, optional
        The cohorts of the plan's tiling, where they are known and the same in every epoch.
    """

    footprint: Footprint
    plan: Plan
    seed: int
    epoch: int
    drop_last: bool = False
    spread_is_fixed: bool = False
    cut: Cohorts | None = None

    @property
    def num_steps(self) -> int:
        """Steps that every rank takes."""
        return self.plan.num_steps(self.footprint.num_samples, drop_last=self.drop_last)

    @cached_property
    def sublanes(self) -> SubLanes:
        """How the line of samples is divided: a lane for each lane and worker."""
        plan = self.plan
        return SubLanes(
            self.footprint.num_samples,
            plan.pace.lanes,
            plan.workers,
            plan.lane_share,
            self.num_steps,
        )

    def num_steps_of(self, numbers: Sequence[int]) -> int:
        """Steps that a process makes, given its sublanes."""
        return self.sublanes.num_steps_of(numbers[0])

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """Lanes, by number as of `sublanes`.

        Each has the largest spread up to the plan's whose chunks fit.
        Where runs are cut differs from epoch to epoch, and with it by a tile or two what must
        be in memory at a time. An epoch that needs more than the pool takes a smaller spread.
        """
        return self.drawn(self._number, chosen)

    def lane(self, number: int) -> Lane:
        """One lane, as of `lanes`."""
        return self.lanes(range(number, number + 1))[0]

    def drawn(self, number: int, chosen: Iterable[int]) -> list[Lane]:
        """Lanes as of `lanes`, with one of the lines of runs that the epoch may draw."""
        chosen, known = list(chosen), self._lines.setdefault(number, {})
        missing = [lane for lane in chosen if lane not in known]
        if missing:
            make = self._maker(number)
            known.update((lane, make(lane)) for lane in missing)
        return [known[lane] for lane in chosen]

    @cached_property
    def _lines(self) -> dict[int, dict[int, Lane]]:
        """The lanes that were asked for so far, by line of runs."""
        return {}

    @cached_property
    def _number(self) -> int:
        """The epoch's line of runs: the first that reads no more than is allowed, or the least."""
        pace = self.plan.pace
        if pace.draws == 1:
            return 0
        enough = self.plan.max_amplification * self.footprint.num_needed
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
        """What makes a lane with one of the lines of runs."""
        pace, seed, epoch = self.plan.pace, self.seed, self.epoch
        if pace.is_shuffled:
            windows = self.footprint.windows
            shuffle = Shuffle(windows, self._cohorts, pace, seed, epoch, number, self.sublanes)
            return partial(self._fitting_lane, shuffle)
        ascent = Ascent(self.footprint, self.plan.depth, self.sublanes, seed, epoch)

        def ascend(lane: int) -> Lane:
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
            if is_final or schedule.at_work_nbytes <= self.plan.lane_pool_nbytes:
                return Lane(order, schedule)
            spread = min(spread, order.num_slots) - 1

    def _schedule(self, order: AnyOrder, lane: int) -> Schedule:
        cutoff = self.sublanes.most_samples(lane)
        is_needed: np.ndarray | None = None
        if cutoff < order.num_samples:
            is_needed = order.counts_before(cutoff) > 0
        return make_schedule(
            self.footprint,
            order,
            self.plan.lane_pool_nbytes,
            is_resident=self.plan.is_resident,
            is_needed=is_needed,
        )
