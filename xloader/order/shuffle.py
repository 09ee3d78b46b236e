r"""The shuffled order of an epoch: runs of tiles in random order, several runs at a time.

::

    runs       A0 A1 A2 ...   B0 B1 B2 ...   C0 C1 C2 ...      cut and permuted in each epoch
    lanes      |------ lane 0 ------|------ lane 1 ------|     equal parts of the samples
    streams    A0 A1 A2 ...  \
               B0 B1 B2 ...   >  one tile of each stream in turn
               C0 C1 C2 ...  /
    positions  A0 B0 C0 A1 B1 C1 A2 B2 C2 ...

The *position* of a tile is its number in the lane's order of tiles. A tile is in memory from the
moment of its position on, for ``spread`` moments. A cohort hands out its samples while all its
tiles are in memory.

With several *visits*, the runs of a lane pass through the memory several times, each time in
another order. Positions count on from pass to pass.

Runs of tiles, and visits: an epoch may come by a tile more than once, for part of its samples.

Where the memory holds few tiles, a batch comes from few places. With several visits, the lane's
tiles pass through the memory several times, each time in another order::

    pass 0   t3 t0 t2 t1    a quarter of each tile's samples
    pass 1   t0 t1 t3 t2    another quarter
    ...
    batch    takes all samples of four tiles' visits, not all samples of one tile

Each pass reads each chunk again. A cohort with few samples takes part in few passes: its tiles
would otherwise have to meet in each of them, for a single sample or none.

Where the memory holds all tiles, the samples of a batch may come from any of them. The first epoch
would then read everything for its first few batches. Instead, tiles come in one by one there, as if
the memory grew, and chunks are read while batches are delivered::

    tile 0   |--------|                        a tenth of the tiles at work at first
    tile 1     |---------|                     then more and more
    tile 8               |---------------|
    tile 9                 |-------------|     all end at the same time
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import Words, derive_key, draw, draw_below, permutation
from xloader.core.footprint import expand_ranges
from xloader.core.sorting import digit_order, is_first
from xloader.core.windows import Windows
from xloader.errors import OptionError
from xloader.order.cohorts import Cohorts
from xloader.order.lane_order import PHASE_STEPS, LaneOrder, SubLanes, lane_part

# Each use of random numbers has its own constant, so that no two uses draw the same ones.
RUN_OFFSETS, RUN_ORDER, RUN_TURNS = range(3)


def order_of_tiles(cohorts: Cohorts, run: int, run_dim: int, keys: list[int]) -> tuple[Ints, Ints]:
    """Tiles with samples in the order of the permuted runs, and each one's run by its number."""
    tiles, run_ranks = _order_of_all_tiles(cohorts, run, run_dim, keys)
    if cohorts.num_used_tiles == cohorts.num_tiles:
        return tiles, run_ranks
    is_used = np.zeros(cohorts.num_tiles, np.bool_)
    is_used[cohorts.tiles[cohorts.used]] = True
    return tiles[is_used[tiles]], run_ranks[is_used[tiles]]


def _order_of_all_tiles(
    cohorts: Cohorts, run: int, run_dim: int, keys: list[int]
) -> tuple[Ints, Ints]:
    if run == 1:
        tiles = permutation(keys[RUN_ORDER], cohorts.num_tiles).astype(np.int32)
        return tiles, np.arange(cohorts.num_tiles, dtype=np.int32)
    row_size = cohorts.home_shape[run_dim]
    num_rows = cohorts.num_tiles // row_size
    first_size = 1 + draw_below(keys[RUN_OFFSETS], np.arange(num_rows), run)
    num_runs = 1 + (row_size - 1 - first_size + run) // run
    row = np.repeat(np.arange(num_rows), num_runs)
    number = np.arange(len(row)) - (np.cumsum(num_runs) - num_runs)[row]
    begins = row * row_size + np.maximum(first_size[row] + (number - 1) * run, 0)
    sizes = np.diff(begins, append=cohorts.num_tiles)
    order = permutation(keys[RUN_ORDER], len(begins))
    tiles = lay_out(begins[order], sizes[order], draw(keys[RUN_TURNS], order))
    sizes = sizes[order]
    run_ranks = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    if run_dim < len(cohorts.home_shape) - 1:
        ids = np.arange(cohorts.num_tiles, dtype=np.int32).reshape(cohorts.home_shape)
        tiles = np.moveaxis(ids, run_dim, -1).reshape(-1)[tiles]
    return tiles, run_ranks


def lay_out(begins: Ints, sizes: Ints, drawn: Words) -> Ints:
    """Numbers of the members of runs, one run after the other; int32."""
    is_turned = (drawn & np.uint64(1)).astype(np.bool_)
    step = np.where(is_turned, -1, 1)
    first = np.where(is_turned, begins + sizes - 1, begins)
    last = first + step * (sizes - 1)
    numbers = np.repeat(step.astype(np.int32), sizes)
    numbers[np.cumsum(sizes) - sizes] = first - np.concatenate([[0], last[:-1]])
    return np.cumsum(numbers, out=numbers)


def positions(run_ranks: Ints, streams: int) -> Ints:
    """Positions of a lane's tiles, given the number of each one's run, in the order of runs.

    Each run goes to the stream that is shortest at that time. Then one tile is taken from each
    stream in turn.
    """
    if streams == 1:
        return np.arange(len(run_ranks))
    begins = np.flatnonzero(is_first(run_ranks))
    sizes = np.diff(begins, append=len(run_ranks))
    queue = [(0, stream) for stream in range(streams)]
    # Tiles are numbered by turn and then stream. Streams that have ended leave gaps, which are
    # closed below.
    firsts = []
    for size in sizes.tolist():
        length, stream = queue[0]
        firsts.append(length * streams + stream)
        heapq.heapreplace(queue, (length + size, stream))
    turn = np.arange(len(run_ranks)) * streams
    turn += np.repeat(np.array(firsts, np.int64) - begins * streams, sizes)
    is_taken = np.zeros(int(turn.max(initial=-1)) + 1, np.int32)
    is_taken[turn] = 1
    return np.cumsum(is_taken, dtype=np.int32)[turn] - 1


def deal_visits(
    count: Ints, tile_count: Ints, num_passes: int, key: int, cohorts: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Deal the samples of cohorts to passes: row of each part's cohort, first rank, count; edges.

    A cohort takes part in as many passes as a tile's samples are divided among for its share of
    them, rounded up. Which passes these are is drawn, and so is which of them get one sample more
    where the number of samples is not a multiple. In each pass, which ``edges`` bound, rows ascend.
    """
    count = count.astype(np.int64)
    times = np.clip(-(-count * num_passes // tile_count), 1, np.minimum(count, num_passes))
    passes_drawn = draw(derive_key(key, 0), cohorts) % np.uint64(num_passes)
    ranks_drawn = draw(derive_key(key, 1), cohorts) % times.astype(np.uint64)
    row, number = expand_ranges(np.zeros(len(count), np.int64), times)
    num_shares, drawn = times[row], ranks_drawn.astype(np.int64)[row]
    pass_of = (number * num_passes + passes_drawn.astype(np.int64)[row]) // num_shares
    first_rank = (number * count[row] + drawn) // num_shares
    num_ranks = ((number + 1) * count[row] + drawn) // num_shares - first_rank
    by_pass = digit_order(pass_of, num_passes)
    edges = np.searchsorted(pass_of[by_pass], np.arange(num_passes + 1))
    return row[by_pass], first_rank[by_pass], num_ranks[by_pass], edges


@dataclass(frozen=True, eq=False)
class TilePass:
    """A pass over the tiles of a lane, and the parts of cohorts that it hands out."""

    cohort: Ints
    count: Ints
    first_rank: Ints | None
    tiles: Ints
    run_ranks: Ints


def tile_passes(cohorts: Cohorts, whole: TilePass, num_passes: int, key: int) -> Iterator[TilePass]:
    """The passes of a lane, each with its own order of the runs."""
    tiles = cohorts.tiles[whole.cohort]
    per_tile = np.bincount(tiles, whole.count, cohorts.num_tiles).astype(np.int64)
    dealt_rows, first_ranks, counts, edges = deal_visits(
        whole.count, per_tile[tiles], num_passes, key, whole.cohort
    )
    begins = np.flatnonzero(is_first(whole.run_ranks))
    sizes = np.diff(begins, append=len(whole.run_ranks))
    for number, (begin, end) in enumerate(pairwise(edges.tolist())):
        row, first_rank = dealt_rows[begin:end], first_ranks[begin:end]
        if whole.first_rank is not None:
            first_rank = first_rank + whole.first_rank[row]
        order = permutation(derive_key(key, number, RUN_ORDER), len(begins))
        turns = draw(derive_key(key, number, RUN_TURNS), order)
        places = lay_out(begins[order], sizes[order], turns)
        is_home = np.zeros(cohorts.num_tiles, np.bool_)
        is_home[tiles[row]] = True
        places = places[is_home[whole.tiles[places]]]
        yield TilePass(
            whole.cohort[row],
            counts[begin:end],
            first_rank,
            whole.tiles[places],
            whole.run_ranks[places],
        )


def intervals(
    cohorts: Cohorts,
    entries: Ints,
    position: NDArray[np.int32],
    run_dim: int,
    spread: int,
    *,
    is_growing: bool = False,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Start and length of each entry's interval of keys, in moments."""
    start = position[cohorts.tiles[entries]]
    num_tiles = int(start.max(initial=-1)) + 1
    pieces = cohorts.pieces[run_dim]
    if spread >= num_tiles:
        if is_growing:
            wide = np.flatnonzero(pieces.is_wide[cohorts.indices(entries, run_dim)])
            start[wide] = _touched_positions(cohorts, entries[wide], position, run_dim)[1]
            return _growing(start, num_tiles)
        return np.zeros(len(entries), np.int32), np.full(len(entries), num_tiles, np.int32)
    length = np.full(len(entries), spread, np.int32)
    # No cohort needs several tiles along the run, or the memory cannot hold them at the same time.
    # In the second case chunks are read again, and the interval is that of the home tile.
    if not 0 < pieces.reach <= spread:
        return start, length
    wide = np.flatnonzero(pieces.is_wide[cohorts.indices(entries, run_dim)])
    for begin in range(0, len(wide), _PIECE_SIZE):
        rows = wide[begin : begin + _PIECE_SIZE]
        lowest, highest, is_alone = _touched_positions(cohorts, entries[rows], position, run_dim)
        # If a cohort's tiles are never in memory at the same time, it is emitted all at once, at
        # the largest of their positions. So is a cohort that needs a tile without a position in
        # this lane. Otherwise that tile would stay in memory for the cohort's whole interval.
        start[rows] = highest
        length[rows] = np.where(is_alone, 0, np.maximum(lowest + spread - highest, 0))
    return start, length


def _growing(
    position: NDArray[np.int32], num_tiles: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Intervals of entries that begin at the positions of tiles, of which more and more fit."""
    # Of few tiles, each takes several moments, so that intervals need not be whole positions.
    unit = -(-_LEAST_MOMENTS // max(num_tiles, 1))
    start, first = position * np.int32(unit), unit * max(num_tiles // 10, _LEAST_AT_WORK)
    length = np.minimum(first + start // 2, unit * (num_tiles + num_tiles // 4) - start)
    return start, length.astype(np.int32)


def _touched_positions(
    cohorts: Cohorts, entries: Ints, position: NDArray[np.int32], dim: int
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Smallest and largest position of the tiles of each entry, and whether a tile has none."""
    pieces = cohorts.pieces[dim]
    piece = cohorts.indices(entries, dim)
    tile, home = cohorts.tiles[entries], pieces.home[piece]
    weight = math.prod(cohorts.home_shape[dim + 1 :])
    lowest = highest = position[tile]
    is_alone = pieces.is_beyond_homes[piece]
    for los, his in zip(pieces.touch_lo, pieces.touch_hi, strict=True):
        lo, hi = los[piece], his[piece]
        for shift in range(int((hi - lo).max(initial=0))):
            index = np.where(lo + shift < hi, lo + shift, home)
            if (index == home).all():
                continue
            touched = position[tile + (index - home) * weight]
            is_there = touched >= 0
            is_alone = is_alone | ~is_there
            lowest = np.where(is_there, np.minimum(lowest, touched), lowest)
            highest = np.maximum(highest, touched)
    return lowest, highest, is_alone


# Uses of random numbers, beside those of runs.
_PHASES, _RANKS, _VISITS = range(3, 6)

_PIECE_SIZE = 1 << 16
"""Number of cohorts that are handled in one call: the arrays for them fit a core's cache."""

_LEAST_AT_WORK = 8
"""Tiles that the first epoch begins with, if it begins with few."""

_LEAST_MOMENTS = 128
"""Moments that such an epoch is divided into, at least."""


@dataclass(frozen=True)
class Pace:
    """The numbers of a plan that fix an epoch's order together with seed and epoch."""

    tiling: tuple[int, ...]
    run_dim: int = 0
    run: int = 1
    streams: int = 1
    spread: int = 0
    lanes: int = 1
    draws: int = 1
    is_shuffled: bool = True
    visits: int = 1
    is_growing: bool = False

    def __post_init__(self) -> None:
        for name in ("run", "streams", "spread", "lanes", "draws", "visits"):
            least = 0 if name == "spread" else 1
            if getattr(self, name) < least:
                raise OptionError(
                    f"{name} is too small", given=getattr(self, name), allowed=f">= {least}"
                )


@dataclass(frozen=True)
class Shuffle:
    """The shuffled order of an epoch. Each lane can be made alone."""

    windows: Windows
    cohorts: Cohorts
    pace: Pace
    seed: int
    epoch: int
    number: int = 0
    sublanes: SubLanes | None = None

    def lane(self, lane: int, spread: int) -> LaneOrder:
        """Make the order of one sub-lane."""
        sublanes = self.sublanes or SubLanes(int(self._total[-1]), self.pace.lanes)
        entries, count, first_rank = lane_part(self._cohort_order, self._total, sublanes.span(lane))
        # Tiles follow each other in the order of cohorts, and each has a cohort there.
        ends = self._place[self.cohorts.tiles[entries[[0, -1]]]] if len(entries) else (0, -1)
        places = slice(int(ends[0]), int(ends[1]) + 1)
        tiles, run_ranks = self._tiles_and_runs
        whole = TilePass(entries, count, first_rank, tiles[places], run_ranks[places])
        num_passes = 1 if spread >= len(whole.tiles) else self.pace.visits
        key = derive_key(self.seed, self.epoch, self.number, _VISITS, lane)
        passes = (
            [whole] if num_passes == 1 else list(tile_passes(self.cohorts, whole, num_passes, key))
        )
        start, length = self._intervals(passes, spread)
        phase_key = self._keys[_PHASES]
        phase = np.concatenate(
            [
                _phases(derive_key(phase_key, number) if number else phase_key, tile_pass.cohort)
                for number, tile_pass in enumerate(passes)
            ]
        )
        by_start = digit_order(start, int(start.max(initial=0)) + 1)
        first_ranks = [
            tile_pass.first_rank for tile_pass in passes if tile_pass.first_rank is not None
        ]
        return LaneOrder(
            windows=self.windows,
            cohorts=self.cohorts,
            cohort=np.concatenate([tile_pass.cohort for tile_pass in passes])[by_start],
            first_rank=np.concatenate(first_ranks)[by_start] if first_ranks else None,
            count=np.concatenate([tile_pass.count for tile_pass in passes])[by_start],
            start=start[by_start],
            length=length[by_start],
            phase=phase[by_start],
            permutation_key=self._keys[_RANKS],
        )

    def _intervals(
        self, passes: list[TilePass], spread: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Start and length of the interval of each part of a cohort, pass by pass, in moments."""
        streams = self.pace.streams
        reach = self.cohorts.pieces[self.pace.run_dim].reach
        if spread < self.pace.spread and 0 < reach <= spread:
            # With a smaller spread than the plan's, neighbouring tiles of a run are in memory at
            # the same time only if there are fewer streams.
            streams = min(streams, spread // reach)
        starts, lengths, begin = [], [], 0
        for tile_pass in passes:
            position = np.full(self.cohorts.num_tiles, -1, np.int32)
            position[tile_pass.tiles] = positions(tile_pass.run_ranks, streams)
            start, length = intervals(
                self.cohorts,
                tile_pass.cohort,
                position,
                self.pace.run_dim,
                spread,
                is_growing=self.pace.is_growing and self.epoch == 0,
            )
            starts.append(start + np.int32(begin))
            lengths.append(length)
            begin += len(tile_pass.tiles)
        return np.concatenate(starts), np.concatenate(lengths)

    @cached_property
    def _keys(self) -> list[int]:
        return [derive_key(self.seed, self.epoch, self.number, use) for use in range(5)]

    @cached_property
    def _tiles_and_runs(self) -> tuple[Ints, Ints]:
        return order_of_tiles(self.cohorts, self.pace.run, self.pace.run_dim, self._keys)

    @cached_property
    def _place(self) -> Ints:
        tiles, place = self._tiles_and_runs[0], np.full(self.cohorts.num_tiles, -1, np.int32)
        place[tiles] = np.arange(len(tiles), dtype=np.int32)
        return place

    @cached_property
    def _cohort_order(self) -> Ints:
        tiles = self._tiles_and_runs[0]
        # Where each tile has one cohort with the same number, millions need not be gathered.
        is_same = len(self.cohorts) == self.cohorts.num_tiles
        return tiles if is_same else self.cohorts.of_tiles(tiles)

    @cached_property
    def _total(self) -> Ints:
        # NumPy adds up numbers several times as fast as it converts and adds them in one call.
        total = self.cohorts.num_samples[self._cohort_order].astype(np.int64)
        return np.cumsum(total, out=total)


def _phases(key: int, cohorts: Ints) -> NDArray[np.int32]:
    """Phase of each cohort, in units of ``1 / PHASE_STEPS``."""
    phases = np.empty(len(cohorts), np.int32)
    for begin in range(0, len(cohorts), _PIECE_SIZE):
        piece = slice(begin, begin + _PIECE_SIZE)
        phases[piece] = draw(key, cohorts[piece]) % np.uint64(PHASE_STEPS)
    return phases
