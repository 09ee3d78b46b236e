"""The sweep of statistics: each chunk is read once, on threads, and merged in a fixed order."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint, Group
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.statistics.chunk_reduction import (
    ChunkElements,
    ChunkOrder,
    LeadPieces,
    WaitingElements,
    reduce_elements,
)
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_options import StatsOptions
from xloader.jobs.statistics.stats_parts import StatsTrees
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable

_WAVE_NBYTES: Final = 1 << 29
_WAVE_CHUNKS: Final = 1 << 12
"""Decoded bytes and number of chunks that are asked for at a time."""

_MOMENTS_ITEMSIZE: Final = 48
_SKETCH_NBYTES: Final = 12_000
"""Bytes of the moments of a cell, and of a sketch."""

Pieces = Sequence[NDArray[np.bool_]]
"""For each variable, whether each of its pieces is meant."""


@dataclass(frozen=True, eq=False)
class VariableJob:
    """The work on one variable."""

    number: int
    stored: Variable
    group: Group
    order: ChunkOrder
    covered: CoveredElements
    clock: int | None
    leads: LeadPieces | None
    options: StatsOptions

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of its largest chunk; at least 1."""
        (demand,) = self.group.demands
        return max(demand.max_chunk_nbytes, 1)

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
        num = int(np.diff(self.order.edges).max(initial=1))
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
        return ChunkElements(values, cover.lines, cover.flags, weights, rows)


class StatsSweep:
    """Reads chunks on threads of this process, and adds their statistics to trees."""

    def __init__(
        self,
        recipe: Recipe,
        footprint: Footprint,
        jobs: list[VariableJob],
        most_nbytes: int,
        num_threads: int,
        most_done_nbytes: int | None = None,
    ) -> None:
        self._jobs = jobs
        self._most_done_nbytes = most_done_nbytes
        self._sweep = (recipe, footprint, most_nbytes, num_threads)
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], tuple[int, WaitingElements]] = {}
        self.num_reads = 0

    def num_chunks(self, wanted: Pieces) -> int:
        """Number of chunks that are read for some pieces of each variable."""
        pairs = zip(self._jobs, wanted, strict=True)
        return sum(len(chunks_of(job.order, pieces)) for job, pieces in pairs)

    def run(self, wanted: Pieces, trees: StatsTrees, advance: Callable[[], None]) -> None:
        """Read all chunks of some pieces.

        `advance`: is called for each chunk that is done, on any thread.
        """
        with ChunkSweep(*self._sweep) as sweep:
            for job, pieces in zip(self._jobs, wanted, strict=True):
                self._run_variable(sweep, job, pieces, trees, advance)
            self.num_reads = sweep.num_reads

    def _run_variable(
        self,
        sweep: ChunkSweep,
        job: VariableJob,
        wanted: NDArray[np.bool_],
        trees: StatsTrees,
        advance: Callable[[], None],
    ) -> None:
        def use(place_of: dict[tuple[int, ...], int], chunk: ChunkValues) -> None:
            elements, at = job.elements(chunk), place_of[chunk.begins]
            for piece in job.order.pieces_of(at):
                value = self._reduce(job, piece, at, elements) if wanted[piece] else None
                if value is not None:
                    trees.add_piece(job.number, piece, value)
            advance()

        stored, axes = job.stored.dims, job.order.axes
        windowed = self._sweep[1].windows.dims
        places = [stored.index(dim) if dim in stored else None for dim in windowed]
        for wave in _waves(job, chunks_of(job.order, wanted), self._most_done_nbytes):
            blocks = job.order.blocks(wave)
            begins = [axis.edges[blocks[:, n]].tolist() for n, axis in enumerate(axes)]
            rows = zip(*begins, strict=True) if begins else [()] * len(wave)
            at = dict(zip(rows, wave.tolist(), strict=True))
            read = [tuple(0 if n is None else row[n] for n in places) for row in blocks.tolist()]
            sweep.do(sweep.read(job.group, read, partial(use, at)))
            trees.flush()

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
            waiting = self._waiting.pop(key, None)
        if waiting is None:
            slab = job.leads.slab(elements, job.clock, tuple(along), side)
            with self._lock:
                waiting = self._waiting.pop(key, None)
                if waiting is None:
                    self._waiting[key] = side, slab
                    return None
        pair = [WaitingElements(elements, 0), WaitingElements(elements, 0)]
        pair[waiting[0]] = waiting[1]
        return reduce(*pair)


def chunks_of(order: ChunkOrder, wanted: NDArray[np.bool_]) -> Ints:
    """Places of the chunks that some pieces need, ascending."""
    if order.first is order.second:
        return np.flatnonzero(wanted)
    return np.union1d(order.first[wanted], order.second[wanted])


def _waves(job: VariableJob, places: Ints, most_done_nbytes: int | None) -> Iterator[Ints]:
    """The chunks in parts that are read together."""
    each = min(max(_WAVE_NBYTES // job.chunk_nbytes, 1), _WAVE_CHUNKS)
    if most_done_nbytes is not None and len(places):
        starts = job.order.first[job.order.edges[:-1]]
        per_tree = np.bincount(np.searchsorted(starts, places, side="right"))
        least = int(per_tree[per_tree > 0].min())
        each = min(each, max(most_done_nbytes // job.node_nbytes * least, 1))
    for begin in range(0, len(places), each):
        yield places[begin : begin + each]


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
