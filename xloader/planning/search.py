"""Finds the plan that mixes best within a memory budget and an allowed amplification.

If no window straddles tiles and tiles share no chunk, every order reads each chunk once, and the
largest spread that fits is the best. Otherwise candidate plans are measured on a reduced model of
the selection, and the best of them is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np

from xloader.core.footprint import Footprint
from xloader.errors import OptionError
from xloader.order.ascending import Ascent
from xloader.order.cohorts import Cohorts, leading_axis
from xloader.order.lane_spans import SubLanes
from xloader.order.shuffle import Pace
from xloader.planning.budget import Budget
from xloader.planning.candidates import NEARLY_FULL, CandidateSearch, Tiling
from xloader.planning.goal import PlanGoal, preference
from xloader.planning.mixing import full_mixing, region_dim
from xloader.planning.plan import Plan
from xloader.planning.reduced_model import Candidate, model_lanes
from xloader.planning.schedule import Schedule

_DRAWS = 32
"""Lines of runs that an epoch with few tiles draws at most, until one reads little enough."""

_MOST_SPREAD = 4096
"""The spread, in tiles, beyond which a larger one no longer improves the mixing."""

_AS_GOOD = 0.95
"""The fraction of the best mixing so far that the first candidates of a tiling must reach.

Without it, none of 350 plans changed, but plans of patches took up to four times as long to find.
"""

_MAX_STRETCHES = 1 << 22
"""The most entries of an order without a shuffle. More would not fit memory while planning."""


_FEW_READS: Final = PlanGoal.max_amplification
"""The reads a chunk above which a plan is compared with the best one that reads less.

The search ends at the first plan that mixes nearly as well as a full shuffle. Where many reads are
allowed, that plan may read far more than others.
"""


def find_plan(footprint: Footprint, budget: Budget, goal: PlanGoal) -> Plan:
    """The best plan with a shuffle within a budget.

    Plans within ``max_amplification`` are preferred. Among them, the plan with the greatest mixing
    is taken, and of those within 1 % of its mixing the one with the fewest reads. If no plan is
    within, the plan with the fewest reads is taken among those that mix at least half as well as a
    full shuffle. If there is none of these either, the plan with the greatest mixing is taken.

    Parameters
    ----------
    footprint : Footprint
        The chunks that samples need.
    budget : Budget
        The memory of one process.
    goal : PlanGoal
        The batch, the lanes and the limits.

    Raises
    ------
    MemoryBudgetError
        If the chunks of one tile, or of as many tiles as the given spread, do not fit.
    OptionError
        If no plan with the given spread fits.
    """
    finest = Tiling.of(footprint, (1,) * len(footprint.windows.dims))
    cohorts = finest.cohorts
    budget.check(finest.need_nbytes)
    if goal.spread is None and budget.has_room_for_all(footprint.total_nbytes):
        pace = _resident_pace(footprint, finest, goal)
        return goal.plan(pace, budget, budget.lane_nbytes, 0, is_resident=True)
    near = _neighbour_dims(footprint, cohorts)
    if not near:
        return _plain_plan(footprint, cohorts, finest.need_nbytes, budget, goal)
    batch_size = goal.global_batch // goal.lanes * model_lanes(goal.lanes)
    full = full_mixing(footprint, region_dim(footprint), batch_size)
    candidates = _search(footprint, budget, goal, finest, near, full)
    if (
        candidates
        and goal.max_amplification > _FEW_READS < _best(candidates, goal, full).amplification
    ):
        strict = dataclasses.replace(goal, max_amplification=_FEW_READS)
        candidates += _search(footprint, budget, strict, finest, near, full)
    if not candidates and goal.spread is None:
        # With a spread of 0, only the chunks of one tile are needed at a time. The check at the
        # top has shown that they fit.
        least = dataclasses.replace(goal, spread=0)
        run_dim = max(near, key=lambda dim: cohorts.home_shape[dim])
        candidates = CandidateSearch(footprint, budget, least, finest, run_dim, full).find()
    if not candidates:
        raise OptionError(
            "no plan with this spread fits the memory",
            given=f"spread={goal.spread}",
            allowed="a smaller spread, or None",
            remedy="leave spread= out, or raise memory=",
        )
    best = _best(candidates, goal, full).plan
    draws = _DRAWS if best.pace.draws > 1 else 1
    pace = dataclasses.replace(best.pace, draws=draws)
    return dataclasses.replace(best, pace=pace, max_amplification=goal.max_amplification)


def _search(
    footprint: Footprint,
    budget: Budget,
    goal: PlanGoal,
    finest: Tiling,
    near: tuple[int, ...],
    full: float,
) -> list[Candidate]:
    """Candidates of the tilings, from the finest one on, until one is good enough."""
    cohorts = finest.cohorts
    candidates: list[Candidate] = []
    within: list[Candidate] = []
    run_dim = max(near, key=lambda dim: cohorts.home_shape[dim])
    for sizes in _tile_sizes(footprint, cohorts, near, run_dim):
        tiling = finest if sizes == finest.sizes else Tiling.of(footprint, sizes)
        least_mixing = _AS_GOOD * max((c.mixing for c in within), default=0.0)
        search = CandidateSearch(footprint, budget, goal, tiling, run_dim, full)
        candidates += search.find(least_mixing)
        within = [c for c in candidates if goal.allows(c)]
        enough = [c for c in within if c.mixing >= NEARLY_FULL * full]
        if enough or any(c.amplification == 1.0 and c.mixing >= 0.9 * full for c in within):
            break
    return candidates


def _resident_pace(footprint: Footprint, finest: Tiling, goal: PlanGoal) -> Pace:
    """A full shuffle. With several lanes, most neighbours that share samples go to the same lane.

    Each lane may be in another process, which reads the chunks at the ends of its runs again. Runs
    are therefore as short as ``max_amplification`` allows.
    """
    cohorts, near = finest.cohorts, _neighbour_dims(footprint, finest.cohorts)
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

    Parameters
    ----------
    footprint : Footprint
        The chunks that samples need.
    budget : Budget
        The memory of one worker.
    goal : PlanGoal
        The batch, the lanes and the limits.
    workers : int
        Sub-lanes of a lane.

    Raises
    ------
    MemoryBudgetError
        If not even the smallest slab fits; with a subset, if the chunks of one tile do not fit.
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
        if depth and len(ascents[0].cohorts) > _MAX_STRETCHES:
            break
        every = [
            [
                Schedule(footprint, ascent.lane(number), budget.lane_nbytes)
                for number in range(ascent.sublanes.num)
            ]
            for ascent in ascents
        ]
        schedules = every[0]
        peak = max(schedule.peak_nbytes for own in every for schedule in own)
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


def _best(candidates: list[Candidate], goal: PlanGoal, full: float) -> Candidate:
    """The candidate with the fewest reads among those nearly as good as the preferred one.

    Nearly as good are candidates of the same class of `preference` that mix within 1 % of it.
    """
    rank = preference(goal, full)
    best = min(candidates, key=rank)
    alike = [
        c for c in candidates if rank(c)[0] == rank(best)[0] and c.mixing >= 0.99 * best.mixing
    ]
    return min(alike, key=lambda c: (c.amplification, -c.mixing))


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


def _tile_sizes(
    footprint: Footprint, cohorts: Cohorts, near: tuple[int, ...], run_dim: int
) -> Iterator[tuple[int, ...]]:
    """Tile sizes to try: larger along all dimensions with neighbours, or along all but one."""
    axes = [leading_axis(footprint, dim) for dim in range(len(cohorts.shape))]
    num_blocks = [1 if axis is None else axis.num_blocks for axis in axes]

    def grown(size: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of a tile with ``size`` blocks along ``dims``, and one block along the others."""
        # A tile that takes a whole dimension always has size 0, so that no tiling is tried twice.
        return tuple(
            (size if size < num_blocks[dim] else 0) if dim in dims else 1
            for dim in range(len(num_blocks))
        )

    others = tuple(dim for dim in near if dim != run_dim)
    sizes = [grown(0, others)]
    if any(count > 1 for dim, count in enumerate(cohorts.home_shape) if dim not in near):
        # Otherwise all samples would be in one tile, which does not fit: if it did, the plan
        # would already hold the whole selection.
        sizes.insert(0, grown(0, near))
    if others:
        sizes += [grown(1, ()), grown(4, others)]
    if len(others) > 1:
        sizes.append(grown(4, near))
    yield from dict.fromkeys(sizes)


def _neighbour_dims(footprint: Footprint, cohorts: Cohorts) -> tuple[int, ...]:
    """Dimensions along which neighbouring tiles of one block share a window or a chunk.

    A chunk that is computed may be shared: nothing is read when it is computed again.
    """
    found = []
    for dim, pieces in enumerate(cohorts.pieces):
        shares = any(
            not group.is_computed
            and group.axes[dim] is not None
            and group.axes[dim] != leading_axis(footprint, dim)
            and not np.isin(pieces.tile_edges, group.axes[dim].edges).all()  # type: ignore[union-attr]
            for group in footprint.groups
        )
        if pieces.num_homes > 1 and (pieces.reach or shares):
            found.append(dim)
    return tuple(found)
