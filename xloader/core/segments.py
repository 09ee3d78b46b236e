"""Stretches of a dimension without a gap, and the windows that lie whole within one.

Windows of 3 elements at stride 1, along a dimension with one gap in its labels::

    label      0  1  2  3  7  8  9  10
    offset     0  1  2  3  4  5  6  7
    segment    `--------'  `--------'      [0, 4) and [4, 8)
    start      0  1        4  5            the windows that start at 2 and 3 cross the gap
    position   0  1        2  3
    run        `--'        `--'

All windows start at multiples of the stride, with and without gaps. A *run* is a range of positions
whose windows follow each other at the stride.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints


@dataclass(frozen=True)
class Segments:
    """Stretches of a dimension. Each window must lie whole within one of them.

    `bounds`: half-open ranges of offsets, ascending and without overlap.
    """

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def between(cls, size: int, gaps: Ints) -> Segments:
        """The segments of a dimension of ``size`` elements.

        `gaps`: ascending offsets of the elements that come right after a gap.
        """
        edges = [0, *gaps.tolist(), size]
        return cls(tuple(itertools.pairwise(edges)))

    def cut(self, begin: int, end: int) -> Segments:
        """The parts of the segments within ``[begin, end)``, with offsets counted from there."""
        cut = ((max(lo, begin) - begin, min(hi, end) - begin) for lo, hi in self.bounds)
        return Segments(tuple((lo, hi) for lo, hi in cut if lo < hi))

    def runs(self, extent: int, stride: int) -> Runs:
        """The runs of windows that lie within segments."""
        lo, hi = np.array(self.bounds, np.int64).reshape(-1, 2).T
        firsts, ends = -(-lo // stride), (hi - extent) // stride + 1
        is_kept = firsts < ends
        firsts, counts = firsts[is_kept] * stride, (ends - firsts)[is_kept]
        return Runs(firsts, np.concatenate([[0], np.cumsum(counts)]), stride)


@dataclass(frozen=True, eq=False)
class Runs:
    """Starts of windows along one dimension, as runs at a fixed stride.

    `firsts`: offset of the first window of each run, ascending.
    """

    firsts: Ints
    edges: Ints
    stride: int

    def __len__(self) -> int:
        return int(self.edges[-1])

    def starts_of(self, positions: Ints) -> Ints:
        """Offsets at which windows start, by their positions; int64, of the same shape."""
        run = np.searchsorted(self.edges, positions, side="right") - 1
        # One position past the end bounds a range. It follows the last window.
        run = np.minimum(run, len(self.firsts) - 1)
        return np.asarray(self.firsts[run] + (positions - self.edges[run]) * self.stride, np.int64)

    def num_before(self, offsets: Ints) -> Ints:
        """Number of windows that start before each offset; int64, of the same shape."""
        run = np.maximum(np.searchsorted(self.firsts, offsets, side="left") - 1, 0)
        within = -((self.firsts[run] - offsets) // self.stride)
        return np.asarray(self.edges[run] + np.clip(within, 0, np.diff(self.edges)[run]), np.int64)
