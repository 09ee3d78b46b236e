r"""The shuffled order of an epoch: runs of tiles, dealt to streams, at an even pace.

::

    runs       A0 A1 A2 ...   B0 B1 B2 ...   C0 C1 C2 ...      cut anew each epoch, permuted
    lanes      |------ lane 0 ------|------ lane 1 ------|     equal parts of the samples
    streams    A0 A1 A2 ...  \
               B0 B1 B2 ...   >  taken in turn
               C0 C1 C2 ...  /
    positions  A0 B0 C0 A1 B1 C1 A2 B2 C2 ...

A tile is in memory from its position on, for ``spread`` slots; a cohort hands out its samples
while all its tiles are.
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

# What a draw is for: each use has a stream of its own.
_RUN_OFFSETS, _RUN_ORDER, _RUN_TURNS, _PHASES, _RANKS = range(5)


@dataclass(frozen=True)
class Pace:
    """The numbers that fix an epoch's order, beside seed and epoch.

    Parameters
    ----------
    tiling : tuple of int
        Per windowed dimension, blocks of the leading variable in a tile; 0 for all of them.
    run_dim : int
        The windowed dimension along which neighbouring tiles follow each other.
    run : int
        Tiles of a run. 1: no tile has a neighbour that it must meet.
    streams : int
        Runs under way at a time.
    spread : int
        How many later tiles come in while a tile hands out its samples.
    lanes : int
        Independent streams of runs that ranks divide among them.
    draws : int
        Lines of runs that an epoch draws at most, until one reads as little as is allowed.
    is_shuffled : bool
        Whether there is a shuffle at all; if not, only ``tiling`` and ``lanes`` matter.
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
    """One epoch's order, of which any lane can be had alone.

    Parameters
    ----------
    windows : Windows
    cohorts : Cohorts
        Cut with ``pace.tiling``.
    pace : Pace
    seed, epoch : int
        With the pace and the draw, they fix the order.
    number : int
        Which of the epoch's draws.
    sublanes : SubLanes, optional
        How its line of samples is divided; by default into the lanes of the pace.
    """

    windows: Windows
    cohorts: Cohorts
    pace: Pace
    seed: int
    epoch: int
    number: int = 0
    sublanes: SubLanes | None = None

    def lane(self, lane: int, spread: int) -> LaneOrder:
        """One part of the epoch, its tiles in memory for ``spread`` slots."""
        sublanes = self.sublanes or SubLanes(int(self._total[-1]), self.pace.lanes)
        entries, count, skipped = lane_part(self._cohort_line, self._total, sublanes.span(lane))
        places = self._place[self.cohorts.tiles[entries]]
        places = places[is_first(places)]
        tiles = self._line[places]
        position = np.full(self.cohorts.num_tiles, -1, np.int32)
        streams = self.pace.streams
        reach = self.cohorts.pieces[self.pace.run_dim].reach
        if spread < self.pace.spread and 0 < reach <= spread:
            # A smaller spread than the plan's lets neighbours meet in fewer streams only.
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
            # A cohort for each tile, counted alike: one sort less, where there may be millions.
            return self._line
        used = self.cohorts.used
        line = digit_order(self._place[self.cohorts.tiles[used]], self.cohorts.num_tiles)
        return used[line].astype(np.int32)

    @cached_property
    def _total(self) -> Ints:
        return np.cumsum(self.cohorts.num_samples[self._cohort_line])


def _line_of_tiles(cohorts: Cohorts, pace: Pace, keys: list[int]) -> tuple[Ints, Ints]:
    """Tiles with samples in the order of the permuted runs, and the rank of each one's run."""
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
    # A run that is turned goes from its last tile to its first.
    first = np.where(is_turned, begins + sizes - 1, begins)
    step = np.where(is_turned, -1, 1)
    ranks = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(run)) - (np.cumsum(sizes) - sizes)[ranks]
    return rows.reshape(-1)[first[ranks] + step[ranks] * within], ranks


def _positions(run_ranks: Ints, streams: int) -> Ints:
    """Positions of a lane's tiles, given the rank of each one's run, in line.

    Each run goes to the stream that is shortest by then, and tiles are taken from the streams
    in turn.

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
    # Turn by turn, and of a turn stream by stream: each has one tile of its own, or has ended.
    turn = np.repeat(before * streams + stream_of, sizes) + within * streams
    is_taken = np.zeros(int(turn.max(initial=-1)) + 1, np.int32)
    is_taken[turn] = 1
    return np.cumsum(is_taken)[turn] - 1


def _intervals(
    cohorts: Cohorts, entries: Ints, position: Ints, pace: Pace, spread: int
) -> tuple[Ints, Ints]:
    """Where each entry's keys begin, and over how many slots they reach."""
    home = position[cohorts.tiles[entries]]
    num_tiles = int(home.max(initial=-1)) + 1
    if spread >= num_tiles:
        return np.zeros(len(entries), np.int64), np.full(len(entries), num_tiles)
    # Where no budget lets neighbours meet, far tiles are companions: they are read again.
    if not 0 < cohorts.pieces[pace.run_dim].reach <= spread:
        return home, np.full(len(entries), spread)
    lowest, highest, is_alone = _touched_positions(cohorts, entries, position, pace.run_dim)
    # A cohort that never meets comes all at once, at the largest of its positions. So does one
    # with a tile that has no position here: it would hold that tile for as long as it lasts.
    length = np.where(is_alone, 0, np.maximum(lowest + spread - highest, 0))
    return highest, length


def _touched_positions(
    cohorts: Cohorts, entries: Ints, position: Ints, dim: int
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Smallest and largest position of the tiles that each entry touches, and if any has none."""
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
