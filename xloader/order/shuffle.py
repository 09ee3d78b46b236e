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
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw, draw_below, permutation
from xloader.core.windows import Windows
from xloader.errors import OptionError
from xloader.order.cohorts import Cohorts, digit_order, is_first
from xloader.order.lane_order import PHASE_STEPS, LaneOrder, lane_part
from xloader.order.lane_spans import SubLanes

# Each use of random numbers has its own constant, so that no two uses draw the same ones.
_RUN_OFFSETS, _RUN_ORDER, _RUN_TURNS, _PHASES, _RANKS = range(5)


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

    Raises
    ------
    OptionError
        If ``spread`` is below 0, or ``run``, ``streams``, ``lanes`` or ``draws`` is below 1.
    """

    tiling: tuple[int, ...]
    run_dim: int = 0
    run: int = 1
    streams: int = 1
    spread: int = 0
    lanes: int = 1
    draws: int = 1
    is_shuffled: bool = True

    def __post_init__(self) -> None:
        for name, least in (("run", 1), ("streams", 1), ("spread", 0), ("lanes", 1), ("draws", 1)):
            if getattr(self, name) < least:
                raise OptionError(
                    f"{name} is too small", given=getattr(self, name), allowed=f">= {least}"
                )


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
        entries, count, skipped = lane_part(self._cohort_line, self._total, sublanes.span(lane))
        places = self._place[self.cohorts.tiles[entries]]
        places = places[is_first(places)]
        tiles = self._line[places]
        position = np.full(self.cohorts.num_tiles, -1, np.int32)
        streams = self.pace.streams
        reach = self.cohorts.pieces[self.pace.run_dim].reach
        if spread < self.pace.spread and 0 < reach <= spread:
            # With a smaller spread than the plan's, neighbouring tiles of a run are in memory at
            # the same time only if there are fewer streams.
            streams = min(streams, spread // reach)
        position[tiles] = _positions(self._run_ranks[places], streams)
        start, length = _intervals(self.cohorts, entries, position, self.pace, spread)
        phase = draw(self._keys[_PHASES], entries) % np.uint64(PHASE_STEPS)
        by_start = digit_order(start, len(places) + 1)
        return LaneOrder(
            windows=self.windows,
            cohorts=self.cohorts,
            cohort=entries[by_start],
            cut_cohort=int(entries[0]) if len(entries) else 0,
            num_skipped=skipped,
            count=count[by_start],
            start=start[by_start].astype(np.int32),
            length=length[by_start].astype(np.int32),
            phase=phase[by_start].astype(np.int32),
            permutation_key=self._keys[_RANKS],
        )

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
            # Each tile has one cohort with the same number, so millions need not be sorted again.
            return self._line
        used = self.cohorts.used
        line = digit_order(self._place[self.cohorts.tiles[used]], self.cohorts.num_tiles)
        return used[line].astype(np.int32)

    @cached_property
    def _total(self) -> Ints:
        return np.cumsum(self.cohorts.num_samples[self._cohort_line])


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
    ids = np.arange(cohorts.num_tiles).reshape(cohorts.home_shape)
    rows = np.moveaxis(ids, pace.run_dim, -1).reshape(-1, cohorts.home_shape[pace.run_dim])
    num_rows, row_size = rows.shape
    first_size = 1 + draw_below(keys[_RUN_OFFSETS], np.arange(num_rows), pace.run)
    along = np.arange(row_size)
    run_in_row = (along - first_size[:, None] + pace.run) // pace.run
    runs_before = np.cumsum(run_in_row[:, -1] + 1) - (run_in_row[:, -1] + 1)
    run = (runs_before[:, None] + run_in_row).reshape(-1)
    begins = np.flatnonzero(is_first(run))
    sizes = np.diff(np.append(begins, len(run)))
    order = permutation(keys[_RUN_ORDER], len(begins))
    is_turned = (draw(keys[_RUN_TURNS], order) & np.uint64(1)).astype(np.bool_)
    begins, sizes = begins[order], sizes[order]
    # A turned run goes from its last tile to its first.
    first = np.where(is_turned, begins + sizes - 1, begins)
    step = np.where(is_turned, -1, 1)
    ranks = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(run)) - (np.cumsum(sizes) - sizes)[ranks]
    return rows.reshape(-1)[first[ranks] + step[ranks] * within], ranks


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
    sizes = np.diff(np.append(begins, len(run_ranks)))
    queue = [(0, stream) for stream in range(streams)]
    dealt = []
    for size in sizes.tolist():
        length, stream = queue[0]
        dealt.append((length, stream))
        heapq.heapreplace(queue, (length + size, stream))
    before, stream_of = np.array(dealt, np.int64).reshape(-1, 2).T
    within = np.arange(len(run_ranks)) - np.repeat(begins, sizes)
    # Tiles are numbered by turn and then stream. Streams that have ended leave gaps, which are
    # closed below.
    turn = np.repeat(before * streams + stream_of, sizes) + within * streams
    is_taken = np.zeros(int(turn.max(initial=-1)) + 1, np.int32)
    is_taken[turn] = 1
    return np.cumsum(is_taken)[turn] - 1


def _intervals(
    cohorts: Cohorts, entries: Ints, position: Ints, pace: Pace, spread: int
) -> tuple[Ints, Ints]:
    """Start and length of each entry's interval of keys, in slots."""
    home = position[cohorts.tiles[entries]]
    num_tiles = int(home.max(initial=-1)) + 1
    if spread >= num_tiles:
        return np.zeros(len(entries), np.int64), np.full(len(entries), num_tiles)
    # No cohort needs several tiles along the run, or the memory cannot hold them at the same time.
    # In the second case chunks are read again, and the interval is that of the home tile.
    if not 0 < cohorts.pieces[pace.run_dim].reach <= spread:
        return home, np.full(len(entries), spread)
    lowest, highest, is_alone = _touched_positions(cohorts, entries, position, pace.run_dim)
    # If a cohort's tiles are never in memory at the same time, it is emitted all at once, at the
    # largest of their positions. So is a cohort that needs a tile without a position in this lane.
    # Otherwise that tile would stay in memory for the cohort's whole interval.
    length = np.where(is_alone, 0, np.maximum(lowest + spread - highest, 0))
    return highest, length


def _touched_positions(
    cohorts: Cohorts, entries: Ints, position: Ints, dim: int
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Smallest and largest position of the tiles of each entry, and whether a tile has none."""
    pieces = cohorts.pieces[dim]
    piece = np.unravel_index(entries, cohorts.shape)[dim]
    tile = cohorts.tiles[entries]
    weight = math.prod(cohorts.home_shape[dim + 1 :])
    origin = tile - pieces.home[piece] * weight
    lowest, highest = position[tile], position[tile]
    is_alone = pieces.is_beyond_homes[piece]
    for lo, hi in zip(pieces.touch_lo, pieces.touch_hi, strict=True):
        for shift in range(int((hi - lo).max(initial=0))):
            index = lo[piece] + shift
            is_touched = index < hi[piece]
            found = position[np.where(is_touched, origin + index * weight, tile)]
            is_alone = is_alone | (found < 0)
            lowest = np.where(found >= 0, np.minimum(lowest, found), lowest)
            highest = np.maximum(highest, found)
    return lowest, highest, is_alone
