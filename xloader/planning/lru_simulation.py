"""Simulates a least-recently-used cache of decoded blocks for a given order of samples.

Samples are handled one by one. The blocks that a sample needs become the most recently used, in
ascending order of group and block. Blocks that are not in the cache are read; before that, the
least recently used ones are dropped until all fit. With room for two blocks::

    needed    0    1    0    2    1
    there     0   0 1  1 0  0 2  2 1       the most recently used on the right
    read      x    x         x    x

`simulate` counts these reads, and `xloader.engine.cached_reader` does them. Both use `Recent`.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.order.listed import ListedOrder
from xloader.planning.variable_figures import (
    GroupReads,
    VariableFigures,
    count_reads,
    num_needed,
)

_PIECE_SIZE = 1 << 16
"""Number of samples that are simulated together."""


class Recent:
    """The numbers of the blocks in a cache, by their last use. It does not hold their values."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.used_nbytes = 0
        self.peak_nbytes = 0
        self._there: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._there

    def __iter__(self) -> Iterator[int]:
        """The blocks, the least recently used first."""
        return iter(self._there)

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
            own_rows, blocks = self._footprint.needs(group, boxes)
            rows.append(own_rows)
            keys.append(blocks + base)
            nbytes.append(group.block_nbytes(blocks))
        joined = [np.concatenate(parts) for parts in (rows, keys, nbytes)]
        if len(rows) > 1:
            # A stable sort keeps the blocks of each row in ascending order of group and block.
            line = np.argsort(joined[0], kind="stable")
            joined = [column[line] for column in joined]
        return Touches(np.searchsorted(joined[0], np.arange(len(boxes) + 1)), *joined[1:])

    def group_reads(self, keys: Ints) -> list[GroupReads]:
        """The reads of some blocks by group, for blocks that may repeat."""
        found = []
        line = np.sort(keys)
        edges = np.searchsorted(line, self.bases).tolist()
        for number, (lo, hi) in enumerate(itertools.pairwise(edges)):
            blocks = line[lo:hi] - self.bases[number]
            num_elements = int(self._footprint.groups[number].read_elements(blocks).sum())
            found.append(GroupReads(len(np.unique(blocks)), hi - lo, num_elements))
        return found


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
    needed = [num_needed(groups, keys.group_reads(np.unique(own))) for own in missed]
    variables = reads["variables"]
    num_distinct = sum(own.num_chunks for own in variables.values())
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
        columns = (touches.keys, touches.nbytes, touches.is_last)
        missing, _ = recent.touch(*(column.tolist() for column in columns))
        missed.append(np.array(missing, np.int64))
    return np.concatenate(missed)
