r"""Which chunks a box of samples needs.

Variables that are chunked alike along the windowed dimensions and needed at the same offsets
always come and go together: they form a *group*, and one *block* of a group stands for all
the chunks of its variables there, the unwindowed dimensions being whole::

    t2m  (time, lat, lon)         chunks 16 x 90 x 90  \  one group; a block is 16 steps of both,
    z    (time, level, lat, lon)  chunks 16 x 1 x 90 x 90 /  (1 + 13) x num lat x num lon reads
    orog (lat, lon)               no windowed dimension: a group of one block
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.subset import Subset
from xloader.core.windows import Windows

_MOST_ROWS = 1 << 20
"""Samples that are looked at together."""

Access = tuple[tuple[int, int, int] | None, ...]
"""Per windowed dimension, in elements from the window's first one: (first, step, count)."""


@dataclass(frozen=True)
class Demand:
    """What the fields of a sample take of one variable.

    Parameters
    ----------
    variable : str
    axes : tuple of (Axis or None)
        Per windowed dimension; ``None`` where the variable lacks it.
    whole_axes : tuple of Axis
        The variable's other dimensions, all of which every sample takes whole.
    itemsize : int
        Bytes of one element.
    accesses : frozenset of Access
        The offsets at which some field takes it.
    index_nbytes : int
        Bytes of the indexes of its shards.
    thinning : int
        Stored numbers that are decoded for each one that can be selected.
    """

    variable: str
    axes: tuple[Axis | None, ...]
    whole_axes: tuple[Axis, ...]
    itemsize: int
    accesses: frozenset[Access]
    index_nbytes: int = 0
    thinning: int = 1

    @property
    def num_reads_per_block(self) -> int:
        """Chunks of this variable in one block of its group."""
        return math.prod(axis.num_blocks for axis in self.whole_axes)

    @property
    def unit_nbytes(self) -> int:
        """Bytes of one windowed element, the whole dimensions included."""
        return self.itemsize * math.prod(axis.size for axis in self.whole_axes)

    @property
    def unit_read_nbytes(self) -> int:
        """As ``unit_nbytes``, with the chunks of the whole dimensions not cut down."""
        sizes = math.prod(axis.total_read_size for axis in self.whole_axes)
        return self.itemsize * self.thinning * sizes

    @property
    def selected_nbytes(self) -> int:
        """Bytes of the variable as selected."""
        return self.unit_nbytes * math.prod(a.size for a in self.axes if a is not None)

    @cached_property
    def max_chunk_nbytes(self) -> int:
        """Bytes of its largest chunk, decoded and not cut down."""
        axes = [*self.whole_axes, *(axis for axis in self.axes if axis is not None)]
        sizes = math.prod(axis.max_read_size for axis in axes)
        return self.itemsize * self.thinning * sizes


@dataclass(frozen=True)
class Group:
    """Variables whose chunks are always needed together."""

    demands: tuple[Demand, ...]
    axes: tuple[Axis | None, ...]
    accesses: tuple[Access, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks along each windowed dimension; 1 where the group lacks it."""
        return tuple(1 if axis is None else axis.num_blocks for axis in self.axes)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the selection touches."""
        return math.prod(self.shape)

    @cached_property
    def num_reads_per_block(self) -> int:
        """(variable, chunk) pairs in one block."""
        return sum(demand.num_reads_per_block for demand in self.demands)

    @property
    def unit_nbytes(self) -> int:
        """Bytes of one windowed element of all variables."""
        return sum(demand.unit_nbytes for demand in self.demands)

    def block_nbytes(self, blocks: Ints) -> Ints:
        """Decoded bytes of each block, cut down to the selection."""
        sizes = [None if axis is None else np.diff(axis.edges) for axis in self.axes]
        return self.unit_nbytes * self._product(sizes, blocks)

    @cached_property
    def most_read_nbytes(self) -> int:
        """Decoded bytes of one block's chunks, were each of them as large as the largest."""
        return sum(d.num_reads_per_block * d.max_chunk_nbytes for d in self.demands)

    def read_nbytes(self, blocks: Ints) -> Ints:
        """Decoded bytes of each block's chunks, not cut down."""
        unit = sum(demand.unit_read_nbytes for demand in self.demands)
        sizes = [None if axis is None else axis.read_sizes for axis in self.axes]
        return unit * self._product(sizes, blocks)

    def _product(self, sizes: list[Ints | None], blocks: Ints) -> Ints:
        indices = np.unravel_index(blocks, self.shape)
        product = np.ones(len(blocks), np.int64)
        for size, index in zip(sizes, indices, strict=True):
            if size is not None:
                product *= size[index]
        return product


@dataclass(frozen=True)
class Boxes:
    """Boxes of positions: ``lo[d] <= position < hi[d]`` along each windowed dimension."""

    lo: tuple[Ints, ...]
    hi: tuple[Ints, ...]

    @classmethod
    def at(cls, positions: Ints) -> Boxes:
        """A box around each position, of shape ``(n, num_dims)``."""
        return cls(tuple(positions.T), tuple(positions.T + 1))

    def __len__(self) -> int:
        return len(self.lo[0])

    @property
    def num_samples(self) -> Ints:
        """Number of positions in each box."""
        sizes = [hi - lo for lo, hi in zip(self.lo, self.hi, strict=True)]
        return np.asarray(np.prod(sizes, axis=0, dtype=np.int64))

    def take(self, rows: Ints) -> Boxes:
        """The boxes at ``rows``."""
        return Boxes(tuple(lo[rows] for lo in self.lo), tuple(hi[rows] for hi in self.hi))


@dataclass(frozen=True)
class Footprint:
    """What samples need, as groups of chunks.

    Parameters
    ----------
    windows : Windows
    groups : tuple of Group
    subset : Subset, optional
        Which windows are samples, and how often; by default, each is one.
    """

    windows: Windows
    groups: tuple[Group, ...]
    subset: Subset | None = None

    @classmethod
    def of(
        cls, windows: Windows, demands: tuple[Demand, ...], subset: Subset | None = None
    ) -> Footprint:
        """Group what is needed together, in the order of the demands."""
        members: dict[tuple[object, ...], list[Demand]] = {}
        known: dict[Axis | None, Axis | None] = {}
        for demand in demands:
            # Axes that are equal are one, so that the edges of their blocks are found once.
            axes = tuple(known.setdefault(axis, axis) for axis in demand.axes)
            demand = dataclasses.replace(demand, axes=axes)
            members.setdefault((demand.axes, demand.accesses), []).append(demand)
        groups = tuple(
            Group(tuple(group), group[0].axes, _contiguous_accesses(group[0]))
            for group in members.values()
        )
        return cls(windows, groups, subset)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return len(self.windows) if self.subset is None else self.subset.num_samples

    @property
    def is_weighted(self) -> bool:
        """Whether each epoch draws anew how often a sample occurs."""
        return self.subset is not None and self.subset.weights is not None

    @cached_property
    def leading_axes(self) -> tuple[Axis | None, ...]:
        """Per windowed dimension, the axis of the variable with most bytes that has it."""
        demands = [demand for group in self.groups for demand in group.demands]
        demands.sort(key=lambda demand: -demand.selected_nbytes)
        return tuple(
            next((d.axes[dim] for d in demands if d.axes[dim] is not None), None)
            for dim in range(len(self.windows.dims))
        )

    @cached_property
    def known_pieces(self) -> dict[tuple[int, int], Any]:
        """How `xloader.order.cohorts` has cut dimensions, by dimension and tile size."""
        return {}

    def positions_of(self, ids: Ints) -> Ints:
        """Positions, shape ``(len(ids), num_dims)``, of samples."""
        return self.windows.positions_of(
            ids if self.subset is None else self.subset.windows_of(ids)
        )

    @cached_property
    def num_needed(self) -> int:
        """Distinct (variable, chunk) pairs that some sample needs."""
        return sum(len(self._needed(g)) * g.num_reads_per_block for g in self.groups)

    @cached_property
    def total_nbytes(self) -> int:
        """Bytes of all chunks that some sample needs, cut down to the selection."""
        return sum(int(g.block_nbytes(self._needed(g)).sum()) for g in self.groups)

    def _needed(self, group: Group) -> Ints:
        """The blocks of a group that some sample may need: strides may pass over others."""
        if self.subset is None:
            counts = self.windows.num_positions
            every = Boxes(
                tuple(np.zeros(1, np.int64) for _ in counts), tuple(np.array([n]) for n in counts)
            )
            return self.needs(group, every)[1]
        ids = self.subset.possible_ids
        is_needed = np.zeros(group.num_blocks, np.bool_)
        for begin in range(0, len(ids), _MOST_ROWS):
            boxes = Boxes.at(self.positions_of(ids[begin : begin + _MOST_ROWS]))
            is_needed[self.needs(group, boxes)[1]] = True
        return np.flatnonzero(is_needed)

    @property
    def variables(self) -> list[str]:
        """Names of the variables that samples need."""
        return [demand.variable for group in self.groups for demand in group.demands]

    @property
    def max_chunk_nbytes(self) -> int:
        """Bytes of the largest chunk of all variables, decoded."""
        return max(d.max_chunk_nbytes for group in self.groups for d in group.demands)

    @property
    def index_nbytes(self) -> int:
        """Bytes of the indexes of all shards."""
        return sum(d.index_nbytes for group in self.groups for d in group.demands)

    @cached_property
    def first_offsets(self) -> tuple[int, ...]:
        """Per windowed dimension, the first element that any field needs of a window."""
        return tuple(
            min((a[dim][0] for g in self.groups for a in g.accesses if a[dim]), default=0)  # type: ignore[index]
            for dim in range(len(self.windows.dims))
        )

    def needs(self, group: Group, boxes: Boxes) -> tuple[Ints, Ints]:
        """Pairs (row of ``boxes``, block of ``group``), each once, by row and then block."""
        all_rows, all_blocks = [], []
        for access in group.accesses:
            rows = blocks = None
            for dim, axis in enumerate(group.axes):
                span = access[dim]
                if axis is None or span is None:
                    continue
                lo, hi = self._block_range(axis, span, dim, boxes)
                if rows is not None:
                    lo, hi = lo[rows], hi[rows]
                spread, index = self._expand(axis, span, dim, lo, hi)
                if rows is None or blocks is None:
                    rows, blocks = spread, index
                else:
                    rows, blocks = rows[spread], blocks[spread] * axis.num_blocks + index
            if rows is None or blocks is None:
                rows, blocks = np.arange(len(boxes)), np.zeros(len(boxes), np.int64)
            all_rows.append(rows)
            all_blocks.append(blocks)
        if len(all_rows) == 1:
            return all_rows[0], all_blocks[0]
        pairs = np.unique(np.concatenate(all_rows) * group.num_blocks + np.concatenate(all_blocks))
        return pairs // group.num_blocks, pairs % group.num_blocks

    def blocks_along(
        self, axis: Axis, span: tuple[int, int, int], dim: int, boxes: Boxes
    ) -> tuple[Ints, Ints]:
        """Pairs (row of ``boxes``, block along one dimension) that an access of it needs."""
        return self._expand(axis, span, dim, *self._block_range(axis, span, dim, boxes))

    def block_ranges(self, group: Group, boxes: Boxes) -> Iterator[tuple[Ints, Ints]]:
        """Per access and dimension of a group, the blocks ``[lo, hi)`` that each box spans."""
        for access in group.accesses:
            for dim, axis in enumerate(group.axes):
                span = access[dim]
                if axis is not None and span is not None:
                    yield self._block_range(axis, span, dim, boxes)

    def _block_range(
        self, axis: Axis, span: tuple[int, int, int], dim: int, boxes: Boxes
    ) -> tuple[Ints, Ints]:
        first, step, count = span
        stride = self.windows.strides[dim]
        lo = axis.block_of(boxes.lo[dim] * stride + first)
        hi = axis.block_of((boxes.hi[dim] - 1) * stride + first + step * (count - 1))
        return lo, hi + 1

    def _expand(
        self, axis: Axis, span: tuple[int, int, int], dim: int, lo: Ints, hi: Ints
    ) -> tuple[Ints, Ints]:
        """Pairs (row, block) with ``lo[row] <= block < hi[row]`` that some window touches."""
        rows, blocks = expand_ranges(lo, hi)
        touched = self._touched(axis, span, dim)
        if touched is None:
            return rows, blocks
        return rows[touched[blocks]], blocks[touched[blocks]]

    def _touched(self, axis: Axis, span: tuple[int, int, int], dim: int) -> np.ndarray | None:
        """Which blocks some window touches, where windows may step over a whole block."""
        stride = self.windows.strides[dim]
        if stride <= axis.min_inner_block_size:
            return None
        first, last = span[0], span[0] + span[1] * (span[2] - 1)
        # The first window that reaches a block decides, however many windows there are.
        position = np.maximum(-((last - axis.edges[:-1]) // stride), 0)
        is_there = position < self.windows.num_positions[dim]
        return np.asarray(is_there & (position * stride + first < axis.edges[1:]))


def expand_ranges(lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Every (row, value) with ``lo[row] <= value < hi[row]``, by row and then value.

    Examples
    --------
    >>> rows, values = expand_ranges(np.array([3, 8, 5]), np.array([5, 8, 6]))
    >>> rows.tolist(), values.tolist()
    ([0, 0, 2], [3, 4, 5])
    """
    counts = np.maximum(hi - lo, 0)
    rows = np.repeat(np.arange(len(lo), dtype=np.int64), counts)
    before = np.cumsum(counts) - counts
    return rows, np.arange(len(rows), dtype=np.int64) - before[rows] + lo[rows]


def _contiguous_accesses(demand: Demand) -> tuple[Access, ...]:
    """The accesses, split until no one steps over a whole block between its elements."""
    found: set[Access] = set()
    for access in demand.accesses:
        parts: list[list[tuple[int, int, int] | None]] = []
        for axis, span in zip(demand.axes, access, strict=True):
            if axis is None or span is None:
                parts.append([None])
            elif span[2] > 1 and span[1] > axis.min_inner_block_size:
                parts.append([(span[0] + i * span[1], 1, 1) for i in range(span[2])])
            else:
                parts.append([span])
        found.update(itertools.product(*parts))
    return tuple(sorted(found, key=repr))
