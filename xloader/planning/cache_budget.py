"""The least bytes that a cache of blocks must hold, and its reads for an order, simulated."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.sorting import number_rows
from xloader.errors import MemoryBudgetError
from xloader.order.listed import ListedOrder
from xloader.planning.plan import Budget
from xloader.recipe.layout import FieldLayout
from xloader.show.cost_figures import GroupReads, VariableFigures, count_reads, num_needed
from xloader.sources.base import MOST_INDEX_NBYTES


class Recent:
    """The numbers of the blocks in a cache, by their last use. It does not hold their values."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.used_nbytes = 0
        self.peak_nbytes = 0
        self._there: OrderedDict[int, int] = OrderedDict()

    def touch(
        self, keys: Iterable[int], nbytes: Iterable[int], is_last: Iterable[bool]
    ) -> tuple[list[int], list[int]]:
        """Use the blocks that samples need, one sample after another.

        `keys`: numbers of the blocks of all samples, ascending within each sample.
        """
        there, capacity = self._there, self.capacity_nbytes
        used, peak = self.used_nbytes, self.peak_nbytes
        missing: list[int] = []
        dropped: list[int] = []
        for key, size, is_end in zip(keys, nbytes, is_last, strict=True):
            if key in there:
                there.move_to_end(key)
            else:
                there[key] = size
                used += size
                missing.append(key)
            if is_end:
                # The sample's own blocks are the most recently used, and they fit. None is dropped.
                while used > capacity:
                    old, size = there.popitem(last=False)
                    used -= size
                    dropped.append(old)
                if used > peak:
                    peak = used
        self.used_nbytes, self.peak_nbytes = used, peak
        return missing, dropped

    def forget(self, key: int) -> None:
        """Remove a block that could not be read."""
        self.used_nbytes -= self._there.pop(key)


@dataclass(frozen=True)
class Touches:
    """The blocks that samples need, sample by sample.

    `keys`: numbers of the blocks, ascending within each sample.
    """

    begins: Ints
    keys: Ints
    nbytes: Ints

    @property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether each block is the last that its sample needs."""
        is_last = np.zeros(len(self.keys), np.bool_)
        is_last[self.begins[1:] - 1] = True
        return is_last


class BlockNumbers:
    """Numbers the blocks of all groups consecutively, group by group."""

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint
        self.bases: list[int] = np.cumsum([0, *(g.num_blocks for g in footprint.groups)]).tolist()

    def touches(self, boxes: Boxes) -> Touches:
        """The blocks that the samples of each box need. A box counts as one sample there."""
        rows, keys, nbytes = [], [], []
        for base, group in zip(self.bases, self._footprint.groups, strict=False):
            group_rows, blocks = self._footprint.needs(group, boxes)
            rows.append(group_rows)
            keys.append(blocks + base)
            nbytes.append(group.block_nbytes(blocks))
        joined = [np.concatenate(parts) for parts in (rows, keys, nbytes)]
        if len(rows) > 1:
            # A stable sort keeps the blocks of each row in ascending order of group and block.
            by_row = np.argsort(joined[0], kind="stable")
            joined = [column[by_row] for column in joined]
        return Touches(np.searchsorted(joined[0], np.arange(len(boxes) + 1)), *joined[1:])

    def group_reads(self, keys: Ints) -> list[GroupReads]:
        """The reads of some blocks by group, for blocks that may repeat."""
        reads = []
        ascending = np.sort(keys)
        edges = np.searchsorted(ascending, self.bases).tolist()
        for number, (lo, hi) in enumerate(itertools.pairwise(edges)):
            blocks = ascending[lo:hi] - self.bases[number]
            num_elements = int(self._footprint.groups[number].read_elements(blocks).sum())
            reads.append(GroupReads(len(np.unique(blocks)), hi - lo, num_elements))
        return reads


@dataclass(frozen=True)
class CacheCount:
    """The reads and the memory of the caches of all workers, for an order of samples."""

    num_reads: int
    read_nbytes: int
    num_needed: int
    num_shared_reads: int
    peak_nbytes: int
    variables: Mapping[str, VariableFigures] = field(default_factory=dict, compare=False)


def simulate(
    footprint: Footprint,
    ids: Ints,
    capacity_nbytes: int,
    *,
    batch_size: int = 1,
    num_workers: int = 1,
) -> CacheCount:
    """Count exactly the reads of least-recently-used caches that begin empty."""
    keys = BlockNumbers(footprint)
    worker = np.arange(len(ids)) // batch_size % num_workers
    missed: list[Ints] = []
    peak_nbytes = 0
    for number in range(num_workers):
        recent = Recent(capacity_nbytes)
        missed.append(_misses(footprint, keys, recent, ids[worker == number]))
        peak_nbytes += recent.peak_nbytes
    groups = footprint.groups
    reads = count_reads(groups, keys.group_reads(np.concatenate(missed)))
    needed = [num_needed(groups, keys.group_reads(np.unique(blocks))) for blocks in missed]
    variables = reads["variables"]
    num_distinct = sum(blocks.num_chunks for blocks in variables.values())
    return CacheCount(
        reads["num_reads"],
        reads["read_nbytes"],
        num_distinct,
        sum(needed) - num_distinct,
        peak_nbytes,
        variables,
    )


def _misses(footprint: Footprint, keys: BlockNumbers, recent: Recent, ids: Ints) -> Ints:
    """The blocks that one worker reads, in order."""
    missed = [np.zeros(0, np.int64)]
    for begin in range(0, len(ids), _PIECE_SIZE):
        # A sample that needs the same blocks as the one before reads nothing and changes no
        # order, so `ListedOrder` may join the two.
        boxes = ListedOrder.of(footprint, ids[begin : begin + _PIECE_SIZE]).boxes
        touches = keys.touches(boxes)
        missing, _ = recent.touch(
            touches.keys.tolist(), touches.nbytes.tolist(), touches.is_last.tolist()
        )
        missed.append(np.array(missing, np.int64))
    return np.concatenate(missed)


_PIECE_SIZE = 1 << 16
"""Number of samples that are examined together."""


def cache_budget(
    footprint: Footprint,
    layouts: tuple[FieldLayout, ...],
    memory_nbytes: int,
    batch_size: int,
    prefetch: int,
    *,
    num_workers: int = 1,
) -> Budget:
    """Divide the memory of a worker whose cache may hold the budget's ``lane_nbytes``."""
    rows = min(batch_size, footprint.num_samples)
    budget = Budget(
        memory_nbytes=memory_nbytes // num_workers,
        batch_nbytes=rows * sum(layout.sample_nbytes for layout in layouts),
        num_batches=prefetch + 2,
        max_chunk_nbytes=footprint.max_chunk_nbytes,
        num_lanes=1,
        index_nbytes=min(footprint.index_nbytes, MOST_INDEX_NBYTES),
    )
    least = least_nbytes(footprint)
    if budget.lane_nbytes < least:
        share = f", shared by {num_workers} workers" * (num_workers > 1)
        raise MemoryBudgetError(
            f"the memory is too small for {budget.num_batches} batches of "
            f"{budget.batch_nbytes} bytes, two chunks being read and the chunks of one sample",
            given=f"memory={memory_nbytes} bytes{share}",
            minimum_nbytes=num_workers * budget.minimum_nbytes(least),
        )
    return budget


def least_nbytes(footprint: Footprint) -> int:
    """The most decoded bytes that a single sample needs. A cache must hold at least this.

    Positions along a dimension are of the same kind if their windows meet blocks of the same sizes
    in the same way. Samples of the same kind along all dimensions need as many bytes, so only one
    of each is examined.
    """
    kinds = [_Kinds.of(footprint, dim) for dim in range(len(footprint.windows.dims))]
    shape = tuple(len(dim_kinds.examples) for dim_kinds in kinds)
    if footprint.subset is not None and not footprint.subset.has_all:
        # The kinds of samples, as one number for all dimensions together, each once.
        numbers = np.zeros(0, np.int64)
        for boxes in footprint.possible_boxes(_PIECE_SIZE):
            pairs = zip(kinds, boxes.lo, strict=True)
            columns = [dim_kinds.of_positions(positions) for dim_kinds, positions in pairs]
            numbers = np.union1d(numbers, np.ravel_multi_index(columns, shape))
    else:
        # Every window is a sample, so the kinds that others outdo need not be examined.
        outdoing = np.ix_(*(dim_kinds.outdoing() for dim_kinds in kinds))
        numbers = np.ravel_multi_index(outdoing, shape).reshape(-1)
    keys, least = BlockNumbers(footprint), 0
    for begin in range(0, len(numbers), _PIECE_SIZE):
        along = np.unravel_index(numbers[begin : begin + _PIECE_SIZE], shape)
        examples = [
            dim_kinds.examples[index] for dim_kinds, index in zip(kinds, along, strict=True)
        ]
        touches = keys.touches(Boxes.at(np.stack(examples, axis=-1)))
        ends = np.concatenate([[0], np.cumsum(touches.nbytes)])
        least = max(least, int(np.diff(ends[touches.begins]).max(initial=0)))
    return least


@dataclass(frozen=True)
class _Kinds:
    """The kinds of positions along one dimension.

    `reaches` has shape (num_kinds, num_columns).
    """

    begins: Ints
    numbers: Ints
    examples: Ints
    reaches: Ints

    @classmethod
    def of(cls, footprint: Footprint, dim: int) -> _Kinds:
        """Find the kinds along a dimension."""
        begins = footprint.block_starts[dim][:-1]
        starts = footprint.windows.starts_of(dim, begins)
        columns: list[Ints] = [np.zeros(len(begins), np.int64)]
        for group in footprint.groups:
            line, origin = group.lines[dim], None
            for span in [access[dim] for access in group.accesses]:
                if line is None or span is None:
                    continue
                first, step, count = span
                lo = line.edges[line.block_of(starts + first)]
                hi = line.edges[line.block_of(starts + first + step * (count - 1)) + 1]
                origin = lo if origin is None else origin
                columns += [origin - lo, hi - origin]
        kinds = number_rows(columns, len(begins))
        _, at, numbers = np.unique(kinds, return_index=True, return_inverse=True)
        return cls(begins, numbers, begins[at], np.stack(columns, axis=-1)[at])

    def outdoing(self) -> Ints:
        """The kinds that no other kind outdoes.

        A kind is outdone if the blocks of another one reach at least as far in every direction.
        """
        left = np.arange(len(self.examples))
        for number in np.argsort(-self.reaches.sum(axis=1), kind="stable").tolist():
            if number in left:
                is_outdone = (self.reaches[left] <= self.reaches[number]).all(axis=1)
                left = left[~is_outdone | (left == number)]
        return left

    def of_positions(self, positions: Ints) -> Ints:
        """The kind of each position."""
        return self.numbers[np.searchsorted(self.begins, positions, side="right") - 1]
