"""A job over chunks: each is read once, and what is made of them is merged in a fixed order.

A new job has a class of what it makes of chunks (with `merge`, `nbytes`, `to_bytes` and
`from_bytes`), the form of its result (`TreeForm`), and the work on each variable (`SweptVariable`).
`SweptRun` does the rest: it reads on threads of this process (`ThreadSweep`), or cuts the pieces
into units, of which each task on a cluster sweeps one (`ClusterSweep`); writes what is done every
few seconds; and goes on with that after a kill.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks, find_cluster
from xloader.core.axis import Ints
from xloader.core.cores import usable_cores
from xloader.core.footprint import Footprint, Group
from xloader.core.messages import warn_caller
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_part, check_threads
from xloader.errors import EmptySamplesError, OptionError
from xloader.jobs.chunk_sweep import (
    ChunkOrder,
    ChunkSweep,
    ChunkValues,
    check_memory,
    group_of,
    needed_chunks,
    whole_recipe,
)
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.kept_result import KeptResult
from xloader.jobs.merge_trees import Leaves, MergeTrees, Nodes, TreeForm, TreeParts, write_merged
from xloader.jobs.progress_bar import ProgressBar, is_shown
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable

Pieces = Sequence[NDArray[np.bool_]]
"""For each variable, whether each of its pieces is meant."""

Reducer = Callable[[ChunkValues, int, NDArray[np.bool_]], Iterable[tuple[int, Any]]]
"""Yields the wanted pieces that a chunk completes, with what is made of them. It is called with the
chunk, its place in the order and whether each piece is wanted, on any thread."""


@dataclass(frozen=True, eq=False)
class SweptVariable:
    """The work on one variable."""

    number: int
    stored: Variable
    group: Group
    covered: CoveredElements
    order: ChunkOrder

    @property
    def node_nbytes(self) -> int:
        """Most bytes of what is made of one place of the kept dimensions."""
        raise NotImplementedError

    @property
    def work_nbytes(self) -> int:
        """Bytes that a thread takes for the largest chunk, and for merging what it makes of it."""
        raise NotImplementedError

    def reducer(self) -> Reducer:
        """The function that turns chunks into values to merge, for one pass over the variable."""
        raise NotImplementedError

    @property
    def waiting_nbytes(self) -> int:
        """Most bytes of values that wait for other chunks of their pieces."""
        return 0

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of its largest chunk; at least 1."""
        (demand,) = self.group.demands
        return max(demand.max_chunk_nbytes, 1)

    @property
    def tree_nbytes(self) -> int:
        """Most bytes of the subtrees of one place that wait for siblings, and of the whole."""
        num = int(np.diff(self.order.edges).max(initial=1))
        return self.node_nbytes * (min(num, num.bit_length() + 1) + 1)


_FLUSH_NBYTES: Final = 1 << 26
_FLUSH_NODES: Final = 16
"""Subtrees are written when they take so many bytes or nodes."""


class SweptMemory:
    """The memory that a job takes.

    `work_nbytes`: most bytes that a thread takes for a chunk, and for merging what it makes of it.
    """

    def __init__(self, jobs: Sequence[SweptVariable], form_type: type[TreeForm]) -> None:
        self._jobs = jobs
        self._form_type = form_type
        most = max(job.node_nbytes for job in jobs)
        self.flush_nbytes = min(_FLUSH_NBYTES, _FLUSH_NODES * most)
        self.work_nbytes = max(job.work_nbytes for job in jobs)
        self.tree_nbytes = max(job.tree_nbytes for job in jobs)
        self.under_way_nbytes = max(job.tree_nbytes + job.waiting_nbytes for job in jobs)
        self.max_chunk_nbytes = max(job.chunk_nbytes for job in jobs)

    def nodes_nbytes(self, wanted: Pieces) -> int:
        """Bytes of what is made of some pieces of each variable, merged as far as it goes."""
        nbytes = 0
        for job, pieces in zip(self._jobs, wanted, strict=True):
            trees = np.searchsorted(job.order.edges, np.flatnonzero(pieces), side="right")
            nbytes += job.node_nbytes * len(np.unique(trees))
        return nbytes

    def most_read_nbytes(self, memory_nbytes: int, kept_nbytes: int, least_nbytes: int = 0) -> int:
        """Decoded bytes of chunks that may be read at a time."""
        self.check(memory_nbytes, max(kept_nbytes + self.work_nbytes, least_nbytes))
        return (memory_nbytes - kept_nbytes) * self.max_chunk_nbytes // self.work_nbytes

    def check(self, memory_nbytes: int, least_nbytes: int, num_shares: int = 1) -> None:
        """Refuse a memory that is too small."""
        what = f"the {self._form_type.noun} under way, the result and a chunk at work"
        check_memory(what, memory_nbytes, least_nbytes, self._form_type.smaller, num_shares)


@dataclass(frozen=True, eq=False)
class SweptJob:
    """A job over the chunks that samples need.

    It pickles as its arguments. Each worker of a cluster finds the chunks once.
    """

    form_type: ClassVar[type[TreeForm]]

    recipe: Recipe

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, option.name) for option in fields(self))

    @cached_property
    def jobs(self) -> Sequence[SweptVariable]:
        """The work on each variable."""
        raise NotImplementedError

    @cached_property
    def template(self) -> TreeForm:
        """The form of the result."""
        raise NotImplementedError

    @cached_property
    def layouts(self) -> tuple[FieldLayout, ...]:
        """The fields of the samples; none without windows."""
        return () if self.recipe.windows is None else make_layouts(self.recipe)

    @cached_property
    def names(self) -> list[str]:
        """The variables that are read, in the order of the store."""
        return _variables(self.recipe, self.layouts)

    @cached_property
    def whole(self) -> Recipe:
        """One window over all elements of the variables."""
        return whole_recipe(self.recipe, self.names)

    @cached_property
    def reading(self) -> Footprint:
        """The chunks of the variables."""
        groups = tuple(group_of(self.whole, name) for name in self.names)
        return Footprint(self.whole.require_windows(), groups)

    def needed(self) -> Iterator[tuple[tuple[int, Variable, Group, CoveredElements], Ints]]:
        """Per variable: its number, itself, its chunks and elements; and the chunks to read."""
        recipe = self.recipe
        footprint = None if recipe.windows is None else make_footprint(recipe, self.layouts)
        pairs = zip(self.names, self.reading.groups, strict=True)
        for number, (name, group) in enumerate(pairs):
            covered = CoveredElements(recipe, self.layouts, name)
            variable = number, recipe.variable(name), group, covered
            yield variable, needed_chunks(recipe, footprint, name)

    def digests(self, options: str) -> dict[str, str]:
        """The fingerprint of the result."""
        # Transforms change nothing that is stored.
        samples = replace(self.recipe, steps=()).fingerprint
        return {"data": self.recipe.source.fingerprint, "samples": samples, "options": options}

    @cached_property
    def leaves(self) -> Leaves:
        """For each variable, the number of pieces of each of its trees."""
        return tuple(tuple(np.diff(job.order.edges).tolist()) for job in self.jobs)

    @cached_property
    def memory(self) -> SweptMemory:
        """The memory that it takes."""
        return SweptMemory(self.jobs, self.form_type)

    def all_pieces(self) -> Pieces:
        """Per variable, all of its pieces."""
        return [np.ones(job.order.num_pieces, np.bool_) for job in self.jobs]


def _variables(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> list[str]:
    """The variables that samples need, or all that hold numbers, in the order of the store."""
    if recipe.windows is None:
        taken = {name for name in recipe.variables if recipe.variable(name).dtype.kind in "biuf"}
    else:
        taken = {part.variable for layout in layouts for part in layout.parts}
    names = [name for name in recipe.variables if name in taken]
    empty = [
        name for name in names if not math.prod(len(a.selection) for a in recipe.axes_of(name))
    ]
    if not names or empty:
        raise EmptySamplesError(
            f"the variable {empty[0]!r} has no elements" if empty else "no variable holds numbers",
            given=list(recipe.variables),
            remedy="open other variables, or select more of them",
        )
    return names


_WAVE_NBYTES: Final = 1 << 29
_WAVE_CHUNKS: Final = 1 << 12
"""Decoded bytes and number of chunks that are asked for at a time."""

_FIRST_WAVE: Final = 64
_WAVE_SECONDS: Final = 10.0
"""Chunks that are read before anything may be written, and time until the next."""


class ThreadSweep:
    """Reads chunks on threads of this process, and adds what is made of them to trees.

    `most_done_nbytes`: bytes after which they are written; None if they stay in memory.
    """

    def __init__(
        self,
        job: SweptJob,
        most_nbytes: int,
        num_threads: int,
        most_done_nbytes: int | None = None,
    ) -> None:
        self._jobs = job.jobs
        self._most_done_nbytes = most_done_nbytes
        self._windowed = job.reading.windows.dims
        self._sweep = ChunkSweep(job.whole, job.reading, most_nbytes, num_threads)
        self.num_reads = 0

    def num_chunks(self, wanted: Pieces) -> int:
        """Number of chunks that are read for some pieces of each variable."""
        pairs = zip(self._jobs, wanted, strict=True)
        return sum(len(chunks_of(job.order, pieces)) for job, pieces in pairs)

    def run(self, wanted: Pieces, trees: MergeTrees, advance: Callable[[int], None]) -> None:
        """Read all chunks of some pieces.

        `advance`: is called for each chunk that is done, on any thread.
        """
        with self._sweep:
            for job, pieces in zip(self._jobs, wanted, strict=True):
                self._run_variable(job, pieces, trees, advance)
        self.num_reads = self._sweep.num_reads

    def _run_variable(
        self,
        job: SweptVariable,
        wanted: NDArray[np.bool_],
        trees: MergeTrees,
        advance: Callable[[int], None],
    ) -> None:
        order, reduce = job.order, job.reducer()

        def use(place_of: dict[tuple[int, ...], int], chunk: ChunkValues) -> None:
            for piece, value in reduce(chunk, place_of[chunk.begins], wanted):
                tree = order.tree_of(piece)
                trees.add((job.number, tree), (0, piece - int(order.edges[tree])), value)
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


def chunks_of(order: ChunkOrder, pieces: NDArray[np.bool_] | slice) -> Ints:
    """Places of the chunks that some pieces need, ascending."""
    first, second = order.first[pieces], order.second[pieces]
    return first if order.first is order.second else np.union1d(first, second)


def _wave_size(job: SweptVariable, places: Ints, most_done_nbytes: int | None) -> int:
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
"""Most bytes of what is made of a unit, as it goes through the scheduler."""

_END_LEVEL: Final = 64
"""The level of the end of a tree, which is above that of any subtree."""


class PieceRange(NamedTuple):
    """Some pieces of a variable that follow each other."""

    variable: int
    begin: int
    end: int


SweptUnit = tuple[PieceRange, ...]
"""The ranges of which one task makes something."""


def cut_units(
    jobs: Sequence[SweptVariable],
    wanted: Pieces,
    unit_nbytes: int,
    clean_nbytes: int,
    result_nbytes: int = _RESULT_NBYTES,
) -> list[SweptUnit]:
    """Cut pieces into units, in order.

    `clean_nbytes`: most decoded bytes of a unit, so that no chunk is read twice. `result_nbytes`:
    most bytes of what is made of it.
    """
    units: list[SweptUnit] = []
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
    job: SweptVariable,
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


def compute_unit(shared: tuple[SweptJob, int], unit: SweptUnit) -> tuple[Nodes, int]:
    """The subtrees of a unit, and the number of reads, on one thread: the task of a worker.

    `shared`: the job, and the bytes of chunks that may be read at a time.
    """
    job, most_nbytes = shared
    with _jobs_lock:
        wanted = [np.zeros(sum(leaves), np.bool_) for leaves in job.leaves]
    for number, begin, end in unit:
        wanted[number][begin:end] = True
    trees = MergeTrees(job.leaves)
    sweep = ThreadSweep(job, most_nbytes, 1)
    sweep.run(wanted, trees, lambda _: None)
    return trees.drain(), sweep.num_reads


class ClusterSweep:
    """Does a job by tasks on a cluster, as `ThreadSweep` does on threads."""

    def __init__(self, job: SweptJob, tasks: ClusterTasks, wanted: Pieces) -> None:
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
        memory.check(memory_nbytes, max(here, worker), shares if worker > here else 1)
        self._most_nbytes = memory.most_read_nbytes(memory_nbytes // shares, kept)

    def _nodes_nbytes(self, unit: SweptUnit) -> tuple[int, int]:
        """Bytes of what is made of a unit, and of that of trees that it does not complete."""
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

    def _num_chunks(self, unit: SweptUnit) -> int:
        pairs = ((self._job.jobs[number].order, slice(*span)) for number, *span in unit)
        return sum(len(chunks_of(order, pieces)) for order, pieces in pairs)

    def run(self, wanted: Pieces, trees: MergeTrees, advance: Callable[[int], None]) -> None:
        """Do the work of the pieces."""
        shared = self._job, self._most_nbytes
        what = f"computing {self._job.form_type.noun}"
        results = self._tasks.run(what, compute_unit, shared, self._units)
        with closing(results):
            for unit, (nodes, num_reads) in results:
                for tree, values in nodes.items():
                    for node, value in values.items():
                        trees.add(tree, node, value)
                self.num_reads += num_reads
                advance(self._num_chunks(unit))
                trees.flush()


_WRITE_RATIO: Final = 3
"""How many times its bytes a result takes while it is written."""


@dataclass(eq=False)
class SweptRun:
    """A job, and how it is done.

    `part`: the number of a part of the job and the number of parts; None for all of it.
    """

    job: SweptJob
    memory: int | str = "2GiB"
    threads: int | None = None
    progress: bool | None = None
    part: tuple[int, int] | None = None
    client: Any = None

    def __post_init__(self) -> None:
        self._num_threads = check_threads(self.threads) or usable_cores()
        self._memory_nbytes = parse_nbytes(self.memory)
        is_shown(self.progress)
        # Wrong options of the job are refused before workers are looked for.
        _ = self.job.jobs
        if self.part is None:
            self._tasks = find_cluster(self.client, self.job)
            return
        self.part, self._tasks = check_part(self.part), None
        if self.client is not None and self.client is not False:
            raise OptionError(
                f"a part of the {self.job.form_type.noun} is computed by one process, without a "
                "cluster",
                given=f"part={self.part} together with client= or --scheduler",
                remedy="leave part out: the cluster divides the work itself",
            )

    def in_memory(self) -> xr.Dataset:
        """The result."""
        job, form = self.job, self.job.template
        result = form.result_type(form)
        self._compute(MergeTrees(job.leaves, result.put), job.all_pieces(), form.nbytes)
        return form.whole(result)

    def part_in_memory(self) -> tuple[Nodes, int]:
        """The subtrees of a part, and the number of chunks read."""
        job, wanted = self.job, self._share(self.job.all_pieces())
        trees = MergeTrees(job.leaves)
        num_reads = self._compute(trees, wanted, job.memory.nodes_nbytes(wanted))
        return trees.drain(), num_reads

    def in_files(
        self, kept: KeptResult[Any], *, overwrite: bool = False
    ) -> tuple[xr.Dataset | None, int]:
        """The result, after the work on the pieces that no file beside the target has yet.

        None for a part. Also the number of chunks read.
        """
        job, form = self.job, self.job.template

        def do() -> tuple[xr.Dataset | None, int]:
            parts = kept.open_parts(form, TreeParts, overwrite=overwrite)
            wanted = self._share(form.pieces_without(parts.nodes()[0]))
            flush_nbytes = job.memory.flush_nbytes
            trees = MergeTrees(job.leaves, None, parts, flush_nbytes)
            kept_nbytes = min(2 * flush_nbytes, job.memory.nodes_nbytes(job.all_pieces()))
            least = _WRITE_RATIO * form.nbytes * (self.part is None)
            num_reads = self._compute(trees, wanted, kept_nbytes, least, flush_nbytes)
            if self.part is not None:
                return None, num_reads
            return write_merged(kept, overwrite=overwrite), num_reads

        finished, done = kept.finished_or(form.stamp, do, overwrite=overwrite)
        if done is not None:
            return done
        # Fingerprints do not look at values.
        warn_caller(
            f"the result of this job lies at {kept.target} already, and is returned as it is. If "
            "values in the data have changed since, pass overwrite=True",
            form.warning,
        )
        return finished, 0

    def _share(self, pieces: Pieces) -> Pieces:
        """Of some pieces of each variable, those of this part of the job."""
        number, count = self.part or (0, 1)
        shares = []
        for several in pieces:
            chosen, size = np.zeros_like(several), len(several)
            chosen[size * number // count : size * (number + 1) // count] = True
            shares.append(chosen & several)
        return shares

    def _compute(
        self,
        trees: MergeTrees,
        wanted: Pieces,
        kept_nbytes: int,
        least_nbytes: int = 0,
        flush_nbytes: int | None = None,
    ) -> int:
        """Do the work of some pieces; the number of chunks read.

        `flush_nbytes`: bytes after which they are written; None if they stay in memory.
        """
        way: ThreadSweep | ClusterSweep
        if self._tasks is None:
            memory = self.job.memory
            kept_nbytes += memory.under_way_nbytes
            most_nbytes = memory.most_read_nbytes(self._memory_nbytes, kept_nbytes, least_nbytes)
            way = ThreadSweep(self.job, most_nbytes, self._num_threads, flush_nbytes)
        else:
            way, is_flushed = ClusterSweep(self.job, self._tasks, wanted), flush_nbytes is not None
            way.check_memory(self._memory_nbytes, kept_nbytes, least_nbytes, is_flushed=is_flushed)
        title = self.job.form_type.noun.capitalize()
        with ProgressBar(title, way.num_chunks(wanted), self.progress) as bar:
            try:
                way.run(wanted, trees, bar.advance)
            finally:
                # Also after an error: what has been computed need not be computed again.
                trees.flush(is_last=True)
        return way.num_reads
