"""Runs of tiles, and visits: an epoch may come by a tile more than once, for part of its samples.

Where the memory holds few tiles, a batch comes from few places. With several visits, the lane's
tiles pass through the memory several times, each time in another order::

    pass 0   t3 t0 t2 t1    a quarter of each tile's samples
    pass 1   t0 t1 t3 t2    another quarter
    ...
    batch    takes all samples of four tiles' visits, not all samples of one tile

Each pass reads each chunk again. A cohort with few samples takes part in few passes: its tiles
would otherwise have to meet in each of them, for a single sample or none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xloader.core.axis import Ints
from xloader.core.counter_rng import Words, derive_key, draw, draw_below, permutation
from xloader.core.footprint import expand_ranges
from xloader.core.sorting import digit_order, is_first
from xloader.order.cohorts import Cohorts

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
