"""The parts of decoded blocks that the windows of rows take.

Along one dimension, the window of a row against a block::

    block        |. . . . . . . . . . . .|
    window             x     x     x     |    x         access (first, step, count)
    taken              0     1     2                    lo = 0, size = 3
    source             3     6     9                    begin = 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints, fold_blocks
from xloader.core.footprint import Access, Group, expand_ranges
from xloader.engine.buffers import ArrayKind, LeasedPool

_NUM_COLUMNS = 3
"""Rows of a table of hits before those of single dimensions."""

_SPARE: Final = 24
"""Hits for which a table has room at least. These are three cache lines of a column."""

_MOST_DIMS: Final = 64
"""The most windowed dimensions of the compiled function."""

_ARGUMENTS: Final = (ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS, NUMBER)


@dataclass(frozen=True, slots=True)
class Hits:
    """The parts of blocks that rows take for one access: one hit per row and block that it touches.

    All numbers are in one table, which C reads: for each hit its row, its residence (one stay of a
    block in memory), whether block and window consist of the same elements, and then ``lo``,
    ``size``, ``begin`` and ``extent`` along each windowed dimension; 0 where the group lacks it.
    """

    table: Ints

    def __len__(self) -> int:
        return int(self.table.shape[1])

    @property
    def rows(self) -> Ints:
        """The row of each hit, ascending."""
        return self._column(0)

    @property
    def residences(self) -> Ints:
        """The residence that holds the block."""
        return self._column(1)

    @property
    def is_whole(self) -> Ints:
        """1 where block and window consist of the same elements, else 0."""
        return self._column(2)

    @property
    def lo(self) -> Ints:
        """Per windowed dimension, the first element of the window that is taken."""
        return self._columns(0)

    @property
    def size(self) -> Ints:
        """Per windowed dimension, the number of elements taken."""
        return self._columns(1)

    @property
    def begin(self) -> Ints:
        """Per windowed dimension, the first element of the block taken."""
        return self._columns(2)

    @property
    def extent(self) -> Ints:
        """Per windowed dimension, the number of elements of the block."""
        return self._columns(3)

    def _column(self, number: int) -> Ints:
        column: Ints = self.table[number]
        return column

    def _columns(self, number: int) -> Ints:
        num_dims = (len(self.table) - _NUM_COLUMNS) // 4
        first = _NUM_COLUMNS + number * num_dims
        return self.table[first : first + num_dims]


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

    def find(self, firsts: Ints, pool: LeasedPool | None = None) -> tuple[Hits, Ints]:
        """Find the hits of rows.

        Parameters
        ----------
        firsts : numpy.ndarray of int64, shape (n, num_dims)
            Per row, the first element of its window.
        pool : LeasedPool, optional
            Gives memory for the table of hits; by default it is newly allocated.

        Returns
        -------
        hits : Hits
            The hits. The caller sets their ``residences``.
        blocks : numpy.ndarray of int64
            Per hit, the number of the block in the group. It may share memory with ``residences``.
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
            kind = ArrayKind((_NUM_COLUMNS + 4 * num_dims, room), np.dtype(np.int64))
            table = np.empty(*kind) if pool is None else pool.take(kind)
            size = self._function(*given, address_of(table), room)
            # Tables of more hits differ in size, so that none could be used again.
            pool = None
        hits = Hits(table[:, :size])
        return hits, fold_blocks(hits.residences, self._group.lines)

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


def _find_with_numpy(group: Group, access: Access, firsts: Ints) -> tuple[Hits, Ints]:
    rows, indices = _touched(group, access, firsts)
    hits = Hits(np.zeros((_NUM_COLUMNS + 4 * len(access), len(rows)), np.int64))
    hits.table[0] = rows
    is_hit = np.ones(len(rows), np.bool_)
    is_whole = np.ones(len(rows), np.bool_)
    blocks = np.zeros(len(rows), np.int64)
    for dim, (line, span) in enumerate(zip(group.lines, access, strict=True)):
        if line is None or span is None:
            continue
        offset, step, count = span
        index = indices[dim]
        blocks = blocks * line.num_blocks + index
        edge = line.edges[index]
        extent = line.edges[index + 1] - edge
        first = firsts[rows, dim] + offset - edge
        low = np.maximum(-(first // step), 0)
        size = np.minimum(-((first - extent) // step), count) - low
        is_hit &= size > 0
        is_whole &= (size == count) & (extent == count)
        hits.lo[dim], hits.size[dim], hits.extent[dim] = low, size, extent
        hits.begin[dim] = first + low * step
    hits.is_whole[:] = is_whole
    blocks = fold_blocks(blocks, group.lines)
    if is_hit.all():
        return hits, blocks
    return Hits(np.ascontiguousarray(hits.table[:, is_hit])), blocks[is_hit]


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
