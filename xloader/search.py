"""Finding the plan: the best mixing that a byte budget and an amplification allow.

Where no window straddles tiles and no chunk is shared by them, every order reads each chunk
once, and the largest spread that fits is the best. Elsewhere candidates are measured on a
model of the selection, and the best of them is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from xloader.ascend import Ascent
from xloader.cohorts import Cohorts, cut_cohorts, leading_axis
from xloader.errors import OptionError
from xloader.footprint import Footprint
from xloader.mixing import full_mixing, region_dim
from xloader.model import Candidate, Model, model_lanes
from xloader.pace import Pace
from xloader.plan import Budget, Plan
from xloader.schedule import make_schedule

_NUM_FINALISTS = 4
_FEW_TILES = 256
_DRAWS, _MODEL_DRAWS = 32, 8
_MOST_SPREAD = 4096
"""Tiles beyond which more of them at work no longer changes what batches are made of."""

_MOST_NEIGHBOURS = 1024
"""The same where candidates are tried on a model, whose cost grows with the tiles at work."""

_MAX_STRETCHES = 1 << 22
"""Entries that an order without a shuffle may have; beyond that a plan would not fit memory."""


@dataclass(frozen=True)
class Wish:
    """What a plan is to reach.

    Parameters
    ----------
    global_batch, lanes : int
    max_amplification : float
        Reads of a chunk that are allowed on average.
    spread : int or None
        A spread that the user asks for; ``None`` leaves it to the search.
    """

    global_batch: int
    lanes: int
    max_amplification: float = 1.05
    spread: int | None = None


@dataclass(frozen=True)
class _Tiling:
    """A tiling, its cohorts, and the most bytes that the samples of one tile need together."""

    sizes: tuple[int, ...]
    cohorts: Cohorts
    need_nbytes: int

    @classmethod
    def of(cls, footprint: Footprint, sizes: tuple[int, ...]) -> _Tiling:
        cohorts = cut_cohorts(footprint, sizes)
        return cls(sizes, cohorts, _tile_nbytes(footprint, cohorts))


def find_plan(footprint: Footprint, budget: Budget, wish: Wish) -> Plan:
    """The best shuffle within a budget.

    Among the plans that fit, those within ``max_amplification``; of these the greatest mixing;
    of those within 1 % of it, the fewest reads. If none is within, the fewest reads among
    those that mix at least half as well as a full shuffle; else the greatest mixing.

    Raises
    ------
    MemoryBudgetError
        If not even the chunks of one tile fit.
    """
    finest = _Tiling.of(footprint, (1,) * len(footprint.windows.dims))
    cohorts = finest.cohorts
    budget.check(finest.need_nbytes)
    if wish.spread is None and footprint.total_nbytes <= budget.lane_nbytes * budget.num_lanes:
        pace = Pace(finest.sizes, spread=cohorts.num_tiles, lanes=wish.lanes)
        return _make_plan(pace, budget, wish, budget.lane_nbytes, 0, is_resident=True)
    near = _neighbour_dims(footprint, cohorts)
    if not near:
        return _plain_plan(footprint, cohorts, finest.need_nbytes, budget, wish)
    batch_size = wish.global_batch // wish.lanes * model_lanes(wish.lanes)
    full = full_mixing(footprint, region_dim(footprint), batch_size)
    candidates: list[Candidate] = []
    run_dim = max(near, key=lambda dim: cohorts.home_shape[dim])
    for sizes in _tile_sizes(len(cohorts.shape), near, run_dim):
        tiling = finest if sizes == finest.sizes else _Tiling.of(footprint, sizes)
        candidates += _try_tiling(footprint, budget, wish, tiling, run_dim, full)
        if any(c.amplification == 1.0 and c.mixing >= 0.9 * full for c in candidates):
            break
    if not candidates and wish.spread is None:
        # Tile by tile, an order needs at a time what one tile does, and that has been checked.
        least = dataclasses.replace(wish, spread=0)
        candidates = _try_tiling(footprint, budget, least, finest, run_dim, full)
    if not candidates:
        raise OptionError(
            "no plan with this spread fits the memory",
            given=f"spread={wish.spread}",
            allowed="a smaller spread, or None",
            remedy="leave spread to the plan, or give it more memory",
        )
    best = _best(candidates, wish, full).plan
    draws = _DRAWS if best.pace.draws > 1 else 1
    return dataclasses.replace(best, pace=dataclasses.replace(best.pace, draws=draws))


def find_ascent(footprint: Footprint, budget: Budget, wish: Wish) -> Plan:
    """The plan without a shuffle: the largest slabs that fit, or else the fewest reads.

    Raises
    ------
    MemoryBudgetError
        If not even the chunks of one sample fit.
    """
    if footprint.subset is not None:
        return _find_listed(footprint, budget, wish)
    best: tuple[int, int, int] | None = None
    least = 1 << 62
    for depth in range(len(footprint.windows.dims)):
        ascent = Ascent(footprint, depth, wish.lanes)
        if depth and len(ascent.cohorts) > _MAX_STRETCHES:
            break
        schedules = [
            make_schedule(footprint, ascent.lane(lane), budget.lane_nbytes)
            for lane in range(wish.lanes)
        ]
        peak = max(schedule.peak_nbytes for schedule in schedules)
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
    is_resident = footprint.total_nbytes <= budget.lane_nbytes * budget.num_lanes
    pool = budget.lane_nbytes if is_resident else peak
    ahead = min(budget.lane_nbytes - pool, max(peak, budget.ahead_nbytes))
    pace = Pace((1,) * len(footprint.windows.dims), lanes=wish.lanes, is_shuffled=False)
    return _make_plan(pace, budget, wish, pool, ahead, depth=depth, is_resident=is_resident)


def _find_listed(footprint: Footprint, budget: Budget, wish: Wish) -> Plan:
    """The plan of a subset without a shuffle: samples one after the other, as they are listed."""
    budget.check(_Tiling.of(footprint, (1,) * len(footprint.windows.dims)).need_nbytes)
    is_resident = footprint.total_nbytes <= budget.lane_nbytes * budget.num_lanes
    ahead = 0 if is_resident else min(budget.ahead_nbytes, budget.lane_nbytes // 4)
    pace = Pace((1,) * len(footprint.windows.dims), lanes=wish.lanes, is_shuffled=False)
    pool = budget.lane_nbytes - ahead
    return _make_plan(pace, budget, wish, pool, ahead, is_resident=is_resident)


def _best(candidates: list[Candidate], wish: Wish, full: float) -> Candidate:
    """The first by preference; of those of its kind that mix as well within 1 %, fewest reads."""
    rank = _preference(wish, full)
    best = min(candidates, key=rank)
    alike = [
        c for c in candidates if rank(c)[0] == rank(best)[0] and c.mixing >= 0.99 * best.mixing
    ]
    return min(alike, key=lambda c: (c.amplification, -c.mixing))


def _preference(wish: Wish, full: float) -> Callable[[Candidate], tuple[int, float, float]]:
    """Best first, by the rules of `find_plan`."""

    def rank(candidate: Candidate) -> tuple[int, float, float]:
        if candidate.amplification <= wish.max_amplification:
            return 0, -candidate.mixing, candidate.amplification
        if candidate.mixing >= full / 2:
            return 1, candidate.amplification, -candidate.mixing
        return 2, -candidate.mixing, candidate.amplification

    return rank


def _plain_plan(
    footprint: Footprint, cohorts: Cohorts, tile: int, budget: Budget, wish: Wish
) -> Plan:
    """The plan where no tile has a neighbour that it must meet."""
    num_tiles = cohorts.num_used_tiles
    fitting = min(max(budget.lane_nbytes // tile - 1, 0), max(_MOST_SPREAD, wish.global_batch))
    if wish.spread is not None:
        budget.check(tile * min(max(wish.spread, 1), num_tiles))
        spread = wish.spread
    elif footprint.num_samples == num_tiles and not footprint.is_weighted:
        # A permutation of tiles is already a full shuffle of their samples.
        spread = 0
    else:
        spread = fitting if fitting <= num_tiles // wish.lanes else cohorts.num_tiles
    pace = Pace((1,) * len(cohorts.shape), spread=spread, lanes=wish.lanes)
    at_work = tile * min(max(spread, 1), num_tiles)
    return _with_ahead(pace, budget, wish, min(at_work, budget.lane_nbytes), tile)


def _with_ahead(pace: Pace, budget: Budget, wish: Wish, pool: int, tile: int) -> Plan:
    ahead = min(budget.lane_nbytes - pool, max(tile, budget.ahead_nbytes))
    return _make_plan(pace, budget, wish, pool, ahead)


def _make_plan(
    pace: Pace,
    budget: Budget,
    wish: Wish,
    pool: int,
    ahead: int,
    *,
    depth: int = 0,
    is_resident: bool = False,
) -> Plan:
    return Plan(
        pace=pace,
        depth=depth,
        budget=budget,
        global_batch=wish.global_batch,
        max_amplification=wish.max_amplification,
        lane_pool_nbytes=pool,
        ahead_nbytes=ahead,
        is_resident=is_resident,
    )


def _try_tiling(
    footprint: Footprint,
    budget: Budget,
    wish: Wish,
    tiling: _Tiling,
    run_dim: int,
    full: float,
) -> list[Candidate]:
    """The better candidates of one tiling, each measured on the model."""
    cohorts = tiling.cohorts
    if tiling.need_nbytes > budget.lane_nbytes:
        return []
    tile = -(-footprint.total_nbytes // cohorts.num_used_tiles)
    pool = max(budget.lane_nbytes - tile, tiling.need_nbytes)
    num_tiles = max(cohorts.num_used_tiles // wish.lanes, 1)
    most = min(pool // tile, num_tiles, _MOST_NEIGHBOURS)
    model = Model(footprint, tiling.sizes, run_dim, most, wish.lanes)
    trials = [
        candidate
        for pace in _paces(cohorts, tiling.sizes, run_dim, most, wish)
        if (candidate := model.measure(_with_ahead(pace, budget, wish, pool, tile))) is not None
    ]
    return _confirmed(sorted(trials, key=_preference(wish, full)), model, wish)


def _confirmed(trials: list[Candidate], model: Model, wish: Wish) -> list[Candidate]:
    """The first trials that stay within the amplification in other epochs too.

    Where tiles are few, luck makes one epoch unlike another: one trial is not enough.
    """
    found: list[Candidate] = []
    failed: list[Candidate] = []
    for candidate in trials:
        confirmed = model.confirm(candidate, wish.max_amplification)
        if confirmed is None:
            continue
        is_within = confirmed.amplification <= wish.max_amplification
        (found if is_within else failed).append(confirmed)
        if len(found) == _NUM_FINALISTS or (not found and len(failed) == 3 * _NUM_FINALISTS):
            break
    return found or failed


def _paces(
    cohorts: Cohorts, tiling: tuple[int, ...], run_dim: int, most: int, wish: Wish
) -> Iterator[Pace]:
    """Paces worth a try: a grid over spread, streams and runs, finer where tiles are few."""
    reach = cohorts.pieces[run_dim].reach
    if cohorts.pieces[run_dim].num_homes == 1:
        yield Pace(tiling, run_dim, 1, 1, most if wish.spread is None else wish.spread, wish.lanes)
        return
    per_row = cohorts.home_shape[run_dim]
    num_tiles = max(cohorts.num_used_tiles // wish.lanes, 1)
    is_small = num_tiles < _FEW_TILES
    draws = _MODEL_DRAWS if is_small else 1
    spread_shares: tuple[float, ...] = (1.0, 0.95, 0.9, 0.8, 0.65)[: 5 if is_small else 4]
    stream_shares = (1.0, 0.85, 0.7)
    runs_per_stream = (1.0, 1.25, 1.75, 2.5) if is_small else (1.25, 2.0, 4.0)
    if reach > most:
        # Far chunks are held beside their tiles, which leaves room for fewer.
        spread_shares = (*spread_shares, 0.65, 0.5, 0.35, 0.2)
    spreads = {int(most * share) for share in spread_shares}
    for spread in sorted(spreads if wish.spread is None else {wish.spread}, reverse=True):
        yield Pace(tiling, run_dim, 1, 1, spread, wish.lanes, draws)
        # Beyond so many streams, neighbours would lie too far apart to meet.
        most_streams = spread // reach if 0 < reach <= spread else spread
        for streams in {max(int(most_streams * share), 1) for share in stream_shares}:
            # With fewer runs than streams, every epoch would make the same sweep.
            runs = {min(int(num_tiles / (streams * k)), per_row) for k in runs_per_stream}
            for run in sorted(run for run in runs if run > 1):
                yield Pace(tiling, run_dim, run, streams, spread, wish.lanes, draws)


def _tile_sizes(num_dims: int, near: tuple[int, ...], run_dim: int) -> Iterator[tuple[int, ...]]:
    """Tile sizes worth a try: grown along dimensions with neighbours, or along all but one."""

    def grown(size: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size if dim in dims else 1 for dim in range(num_dims))

    others = tuple(dim for dim in near if dim != run_dim)
    yield grown(0, near)
    yield grown(0, others)
    if others:
        yield grown(1, ())
        yield grown(4, others)
    if len(others) > 1:
        yield grown(4, near)


def _neighbour_dims(footprint: Footprint, cohorts: Cohorts) -> tuple[int, ...]:
    """Dimensions along which tiles of one block share a window or a chunk."""
    found = []
    for dim, pieces in enumerate(cohorts.pieces):
        shares = any(
            group.axes[dim] is not None
            and group.axes[dim] != leading_axis(footprint, dim)
            and not np.isin(pieces.tile_edges, group.axes[dim].edges).all()  # type: ignore[union-attr]
            for group in footprint.groups
        )
        if pieces.num_homes > 1 and (pieces.reach or shares):
            found.append(dim)
    return tuple(found)


def _tile_nbytes(footprint: Footprint, cohorts: Cohorts) -> int:
    """The most bytes that the samples of one home tile need together."""
    return int(_needed_nbytes(footprint, cohorts).max(initial=0))


def _needed_nbytes(footprint: Footprint, cohorts: Cohorts) -> np.ndarray:
    """Per home tile, the bytes of all blocks that its samples need."""
    # Where weights draw the samples, another epoch may have any of them.
    used = np.arange(len(cohorts)) if footprint.is_weighted else cohorts.used
    boxes, tile_of = cohorts.boxes(used), cohorts.tiles[used]
    needed = np.zeros(cohorts.num_tiles, np.int64)
    for group in footprint.groups:
        rows, blocks = footprint.needs(group, boxes)
        tiles = tile_of[rows]
        if len(cohorts) > cohorts.num_tiles:
            pairs = np.sort(tiles * group.num_blocks + blocks)
            pairs = pairs[np.diff(pairs, prepend=-1) > 0]
            tiles, blocks = pairs // group.num_blocks, pairs % group.num_blocks
        np.add.at(needed, tiles, group.block_nbytes(blocks))
    return needed
