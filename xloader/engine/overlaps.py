"""The parts of decoded blocks that the windows of rows take.

Along one dimension, the window of a row against a block::

    block        |. . . . . . . . . . . .|
    window             x     x     x     |    x         access (first, step, count)
    taken              0     1     2                    lo = 0, size = 3
    source             3     6     9                    begin = 3
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Access, Group, expand_ranges
from xloader.core.row_numbers import number_rows


@dataclass(frozen=True)
class Hits:
    """The parts of blocks that rows take for one access: one hit per row and block that it touches.

    Parameters
    ----------
    rows : numpy.ndarray of int64, shape (n,)
        The row of each hit, ascending.
    residences : numpy.ndarray of int64, shape (n,)
        The residence (one stay of a block in memory) that holds the block.
    kinds : numpy.ndarray of int64, shape (n,)
        Equal for two hits exactly if their ``lo``, ``size`` and block shapes are equal.
    lo, size, begin : numpy.ndarray of int64, shape (num_dims, n)
        Per windowed dimension, the elements ``[lo, lo + size)`` of the window are taken. The first
        of them is element ``begin`` of the block. All are 0 where the group lacks the dimension.
    is_whole : numpy.ndarray of bool, shape (n,)
        Whether block and window consist of the same elements.
    """

    rows: Ints
    residences: Ints
    kinds: Ints
    lo: Ints
    size: Ints
    begin: Ints
    is_whole: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)

    def with_residences(self, residences: Ints) -> Hits:
        """The same hits with other residences.

        Parameters
        ----------
        residences : numpy.ndarray of int64, shape (n,)
            The residence of each hit.
        """
        return replace(self, residences=residences)

    def take(self, chosen: slice | Ints | NDArray[np.bool_], shift: int = 0) -> Hits:
        """Some of the hits.

        Parameters
        ----------
        chosen : slice or numpy.ndarray of int or bool
            Which hits, as an index.
        shift : int
            Subtracted from their rows.
        """
        return Hits(
            self.rows[chosen] - shift,
            self.residences[chosen],
            self.kinds[chosen],
            self.lo[:, chosen],
            self.size[:, chosen],
            self.begin[:, chosen],
            self.is_whole[chosen],
        )

    def cut(self, edges: Ints) -> list[Hits]:
        """Divide the hits by rows.

        Parameters
        ----------
        edges : numpy.ndarray of int64, shape (m + 1,)
            Ascending. Part ``i`` holds the rows ``[edges[i], edges[i + 1])``.

        Returns
        -------
        list of Hits
            The ``m`` parts. The rows of each are counted from its edge.
        """
        places = np.searchsorted(self.rows, edges).tolist()
        shifts = edges.tolist()
        return [
            self.take(slice(lo, hi), shift)
            for lo, hi, shift in zip(places[:-1], places[1:], shifts[:-1], strict=True)
        ]


def find_hits(group: Group, access: Access, firsts: Ints) -> tuple[Hits, Ints]:
    """Find the parts of a group's blocks that rows take.

    Parameters
    ----------
    group : Group
        The group.
    access : tuple of ((int, int, int) or None)
        Per windowed dimension, ``(first, step, count)`` in elements from the window's first one.
    firsts : numpy.ndarray of int64, shape (n, num_dims)
        Per row, the first element of its window.

    Returns
    -------
    hits : Hits
        The hits. Their ``residences`` are only placeholders.
    blocks : numpy.ndarray of int64
        Per hit, the number of the block in the group.
    """
    rows, indices = _touched(group, access, firsts)
    num_dims = len(access)
    lo, size, begin = (np.zeros((num_dims, len(rows)), np.int64) for _ in range(3))
    is_hit = np.ones(len(rows), np.bool_)
    is_whole = np.ones(len(rows), np.bool_)
    blocks = np.zeros(len(rows), np.int64)
    kinds: list[Ints] = []
    for dim, (axis, span) in enumerate(zip(group.axes, access, strict=True)):
        if axis is None or span is None:
            continue
        offset, step, count = span
        index = indices[dim]
        blocks = blocks * axis.num_blocks + index
        edge = axis.edges[index]
        block_size = axis.edges[index + 1] - edge
        first = firsts[rows, dim] + offset - edge
        low = np.maximum(-(first // step), 0)
        high = np.minimum(-((first - block_size) // step), count)
        is_hit &= high > low
        is_whole &= (high - low == count) & (block_size == count)
        lo[dim], size[dim], begin[dim] = low, high - low, first + low * step
        kinds += [low, high, block_size]
    hits = Hits(rows, rows, number_rows(kinds, len(rows)), lo, size, begin, is_whole)
    if is_hit.all():
        return hits, blocks
    return hits.take(is_hit), blocks[is_hit]


def _touched(group: Group, access: Access, firsts: Ints) -> tuple[Ints, list[Ints]]:
    """Pair each row with every block between the first and the last element that it takes.

    Returns
    -------
    rows : numpy.ndarray of int64, shape (m,)
        The row of each pair.
    indices : list of numpy.ndarray of int64, shape (m,)
        Per dimension, the block index of each pair.
    """
    rows = np.arange(len(firsts))
    indices: list[Ints] = []
    for dim, (axis, span) in enumerate(zip(group.axes, access, strict=True)):
        if axis is None or span is None:
            indices.append(np.zeros(len(rows), np.int64))
            continue
        offset, step, count = span
        first = firsts[:, dim] + offset
        lo = axis.block_of(first)
        hi = axis.block_of(first + step * (count - 1)) if count > 1 else lo
        if (lo == hi).all():
            indices.append(lo[rows])
            continue
        again, index = expand_ranges(lo[rows], hi[rows] + 1)
        rows, indices = rows[again], [*(known[again] for known in indices), index]
    return rows, indices
