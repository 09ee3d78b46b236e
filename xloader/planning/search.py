"""Finds the plan that mixes best within a memory budget and an allowed amplification.

If no window straddles tiles and tiles share no chunk, every order reads each chunk once, and the
largest spread that fits is the best. Otherwise candidate plans are measured on a reduced model of
the selection, and the best of them is taken. Where more reads are allowed, several visits of each
tile are tried as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from xloader.core.footprint import Footprint
from xloader.errors import OptionError
from xloader.order.cohorts import Cohorts
from xloader.order.lane_order import SubLanes
from xloader.order.listed import Ascent
from xloader.order.shuffle import Pace
from xloader.planning.candidates import NEARLY_FULL, CandidateSearch, Tiling
from xloader.planning.mixing import full_mixing
from xloader.planning.plan import Budget, Plan
from xloader.planning.reduced_model import WORTH_READING, Candidate, PlanGoal, best_of, model_lanes
from xloader.planning.schedule import Schedule

LEAST_VISITS: Final = 2
"""Reads a chunk from which an epoch may come by a tile several times."""

_FEW_VISITS: Final = 8
"""Numbers of visits that are all tried. Of larger ones, each is a quarter more than the last."""

_AS_GOOD = 0.95
"""The fraction of the best mixing so far that the first candidates of a tiling must reach.

Without it, none of 350 plans changed, but plans of patches took up to four times as long to find.
"""

_STRICT_READS: Final = PlanGoal.max_amplification
"""The reads a chunk above which a plan is compared with the best one that reads less.

The search ends at the first plan that mixes nearly as well as a full shuffle. Where many reads are
allowed, that plan may read far more than others.
"""


@dataclass(frozen=True)
class TilingSearch:
    """The search among the tilings of a selection."""

    footprint: Footprint
    budget: Budget
    goal: PlanGoal
    finest: Tiling
    near: tuple[int, ...]

    @cached_property
    def full(self) -> float:
        """The mixing of a full shuffle."""
        return full_mixing(self.footprint, self._batch_size)

    @property
    def _batch_size(self) -> int:
        """Samples of a batch of the model, which may have fewer lanes."""
        return self.goal.global_batch // self.goal.lanes * model_lanes(self.goal.lanes)

    @cached_property
    def run_dim(self) -> int:
        """The windowed dimension along which runs go."""
        sizes = self.finest.cohorts.home_shape
        return max(self.near or range(len(sizes)), key=lambda dim: sizes[dim])

    def find(self) -> list[Candidate]:
        """Candidates with one visit of each tile; none if no plan with the given spread fits."""
        goal = self.goal
        candidates = self._find_within(goal)
        may_read_less = candidates and goal.max_amplification > _STRICT_READS
        if may_read_less and self.best(candidates).amplification > _STRICT_READS:
            strict = dataclasses.replace(goal, max_amplification=_STRICT_READS)
            candidates += self._find_within(strict)
        if not candidates and goal.spread is None:
            # With a spread of 0, only the chunks of one tile are needed at a time, and these fit.
            candidates = self._of(self.finest, dataclasses.replace(goal, spread=0)).find()
        return candidates

    def measured(self, plan: Plan) -> list[Candidate]:
        """The reads and the mixing of a plan of the finest tiling."""
        candidate = self._of(self.finest, self.goal).measure(plan)
        assert candidate is not None, "without runs, the most bytes of a tile say what fits"
        return [candidate]

    def find_visits(self, candidates: list[Candidate]) -> list[Candidate]:
        """Candidates with several visits that mix better than those with one."""
        # With more visits than a tile has samples, on average, some would hand out none.
        num_in_tile = -(-self.footprint.num_samples // self.finest.cohorts.num_used_tiles)
        most = min(int(self.goal.max_amplification), num_in_tile)
        if most < LEAST_VISITS:
            return []
        best = self.best(candidates)
        mixing = best.mixing if self.goal.allows(best) else 0.0
        better: list[Candidate] = []
        for sizes in dict.fromkeys([self.finest.sizes, best.plan.pace.tiling]):
            tiling = self._tiling(sizes)
            search = self._of(tiling, self.goal)
            per_tile = self.footprint.num_samples / tiling.cohorts.num_used_tiles
            for visits in _numbers_up_to(most):
                if mixing >= NEARLY_FULL * self.full:
                    return better
                wanted = WORTH_READING * mixing
                # While a batch is made in the middle of an epoch, so many more tiles come in.
                most_gain = self._batch_size * (visits - 1) / per_tile
                if mixing + most_gain < wanted:
                    continue
                more = search.with_visits(visits).find(least_mixing=max(wanted, 1e-9))
                better += [candidate for candidate in more if candidate.mixing >= wanted]
                mixing = max([mixing, *(candidate.mixing for candidate in better)])
        return better

    def best(self, candidates: list[Candidate]) -> Candidate:
        """The best candidate by the rules of `find_plan`."""
        return best_of(candidates, self.goal, self.full)

    def _find_within(self, goal: PlanGoal) -> list[Candidate]:
        """Candidates of the tilings, from the finest one on, until one is good enough."""
        candidates: list[Candidate] = []
        within: list[Candidate] = []
        cohorts = self.finest.cohorts
        for sizes in _tile_sizes(self.footprint, cohorts, self.near, self.run_dim):
            best = max((c.mixing for c in within), default=0.0)
            # A plan that mixes poorly is no reason to look at the next tiling in haste.
            least_mixing = _AS_GOOD * best if best >= self.full / 2 else 0.0
            candidates += self._of(self._tiling(sizes), goal).find(least_mixing)
            within = [c for c in candidates if goal.allows(c)]
            enough = [c for c in within if c.mixing >= NEARLY_FULL * self.full]
            if enough or any(
                c.amplification == 1.0 and c.mixing >= 0.9 * self.full for c in within
            ):
                break
        return candidates

    def _of(self, tiling: Tiling, goal: PlanGoal) -> CandidateSearch:
        """The search among the plans of one tiling."""
        return CandidateSearch(
            self.footprint,
            self.budget,
            goal,
            tiling,
            self.run_dim,
            self.full,
            may_run=bool(self.near),
        )

    def _tiling(self, sizes: tuple[int, ...]) -> Tiling:
        return self.finest if sizes == self.finest.sizes else Tiling.of(self.footprint, sizes)


def _numbers_up_to(most: int) -> Iterator[int]:
    """Numbers of visits to try, ascending."""
    number = LEAST_VISITS
    while number < most:
        yield number
        number = number + 1 if number < _FEW_VISITS else -(-number * 5 // 4)
    yield most


def _tile_sizes(
    footprint: Footprint, cohorts: Cohorts, near: tuple[int, ...], run_dim: int
) -> Iterator[tuple[int, ...]]:
    """Tile sizes to try: larger along all dimensions with neighbours, or along all but one."""
    num_blocks = [1 if axis is None else axis.num_blocks for axis in footprint.leading_axes]

    def grown(size: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of a tile with ``size`` blocks along ``dims``, and one block along the others."""
        # A tile that takes a whole dimension always has size 0, so that no tiling is tried twice.
        return tuple(
            (size if size < num_blocks[dim] else 0) if dim in dims else 1
            for dim in range(len(num_blocks))
        )

    other_dims = tuple(dim for dim in near if dim != run_dim)
    sizes = [grown(0, other_dims)]
    if any(count > 1 for dim, count in enumerate(cohorts.home_shape) if dim not in near):
        # Otherwise all samples would be in one tile, which does not fit: if it did, the plan
        # would already hold the whole selection.
        sizes.insert(0, grown(0, near))
    if other_dims:
        sizes += [grown(1, ()), grown(4, other_dims)]
    if len(other_dims) > 1:
        sizes.append(grown(4, near))
    yield from dict.fromkeys(sizes)


def neighbour_dims(footprint: Footprint, cohorts: Cohorts) -> tuple[int, ...]:
    """Dimensions along which neighbouring tiles of one block share a window or a chunk.

    A chunk that is computed may be shared: nothing is read when it is computed again.
    """
    dims = []
    for dim, pieces in enumerate(cohorts.pieces):
        shares = any(
            not group.is_computed
            and group.axes[dim] is not None
            and group.axes[dim] != footprint.leading_axes[dim]
            and not np.isin(pieces.tile_edges, group.axes[dim].edges).all()  # type: ignore[union-attr]
            for group in footprint.groups
        )
        if pieces.num_homes > 1 and (pieces.reach or shares):
            dims.append(dim)
    return tuple(dims)


MOST_DRAWS = 32
"""Lines of runs that an epoch with few tiles draws at most, until one reads little enough."""

_MOST_SPREAD = 4096
"""The spread, in tiles, beyond which a larger one no longer improves the mixing."""

MOST_STRETCHES = 1 << 22
"""The most entries of an order without a shuffle. More would not fit memory while planning."""


def find_plan(footprint: Footprint, budget: Budget, goal: PlanGoal) -> Plan:
    """The best plan with a shuffle within a budget.

    Plans within ``max_amplification`` are preferred. Among them, the plan with the greatest mixing
    is taken, and of those within 1 % of its mixing the one with the fewest reads.
    """
    finest = Tiling.of(footprint, (1,) * len(footprint.windows.dims))
    cohorts = finest.cohorts
    budget.check(finest.need_nbytes)
    if goal.spread is None and budget.has_room_for_all(footprint.total_nbytes):
        pace = _resident_pace(footprint, finest, goal)
        return goal.plan(pace, budget, budget.lane_nbytes, 0, is_resident=True)
    near = neighbour_dims(footprint, cohorts)
    plain = None if near else _plain_plan(footprint, cohorts, finest.need_nbytes, budget, goal)
    if plain is not None and not _may_gain_by_visits(plain, footprint, cohorts):
        return plain
    search = TilingSearch(footprint, budget, goal, finest, near)
    candidates = search.find() if plain is None else search.measured(plain)
    if not candidates:
        raise OptionError(
            "no plan with this spread fits the memory",
            given=f"spread={goal.spread}",
            remedy="pass a smaller spread, leave it out, or raise memory=",
        )
    best = search.best(candidates + search.find_visits(candidates)).plan
    draws = MOST_DRAWS if best.pace.draws > 1 else 1
    pace = dataclasses.replace(best.pace, draws=draws)
    return dataclasses.replace(best, pace=pace, max_amplification=goal.max_amplification)


def _may_gain_by_visits(plan: Plan, footprint: Footprint, cohorts: Cohorts) -> bool:
    """Whether several visits are allowed, and one is not a full shuffle already."""
    is_full = plan.pace.spread >= cohorts.num_tiles or footprint.num_samples == cohorts.num_tiles
    return plan.max_amplification >= LEAST_VISITS and not is_full


def _resident_pace(footprint: Footprint, finest: Tiling, goal: PlanGoal) -> Pace:
    """A full shuffle. With several lanes, most neighbours that share samples go to the same lane.

    Each lane may be in another process, which reads the chunks at the ends of its runs again. Runs
    are therefore as short as ``max_amplification`` allows.
    """
    cohorts, near = finest.cohorts, neighbour_dims(footprint, finest.cohorts)
    full = Pace(finest.sizes, spread=cohorts.num_tiles, lanes=goal.lanes)
    if goal.lanes == 1 or not near:
        return full
    run_dim = max(near, key=lambda dim: cohorts.home_shape[dim])
    reach = max(cohorts.pieces[run_dim].reach, 1)
    num_runs = max(int((goal.max_amplification - 1) * cohorts.num_tiles / reach), goal.lanes)
    run = min(-(-cohorts.num_tiles // num_runs), cohorts.home_shape[run_dim])
    return dataclasses.replace(full, run_dim=run_dim, run=run)


def find_ascent(footprint: Footprint, budget: Budget, goal: PlanGoal, workers: int = 1) -> Plan:
    """The plan without a shuffle that reads least within the budget.

    Without a subset, the plan chooses how many leading dimensions go position by position. Of two
    choices with as many reads, the one with larger slabs is taken.
    """
    if footprint.subset is not None:
        return _find_listed(footprint, budget, goal)
    best: tuple[int, int, int] | None = None
    least = 1 << 62
    for depth in range(len(footprint.windows.dims)):
        ascents = [
            Ascent(footprint, depth, sublanes)
            for sublanes in _ways_to_cut(footprint, goal, workers)
        ]
        if depth and len(ascents[0].cohorts) > MOST_STRETCHES:
            break
        every = [
            [
                Schedule(footprint, ascent.lane(number), budget.lane_nbytes)
                for number in range(ascent.sublanes.num)
            ]
            for ascent in ascents
        ]
        schedules = every[0]
        peak = max(schedule.peak_nbytes for of_cut in every for schedule in of_cut)
        least = min(least, peak)
        reads = sum(schedule.num_reads for schedule in schedules)
        if peak <= budget.lane_nbytes and (best is None or reads < best[0]):
            best = reads, depth, peak
            if reads == footprint.num_needed:
                break
    if best is None:
        budget.check(least)
        raise AssertionError("a budget below the least peak passed its check")
    _, depth, peak = best
    is_resident = budget.has_room_for_all(footprint.total_nbytes)
    pool = budget.lane_nbytes if is_resident else peak
    pace = Pace((1,) * len(footprint.windows.dims), lanes=goal.lanes, is_shuffled=False)
    return goal.plan(pace, budget, pool, peak, depth=depth, is_resident=is_resident)


def _ways_to_cut(footprint: Footprint, goal: PlanGoal, workers: int) -> list[SubLanes]:
    """The divisions into sub-lanes that must fit: with the incomplete last batch and without it."""
    full, rest = divmod(footprint.num_samples, goal.global_batch)
    share = goal.global_batch // goal.lanes
    most = full + (rest > 0)
    steps = {most, full} if workers > 1 else {most}
    return [
        SubLanes(footprint.num_samples, goal.lanes, workers, share, num_steps)
        for num_steps in sorted(steps, reverse=True)
    ]


def _find_listed(footprint: Footprint, budget: Budget, goal: PlanGoal) -> Plan:
    """The plan of a subset without a shuffle: samples are delivered in the order of the list."""
    budget.check(Tiling.of(footprint, (1,) * len(footprint.windows.dims)).need_nbytes)
    is_resident = budget.has_room_for_all(footprint.total_nbytes)
    ahead = 0 if is_resident else min(budget.ahead_nbytes, budget.lane_nbytes // 4)
    pace = Pace((1,) * len(footprint.windows.dims), lanes=goal.lanes, is_shuffled=False)
    return goal.plan(pace, budget, budget.lane_nbytes - ahead, ahead, is_resident=is_resident)


def _plain_plan(
    footprint: Footprint, cohorts: Cohorts, tile: int, budget: Budget, goal: PlanGoal
) -> Plan:
    """The plan if no tile shares a window or a chunk with a neighbour."""
    num_tiles = cohorts.num_used_tiles
    fitting = min(max(budget.lane_nbytes // tile - 1, 0), max(_MOST_SPREAD, goal.global_batch))
    if goal.spread is not None:
        budget.check(tile * min(max(goal.spread, 1), num_tiles))
        spread = goal.spread
    elif footprint.num_samples == num_tiles and not footprint.is_drawn:
        # Each tile has one sample, so a permutation of tiles is already a full shuffle.
        spread = 0
    else:
        spread = fitting if fitting <= num_tiles // goal.lanes else cohorts.num_tiles
    pace = Pace((1,) * len(cohorts.shape), spread=spread, lanes=goal.lanes)
    at_work = tile * min(max(spread, 1), num_tiles)
    return goal.plan(pace, budget, min(at_work, budget.lane_nbytes), tile)
