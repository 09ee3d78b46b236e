"""The parts of decoded blocks that the windows of rows take.

Along one dimension, the window of a row against a block::

    block        |. . . . . . . . . . . .|
    window             x     x     x     |    x         access (first, step, count)
    taken              0     1     2                    lo = 0, size = 3
    source             3     6     9                    begin = 3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints, fold_blocks
from xloader.core.footprint import Access, Group, expand_ranges
from xloader.engine.buffers import ArrayKind, LeasedPool

NUM_COLUMNS: Final = 3
"""Rows of a table of hits before those of single dimensions; see `HitFinder.find`."""

_SPARE: Final = 24
"""Hits for which a table has room at least. These are three cache lines of a column."""

_MOST_DIMS: Final = 64
"""The most windowed dimensions of the compiled function."""

_ARGUMENTS: Final = (ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS, NUMBER)


class HitFinder:
    """Finds the parts of a group's blocks that rows take for one access.

    Where windows wrap, a row may take two parts of one block: its end and its begin. These are two
    hits.

    Parameters
    ----------
    group : Group
        The group.
    access : tuple of ((int, int, int) or None)
        Per windowed dimension, ``(first, step, count)`` in elements from the window's first one.
    """

    def __init__(self, group: Group, access: Access) -> None:
        self._group = group
        self._access = access
        is_short = len(access) <= _MOST_DIMS
        self._function = find_function("xloader_find_hits", _ARGUMENTS) if is_short else None
        # The compiled function gets the addresses of these, so they must stay the same arrays.
        self._edges = [None if line is None else line.edges for line in group.lines]
        self._dims = self._describe_dims()

    def find(self, firsts: Ints, pool: LeasedPool | None = None) -> Ints:
        """Find the hits of rows: one for each row and block that it touches.

        Parameters
        ----------
        firsts : numpy.ndarray of int64, shape (n, num_dims)
            Per row, the first element of its window.
        pool : LeasedPool, optional
            Gives memory for the table; by default it is newly allocated.

        Returns
        -------
        numpy.ndarray of int64, shape (3 + 4 * num_dims, num_hits)
            Of each hit its row, ascending, the number of its block in the group, and 1 where block
            and window consist of the same elements, else 0. Then, along each windowed dimension,
            the first element of the window that is taken, along each the number of elements taken,
            the first element of the block taken, and the number of elements of the block; 0 where
            the group lacks the dimension.
        """
        if self._function is None:
            return _find_with_numpy(self._group, self._access, firsts)
        num_dims, columns = len(self._access), np.ascontiguousarray(firsts.T, np.int64)
        given = (address_of(self._dims), num_dims, address_of(columns), len(firsts))
        # Mostly a row touches one or two blocks. If there is not enough room, hits are only
        # counted.
        size, room = 2 * len(firsts), -1
        while size > room:
            # Columns a power of two apart would share few lines of the processor's cache.
            room = size + _SPARE
            kind = ArrayKind((NUM_COLUMNS + 4 * num_dims, room), np.dtype(np.int64))
            table = np.empty(*kind) if pool is None else pool.take(kind)
            size = self._function(*given, address_of(table), room)
            # Tables of more hits differ in size, so that none could be used again.
            pool = None
        return _folded(table[:, :size], self._group)

    def _describe_dims(self) -> Ints:
        """The windowed dimensions, as ``find_hits.c`` takes them."""
        rows: list[tuple[int, ...]] = []
        for line, span, edges in zip(self._group.lines, self._access, self._edges, strict=True):
            if line is None or span is None or edges is None:
                rows.append((0,) * 9)
            else:
                division = line.division or (0, 0, 0)
                rows.append((1, *span, line.num_blocks, *division, address_of(edges)))
        return np.array(rows, np.int64).reshape(len(rows), 9)


def finders_of(
    groups: Sequence[Group], accesses: Sequence[tuple[Access, ...]]
) -> list[list[HitFinder]]:
    """Per group, a finder for each of its accesses."""
    return [
        [HitFinder(group, access) for access in own]
        for group, own in zip(groups, accesses, strict=True)
    ]


def _folded(hits: Ints, group: Group) -> Ints:
    """The hits, with the blocks that are stored."""
    hits[1] = fold_blocks(hits[1], group.lines)
    return hits


def _find_with_numpy(group: Group, access: Access, firsts: Ints) -> Ints:
    rows, indices = _touched(group, access, firsts)
    hits = np.zeros((NUM_COLUMNS + 4 * len(access), len(rows)), np.int64)
    hits[0], hits[2] = rows, 1
    is_hit = np.ones(len(rows), np.bool_)
    for dim, (line, span) in enumerate(zip(group.lines, access, strict=True)):
        if line is None or span is None:
            continue
        offset, step, count = span
        index = indices[dim]
        hits[1] = hits[1] * line.num_blocks + index
        edge = line.edges[index]
        extent = line.edges[index + 1] - edge
        first = firsts[rows, dim] + offset - edge
        low = np.maximum(-(first // step), 0)
        size = np.minimum(-((first - extent) // step), count) - low
        is_hit &= size > 0
        hits[2] &= (size == count) & (extent == count)
        hits[NUM_COLUMNS + dim :: len(access)] = low, size, first + low * step, extent
    return _folded(np.ascontiguousarray(hits[:, is_hit]), group)


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
    for dim, (line, span) in enumerate(zip(group.lines, access, strict=True)):
        if line is None or span is None:
            indices.append(np.zeros(len(rows), np.int64))
            continue
        offset, step, count = span
        first = firsts[:, dim] + offset
        lo = line.block_of(first)
        hi = line.block_of(first + step * (count - 1)) if count > 1 else lo
        if (lo == hi).all():
            indices.append(lo[rows])
            continue
        again, index = expand_ranges(lo[rows], hi[rows] + 1)
        rows, indices = rows[again], [*(known[again] for known in indices), index]
    return rows, indices
