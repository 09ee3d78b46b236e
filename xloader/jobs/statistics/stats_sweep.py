"""The sweep of statistics: each chunk is read once, on threads, and merged in a fixed order."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint, Group
from xloader.core.merge_tree import MergeTree, Node
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.statistics.chunk_order import ChunkOrder
from xloader.jobs.statistics.chunk_reduction import ChunkElements, reduce_elements
from xloader.jobs.statistics.label_pairs import LeadPairs
from xloader.jobs.statistics.labelled_moments import LabelledMoments
from xloader.jobs.statistics.lead_pieces import LeadPieces, WaitingElements
from xloader.jobs.statistics.stats_options import StatsOptions
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable

_WAVE_NBYTES: Final = 1 << 29
_WAVE_CHUNKS: Final = 1 << 12
"""Decoded bytes and number of chunks that are asked for at a time."""

_MOMENTS_ITEMSIZE: Final = 48
_SKETCH_NBYTES: Final = 12_000
"""Bytes of the moments of a cell, and of a sketch."""

Tree = tuple[int, int]
Finished = Callable[[int, int, LabelledMoments], None]


@dataclass(frozen=True, eq=False)
class VariableJob:
    """The work on one variable.

    Parameters
    ----------
    number : int
        Its number in the result.
    stored : Variable
        The variable.
    group : Group
        The group of its chunks, for reading.
    order : ChunkOrder
        Its chunks in order.
    covered : CoveredElements
        The elements that samples need.
    clock : int, optional
        Its axis of time, if the options name one.
    leads : LeadPieces, optional
        Its differences along time.
    options : StatsOptions
        The options.
    """

    number: int
    stored: Variable
    group: Group
    order: ChunkOrder
    covered: CoveredElements
    clock: int | None
    leads: LeadPieces | None
    options: StatsOptions

    @property
    def node_nbytes(self) -> int:
        """Most bytes of the statistics of one place of the kept dimensions."""
        cells = math.prod(self.order.axes[axis].max_read_size for axis in self.order.kept)
        if self.clock is not None and self.options.labels is not None:
            cells *= len(self.options.labels)
        if self.leads is not None:
            cells *= len(self.options.leads)
        return cells * (_MOMENTS_ITEMSIZE + _SKETCH_NBYTES * bool(self.options.quantiles))

    @property
    def leaf_nbytes(self) -> int:
        """Most bytes of the statistics of one piece, which has few labels."""
        if self.clock is None or self.options.labels is None:
            return self.node_nbytes
        num = len(self.options.labels)
        return self.node_nbytes // num * min(num, self.order.axes[self.clock].max_read_size)

    @property
    def tree_nbytes(self) -> int:
        """Most bytes of the subtrees of one place that wait for siblings, and of the whole."""
        num = self.order.most_leaves
        return self.node_nbytes * (min(num, num.bit_length() + 1) + 1)

    def elements(self, chunk: ChunkValues) -> ChunkElements:
        """The elements of a chunk that count, with their weights and labels."""
        values = chunk.values
        cover = self.covered.of_box(chunk.begins, values.shape)
        if self.stored.packing is not None:
            values = self.stored.packing.unpack(values)
        dims, options = self.stored.dims, self.options
        parts = {
            dim: slice(begin, begin + size)
            for dim, begin, size in zip(dims, chunk.begins, values.shape, strict=True)
        }
        weights = None if options.weights is None else options.weights.along(dims, parts)
        rows = None
        if self.clock is not None and options.rows is not None:
            rows = options.rows[parts[dims[self.clock]]]
        return ChunkElements.of(values, cover, weights, rows)


class StatsSweep:
    """Reads chunks and merges their statistics.

    Parameters
    ----------
    recipe : Recipe
        The samples with one window over everything, for reading.
    windows_footprint : Footprint
        All chunks that may be read.
    jobs : list of VariableJob
        The variables.
    most_nbytes : int
        Decoded bytes that are read at a time.
    num_threads : int
        Number of threads.
    finished : callable, optional
        Is given the statistics of each tree that is complete, by number of variable and tree. By
        default, trees are kept until `drain`.
    most_done_nbytes : int, optional
        Most bytes of complete trees that one wave may add, besides one tree.
    """

    def __init__(
        self,
        recipe: Recipe,
        footprint: Footprint,
        jobs: list[VariableJob],
        most_nbytes: int,
        num_threads: int,
        finished: Finished | None = None,
        most_done_nbytes: int | None = None,
    ) -> None:
        self._jobs = jobs
        self._finished = finished
        self._most_done_nbytes = most_done_nbytes
        self._sweep = (recipe, footprint, most_nbytes, num_threads)
        self._lock = threading.Lock()
        self._trees: dict[Tree, MergeTree[LabelledMoments]] = {}
        self._waiting: dict[tuple[int, int], tuple[int, WaitingElements]] = {}
        self.num_reads = 0

    def run(
        self,
        pieces: list[NDArray[np.bool_]],
        advance: Callable[[], None],
        after_wave: Callable[[], None],
    ) -> None:
        """Read all chunks of some pieces.

        Parameters
        ----------
        pieces : list of numpy.ndarray of bool
            Per variable, the pieces that are wanted.
        advance : callable
            Is called for each chunk that is done, on any thread.
        after_wave : callable
            Is called from time to time while no thread is at work.

        Raises
        ------
        ChunkError
            If a chunk cannot be read.
        """
        with ChunkSweep(*self._sweep) as sweep:
            for job, wanted in zip(self._jobs, pieces, strict=True):
                places = chunks_of(job.order, wanted)
                for wave in _waves(job, places, self._most_done_nbytes):
                    tasks = self._tasks(sweep, job, wave, wanted, advance)
                    sweep.do(tasks)
                    after_wave()
            self.num_reads = sweep.num_reads

    def drain(self) -> dict[Tree, dict[Node, LabelledMoments]]:
        """The subtrees that were computed since the last call, which are forgotten here."""
        with self._lock:
            found = {tree: dict(own.nodes) for tree, own in self._trees.items()}
            self._trees.clear()
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the subtrees that are kept."""
        with self._lock:
            return sum(v.nbytes for tree in self._trees.values() for v in tree.nodes.values())

    def _tasks(
        self,
        sweep: ChunkSweep,
        job: VariableJob,
        wave: Ints,
        wanted: NDArray[np.bool_],
        advance: Callable[[], None],
    ) -> list[Any]:
        blocks = job.order.blocks(wave)
        begins = [
            axis.edges[blocks[:, number]].tolist() for number, axis in enumerate(job.order.axes)
        ]
        rows = zip(*begins, strict=True) if begins else [()] * len(wave)
        at = dict(zip(rows, wave.tolist(), strict=True))
        windowed = self._sweep[1].windows.dims
        places = [
            job.stored.dims.index(dim) if dim in job.stored.dims else None for dim in windowed
        ]
        read = [
            tuple(0 if place is None else row[place] for place in places) for row in blocks.tolist()
        ]

        def use(chunk: ChunkValues) -> None:
            self._use(job, at[chunk.begins], wanted, chunk)
            advance()

        return sweep.read(job.group, read, use)

    def _use(
        self, job: VariableJob, at: int, wanted: NDArray[np.bool_], chunk: ChunkValues
    ) -> None:
        elements = job.elements(chunk)
        for piece in job.order.pieces_of(at):
            if wanted[piece]:
                value = self._reduce(job, piece, at, elements)
                if value is not None:
                    self._add(job, piece, value)

    def _reduce(
        self, job: VariableJob, piece: int, at: int, elements: ChunkElements
    ) -> LabelledMoments | None:
        """The statistics of a piece; None if it waits for another chunk."""
        order, has_sketches = job.order, bool(job.options.quantiles)
        if job.leads is None:
            return reduce_elements(elements, order.kept, job.clock, has_sketches=has_sketches)
        assert job.clock is not None
        ends = int(order.first[piece]), int(order.second[piece])
        along = order.blocks(np.array(ends))[:, job.clock].tolist()
        reduce = partial(
            job.leads.reduce,
            clock=job.clock,
            piece=tuple(along),
            kept=order.kept,
            has_sketches=has_sketches,
        )
        if ends[0] == ends[1]:
            whole = WaitingElements(elements, 0)
            return reduce(whole, whole)
        key = job.number, piece
        side = ends.index(at)
        with self._lock:
            other = self._waiting.pop(key, None)
        if other is None:
            slab = job.leads.slab(elements, job.clock, tuple(along), side)
            with self._lock:
                other = self._waiting.pop(key, None)
                if other is None:
                    self._waiting[key] = side, slab
                    return None
        pair = [WaitingElements(elements, 0), WaitingElements(elements, 0)]
        pair[other[0]] = other[1]
        return reduce(*pair)

    def _add(self, job: VariableJob, piece: int, value: LabelledMoments) -> None:
        number = job.order.tree_of(piece)
        key = job.number, number
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                tree = MergeTree(job.order.num_leaves(number), LabelledMoments.merge)
                self._trees[key] = tree
        node = 0, piece - int(job.order.edges[number])
        while True:
            with self._lock:
                found = tree.offer(node, value)
                if found is None:
                    if self._finished is not None and tree.is_complete:
                        self._finished(*key, tree.result())
                        del self._trees[key]
                    return
            # Without the lock: moments of many cells take a while.
            node, first, second = found
            value = first.merge(second)


def chunks_of(order: ChunkOrder, wanted: NDArray[np.bool_]) -> Ints:
    """Places of the chunks that some pieces need, ascending."""
    if order.first is order.second:
        return np.flatnonzero(wanted)
    return np.union1d(order.first[wanted], order.second[wanted])


def _waves(job: VariableJob, places: Ints, most_done_nbytes: int | None) -> Iterator[Ints]:
    """The chunks in parts that are read together."""
    (demand,) = job.group.demands
    each = min(max(_WAVE_NBYTES // max(demand.max_chunk_nbytes, 1), 1), _WAVE_CHUNKS)
    if most_done_nbytes is not None and len(places):
        starts = job.order.first[job.order.edges[:-1]]
        per_tree = np.bincount(np.searchsorted(starts, places, side="right"))
        least = int(per_tree[per_tree > 0].min())
        each = min(each, max(most_done_nbytes // job.node_nbytes * least, 1))
    for begin in range(0, len(places), each):
        yield places[begin : begin + each]


def lead_pieces(
    leads: tuple[LeadPairs, ...], job_axes: Any, clock: int | None
) -> LeadPieces | None:
    """The differences of a variable along its axis of time, if there are any."""
    return LeadPieces(leads, job_axes[clock]) if leads and clock is not None else None


def waiting_nbytes(job: VariableJob) -> int:
    """Most bytes of values that wait for chunks with their later partners."""
    if job.leads is None or not job.order.most_open():
        return 0
    assert job.clock is not None
    cross = math.prod(
        axis.max_read_size for at, axis in enumerate(job.order.axes) if at != job.clock
    )
    each = job.leads.longest_slab() * cross * (job.stored.dtype.itemsize + 1)
    return each * (job.order.most_open() + 1)
