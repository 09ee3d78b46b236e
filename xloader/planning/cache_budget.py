"""The memory budget of a reader with a cache of blocks, and the least bytes its cache must hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.row_numbers import number_rows
from xloader.errors import MemoryBudgetError
from xloader.planning.budget import Budget
from xloader.planning.lru_simulation import BlockNumbers
from xloader.recipe.layout import FieldLayout
from xloader.sources.base import MOST_INDEX_NBYTES

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
    """Divide the memory of one worker that reads through a cache.

    The cache may hold ``lane_nbytes`` of the budget.
    """
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
    shape = tuple(len(kind.examples) for kind in kinds)
    if footprint.subset is not None:
        numbers = _numbers_of_samples(footprint, kinds, shape)
    else:
        # Every window is a sample, so the kinds that others outdo need not be examined.
        outdoing = np.ix_(*(kind.outdoing() for kind in kinds))
        numbers = np.ravel_multi_index(outdoing, shape).reshape(-1)
    keys, least = BlockNumbers(footprint), 0
    for begin in range(0, len(numbers), _PIECE_SIZE):
        along = np.unravel_index(numbers[begin : begin + _PIECE_SIZE], shape)
        examples = [kind.examples[own] for kind, own in zip(kinds, along, strict=True)]
        touches = keys.touches(Boxes.at(np.stack(examples, axis=-1)))
        ends = np.concatenate([[0], np.cumsum(touches.nbytes)])
        least = max(least, int(np.diff(ends[touches.begins]).max(initial=0)))
    return least


def _numbers_of_samples(footprint: Footprint, kinds: list[_Kinds], shape: tuple[int, ...]) -> Ints:
    """The kinds of a subset's samples, as one number for all dimensions together, each once."""
    found = np.zeros(0, np.int64)
    for boxes in footprint.possible_boxes(_PIECE_SIZE):
        along = [kind.of_positions(own) for kind, own in zip(kinds, boxes.lo, strict=True)]
        found = np.union1d(found, np.ravel_multi_index(along, shape))
    return found


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
        windows = footprint.windows
        spans = [
            [
                (line, span[0], span[0] + span[1] * (span[2] - 1))
                for access in group.accesses
                if (span := access[dim]) is not None
            ]
            for group in footprint.groups
            if (line := group.lines[dim]) is not None
        ]
        cuts = [np.zeros(1, np.int64)]
        for line, first, last in itertools.chain(*spans):
            cuts += [windows.num_before(dim, line.edges[1:-1] - at) for at in {first, last}]
        begins = np.sort(np.concatenate(cuts), kind="stable")
        begins = begins[begins < windows.num_positions[dim]]
        begins = begins[np.diff(begins, prepend=-1) > 0]
        starts = windows.starts_of(dim, begins)
        columns: list[Ints] = [np.zeros(len(begins), np.int64)]
        for own in spans:
            origin: Ints | None = None
            for line, first, last in own:
                lo = line.edges[line.block_of(starts + first)]
                hi = line.edges[line.block_of(starts + last) + 1]
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
