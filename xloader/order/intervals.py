"""The intervals of cohorts: the slots in which all tiles of a cohort are in memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.order.cohorts import Cohorts

_PIECE_SIZE = 1 << 16
"""Number of cohorts that are handled in one call: the arrays for them fit a core's cache."""


def intervals(
    cohorts: Cohorts, entries: Ints, position: NDArray[np.int32], run_dim: int, spread: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Start and length of each entry's interval of keys, in slots."""
    start = position[cohorts.tiles[entries]]
    num_tiles = int(start.max(initial=-1)) + 1
    if spread >= num_tiles:
        return np.zeros(len(entries), np.int32), np.full(len(entries), num_tiles, np.int32)
    length = np.full(len(entries), spread, np.int32)
    pieces = cohorts.pieces[run_dim]
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
