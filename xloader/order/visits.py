"""Visits: an epoch comes by a tile several times, each time for a random part of its samples.

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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw, permutation
from xloader.core.footprint import expand_ranges
from xloader.core.sorting import digit_order, is_first
from xloader.order.cohorts import Cohorts
from xloader.order.runs import RUN_ORDER, RUN_TURNS, gaps_between, lay_out


@dataclass(frozen=True)
class Visits:
    """The parts of cohorts that the passes of a lane hand out, pass by pass.

    `row`: the cohort of each part, as an index into the lane's cohorts; ascending in each pass.
    """

    row: Ints
    first_rank: Ints
    count: Ints
    edges: Ints

    @classmethod
    def deal(
        cls, count: Ints, tile_count: Ints, num_passes: int, key: int, cohorts: Ints
    ) -> Visits:
        """Deal the samples of cohorts to passes.

        A cohort takes part in as many passes as a tile's samples are divided among for its share
        of them, rounded up. Which passes these are is drawn, and so is which of them get one
        sample more where the number of samples is not a multiple.
        """
        count = count.astype(np.int64)
        times = np.clip(-(-count * num_passes // tile_count), 1, np.minimum(count, num_passes))
        passes_drawn = draw(derive_key(key, 0), cohorts) % np.uint64(num_passes)
        ranks_drawn = draw(derive_key(key, 1), cohorts) % times.astype(np.uint64)
        row, number = expand_ranges(np.zeros(len(count), np.int64), times)
        own, drawn = times[row], ranks_drawn.astype(np.int64)[row]
        pass_of = (number * num_passes + passes_drawn.astype(np.int64)[row]) // own
        first_rank = (number * count[row] + drawn) // own
        num_ranks = ((number + 1) * count[row] + drawn) // own - first_rank
        by_pass = digit_order(pass_of, num_passes)
        edges = np.searchsorted(pass_of[by_pass], np.arange(num_passes + 1))
        return cls(row[by_pass], first_rank[by_pass], num_ranks[by_pass], edges)


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
    dealt = Visits.deal(whole.count, per_tile[tiles], num_passes, key, whole.cohort)
    begins = np.flatnonzero(is_first(whole.run_ranks))
    sizes = gaps_between(begins, len(whole.run_ranks))
    for number, (begin, end) in enumerate(pairwise(dealt.edges.tolist())):
        row, first_rank = dealt.row[begin:end], dealt.first_rank[begin:end]
        if whole.first_rank is not None:
            first_rank = first_rank + whole.first_rank[row]
        order = permutation(derive_key(key, number, RUN_ORDER), len(begins))
        turns = draw(derive_key(key, number, RUN_TURNS), order)
        line = lay_out(begins[order], sizes[order], turns)
        is_home = np.zeros(cohorts.num_tiles, np.bool_)
        is_home[tiles[row]] = True
        line = line[is_home[whole.tiles[line]]]
        yield TilePass(
            whole.cohort[row],
            dealt.count[begin:end],
            first_rank,
            whole.tiles[line],
            whole.run_ranks[line],
        )
