r"""The shuffled order of an epoch: runs of tiles in random order, several runs at a time.

::

    runs       A0 A1 A2 ...   B0 B1 B2 ...   C0 C1 C2 ...      cut and permuted in each epoch
    lanes      |------ lane 0 ------|------ lane 1 ------|     equal parts of the samples
    streams    A0 A1 A2 ...  \
               B0 B1 B2 ...   >  one tile of each stream in turn
               C0 C1 C2 ...  /
    positions  A0 B0 C0 A1 B1 C1 A2 B2 C2 ...

The *position* of a tile is its number in the lane's order of tiles. A tile is in memory from the
slot of its position on, for ``spread`` slots. A cohort hands out its samples while all its tiles
are in memory. The *line* of tiles is the order before lanes and streams are made.

With several *visits*, the runs of a lane pass through the memory several times, each time in
another order. Positions count on from pass to pass.
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
from xloader.core.windows import Windows
from xloader.errors import OptionError
from xloader.order.cohorts import Cohorts, digit_order, is_first
from xloader.order.lane_order import PHASE_STEPS, LaneOrder, lane_part
from xloader.order.lane_spans import SubLanes
from xloader.order.visits import Visits

# Each use of random numbers has its own constant, so that no two uses draw the same ones.
_RUN_OFFSETS, _RUN_ORDER, _RUN_TURNS, _PHASES, _RANKS = range(5)
_VISITS = 5

_PIECE_SIZE = 1 << 16
"""Number of cohorts that are handled in one call: the arrays for them fit a core's cache."""


@dataclass(frozen=True)
class Pace:
    """The numbers of a plan that fix an epoch's order together with seed and epoch.

    Parameters
    ----------
    tiling : tuple of int
        Per windowed dimension, number of blocks of the leading axis in a tile; 0 for all blocks.
    run_dim : int
        Index of the windowed dimension along which the tiles of a run are neighbours.
    run : int
        Number of tiles of a run. With 1, tiles come in fully random order.
    streams : int
        Number of runs under way at a time.
    spread : int
        Number of later tiles that are loaded while a tile hands out its samples.
    lanes : int
        Number of independent parts of the order, which the ranks divide among them.
    draws : int
        Largest number of orders that are drawn for an epoch. The first one that reads no more
        chunks than allowed is used, or else the one that reads least.
    is_shuffled : bool
        Whether the order is shuffled. If not, only ``tiling`` and ``lanes`` matter.
    visits : int
        Number of passes over the tiles of a lane. Each hands out a part of every tile's samples,
        and reads each chunk again. Where all tiles of a lane are in memory, there is one pass.

    Raises
    ------
    OptionError
        If ``spread`` is below 0, or ``run``, ``streams``, ``lanes``, ``draws`` or ``visits`` is
        below 1.
    """

    tiling: tuple[int, ...]
    run_dim: int = 0
    run: int = 1
    streams: int = 1
    spread: int = 0
    lanes: int = 1
    draws: int = 1
    is_shuffled: bool = True
    visits: int = 1

    def __post_init__(self) -> None:
        for name in ("run", "streams", "spread", "lanes", "draws", "visits"):
            least = 0 if name == "spread" else 1
            if getattr(self, name) < least:
                raise OptionError(
                    f"{name} is too small", given=getattr(self, name), allowed=f">= {least}"
                )


@dataclass(frozen=True, eq=False)
class _TilePass:
    """A pass over the tiles of a lane, and the parts of cohorts that it hands out.

    Parameters
    ----------
    cohort, count : numpy.ndarray of int, shape (n,)
        The cohort of each part, and its number of samples.
    first_rank : numpy.ndarray of int, shape (n,), or None
        The first rank of each part, as in `LaneOrder`.
    tiles, run_ranks : numpy.ndarray of int32, shape (m,)
        The home tiles of these cohorts, run by run, and the number of each one's run.
    """

    cohort: Ints
    count: Ints
    first_rank: Ints | None
    tiles: Ints
    run_ranks: Ints


@dataclass(frozen=True)
class Shuffle:
    """The shuffled order of an epoch. Each lane can be made alone.

    Parameters
    ----------
    windows : Windows
        All windows.
    cohorts : Cohorts
        Cohorts of the samples, cut with ``pace.tiling``.
    pace : Pace
        The numbers of the plan that fix the order.
    seed, epoch : int
        They fix the random numbers, together with ``number``.
    number : int
        Number of the draw among the epoch's draws, from 0 on.
    sublanes : SubLanes, optional
        Division of the samples into sub-lanes; by default into ``pace.lanes`` lanes.
    """

    windows: Windows
    cohorts: Cohorts
    pace: Pace
    seed: int
    epoch: int
    number: int = 0
    sublanes: SubLanes | None = None

    def lane(self, lane: int, spread: int) -> LaneOrder:
        """Make the order of one sub-lane.

        Parameters
        ----------
        lane : int
            Number of the sub-lane.
        spread : int
            Number of slots for which a tile stays in memory; at most ``pace.spread``.
        """
        sublanes = self.sublanes or SubLanes(int(self._total[-1]), self.pace.lanes)
        entries, count, first_rank = lane_part(self._cohort_line, self._total, sublanes.span(lane))
        # Tiles follow each other in the line, and each has a cohort there.
        ends = self._place[self.cohorts.tiles[entries[[0, -1]]]] if len(entries) else (0, -1)
        places = slice(int(ends[0]), int(ends[1]) + 1)
        whole = _TilePass(entries, count, first_rank, self._line[places], self._run_ranks[places])
        num_passes = 1 if spread >= len(whole.tiles) else self.pace.visits
        key = derive_key(self.seed, self.epoch, self.number, _VISITS, lane)
        passes = [whole] if num_passes == 1 else list(_passes(self.cohorts, whole, num_passes, key))
        start, length = self._intervals(passes, spread)
        phase = np.concatenate(
            [_phases(self._phase_key(number), own.cohort) for number, own in enumerate(passes)]
        )
        by_start = digit_order(start, sum(len(own.tiles) for own in passes) + 1)
        first_rank = _joined([own.first_rank for own in passes])
        return LaneOrder(
            windows=self.windows,
            cohorts=self.cohorts,
            cohort=np.concatenate([own.cohort for own in passes])[by_start],
            first_rank=None if first_rank is None else first_rank[by_start],
            count=np.concatenate([own.count for own in passes])[by_start],
            start=start[by_start],
            length=length[by_start],
            phase=phase[by_start],
            permutation_key=self._keys[_RANKS],
        )

    def _intervals(
        self, passes: list[_TilePass], spread: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Start and length of the interval of each part of a cohort, pass by pass, in slots."""
        streams = self.pace.streams
        reach = self.cohorts.pieces[self.pace.run_dim].reach
        if spread < self.pace.spread and 0 < reach <= spread:
            # With a smaller spread than the plan's, neighbouring tiles of a run are in memory at
            # the same time only if there are fewer streams.
            streams = min(streams, spread // reach)
        starts, lengths, begin = [], [], 0
        for own in passes:
            position = np.full(self.cohorts.num_tiles, -1, np.int32)
            position[own.tiles] = _positions(own.run_ranks, streams)
            start, length = _intervals(self.cohorts, own.cohort, position, self.pace, spread)
            starts.append(start + np.int32(begin))
            lengths.append(length)
            begin += len(own.tiles)
        return np.concatenate(starts), np.concatenate(lengths)

    def _phase_key(self, number: int) -> int:
        """The key of the phases of a pass."""
        key = self._keys[_PHASES]
        return derive_key(key, number) if number else key

    @cached_property
    def _keys(self) -> list[int]:
        return [derive_key(self.seed, self.epoch, self.number, use) for use in range(5)]

    @cached_property
    def _tile_line(self) -> tuple[Ints, Ints]:
        return _line_of_tiles(self.cohorts, self.pace, self._keys)

    @property
    def _line(self) -> Ints:
        return self._tile_line[0]

    @property
    def _run_ranks(self) -> Ints:
        return self._tile_line[1]

    @cached_property
    def _place(self) -> Ints:
        place = np.full(self.cohorts.num_tiles, -1, np.int32)
        place[self._line] = np.arange(len(self._line), dtype=np.int32)
        return place

    @cached_property
    def _cohort_line(self) -> Ints:
        if len(self.cohorts) == self.cohorts.num_tiles:
            # Each tile has one cohort with the same number, so millions need not be gathered.
            return self._line
        return self.cohorts.of_tiles(self._line)

    @cached_property
    def _total(self) -> Ints:
        # NumPy adds up numbers several times as fast as it converts and adds them in one call.
        total = self.cohorts.num_samples[self._cohort_line].astype(np.int64)
        return np.cumsum(total, out=total)


def _line_of_tiles(cohorts: Cohorts, pace: Pace, keys: list[int]) -> tuple[Ints, Ints]:
    """Tiles with samples in the order of the permuted runs, and each one's run by its number."""
    line, run_ranks = _line_of_all_tiles(cohorts, pace, keys)
    if cohorts.num_used_tiles == cohorts.num_tiles:
        return line, run_ranks
    is_used = np.zeros(cohorts.num_tiles, np.bool_)
    is_used[cohorts.tiles[cohorts.used]] = True
    return line[is_used[line]], run_ranks[is_used[line]]


def _line_of_all_tiles(cohorts: Cohorts, pace: Pace, keys: list[int]) -> tuple[Ints, Ints]:
    if pace.run == 1:
        line = permutation(keys[_RUN_ORDER], cohorts.num_tiles).astype(np.int32)
        return line, np.arange(cohorts.num_tiles, dtype=np.int32)
    row_size = cohorts.home_shape[pace.run_dim]
    num_rows = cohorts.num_tiles // row_size
    first_size = 1 + draw_below(keys[_RUN_OFFSETS], np.arange(num_rows), pace.run)
    num_runs = 1 + (row_size - 1 - first_size + pace.run) // pace.run
    row = np.repeat(np.arange(num_rows), num_runs)
    number = np.arange(len(row)) - (np.cumsum(num_runs) - num_runs)[row]
    begins = row * row_size + np.maximum(first_size[row] + (number - 1) * pace.run, 0)
    sizes = _gaps_between(begins, cohorts.num_tiles)
    order = permutation(keys[_RUN_ORDER], len(begins))
    line = _lay_out(begins[order], sizes[order], draw(keys[_RUN_TURNS], order))
    sizes = sizes[order]
    run_ranks = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    if pace.run_dim < len(cohorts.home_shape) - 1:
        ids = np.arange(cohorts.num_tiles, dtype=np.int32).reshape(cohorts.home_shape)
        line = np.moveaxis(ids, pace.run_dim, -1).reshape(-1)[line]
    return line, run_ranks


def _lay_out(begins: Ints, sizes: Ints, drawn: Words) -> Ints:
    """Numbers of the members of runs, one run after the other; int32.

    Parameters
    ----------
    begins, sizes : numpy.ndarray of int, shape (num_runs,)
        The least member and the number of members of each run.
    drawn : numpy.ndarray of uint64, shape (num_runs,)
        Random bits. With an odd number, a run is turned: it goes from its last member to its first.

    Examples
    --------
    >>> _lay_out(np.array([4, 0]), np.array([3, 2]), np.array([1, 0], np.uint64)).tolist()
    [6, 5, 4, 0, 1]
    """
    is_turned = (drawn & np.uint64(1)).astype(np.bool_)
    step = np.where(is_turned, -1, 1)
    first = np.where(is_turned, begins + sizes - 1, begins)
    last = first + step * (sizes - 1)
    line = np.repeat(step.astype(np.int32), sizes)
    line[np.cumsum(sizes) - sizes] = first - np.concatenate([[0], last[:-1]])
    return np.cumsum(line, out=line)


def _passes(cohorts: Cohorts, whole: _TilePass, num_passes: int, key: int) -> Iterator[_TilePass]:
    """The passes of a lane, each with its own order of the runs."""
    tiles = cohorts.tiles[whole.cohort]
    per_tile = np.bincount(tiles, whole.count, cohorts.num_tiles).astype(np.int64)
    dealt = Visits.deal(whole.count, per_tile[tiles], num_passes, key, whole.cohort)
    begins = np.flatnonzero(is_first(whole.run_ranks))
    sizes = _gaps_between(begins, len(whole.run_ranks))
    for number, (begin, end) in enumerate(pairwise(dealt.edges.tolist())):
        row, first_rank = dealt.row[begin:end], dealt.first_rank[begin:end]
        if whole.first_rank is not None:
            first_rank = first_rank + whole.first_rank[row]
        order = permutation(derive_key(key, number, _RUN_ORDER), len(begins))
        turns = draw(derive_key(key, number, _RUN_TURNS), order)
        line = _lay_out(begins[order], sizes[order], turns)
        is_home = np.zeros(cohorts.num_tiles, np.bool_)
        is_home[tiles[row]] = True
        line = line[is_home[whole.tiles[line]]]
        yield _TilePass(
            whole.cohort[row],
            dealt.count[begin:end],
            first_rank,
            whole.tiles[line],
            whole.run_ranks[line],
        )


def _joined(parts: list[Ints | None]) -> Ints | None:
    """All parts one after the other; None if there are none."""
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _positions(run_ranks: Ints, streams: int) -> Ints:
    """Positions of a lane's tiles, given the number of each one's run, in the order of runs.

    Each run goes to the stream that is shortest at that time. Then one tile is taken from each
    stream in turn.

    Examples
    --------
    >>> _positions(np.array([0, 0, 0, 4, 4, 5, 5]), streams=2).tolist()
    [0, 2, 4, 1, 3, 5, 6]
    """
    if streams == 1:
        return np.arange(len(run_ranks))
    begins = np.flatnonzero(is_first(run_ranks))
    sizes = _gaps_between(begins, len(run_ranks))
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


def _gaps_between(begins: Ints, end: int) -> Ints:
    """Sizes of parts that follow each other, given where each begins and where the last ends."""
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = end - begins[-1:]
    return sizes


def _phases(key: int, cohorts: Ints) -> NDArray[np.int32]:
    """Phase of each cohort, in units of ``1 / PHASE_STEPS``."""
    phases = np.empty(len(cohorts), np.int32)
    for begin in range(0, len(cohorts), _PIECE_SIZE):
        piece = slice(begin, begin + _PIECE_SIZE)
        phases[piece] = draw(key, cohorts[piece]) % np.uint64(PHASE_STEPS)
    return phases


def _intervals(
    cohorts: Cohorts, entries: Ints, position: NDArray[np.int32], pace: Pace, spread: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Start and length of each entry's interval of keys, in slots."""
    start = position[cohorts.tiles[entries]]
    num_tiles = int(start.max(initial=-1)) + 1
    if spread >= num_tiles:
        return np.zeros(len(entries), np.int32), np.full(len(entries), num_tiles, np.int32)
    length = np.full(len(entries), spread, np.int32)
    pieces = cohorts.pieces[pace.run_dim]
    # No cohort needs several tiles along the run, or the memory cannot hold them at the same time.
    # In the second case chunks are read again, and the interval is that of the home tile.
    if not 0 < pieces.reach <= spread:
        return start, length
    wide = np.flatnonzero(pieces.is_wide[cohorts.indices(entries, pace.run_dim)])
    for begin in range(0, len(wide), _PIECE_SIZE):
        rows = wide[begin : begin + _PIECE_SIZE]
        lowest, highest, is_alone = _touched_positions(
            cohorts, entries[rows], position, pace.run_dim
        )
        # If a cohort's tiles are never in memory at the same time, it is emitted all at once, at
        # the largest of their positions. So is a cohort that needs a tile without a position in
        # this lane. Otherwise that tile would stay in memory for the cohort's whole interval.
        start[rows] = highest
        length[rows] = np.where(is_alone, 0, np.maximum(lowest + spread - highest, 0))
    return start, length


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
            found = position[tile + (index - home) * weight]
            is_there = found >= 0
            is_alone = is_alone | ~is_there
            lowest = np.where(is_there, np.minimum(lowest, found), lowest)
            highest = np.maximum(highest, found)
    return lowest, highest, is_alone
