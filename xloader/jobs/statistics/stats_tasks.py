"""Statistics by tasks on a cluster: each computes a unit, and the trees here merge what comes."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks
from xloader.core.axis import Ints
from xloader.jobs.statistics.chunk_reduction import ChunkOrder
from xloader.jobs.statistics.stats_job import StatsJob, check_memory
from xloader.jobs.statistics.stats_parts import Nodes, StatsTrees
from xloader.jobs.statistics.stats_sweep import Pieces, VariableJob, chunks_of
from xloader.recipe.recipe import Recipe
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
        cuts = _Cuts(source, job, pieces, sizes)
        for ranges, chunks_nbytes in cuts.ranges():
            nodes_nbytes = job.node_nbytes * sum(num_nodes(job.order, span)[0] for span in ranges)
            read_nbytes += chunks_nbytes
            result_nbytes += nodes_nbytes
            # Small variables share a unit.
            if last and (read_nbytes > sizes.unit_nbytes or result_nbytes > sizes.result_nbytes):
                units.append(tuple(last))
                last, read_nbytes, result_nbytes = [], chunks_nbytes, nodes_nbytes
            last += ranges
    return [*units, tuple(last)] if last else units


class _Cuts:
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
        stretches = []
        begin = 0
        while begin < len(self._chunks):
            end = self._next_cut(begin)
            ranges = self._wanted_between(begin, end)
            if ranges:
                stretches.append((ranges, (end - begin) * self._job.chunk_nbytes))
            begin = end
        return stretches

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
    stored = [[axis.stored_chunk(n) for n in range(axis.num_blocks)] for axis in order.axes]
    origin = [along[0] for along in stored]
    numbers = []
    for dim, along in enumerate(stored):
        # Shards form a grid, so it is enough to look along each dimension.
        keys = []
        for chunk in along:
            key = source.bundle_of(variable, (*origin[:dim], chunk, *origin[dim + 1 :]))
            keys.append(key.name if isinstance(key, SmallKey) else key)
        if any(key is None for key in keys):
            return None
        is_new = [before != after for before, after in itertools.pairwise(keys)]
        numbers.append(np.cumsum([False, *is_new]))
    if all(len(along) == along[-1] + 1 for along in numbers):
        return None
    index = order.blocks(places)
    shape = tuple(int(along[-1]) + 1 for along in numbers)
    at = tuple(along[index[:, dim]] for dim, along in enumerate(numbers))
    return np.asarray(np.ravel_multi_index(at, shape), np.int64)


def num_nodes(order: ChunkOrder, pieces: PieceRange) -> tuple[int, int]:
    """Number of complete subtrees that the statistics of a range are merged to."""
    first, last = order.tree_of(pieces.begin), order.tree_of(pieces.end - 1)
    count, num_open = max(last - first - 1, 0), 0
    for tree in {first, last}:
        edge, until = order.edges[tree : tree + 2].tolist()
        num = num_subtrees(max(pieces.begin - edge, 0), pieces.end - edge, until - edge)
        count += num
        if pieces.begin > edge or pieces.end < until:
            num_open += num
    return count, num_open


def num_chunks(order: ChunkOrder, pieces: PieceRange) -> int:
    """Number of chunks that the pieces of a range need."""
    if order.first is order.second:
        return pieces.end - pieces.begin
    part = slice(pieces.begin, pieces.end)
    return len(np.union1d(order.first[part], order.second[part]))


def num_subtrees(begin: int, end: int, num_leaves: int) -> int:
    """Number of the largest complete subtrees that cover some leaves of a `MergeTree`."""
    height = (num_leaves - 1).bit_length()
    if end >= num_leaves:
        # The last leaf goes up alone, as if there were more of them.
        end = 1 << height
    count = 0
    while begin < end:
        most = height if begin == 0 else (begin & -begin).bit_length() - 1
        begin += 1 << min(most, int(math.log2(end - begin)))
        count += 1
    return count


_RESULT_NBYTES: Final = 1 << 24
"""Most bytes of the statistics of a unit, as they go through the scheduler."""


class StatsWork:
    """The samples and options that all tasks of a job share.

    Each worker finds out once which chunks that means.
    """

    def __init__(self, recipe: Recipe, settings: dict[str, Any], most_nbytes: int = 0) -> None:
        self.recipe = recipe
        self.settings = settings
        self.most_nbytes = most_nbytes
        self._lock = threading.Lock()
        self._job: StatsJob | None = None

    @classmethod
    def of(cls, job: StatsJob, most_nbytes: int = 0) -> StatsWork:
        """The work of a job, with options that were checked and pickle."""
        options = job.options
        weights: Any = options.weights_text or None
        if options.weights is not None and weights != "area":
            weights = xr.DataArray(options.weights.values, dims=options.weights.dims)
        settings = {
            "dim": options.dim,
            "by": options.by or None,
            "quantiles": options.quantiles,
            "leads": [pairs.steps for pairs in options.leads],
            "weights": weights,
        }
        return cls(job.recipe, settings, most_nbytes)

    @property
    def job(self) -> StatsJob:
        """The job."""
        with self._lock:
            if self._job is None:
                self._job = StatsJob(self.recipe, **self.settings)
            return self._job

    def __reduce__(self) -> tuple[object, ...]:
        return StatsWork, (self.recipe, self.settings, self.most_nbytes)


def compute_unit(work: StatsWork, unit: StatsUnit) -> tuple[Nodes, int]:
    """The statistics of a unit, and the number of reads, on one thread: the task of a worker."""
    job = work.job
    wanted = wanted_of(job, unit)
    trees = StatsTrees(job.orders)
    numbers = sorted(wanted)
    sweep = job.sweep([job.jobs[number] for number in numbers], work.most_nbytes, 1)
    sweep.run([wanted[number] for number in numbers], trees, lambda: None)
    return trees.drain(), sweep.num_reads


def wanted_of(job: StatsJob, unit: StatsUnit) -> dict[int, NDArray[np.bool_]]:
    """By number of the variable, whether each of its pieces is in a unit."""
    wanted: dict[int, NDArray[np.bool_]] = {}
    for number, begin, end in unit:
        if number not in wanted:
            wanted[number] = np.zeros(job.jobs[number].order.num_pieces, np.bool_)
        wanted[number][begin:end] = True
    return wanted


class StatsOnCluster:
    """Computes statistics by tasks on a cluster, as `StatsSweep` does on threads."""

    def __init__(self, job: StatsJob, tasks: ClusterTasks, wanted: Pieces) -> None:
        self._job = job
        self._tasks = tasks
        self._most_nbytes = 0
        total = sum(
            len(chunks_of(variable_job.order, pieces)) * variable_job.chunk_nbytes
            for variable_job, pieces in zip(job.jobs, wanted, strict=True)
        )
        # Ends of units are looked for in the upper half of this size.
        unit_nbytes = tasks.unit_nbytes(total, MOST_UNITS // 2)
        sizes = UnitSizes.of(unit_nbytes, total, tasks.num_threads, _RESULT_NBYTES)
        self._units = cut_units(job.recipe.source, job.jobs, wanted, sizes)
        self.num_reads = 0

    def check_memory(
        self, memory_nbytes: int, kept_nbytes: int, least_nbytes: int, *, is_flushed: bool
    ) -> None:
        """Check that the memory is enough here, and for the tasks of a worker."""
        memory = self._job.memory
        sizes = [self._nodes_nbytes(unit) for unit in self._units]
        unit, cut = map(max, zip(*sizes, strict=True)) if sizes else (0, 0)
        # Subtrees wait for the units that are computed at the same time.
        waiting = memory.tree_nbytes + cut * min(self._tasks.most_running, len(sizes))
        here = max(kept_nbytes + unit + waiting * (not is_flushed), least_nbytes)
        shares, kept = self._tasks.most_threads_of_worker, unit + memory.under_way_nbytes
        worker = shares * (kept + memory.work_nbytes)
        check_memory(memory_nbytes, max(here, worker), shares if worker > here else 1)
        self._most_nbytes = memory.most_read_nbytes(memory_nbytes // shares, kept)

    def _nodes_nbytes(self, unit: StatsUnit) -> tuple[int, int]:
        """Bytes of the statistics of a unit, and of those of trees that it does not complete."""
        whole = cut = 0
        for pieces in unit:
            job = self._job.jobs[pieces.variable]
            num, num_cut = num_nodes(job.order, pieces)
            whole += num * job.node_nbytes
            cut += num_cut * job.node_nbytes
        return whole, cut

    def num_chunks(self, wanted: Pieces) -> int:
        """Number of chunks that the tasks read. With leads, two tasks may read the same one."""
        return sum(map(self._num_chunks, self._units))

    def _num_chunks(self, unit: StatsUnit) -> int:
        return sum(num_chunks(self._job.jobs[pieces.variable].order, pieces) for pieces in unit)

    def run(self, wanted: Pieces, trees: StatsTrees, advance: Callable[[int], None]) -> None:
        """Compute the statistics of the pieces."""
        work = StatsWork.of(self._job, self._most_nbytes)
        results = self._tasks.run("computing statistics", compute_unit, work, self._units)
        with closing(results):
            for unit, (nodes, num_reads) in results:
                for tree, values in nodes.items():
                    for node, value in values.items():
                        trees.add(tree, node, value)
                self.num_reads += num_reads
                advance(self._num_chunks(unit))
                trees.flush()
