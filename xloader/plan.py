"""The plan: the numbers that fix what an epoch reads, holds and delivers.

Memory is divided here, and nowhere else::

    memory = batches   (prefetch + 2) of them: one in work, one held by the user
           + in flight 1/16 of memory, at least two of the largest chunks
           + indexes   of shards, kept once they are read
           + pool      per lane: what is at work and kept, and what is decoded ahead
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from xloader.ascend import Ascent
from xloader.cohorts import Cohorts, cut_cohorts
from xloader.errors import MemoryBudgetError
from xloader.footprint import Footprint
from xloader.order import AnyOrder
from xloader.pace import Pace, Shuffle
from xloader.schedule import Schedule, make_schedule
from xloader.sublanes import SubLanes

_CHUNKS_AHEAD = 64


@dataclass(frozen=True)
class Budget:
    """How the memory of one rank is divided.

    Parameters
    ----------
    memory_nbytes : int
        All of it.
    batch_nbytes : int
        One batch, as one process may have to hold it.
    num_batches : int
        Batches in memory at a time.
    max_chunk_nbytes : int
        The largest chunk, decoded.
    num_lanes : int
        Lanes that one process may have to carry.
    index_nbytes : int
        Indexes of shards.
    """

    memory_nbytes: int
    batch_nbytes: int
    num_batches: int
    max_chunk_nbytes: int
    num_lanes: int
    index_nbytes: int = 0

    @property
    def batches_nbytes(self) -> int:
        """What the batches take."""
        return self.num_batches * self.batch_nbytes

    @property
    def in_flight_nbytes(self) -> int:
        """What reads under way take."""
        return max(self.memory_nbytes // 16, 2 * self.max_chunk_nbytes)

    @property
    def fixed_nbytes(self) -> int:
        """All that is not for decoded chunks."""
        return self.batches_nbytes + self.in_flight_nbytes + self.index_nbytes

    def needed_nbytes(self, num_steps: int, batch_nbytes: int, read_nbytes: int) -> int:
        """All that is not for decoded chunks, as far as a process has a use for it.

        Parameters
        ----------
        num_steps : int
            Batches that it makes: no more of them can be in memory.
        batch_nbytes : int
            One of them.
        read_nbytes : int
            Decoded bytes of all chunks that it reads: no more can be in flight.
        """
        batches = min(self.num_batches, num_steps) * batch_nbytes
        return batches + min(self.in_flight_nbytes, read_nbytes) + self.index_nbytes

    @property
    def ahead_nbytes(self) -> int:
        """What may be decoded ahead of need, beyond a tile: enough to keep many readers busy."""
        return min(self.in_flight_nbytes, _CHUNKS_AHEAD * self.max_chunk_nbytes)

    @property
    def lane_nbytes(self) -> int:
        """What each lane has for decoded chunks; negative where the rest takes it all."""
        return (self.memory_nbytes - self.fixed_nbytes) // self.num_lanes

    def minimum_nbytes(self, lane_nbytes: int) -> int:
        """The least memory that leaves each lane ``lane_nbytes``."""
        needed = self.batches_nbytes + self.index_nbytes + self.num_lanes * lane_nbytes
        return max(needed + 2 * self.max_chunk_nbytes, needed + max(needed - 1, 0) // 15)

    def check(self, lane_nbytes: int) -> None:
        """Refuse a budget that leaves each lane less than ``lane_nbytes``.

        Raises
        ------
        MemoryBudgetError
            With the minimum that would do.
        """
        if self.lane_nbytes < lane_nbytes:
            raise MemoryBudgetError(
                f"the memory is too small for {self.num_batches} batches of "
                f"{self.batch_nbytes} bytes, two chunks in flight and the chunks of one tile",
                given=f"memory={self.memory_nbytes} bytes",
                minimum_nbytes=self.minimum_nbytes(lane_nbytes),
            )


@dataclass(frozen=True)
class Plan:
    """How an epoch is ordered, and what it holds. A function of samples and options only.

    Parameters
    ----------
    pace : Pace
        Tile, run, streams, spread and lanes.
    depth : int
        Without a shuffle: how many leading dimensions go position by position.
    budget : Budget
    global_batch : int
        Samples of a step, over all ranks.
    max_amplification : float
        Where tiles are few, lines of runs are drawn until one reads no more than this.
    lane_pool_nbytes : int
        Decoded bytes that a lane may have at work and kept.
    ahead_nbytes : int
        Decoded bytes that a lane may have ahead of need.
    is_resident : bool
        Whether the pool holds the whole selection, so that later epochs read nothing.
    workers : int
        Processes of a rank that make batches in turn, each with a budget like this one.
    """

    pace: Pace
    depth: int
    budget: Budget
    global_batch: int
    max_amplification: float
    lane_pool_nbytes: int
    ahead_nbytes: int
    is_resident: bool
    workers: int = 1

    @property
    def lane_share(self) -> int:
        """Samples that each lane gives to a step."""
        return self.global_batch // self.pace.lanes

    def pool_nbytes(self, num_lanes: int) -> int:
        """Decoded bytes that a process with so many lanes may hold."""
        if self.is_resident:
            # Whatever the lanes of this epoch, later ones bring the rest of the selection.
            num_lanes = self.budget.num_lanes
        return num_lanes * (self.lane_pool_nbytes + self.ahead_nbytes)

    def num_steps(self, num_samples: int, *, drop_last: bool) -> int:
        """Steps that every rank takes in an epoch of so many samples."""
        full, rest = divmod(num_samples, self.global_batch)
        return full + (rest > 0 and not drop_last)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, which are the same after a file of JSON."""
        values = dataclasses.asdict(self)
        # JSON has no tuples.
        values["pace"]["tiling"] = list(self.pace.tiling)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` wrote."""
        pace = {**values["pace"], "tiling": tuple(values["pace"]["tiling"])}
        return cls(**{**values, "pace": Pace(**pace), "budget": Budget(**values["budget"])})


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
