"""One epoch of a plan: the order and the schedule of each sub-lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

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

    @property
    def num_steps(self) -> int:
        """Steps that every rank takes."""
        return self.plan.num_steps(self.footprint.num_samples, drop_last=self.drop_last)

    @cached_property
    def sublanes(self) -> SubLanes:
        """The division of the epoch's samples into one sub-lane for each lane and worker."""
        num_samples, plan = self.footprint.num_samples, self.plan
        return SubLanes(num_samples, plan.pace.lanes, plan.workers, plan.lane_share, self.num_steps)

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
    def _lines(self) -> dict[int, dict[int, Lane]]:
        """The sub-lanes made so far, by draw of the line of runs and by number."""
        return {}

    @cached_property
    def _number(self) -> int:
        """The draw of the epoch: the first with few enough reads, else the one with fewest."""
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
