r"""The chunks that samples need.

Variables form a *group* if they have equal chunks along the windowed dimensions and samples need
them at the same offsets. Their chunks are always needed together. One *block* of a group stands
for all chunks of its variables at one place, over the whole extent of all other dimensions::

    t2m  (time, lat, lon)         chunks 16 x 90 x 90  \  one group; a block is 16 steps of both,
    z    (time, level, lat, lon)  chunks 16 x 1 x 90 x 90 /  (1 + 13) x num lat x num lon reads
    orog (lat, lon)               no windowed dimension: a group of one block
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xloader.core.axis import Axis, Ends, Ints, Line, lines_of
from xloader.core.boxes import Boxes
from xloader.core.subset import Subset
from xloader.core.windows import Windows

Access = tuple[tuple[int, int, int] | None, ...]
"""Elements of a window that a field takes: per windowed dimension, ``(first, step, count)`` in
elements from the window's start, or None where the variable lacks the dimension."""


@dataclass(frozen=True)
class Demand:
    """The parts of one variable that the fields of a sample need."""

    variable: str
    axes: tuple[Axis | None, ...]
    whole_axes: tuple[Axis, ...]
    itemsize: int
    accesses: frozenset[Access]
    index_nbytes: int = 0
    thinning: int = 1
    is_computed: bool = False

    @property
    def num_chunks_per_block(self) -> int:
        """Number of chunks of this variable in one block of its group."""
        return math.prod(axis.num_blocks for axis in self.whole_axes)

    @property
    def num_reads_per_block(self) -> int:
        """As `num_chunks_per_block`, but 0 for a variable that is computed."""
        return 0 if self.is_computed else self.num_chunks_per_block

    @property
    def unit_nbytes(self) -> int:
        """Selected bytes at one element of the windowed dimensions, over all other dimensions."""
        return self.itemsize * math.prod(axis.size for axis in self.whole_axes)

    @property
    def unit_read_nbytes(self) -> int:
        """As `unit_nbytes`, but read: along the other dimensions, chunks count in full.

        It is 0 for a variable that is computed.
        """
        if self.is_computed:
            return 0
        sizes = math.prod(axis.total_read_size for axis in self.whole_axes)
        return self.itemsize * self.thinning * sizes

    @property
    def selected_nbytes(self) -> int:
        """Bytes of the selected part of the variable."""
        return self.unit_nbytes * math.prod(a.size for a in self.axes if a is not None)

    @cached_property
    def max_chunk_nbytes(self) -> int:
        """Decoded bytes of the variable's largest chunk, not cut down to the selection."""
        axes = [*self.whole_axes, *(axis for axis in self.axes if axis is not None)]
        sizes = math.prod(axis.max_read_size for axis in axes)
        return self.itemsize * self.thinning * sizes


_MOST_ROWS = 1 << 20
"""Number of samples whose needs are found in one call, which bounds the memory for them."""


@dataclass(frozen=True)
class Group:
    """Variables whose chunks are always needed together.

    `axes`: per windowed dimension, the axis that all of them share; None where they lack it.
    """

    demands: tuple[Demand, ...]
    axes: tuple[Axis | None, ...]
    accesses: tuple[Access, ...]
    ends: tuple[Ends, ...]

    @cached_property
    def lines(self) -> tuple[Line | None, ...]:
        """Per windowed dimension, the axis as windows meet it."""
        return lines_of(self.axes, self.ends)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks along each windowed dimension; 1 where the group lacks it."""
        return tuple(1 if axis is None else axis.num_blocks for axis in self.axes)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the selection touches."""
        return math.prod(self.shape)

    @cached_property
    def num_chunks_per_block(self) -> int:
        """Number of (variable, chunk) pairs in one block."""
        return sum(demand.num_chunks_per_block for demand in self.demands)

    @cached_property
    def num_reads_per_block(self) -> int:
        """Number of these pairs that are read. Chunks of computed variables are not."""
        return sum(demand.num_reads_per_block for demand in self.demands)

    @cached_property
    def is_computed(self) -> bool:
        """Whether all its variables are computed, so that nothing is read for them."""
        return all(demand.is_computed for demand in self.demands)

    @property
    def unit_nbytes(self) -> int:
        """Selected bytes at one element of the windowed dimensions, of all variables."""
        return sum(demand.unit_nbytes for demand in self.demands)

    def index_of(self, block: int) -> tuple[int, ...]:
        """Index of a block along each windowed dimension, from its number."""
        return tuple(int(i) for i in np.unravel_index(block, self.shape))

    def block_nbytes(self, blocks: Ints) -> Ints:
        """Decoded bytes of each block, cut down to the selection."""
        return self._product(
            self.unit_nbytes, blocks, lambda axis, index: axis.edges[index + 1] - axis.edges[index]
        )

    @cached_property
    def most_read_nbytes(self) -> int:
        """Upper bound of the decoded bytes of a block's chunks: each counted as the largest.

        Computed chunks are included, because their values are made in memory.
        """
        return sum(d.num_chunks_per_block * d.max_chunk_nbytes for d in self.demands)

    @cached_property
    def unit_read_nbytes(self) -> int:
        """Decoded bytes read at one element of the windowed dimensions, of all variables."""
        return sum(demand.unit_read_nbytes for demand in self.demands)

    def read_nbytes(self, blocks: Ints) -> Ints:
        """Decoded bytes of the chunks read for each block, not cut down to the selection."""
        return self.unit_read_nbytes * self.read_elements(blocks)

    def read_elements(self, blocks: Ints) -> Ints:
        """Elements of each block along the windowed dimensions, with whole stored chunks."""
        return self._product(1, blocks, lambda axis, index: axis.read_sizes[index])

    def _product(self, unit: int, blocks: Ints, sizes: Callable[[Axis, Ints], Ints]) -> Ints:
        """A number of bytes times the sizes of each block along the windowed dimensions.

        ``sizes`` gives the sizes along a dimension, for the blocks' indices along it.
        """
        is_line = len(self.shape) == 1
        indices = (blocks,) if is_line else np.unravel_index(blocks, self.shape)
        product = np.full(len(blocks), unit, np.int64)
        for axis, index in zip(self.axes, indices, strict=True):
            if axis is not None:
                product *= sizes(axis, index)
        return product


@dataclass(frozen=True)
class Footprint:
    """The chunks that samples need, as groups of variables."""

    windows: Windows
    groups: tuple[Group, ...]
    subset: Subset | None = None

    @classmethod
    def of(
        cls, windows: Windows, demands: tuple[Demand, ...], subset: Subset | None = None
    ) -> Footprint:
        """Group the variables that are needed together, in the order of the demands."""
        members: dict[tuple[object, ...], list[Demand]] = {}
        known: dict[Axis | None, Axis | None] = {}
        for demand in demands:
            # Equal axes become one object, so that their block edges are computed once.
            axes = tuple(known.setdefault(axis, axis) for axis in demand.axes)
            demand = dataclasses.replace(demand, axes=axes)
            members.setdefault((demand.axes, demand.accesses), []).append(demand)
        groups = tuple(
            Group(
                tuple(group),
                group[0].axes,
                _contiguous_accesses(group[0], windows.ends),
                windows.ends,
            )
            for group in members.values()
        )
        return cls(windows, groups, subset)

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch."""
        return len(self.windows) if self.subset is None else self.subset.num_samples

    @property
    def is_drawn(self) -> bool:
        """Whether each epoch draws its samples anew."""
        return self.subset is not None and self.subset.is_drawn

    @cached_property
    def leading_axes(self) -> tuple[Axis | None, ...]:
        """Per windowed dimension, its axis in the variable with most bytes that has it.

        A stored variable comes before any that is computed.
        """
        demands = [demand for group in self.groups for demand in group.demands]
        demands.sort(key=lambda demand: (demand.is_computed, -demand.selected_nbytes))
        return tuple(
            next((d.axes[dim] for d in demands if d.axes[dim] is not None), None)
            for dim in range(len(self.windows.dims))
        )

    @cached_property
    def known_pieces(self) -> dict[tuple[int, int], Any]:
        """Cache in which `xloader.order.cohorts` keeps pieces, by (dimension, tile size)."""
        return {}

    def first_elements(self, dim: int, positions: Ints) -> Ints:
        """The first element along a dimension that any field needs of windows."""
        elements = self.windows.starts_of(dim, positions) + self.first_offsets[dim]
        match self.windows.ends[dim]:
            case "wrap":
                return elements % self.windows.dim_sizes[dim]
            case "pad":
                return np.maximum(elements, 0)
        return elements

    def positions_of(self, ids: Ints) -> Ints:
        """Positions, shape ``(len(ids), num_dims)``, of samples."""
        return self.windows.positions_of(
            ids if self.subset is None else self.subset.windows_of(ids)
        )

    @cached_property
    def num_needed(self) -> int:
        """Number of distinct (variable, chunk) pairs that any sample of any epoch needs."""
        return sum(len(self.needed(g)) * g.num_reads_per_block for g in self.groups)

    @cached_property
    def total_nbytes(self) -> int:
        """Bytes of all chunks that samples of any epoch need, cut down to the selection."""
        return sum(int(g.block_nbytes(self.needed(g)).sum()) for g in self.groups)

    def needed(self, group: Group) -> Ints:
        """Blocks of a group that samples of any epoch need. Strides may skip other blocks."""
        if self.subset is None or self.subset.has_all:
            counts = self.windows.num_positions
            every = Boxes(
                tuple(np.zeros(1, np.int64) for _ in counts), tuple(np.array([n]) for n in counts)
            )
            return self.needs(group, every)[1]
        is_needed = np.zeros(group.num_blocks, np.bool_)
        for boxes in self.possible_boxes(_MOST_ROWS):
            is_needed[self.needs(group, boxes)[1]] = True
        return np.flatnonzero(is_needed)

    def possible_boxes(self, most: int) -> Iterator[Boxes]:
        """Yield boxes of positions that hold all samples of a subset, ``most`` boxes at a time.

        All positions of a box need the same blocks. Each box holds a sample, or several.
        """
        assert self.subset is not None
        starts = self.block_starts
        boxed = self.subset.boxed(self.windows.num_positions, starts)
        if boxed is None:
            ids = self.subset.possible_ids
            for begin in range(0, len(ids), most):
                yield Boxes.at(self.positions_of(ids[begin : begin + most]))
            return
        used = np.flatnonzero(np.diff(boxed.offsets))
        shape = tuple(len(edges) - 1 for edges in starts)
        for begin in range(0, len(used), most):
            yield Boxes.between(starts, np.unravel_index(used[begin : begin + most], shape))

    @cached_property
    def block_starts(self) -> tuple[Ints, ...]:
        """Per windowed dimension, where pieces begin whose positions need the same blocks.

        Then the number of positions. Cohorts of a subset are cut alike, so that it is boxed once.
        """
        all_starts = []
        for dim, count in enumerate(self.windows.num_positions):
            cuts = [self.windows.stretch_edges(dim)]
            spans = {span for g in self.groups for a in g.accesses if (span := a[dim])}
            offsets = {o for first, step, n in spans for o in (first, first + step * (n - 1))}
            lines = {id(line.axis): line for group in self.groups if (line := group.lines[dim])}
            for line, offset in itertools.product(lines.values(), offsets):
                cuts.append(self.windows.num_before(dim, line.edges[1:-1] - offset))
            starts = np.unique(np.concatenate(cuts))
            all_starts.append(np.append(starts[starts < count], count))
        return tuple(all_starts)

    @property
    def variables(self) -> list[str]:
        """Names of the variables that samples need."""
        return [demand.variable for group in self.groups for demand in group.demands]

    @property
    def max_chunk_nbytes(self) -> int:
        """Decoded bytes of the largest chunk of all variables."""
        return max(d.max_chunk_nbytes for group in self.groups for d in group.demands)

    @property
    def index_nbytes(self) -> int:
        """Bytes of the indexes of all shards of all variables."""
        return sum(d.index_nbytes for group in self.groups for d in group.demands)

    @cached_property
    def first_offsets(self) -> tuple[int, ...]:
        """Per windowed dimension, the first element of a window that any field needs."""
        return tuple(
            min((a[dim][0] for g in self.groups for a in g.accesses if a[dim]), default=0)  # type: ignore[index]
            for dim in range(len(self.windows.dims))
        )

    def needs(self, group: Group, boxes: Boxes) -> tuple[Ints, Ints]:
        """The pairs (row of ``boxes``, block of ``group`` that it needs), sorted, each once."""
        all_rows, all_blocks = [], []
        for access in group.accesses:
            rows = blocks = None
            for dim, axis in enumerate(group.axes):
                span, line = access[dim], group.lines[dim]
                if axis is None or line is None or span is None:
                    continue
                lo, hi = self._block_range(line, span, dim, boxes)
                if rows is not None:
                    lo, hi = lo[rows], hi[rows]
                spread, index = self._expand(line, span, dim, lo, hi)
                if rows is None or blocks is None:
                    rows, blocks = spread, index
                else:
                    rows, blocks = rows[spread], blocks[spread] * axis.num_blocks + index
            if rows is None or blocks is None:
                rows, blocks = np.arange(len(boxes)), np.zeros(len(boxes), np.int64)
            all_rows.append(rows)
            all_blocks.append(blocks)
        if len(all_rows) == 1 and "wrap" not in group.ends:
            return all_rows[0], all_blocks[0]
        pairs = np.unique(np.concatenate(all_rows) * group.num_blocks + np.concatenate(all_blocks))
        return pairs // group.num_blocks, pairs % group.num_blocks

    def most_nbytes(self, sizes: tuple[int, ...]) -> int:
        """Upper bound of the bytes of all blocks that the samples of a box of positions need."""
        nbytes = 0
        for group in self.groups:
            for access in group.accesses:
                num_elements = 1
                for axis, span, size, stride in zip(
                    group.axes, access, sizes, self.windows.strides, strict=True
                ):
                    if axis is not None and span is not None:
                        extent = (size - 1) * stride + span[1] * (span[2] - 1) + 1
                        # The blocks at both ends reach beyond it by all but one element.
                        num_elements *= min(extent + 2 * (axis.max_read_size - 1), axis.size)
                nbytes += group.unit_nbytes * num_elements
        return nbytes

    def blocks_along(
        self, line: Line, span: tuple[int, int, int], dim: int, boxes: Boxes
    ) -> tuple[Ints, Ints]:
        """The pairs (row of ``boxes``, stored block) that one access needs along ``dim``.

        Where windows wrap, a pair may occur twice.
        """
        return self._expand(line, span, dim, *self._block_range(line, span, dim, boxes))

    def block_ranges(self, group: Group, boxes: Boxes) -> Iterator[tuple[Ints, Ints]]:
        """Per access and dimension of a group, the block range ``[lo, hi)`` of each box.

        Where windows wrap, blocks are those of both turns of a `Line`.
        """
        for access in group.accesses:
            for dim, line in enumerate(group.lines):
                span = access[dim]
                if line is not None and span is not None:
                    yield self._block_range(line, span, dim, boxes)

    def _block_range(
        self, line: Line, span: tuple[int, int, int], dim: int, boxes: Boxes
    ) -> tuple[Ints, Ints]:
        first, step, count = span
        windows = self.windows
        lo = line.block_of(windows.starts_of(dim, boxes.lo[dim]) + first)
        last = windows.starts_of(dim, boxes.hi[dim] - 1) + first + step * (count - 1)
        hi = line.block_of(last)
        return lo, hi + 1

    def _expand(
        self, line: Line, span: tuple[int, int, int], dim: int, lo: Ints, hi: Ints
    ) -> tuple[Ints, Ints]:
        """The pairs (row, stored block) whose block in ``[lo[row], hi[row])`` a window touches."""
        rows, blocks = expand_ranges(lo, hi)
        touched = self._touched(line, span, dim)
        if touched is not None:
            rows, blocks = rows[touched[blocks]], blocks[touched[blocks]]
        return rows, blocks % line.axis.num_blocks if line.end == "wrap" else blocks

    def _touched(self, line: Line, span: tuple[int, int, int], dim: int) -> np.ndarray | None:
        """Per block, whether a window touches it; None if no window can step over a block."""
        windows = self.windows
        if windows.segments[dim] is None and windows.strides[dim] <= line.min_inner_block_size:
            return None
        first, last = span[0], span[0] + span[1] * (span[2] - 1)
        # It is enough to look at the first window that reaches the block.
        position = windows.num_before(dim, line.edges[:-1] - last)
        is_there = position < windows.num_positions[dim]
        return np.asarray(is_there & (windows.starts_of(dim, position) + first < line.edges[1:]))


def expand_ranges(lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Expand ranges to all pairs (row, value), ``lo[row] <= value < hi[row]``, in sorted order."""
    counts = np.maximum(hi - lo, 0)
    rows = np.repeat(np.arange(len(lo), dtype=np.int64), counts)
    shifts = lo - np.cumsum(counts) + counts
    return rows, np.arange(len(rows), dtype=np.int64) + np.repeat(shifts, counts)


def _contiguous_accesses(demand: Demand, ends: tuple[Ends, ...]) -> tuple[Access, ...]:
    """The accesses of a variable, split so that none steps over a whole block."""
    contiguous: set[Access] = set()
    lines = lines_of(demand.axes, ends)
    for access in demand.accesses:
        pieces: list[list[tuple[int, int, int] | None]] = []
        for line, span in zip(lines, access, strict=True):
            if line is None or span is None:
                pieces.append([None])
            elif span[2] > 1 and span[1] > line.min_inner_block_size:
                pieces.append([(span[0] + i * span[1], 1, 1) for i in range(span[2])])
            else:
                pieces.append([span])
        contiguous.update(itertools.product(*pieces))
    return tuple(sorted(contiguous, key=repr))
