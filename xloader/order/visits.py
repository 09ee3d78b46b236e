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

from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw
from xloader.core.footprint import expand_ranges


@dataclass(frozen=True)
class Visits:
    """The parts of cohorts that the passes of a lane hand out, pass by pass.

    Parameters
    ----------
    row : numpy.ndarray of int64, shape (n,)
        The cohort of each part, as an index into the lane's cohorts; ascending in each pass.
    first_rank : numpy.ndarray of int64, shape (n,)
        The rank of each part's first sample among the cohort's samples of this lane.
    count : numpy.ndarray of int64, shape (n,)
        Number of samples of each part, at least 1.
    edges : numpy.ndarray of int64, shape (num_passes + 1,)
        The parts of pass ``p`` are ``edges[p]`` to ``edges[p + 1]``.
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

        A cohort takes part in as many passes as a tile's samples are divided among for its share of
        them, rounded up. Which passes these are is drawn, and so is which of them get one sample
        more where the number of samples is not a multiple.

        Parameters
        ----------
        count : numpy.ndarray of int, shape (m,)
            Number of samples of each cohort.
        tile_count : numpy.ndarray of int, shape (m,)
            Number of samples of each cohort's home tile.
        num_passes : int
            Number of passes.
        key : int
            A key from `derive_key`, which fixes what is drawn.
        cohorts : numpy.ndarray of int, shape (m,)
            Number of each cohort. The same number always draws the same.

        Examples
        --------
        A tile with a cohort of 6 samples and one of 2, in four passes:

        >>> both = np.array([6, 2])
        >>> dealt = Visits.deal(both, both * 0 + 8, 4, derive_key(0), np.array([0, 1]))
        >>> dealt.row.tolist(), dealt.count.tolist(), dealt.edges.tolist()
        ([0, 1, 0, 0], [2, 2, 2, 2], [0, 2, 2, 3, 4])
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
        by_pass = np.argsort(pass_of, kind="stable")
        edges = np.searchsorted(pass_of[by_pass], np.arange(num_passes + 1))
        return cls(row[by_pass], first_rank[by_pass], num_ranks[by_pass], edges)
