"""The sweep of statistics: each chunk is read once, and merged in a fixed order.

`StatsSweep` reads on threads of this process. `StatsOnCluster` cuts the pieces into units, and each
task on a cluster sweeps one of them; the trees here merge what comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks
from xloader.core.axis import Ints
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.statistics.chunk_reduction import ChunkElements, ChunkOrder, reduce_elements
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_job import Pieces, StatsJob, VariableJob, check_memory
from xloader.jobs.statistics.stats_parts import Nodes, StatsTrees

_WAVE_NBYTES: Final = 1 << 29
_WAVE_CHUNKS: Final = 1 << 12
"""Decoded bytes and number of chunks that are asked for at a time."""

_FIRST_WAVE: Final = 64
_WAVE_SECONDS: Final = 10.0
"""Chunks that are read before the first statistics may be written, and time until the next."""


class StatsSweep:
    """Reads chunks on threads of this process, and adds their statistics to trees.

    `most_done_nbytes`: bytes after which statistics are written; None if they stay in memory.
    """

    def __init__(
        self,
        job: StatsJob,
        most_nbytes: int,
        num_threads: int,
        most_done_nbytes: int | None = None,
    ) -> None:
        self._jobs = job.jobs
        self._most_done_nbytes = most_done_nbytes
        self._windowed = job.reading.windows.dims
        self._sweep = ChunkSweep(job.whole, job.reading, most_nbytes, num_threads)
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], ChunkElements] = {}

    @property
    def num_reads(self) -> int:
        """Number of chunks that were read."""
        return self._sweep.num_reads

    def num_chunks(self, wanted: Pieces) -> int:
        """Number of chunks that are read for some pieces of each variable."""
        pairs = zip(self._jobs, wanted, strict=True)
        return sum(len(chunks_of(job.order, pieces)) for job, pieces in pairs)

    def run(self, wanted: Pieces, trees: StatsTrees, advance: Callable[[int], None]) -> None:
        """Read all chunks of some pieces.

        `advance`: is called for each chunk that is done, on any thread.
        """
        with self._sweep:
            for job, pieces in zip(self._jobs, wanted, strict=True):
                self._run_variable(job, pieces, trees, advance)

    def _run_variable(
        self,
        job: VariableJob,
        wanted: NDArray[np.bool_],
        trees: StatsTrees,
        advance: Callable[[int], None],
    ) -> None:
        order = job.order

        def use(place_of: dict[tuple[int, ...], int], chunk: ChunkValues) -> None:
            elements, at = job.elements(chunk), place_of[chunk.begins]
            for piece in order.pieces_of(at):
                value = self._reduce(job, piece, at, elements) if wanted[piece] else None
                if value is not None:
                    tree = order.tree_of(piece)
                    leaf = piece - int(order.edges[tree])
                    trees.add((job.number, tree), (0, leaf), value)
            advance(1)

        dims = job.stored.dims
        places = [dims.index(dim) if dim in dims else None for dim in self._windowed]
        chunks, begin = chunks_of(order, wanted), 0
        limit = each = _wave_size(job, chunks, self._most_done_nbytes)
        if self._most_done_nbytes is not None:
            each = min(each, _FIRST_WAVE)
        while begin < len(chunks):
            wave, began = chunks[begin : begin + each], time.monotonic()
            blocks = order.blocks(wave)
            begins = [axis.edges[blocks[:, n]].tolist() for n, axis in enumerate(order.axes)]
            rows = zip(*begins, strict=True) if begins else [()] * len(wave)
            at = dict(zip(rows, wave.tolist(), strict=True))
            read = [tuple(0 if n is None else row[n] for n in places) for row in blocks.tolist()]
            self._sweep.do(self._sweep.read(job.group, read, partial(use, at)))
            trees.flush()
            begin += len(wave)
            if self._most_done_nbytes is not None:
                share = _WAVE_SECONDS / max(time.monotonic() - began, 1e-9)
                each = min(max(int(len(wave) * share), 1), limit)

    def _reduce(
        self, job: VariableJob, piece: int, at: int, elements: ChunkElements
    ) -> LabelledMoments | None:
        """The statistics of a piece; None if it waits for another chunk."""
        order, has_sketches = job.order, bool(job.options.quantiles)
        if job.leads is None:
            return reduce_elements(elements, order.kept, job.clock, has_sketches=has_sketches)
        assert job.clock is not None
        ends = [int(order.first[piece]), int(order.second[piece])]
        begin, end = order.blocks(np.array(ends))[:, job.clock].tolist()
        earlier = later = elements
        if ends[0] != ends[1]:
            key, side = (job.number, piece), ends.index(at)
            with self._lock:
                partner = self._waiting.pop(key, None)
            if partner is None:
                slab = job.leads.slab(elements, job.clock, (begin, end), side)
                with self._lock:
                    partner = self._waiting.pop(key, None)
                    if partner is None:
                        self._waiting[key] = slab
                        return None
            earlier, later = (elements, partner) if side == 0 else (partner, elements)
        return job.leads.reduce(
            earlier, later, job.clock, (begin, end), order.kept, has_sketches=has_sketches
        )


def chunks_of(order: ChunkOrder, wanted: NDArray[np.bool_]) -> Ints:
    """Places of the chunks that some pieces need, ascending."""
    if order.first is order.second:
        return np.flatnonzero(wanted)
    return np.union1d(order.first[wanted], order.second[wanted])


def _wave_size(job: VariableJob, places: Ints, most_done_nbytes: int | None) -> int:
    """The most chunks that are read together."""
    each = min(max(_WAVE_NBYTES // job.chunk_nbytes, 1), _WAVE_CHUNKS)
    if most_done_nbytes is not None and len(places):
        starts = job.order.first[job.order.edges[:-1]]
        per_tree = np.bincount(np.searchsorted(starts, places, side="right"))
        least = int(per_tree[per_tree > 0].min())
        each = min(each, max(most_done_nbytes // job.node_nbytes * least, 1))
    return each


_CLEAN_NBYTES: Final = 1 << 31
"""Most decoded bytes of a unit that goes on so that no chunk is read twice."""

_RESULT_NBYTES: Final = 1 << 24
"""Most bytes of the statistics of a unit, as they go through the scheduler."""

_END_LEVEL: Final = 64
"""The level of the end of a tree, which is above that of any subtree."""


class PieceRange(NamedTuple):
    """Some pieces of a variable that follow each other."""

    variable: int
    begin: int
    end: int


StatsUnit = tuple[PieceRange, ...]
"""The ranges whose statistics one task computes."""


def cut_units(
    jobs: list[VariableJob],
    wanted: Pieces,
    unit_nbytes: int,
    clean_nbytes: int,
    result_nbytes: int = _RESULT_NBYTES,
) -> list[StatsUnit]:
    """Cut pieces into units, in order.

    `clean_nbytes`: most decoded bytes of a unit, so that no chunk is read twice. `result_nbytes`:
    most bytes of its statistics.
    """
    units: list[StatsUnit] = []
    last: list[PieceRange] = []
    read_nbytes = last_nbytes = 0
    for job, pieces in zip(jobs, wanted, strict=True):
        for ranges, chunks_nbytes in _stretches(
            job, pieces, unit_nbytes, clean_nbytes, result_nbytes
        ):
            nodes_nbytes = job.node_nbytes * sum(num_nodes(job.order, span)[0] for span in ranges)
            read_nbytes += chunks_nbytes
            last_nbytes += nodes_nbytes
            # Small variables share a unit.
            if last and (read_nbytes > unit_nbytes or last_nbytes > result_nbytes):
                units.append(tuple(last))
                last, read_nbytes, last_nbytes = [], chunks_nbytes, nodes_nbytes
            last += ranges
    return [*units, tuple(last)] if last else units


def _stretches(
    job: VariableJob,
    wanted: NDArray[np.bool_],
    unit_nbytes: int,
    clean_nbytes: int,
    result_nbytes: int,
) -> Iterator[tuple[list[PieceRange], int]]:
    """The ranges of a variable between two cuts, and the decoded bytes of their chunks."""
    order, chunks = job.order, chunks_of(job.order, wanted)
    num = len(chunks)
    each = max(unit_nbytes // job.chunk_nbytes, 1)
    most = max(clean_nbytes // job.chunk_nbytes, each)
    most_trees = max(result_nbytes // job.node_nbytes, 1)
    # For each needed chunk before which may be cut: the first piece behind the cut, the pairs of
    # chunks across it, and the level of the largest subtree that may begin there.
    pieces = np.searchsorted(order.first, np.append(chunks, len(order.chunks)))
    twice = _pairs_across(order, chunks, wanted)
    trees = np.searchsorted(order.edges, pieces, side="right") - 1
    leaf = pieces - order.edges[trees]
    levels = np.where(leaf == 0, _END_LEVEL, np.log2(np.maximum(leaf & -leaf, 1))).astype(np.int64)
    begin = 0
    while begin < num:
        # The first chunk of the tree that a unit's result has no room for.
        tree, limit = int(trees[begin]) + most_trees, num
        if tree < len(order.edges) - 1:
            limit = int(np.searchsorted(chunks, order.first[order.edges[tree]]))
            limit = max(limit, begin + 1)
        end = last = min(begin + each, limit)
        if last < num:
            cuts = np.arange(min(begin + (each + 1) // 2, last), last + 1)
            end = int(cuts[np.lexsort((-cuts, -levels[cuts], twice[cuts]))[0]])
            is_clean = twice[last + 1 : min(begin + most, limit) + 1] == 0
            if twice[end] and is_clean.any():
                end = last + 1 + int(np.argmax(is_clean))
        lo, hi = pieces[[begin, end]].tolist()
        edges = np.flatnonzero(np.diff(wanted[lo:hi], prepend=False, append=False)) + lo
        if len(edges):
            spans = edges.reshape(-1, 2).tolist()
            ranges = [PieceRange(job.number, first, until) for first, until in spans]
            yield ranges, (end - begin) * job.chunk_nbytes
        begin = end


def _pairs_across(order: ChunkOrder, chunks: Ints, wanted: NDArray[np.bool_]) -> Ints:
    """For each cut, the pairs of chunks of which one lies on either side."""
    if order.first is order.second:
        return np.zeros(len(chunks) + 1, np.int64)
    pair = np.sort([order.first[wanted], order.second[wanted]], axis=0)
    low, high = np.searchsorted(chunks, pair)
    num = len(chunks) + 2
    steps = np.bincount(low + 1, minlength=num) - np.bincount(high + 1, minlength=num)
    return np.asarray(np.cumsum(steps)[:-1], np.int64)


def num_nodes(order: ChunkOrder, pieces: PieceRange) -> tuple[int, int]:
    """Number of subtrees that a range is merged to, and of those in trees that it cuts."""
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
    if end >= num_leaves:
        # The last leaf goes up alone, as if there were more of them.
        end = 1 << (num_leaves - 1).bit_length()
    # Subtrees grow up to the roundest number between the ends, and shrink after it.
    level = (begin ^ end).bit_length() - 1
    middle = end >> level << level
    return (middle - begin).bit_count() + (end - middle).bit_count()


_jobs_lock = threading.Lock()


def compute_unit(shared: tuple[StatsJob, int], unit: StatsUnit) -> tuple[Nodes, int]:
    """The statistics of a unit, and the number of reads, on one thread: the task of a worker.

    `shared`: the job, and the bytes of chunks that may be read at a time.
    """
    job, most_nbytes = shared
    with _jobs_lock:
        wanted = [np.zeros(sum(form.leaves), np.bool_) for form in job.forms]
    for number, begin, end in unit:
        wanted[number][begin:end] = True
    trees = StatsTrees(job.forms)
    sweep = StatsSweep(job, most_nbytes, 1)
    sweep.run(wanted, trees, lambda _: None)
    return trees.drain(), sweep.num_reads


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
        clean_nbytes = min(total // tasks.num_threads, _CLEAN_NBYTES)
        self._units = cut_units(job.jobs, wanted, unit_nbytes, clean_nbytes)
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
        shared = self._job, self._most_nbytes
        results = self._tasks.run("computing statistics", compute_unit, shared, self._units)
        with closing(results):
            for unit, (nodes, num_reads) in results:
                for tree, values in nodes.items():
                    for node, value in values.items():
                        trees.add(tree, node, value)
                self.num_reads += num_reads
                advance(self._num_chunks(unit))
                trees.flush()
