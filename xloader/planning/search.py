"""Finds the plan that mixes best within a memory budget and an allowed amplification.

If no window straddles tiles and tiles share no chunk, every order reads each chunk once, and the
largest spread that fits is the best. Otherwise candidate plans are measured on a reduced model of
the selection, and the best of them is taken. Where more reads are allowed, several visits of each
tile are tried as well.
"""

from __future__ import annotations

import dataclasses

from xloader.core.footprint import Footprint
from xloader.errors import OptionError
from xloader.order.ascending import Ascent
from xloader.order.cohorts import Cohorts
from xloader.order.lane_order import SubLanes
from xloader.order.shuffle import Pace
from xloader.planning.budget import Budget
from xloader.planning.candidates import Tiling
from xloader.planning.goal import PlanGoal
from xloader.planning.plan import Plan
from xloader.planning.schedule import Schedule
from xloader.planning.tiling_search import LEAST_VISITS, TilingSearch, neighbour_dims

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
            remedy="pass a smaller spread=, leave it out, or raise memory=",
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
    elif footprint.num_samples == num_tiles and not footprint.is_weighted:
        # Each tile has one sample, so a permutation of tiles is already a full shuffle.
        spread = 0
    else:
        spread = fitting if fitting <= num_tiles // goal.lanes else cohorts.num_tiles
    pace = Pace((1,) * len(cohorts.shape), spread=spread, lanes=goal.lanes)
    at_work = tile * min(max(spread, 1), num_tiles)
    return goal.plan(pace, budget, min(at_work, budget.lane_nbytes), tile)
