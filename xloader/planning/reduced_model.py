"""A reduced selection on which candidate plans are measured.

It has the order and the schedule of a real epoch, on about a thousand tiles (more for a large
spread) and at most two lanes. Plans are thus chosen by counting reads and regions, as in a real
epoch, and not by a formula that could be wrong.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Demand, Footprint
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.order.cohorts import Cohorts, Pieces, cut_cohorts
from xloader.order.protocol import AnyOrder
from xloader.order.shuffle import Pace
from xloader.planning.epoch import Epoch, Lane
from xloader.planning.mixing import measure_mixing
from xloader.planning.plan import Budget, Plan

_FEW_TILES = 1024
"""Tiles of the model, over all lanes. It gives runs and streams room, and is quick to schedule."""

_LUCKY_TILES = 512
"""Tiles of a lane below which epochs differ by chance, so that more of them are measured."""

_MIXED_EPOCHS = 3
"""Epochs whose mixing is measured. It differs less from epoch to epoch than the reads do."""

_NUM_SAMPLES = 1 << 13
"""Samples of an epoch whose mixing is measured. That is 512 batches of 16."""

_NUM_SPOTS = 4
"""Places of an epoch from which these samples are taken, as its end mixes less."""

_SEED = 20_241_109
_MOST_LANES = 2


@dataclass(frozen=True)
class Candidate:
    """A plan with its measured cost."""

    plan: Plan
    amplification: float
    mixing: float


class ReducedModel:
    """Measures plans of one tiling on a part of the selection."""

    def __init__(
        self,
        footprint: Footprint,
        cohorts: Cohorts,
        tiling: tuple[int, ...],
        run_dim: int,
        spread: int,
        lanes: int,
    ) -> None:
        self._lanes = model_lanes(lanes)
        num_tiles = max(_FEW_TILES // self._lanes, 4 * spread)
        self._footprint = _truncate(footprint, cohorts.pieces, run_dim, num_tiles * self._lanes)
        cut = cohorts if self._footprint is footprint else cut_cohorts(self._footprint, tiling)
        self._tiling = tiling
        # Where epochs are drawn, each has a cut of its own.
        self._cuts: dict[int, Cohorts] = {} if self._footprint.is_drawn else {0: cut}
        self.num_tiles = max(cut.num_used_tiles // self._lanes, 1)
        self.row_size = cut.home_shape[run_dim]
        self.run_factor = max(cohorts.num_used_tiles / lanes / self.num_tiles, 1.0)
        self._latest: tuple[Plan, int, Epoch] | None = None
        self._reach = cohorts.pieces[run_dim].reach
        self._is_line = not any(p.reach for d, p in enumerate(cohorts.pieces) if d != run_dim)
        # With few tiles, epochs differ by chance, so the mixing of more of them is measured.
        self._is_cheap = (
            self.num_tiles < _FEW_TILES // 4 and self._footprint.num_samples <= _NUM_SAMPLES
        )
        self._num_epochs = max(8 // self._lanes, 3) if self.num_tiles < _LUCKY_TILES else 3

    def at_work_nbytes(self, plan: Plan) -> int:
        """The most decoded bytes that a lane needs at a time, in one epoch with its first draw."""
        lanes = self._epoch(plan, 0).drawn(0, range(self._lanes))
        return max(lane.schedule.at_work_nbytes for lane in lanes)

    def measure(self, plan: Plan, hopeless: float, *, is_picky: bool = False) -> Candidate | None:
        """Measure amplification and mixing of a plan in one epoch."""
        trial = self._try_epoch(plan, 0, hopeless)
        if trial is None or (is_picky and trial[0] > hopeless):
            return None
        return Candidate(plan, trial[0], self._mixing(plan, trial[1]))

    def confirm(self, candidate: Candidate, *, is_picky: bool = False) -> Candidate | None:
        """Measure a candidate in more epochs."""
        plan = candidate.plan
        worst, mixed = candidate.amplification, []
        if worst == 1.0 and plan.pace.run == 1:
            # No window straddles tiles, so every epoch reads as much.
            return candidate
        for index in range(1, self._num_epochs):
            trial = self._try_epoch(plan, index)
            if trial is None:
                return None
            worst = max(worst, trial[0])
            if worst > plan.max_amplification:
                if is_picky:
                    return None
                break
            if index < _MIXED_EPOCHS or self._is_cheap:
                mixed.append(trial[1])
        # At the end, because it is not needed if the candidate is dropped.
        mixing = [candidate.mixing, *(self._mixing(plan, orders) for orders in mixed)]
        mean = sum(mixing) / len(mixing)
        return dataclasses.replace(candidate, amplification=worst, mixing=mean)

    def _try_epoch(
        self, plan: Plan, index: int, hopeless: float = math.inf
    ) -> tuple[float, list[AnyOrder]] | None:
        epoch = self._epoch(plan, index)
        lanes = epoch.drawn(0, range(self._lanes))
        if max(lane.schedule.at_work_nbytes for lane in lanes) > plan.lane_pool_nbytes:
            return None
        amplification = self._amplification(epoch, lanes)
        if plan.max_amplification < amplification < hopeless:
            lanes = epoch.lanes(range(self._lanes))
            amplification = self._amplification(epoch, lanes)
        return amplification, [lane.order for lane in lanes]

    def _epoch(self, plan: Plan, index: int) -> Epoch:
        """An epoch of a plan on the model. The latest one is kept, as it is often needed again."""
        if self._latest is None or self._latest[:2] != (plan, index):
            pace = dataclasses.replace(plan.pace, lanes=self._lanes)
            cut = dataclasses.replace(plan, pace=pace, global_batch=plan.lane_share * self._lanes)
            cohorts = self._cut_of(index)
            epoch = Epoch(self._footprint, cut, _SEED, index, spread_is_fixed=True, cut=cohorts)
            self._latest = plan, index, epoch
        return self._latest[2]

    def _cut_of(self, index: int) -> Cohorts:
        """The cohorts of an epoch, which depend on what it draws, and not on the plan."""
        index = index if self._footprint.is_drawn else 0
        if index not in self._cuts:
            self._cuts[index] = cut_cohorts(self._footprint, self._tiling, seed=_SEED, epoch=index)
        return self._cuts[index]

    def _amplification(self, epoch: Epoch, lanes: list[Lane]) -> float:
        """Reads per distinct chunk needed, with runs of their real length.

        If windows straddle tiles along runs only, each visit reads chunks again only at the ends
        of runs. Real runs are ``run_factor`` times as long, so there are as many times fewer such
        reads.
        """
        num_reads, pace = sum(lane.schedule.num_reads for lane in lanes), epoch.plan.pace
        amplification = num_reads / max(epoch.num_needed, 1)
        if pace.run > 1 and self._is_line and self._reach <= pace.spread:
            visits = pace.visits
            amplification = visits + (amplification - visits) / self.run_factor
        return amplification

    def _mixing(self, plan: Plan, orders: list[AnyOrder]) -> float:
        return measure_mixing(
            self._footprint,
            orders,
            plan.lane_share,
            most_samples=_NUM_SAMPLES,
            num_spots=_NUM_SPOTS,
        )


def model_lanes(lanes: int) -> int:
    """Number of lanes of the model. Each has its own order; two show how lanes share chunks."""
    return min(lanes, _MOST_LANES)


def _truncate(
    footprint: Footprint, all_pieces: tuple[Pieces, ...], run_dim: int, num_tiles: int
) -> Footprint:
    """A part of a selection with about ``num_tiles`` tiles, longest along ``run_dim``.

    Without a subset it is the first part. With a subset it begins at one of the subset's samples:
    the first or the middle one, whichever gives a part with more samples.
    """
    if footprint.subset is None:
        return _cut_out(footprint, all_pieces, run_dim, num_tiles, None, [0] * len(all_pieces))
    drawn = None
    if footprint.subset.is_ascending:
        ends = footprint.positions_of(np.array([0, len(footprint.subset) // 2]))
    else:
        drawn = footprint.positions_of(footprint.subset.drawn(0, 0))
        in_order = np.lexsort(drawn.T[::-1])
        ends = drawn[in_order[[0, len(in_order) // 2]]]
    parts = [
        _cut_out(footprint, all_pieces, run_dim, num_tiles, drawn, begins)
        for begins in ends.tolist()
    ]
    return max(parts, key=lambda part: part.num_samples)


def _cut_out(
    footprint: Footprint,
    all_pieces: tuple[Pieces, ...],
    run_dim: int,
    num_tiles: int,
    drawn: Ints | None,
    begins: list[int],
) -> Footprint:
    """The part of a selection that begins at the positions ``begins``.

    Where a dimension is kept whole, ``begins`` is set to 0 in place. A part of a circle becomes a
    smaller circle, so that each tile keeps two neighbours. A part without its padded borders is
    not padded.
    """
    windows = footprint.windows
    left = num_tiles
    parts = [slice(0, size) for size in windows.dim_sizes]
    for dim in sorted(range(len(parts)), key=lambda d: d != run_dim):
        pieces, edges = all_pieces[dim], all_pieces[dim].tile_edges
        if footprint.subset is None and windows.ends[dim] == "pad":
            first_within = int(windows.num_before(dim, np.zeros(1, np.int64))[0])
            # In a small array, all windows may begin outside.
            begins[dim] = min(first_within, windows.num_positions[dim] - 1)
        home = int(pieces.home[np.searchsorted(pieces.starts, begins[dim], side="right") - 1])
        # Tiles that no window begins in do not count.
        keep = min(max(left, 4), pieces.num_homes - home)
        if keep < pieces.num_homes - home and _is_within(windows, dim, begins[dim]):
            position = int(pieces.starts[np.searchsorted(pieces.home, home + keep)])
            begin, last = windows.starts_of(dim, np.array([begins[dim], position])).tolist()
            first = last + footprint.first_offsets[dim]
            end = int(edges[np.searchsorted(edges, first, side="right") - 1])
            parts[dim] = slice(begin, max(end, begin + windows.extents[dim]))
        else:
            begins[dim] = 0
        left //= keep
    sizes = tuple(part.stop - part.start for part in parts)
    is_whole = [kept == size for kept, size in zip(sizes, windows.dim_sizes, strict=True)]
    if all(is_whole):
        return footprint
    windows = dataclasses.replace(
        windows,
        dim_sizes=sizes,
        segments=tuple(
            segments and segments.cut(part.start, part.stop)
            for segments, part in zip(windows.segments, parts, strict=True)
        ),
        pads=tuple(pad if k else None for pad, k in zip(windows.pads, is_whole, strict=True)),
    )
    if drawn is not None:
        positions = drawn - begins
        is_within = ((positions >= 0) & (positions < np.array(windows.num_positions))).all(axis=1)
        subset: Subset | None = Subset(len(windows), windows.ids_of(positions[is_within]))
    else:
        subset = footprint.subset and footprint.subset.cut_box(
            footprint.windows.num_positions, tuple(begins), windows.num_positions
        )
    demands = tuple(
        _cut_demand(demand, parts) for group in footprint.groups for demand in group.demands
    )
    return Footprint.of(windows, demands, subset)


def _is_within(windows: Windows, dim: int, position: int) -> bool:
    """Whether the window at a position along a dimension reaches beyond neither of its ends."""
    begin = int(windows.starts_of(dim, np.array([position]))[0])
    return begin >= 0 and begin + windows.extents[dim] <= windows.dim_sizes[dim]


def _cut_demand(demand: Demand, parts: list[slice]) -> Demand:
    axes = tuple(
        axis and Axis(axis.stored_size, axis.chunks, axis.selection[part])
        for axis, part in zip(demand.axes, parts, strict=True)
    )
    return dataclasses.replace(demand, axes=axes)


@dataclass(frozen=True)
class PlanGoal:
    """The batch and the lanes of a plan, and the limits it must keep."""

    global_batch: int
    lanes: int
    max_amplification: float = 1.05
    spread: int | None = None

    def allows(self, candidate: Candidate) -> bool:
        """Whether a candidate reads no more than allowed."""
        return candidate.amplification <= self.max_amplification

    def rank(self, candidate: Candidate, full: float) -> tuple[int, float, float]:
        """The sort key that puts better candidates first, by the rules of `find_plan`."""
        if self.allows(candidate):
            return 0, -candidate.mixing, candidate.amplification
        if candidate.mixing >= full / 2:
            return 1, candidate.amplification, -candidate.mixing
        return 2, -candidate.mixing, candidate.amplification

    def plan(
        self,
        pace: Pace,
        budget: Budget,
        pool: int,
        tile: int,
        *,
        depth: int = 0,
        is_resident: bool = False,
    ) -> Plan:
        """A plan for this goal, which decodes ahead in the memory that the pool leaves free."""
        return Plan(
            pace=pace,
            depth=depth,
            budget=budget,
            global_batch=self.global_batch,
            max_amplification=self.max_amplification,
            lane_pool_nbytes=pool,
            ahead_nbytes=min(budget.lane_nbytes - pool, max(tile, budget.ahead_nbytes)),
            is_resident=is_resident,
        )


WORTH_READING: Final = 1.05
"""The mixing that a plan which reads far more must reach, as a multiple of the other's.

Mixing is measured on a few batches of a model, and may be off by nearly as much.
"""

_FAR_LESS: Final = 0.8
"""The share of the reads of a plan below which another plan reads far less."""


def best_of(candidates: list[Candidate], goal: PlanGoal, full: float) -> Candidate:
    """The candidate with the fewest reads among those nearly as good as the preferred one.

    Nearly as good are candidates of the same class of `PlanGoal.rank` that mix within 1 % of it, or
    within a few per cent if they read far less.
    """
    best = min(candidates, key=lambda c: goal.rank(c, full))
    alike = []
    for candidate in candidates:
        reads_far_less = candidate.amplification <= _FAR_LESS * best.amplification
        share = 1 / WORTH_READING if reads_far_less else 0.99
        is_same_class = goal.rank(candidate, full)[0] == goal.rank(best, full)[0]
        if is_same_class and candidate.mixing >= share * best.mixing:
            alike.append(candidate)
    return min(alike, key=lambda c: (c.amplification, -c.mixing))
