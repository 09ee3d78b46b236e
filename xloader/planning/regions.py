"""The regions of samples, which tell how well batches are mixed.

A sample's region is the chunk index of its first needed element, along every windowed dimension,
in the grid of the variable with the most bytes. Along the windowed dimension with the most chunks,
four neighbouring chunks are one region. Regions are the same for every plan, so the mixing of plans
can be compared with each other and with that of a full shuffle.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint
from xloader.order.cohorts import leading_axis

REGION_CHUNKS: Final = 4
"""Chunks of a region along `region_dim`."""

_MOST_IN_TABLE: Final = 1 << 14
"""If a dimension has at most this many positions, the region of each is found once and kept."""


def region_dim(footprint: Footprint) -> int:
    """The number of the windowed dimension with the most chunks, along which four make a region."""
    counts = [
        axis.num_blocks if (axis := leading_axis(footprint, dim)) is not None else 0
        for dim in range(len(footprint.windows.dims))
    ]
    return counts.index(max(counts))


class Regions:
    """The regions of samples."""

    def __init__(self, footprint: Footprint) -> None:
        self.footprint = footprint
        self._merged = region_dim(footprint)

    def of(self, positions: tuple[Ints, ...]) -> Ints:
        """The region of each sample."""
        regions = np.zeros(len(positions[0]), np.int64)
        for dim, weight, table in self._dims:
            if table is None:
                regions += self.along(dim, positions[dim]) * weight
            else:
                regions += table.take(positions[dim])
        return regions

    def along(self, dim: int, positions: Ints) -> Ints:
        """The regions of windows along one dimension, which some variable has."""
        axis = leading_axis(self.footprint, dim)
        assert axis is not None
        chunk = axis.block_of(self.footprint.first_elements(dim, positions))
        return (chunk + axis.stored_chunk(0)) // REGION_CHUNKS if dim == self._merged else chunk

    def count(self, positions: Ints, edges: Ints) -> Ints:
        """Count the distinct regions of each batch.

        `positions` has shape (n, num_dims).
        """
        sizes, regions = np.diff(edges), self.of(tuple(positions.T))
        most = sizes.max(initial=0)
        if len(regions) == len(sizes) * most:
            return num_distinct(regions.reshape(len(sizes), most))
        rows = np.full((len(sizes), most), -1, np.int64)
        rows[np.arange(most) < sizes[:, None]] = regions
        return num_distinct(rows)

    @cached_property
    def _dims(self) -> list[tuple[int, int, Ints | None]]:
        """The dimensions with several chunks: number, weight, and each position's region.

        These regions are multiplied by the weight; None if there are too many positions.
        """
        found: list[tuple[int, int, Ints | None]] = []
        weight = 1
        for dim, count in reversed(list(enumerate(self.footprint.windows.num_positions))):
            axis = leading_axis(self.footprint, dim)
            if axis is None or axis.num_blocks == 1:
                continue
            table = None
            if count <= _MOST_IN_TABLE:
                table = self.along(dim, np.arange(count)) * weight
            found.append((dim, weight, table))
            weight *= axis.num_blocks + 1
        return found


def num_distinct(rows: Ints) -> Ints:
    """Number of distinct regions in each row. Entries of -1 do not count. May sort the rows."""
    if len(rows) == 1 and rows.max(initial=0) < 2 * rows.size:
        # To mark the regions of many samples takes less time than to sort them. -1 marks the end.
        is_there = np.zeros(2 * rows.size + 1, np.bool_)
        is_there[rows[0]] = True
        return np.count_nonzero(is_there[:-1], keepdims=True)
    rows.sort(axis=1)
    num_changes = np.count_nonzero(rows[:, 1:] != rows[:, :-1], axis=1)
    counts: Ints = num_changes + np.count_nonzero(rows[:, :1] >= 0, axis=1)
    return counts
