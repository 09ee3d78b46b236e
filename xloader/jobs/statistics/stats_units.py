"""Units of statistics for the tasks of a cluster: ranges of the pieces of variables.

A range ends, near the size that is wanted, where the following is least:

1. chunks that both sides would read, for differences along time;
2. shards that both sides would read from;
3. subtrees of which the result is made: at the end of a place, or at a round number of pieces.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.jobs.statistics.chunk_order import ChunkOrder
from xloader.jobs.statistics.stats_sweep import Pieces, VariableJob, chunks_of
from xloader.sources.base import SmallKey, Source

_CLEAN_NBYTES: Final = 1 << 31
"""Most decoded bytes of a unit that goes on so that no chunk is read twice."""

_END_LEVEL: Final = 64
"""The level of the end of a tree, which is above that of any subtree."""


class PieceRange(NamedTuple):
    """Some pieces of a variable that follow each other."""

    variable: int
    begin: int
    end: int


StatsUnit = tuple[PieceRange, ...]
"""The ranges whose statistics one task computes."""


@dataclass(frozen=True)
class UnitSizes:
    """How large units are."""

    unit_nbytes: int
    clean_nbytes: int
    result_nbytes: int

    @classmethod
    def of(
        cls, unit_nbytes: int, total_nbytes: int, num_threads: int, result_nbytes: int
    ) -> UnitSizes:
        """The sizes for a job."""
        clean_nbytes = min(total_nbytes // num_threads, _CLEAN_NBYTES)
        return cls(unit_nbytes, max(unit_nbytes, clean_nbytes), result_nbytes)


def cut_units(
    source: Source, jobs: list[VariableJob], wanted: Pieces, sizes: UnitSizes
) -> list[StatsUnit]:
    """Cut pieces into units, in order."""
    units: list[StatsUnit] = []
    last: list[PieceRange] = []
    read_nbytes = result_nbytes = 0
    for job, pieces in zip(jobs, wanted, strict=True):
        line = _CutLine(source, job, pieces, sizes)
        for ranges, chunks_nbytes in line.ranges():
            nodes_nbytes = job.node_nbytes * sum(num_nodes(job.order, own)[0] for own in ranges)
            read_nbytes += chunks_nbytes
            result_nbytes += nodes_nbytes
            # Small variables share a unit.
            if last and (read_nbytes > sizes.unit_nbytes or result_nbytes > sizes.result_nbytes):
                units.append(tuple(last))
                last, read_nbytes, result_nbytes = [], chunks_nbytes, nodes_nbytes
            last += ranges
    return [*units, tuple(last)] if last else units


class _CutLine:
    """The chunks of a variable in order, and what it costs to cut before each of them."""

    def __init__(
        self, source: Source, job: VariableJob, wanted: NDArray[np.bool_], sizes: UnitSizes
    ) -> None:
        self._job = job
        self._order = job.order
        self._wanted = wanted
        self._each = max(sizes.unit_nbytes // job.chunk_nbytes, 1)
        self._most = max(sizes.clean_nbytes // job.chunk_nbytes, self._each)
        self._most_trees = max(sizes.result_nbytes // job.node_nbytes, 1)
        self._chunks = chunks_of(job.order, wanted)
        places = np.append(self._chunks, len(job.order.chunks))
        # For each needed chunk before which may be cut: the first piece behind the cut, and the
        # chunks and shards that both sides would read.
        self._pieces = np.searchsorted(job.order.first, places)
        self._num_twice = self._pairs_across()
        self._num_shards = self._shards_across(source)

    def ranges(self) -> list[tuple[list[PieceRange], int]]:
        """The ranges between two cuts, and the decoded bytes of their chunks."""
        found = []
        begin = 0
        while begin < len(self._chunks):
            end = self._next_cut(begin)
            ranges = self._wanted_between(begin, end)
            if ranges:
                found.append((ranges, (end - begin) * self._job.chunk_nbytes))
            begin = end
        return found

    def _next_cut(self, begin: int) -> int:
        """The best number of a chunk before which to cut next."""
        num, limit = len(self._chunks), self._end_of_trees(begin)
        last = min(begin + self._each, limit)
        if last >= num:
            return num
        window = np.arange(begin + (self._each + 1) // 2, last + 1)
        window = window if len(window) else np.array([last])
        twice, shards = self._num_twice[window], self._num_shards[window]
        cost = np.lexsort((-window, -self._levels(window), shards > 0, twice))
        best = int(window[cost[0]])
        if not (self._num_twice[best] or self._num_shards[best]):
            return best
        most = min(begin + self._most, limit)
        later = slice(last + 1, most + 1)
        is_clean = (self._num_twice[later] == 0) & (self._num_shards[later] == 0)
        if not is_clean.any() and self._num_twice[best]:
            is_clean = self._num_twice[later] == 0
        at = np.flatnonzero(is_clean)
        return last + 1 + int(at[0]) if len(at) else best

    def _end_of_trees(self, begin: int) -> int:
        """The first chunk of the tree that a unit's result has no room for."""
        order = self._order
        piece = self._pieces[begin]
        tree = int(np.searchsorted(order.edges, piece, side="right")) - 1 + self._most_trees
        if tree >= len(order.edges) - 1:
            return len(self._chunks)
        at = np.searchsorted(self._chunks, order.first[order.edges[tree]])
        return max(int(at), begin + 1)

    def _levels(self, cuts: Ints) -> Ints:
        """The level of the largest subtree that may begin behind each cut."""
        edges = self._order.edges
        piece = self._pieces[cuts]
        leaf = piece - edges[np.searchsorted(edges, piece, side="right") - 1]
        lowest = leaf & -leaf
        return np.where(leaf == 0, _END_LEVEL, np.log2(np.maximum(lowest, 1))).astype(np.int64)

    def _wanted_between(self, begin: int, end: int) -> list[PieceRange]:
        lo, hi = self._pieces[[begin, end]].tolist()
        edges = np.flatnonzero(np.diff(self._wanted[lo:hi], prepend=False, append=False)) + lo
        pairs = edges.reshape(-1, 2).tolist()
        return [PieceRange(self._job.number, first, last) for first, last in pairs]

    def _pairs_across(self) -> Ints:
        """For each cut, the pairs of chunks of which one lies on either side."""
        order, num = self._order, len(self._chunks)
        if order.first is order.second:
            return np.zeros(num + 1, np.int64)
        pair = np.sort([order.first[self._wanted], order.second[self._wanted]], axis=0)
        low, high = np.searchsorted(self._chunks, pair)
        return _num_open(low, high, num)

    def _shards_across(self, source: Source) -> Ints:
        """For each cut, the shards that have chunks on both sides."""
        num = len(self._chunks)
        shards = _shards(source, self._job.stored.name, self._order, self._chunks)
        if shards is None or not num:
            return np.zeros(num + 1, np.int64)
        rank = np.argsort(shards, kind="stable")
        begins = np.flatnonzero(np.diff(shards[rank], prepend=-1))
        return _num_open(rank[begins], rank[np.append(begins[1:], num) - 1], num)


def _num_open(low: Ints, high: Ints, num: int) -> Ints:
    """For each cut before one of ``num`` chunks, the spans ``low < cut <= high``."""
    steps = np.bincount(low + 1, minlength=num + 2) - np.bincount(high + 1, minlength=num + 2)
    return np.asarray(np.cumsum(steps)[: num + 1], np.int64)


def _shards(source: Source, variable: str, order: ChunkOrder, places: Ints) -> Ints | None:
    """The number of the shard of each chunk; None if no two chunks share one."""
    stored: list[Ints] = []
    for axis in order.axes:
        chunks = [axis.stored_chunk(block) for block in range(axis.num_blocks)]
        stored.append(np.array(chunks, np.int64))
    origin = [int(own[0]) for own in stored]
    numbers = []
    for dim, own in enumerate(stored):
        # Shards form a grid, so it is enough to look along each dimension.
        keys = []
        for chunk in own.tolist():
            key = source.bundle_of(variable, (*origin[:dim], chunk, *origin[dim + 1 :]))
            keys.append(key.name if isinstance(key, SmallKey) else key)
        if any(key is None for key in keys):
            return None
        numbers.append(np.cumsum([False, *(one != two for one, two in itertools.pairwise(keys))]))
    if all(len(own) == own[-1] + 1 for own in numbers):
        return None
    index = order.blocks(places)
    shape = tuple(int(own[-1]) + 1 for own in numbers)
    at = tuple(own[index[:, dim]] for dim, own in enumerate(numbers))
    return np.asarray(np.ravel_multi_index(at, shape), np.int64)


def num_nodes(order: ChunkOrder, own: PieceRange) -> tuple[int, int]:
    """Number of complete subtrees that the statistics of a range are merged to."""
    first, last = order.tree_of(own.begin), order.tree_of(own.end - 1)
    found, num_open = max(last - first - 1, 0), 0
    for tree in {first, last}:
        edge, until = order.edges[tree : tree + 2].tolist()
        num = num_subtrees(max(own.begin - edge, 0), own.end - edge, until - edge)
        found += num
        if own.begin > edge or own.end < until:
            num_open += num
    return found, num_open


def num_chunks(order: ChunkOrder, own: PieceRange) -> int:
    """Number of chunks that the pieces of a range need."""
    if order.first is order.second:
        return own.end - own.begin
    part = slice(own.begin, own.end)
    return len(np.union1d(order.first[part], order.second[part]))


def num_subtrees(begin: int, end: int, num_leaves: int) -> int:
    """Number of the largest complete subtrees that cover some leaves of a `MergeTree`."""
    height = (num_leaves - 1).bit_length()
    if end >= num_leaves:
        # The last leaf goes up alone, as if there were more of them.
        end = 1 << height
    found = 0
    while begin < end:
        most = height if begin == 0 else (begin & -begin).bit_length() - 1
        begin += 1 << min(most, int(math.log2(end - begin)))
        found += 1
    return found
