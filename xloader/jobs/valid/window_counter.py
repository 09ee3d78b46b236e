"""Counts of valid elements by window.

Chunks are read along one dimension, the *sweep*. Each adds the number of its valid elements to all
windows that it reaches into. Windows that no later chunk reaches are complete: they become one bit
each, and their counts are forgotten::

    sweep      ----------------------------------------->
    chunks     | read      | read      | being read | ...
    windows    1 0 1 1 1 0 1 1 | 40 38 12 7 ...          bits | counts of windows under way

On a cluster, each task counts a part of the sweep. It gives the bits of the windows that only its
own chunks reach, and counts of those at its borders, which are added up here::

    task 0     1 0 1 1 0 | 31 17                bits | counts
    task 1                  9 23 | 1 1 0 1
    mask       1 0 1 1 0   1  1    1 1 0 1      counts of 40 of 40 elements are valid
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.axis import Ints, int_dtype
from xloader.core.element_ranges import Span
from xloader.core.window_sets import BitPacker, WindowBits
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues, check_memory
from xloader.jobs.valid.sweep_line import (
    BlockLine,
    SampleCheck,
    SweepUnit,
    cut_sweep,
    may_hold_nan,
    sum_windows,
)
from xloader.jobs.wanted_elements import MaskArgument, WantedElements, cut_along, placed_along
from xloader.recipe.layout import FieldPart

_PIECE_SIZE = 1 << 16
"""Number of windows or samples that are handled in one call."""

_WORK_ITEMSIZE = 24
"""Bytes for each element of a chunk, beside its values, while its valid elements are summed."""

_NUM_COPIES = 2
"""Counts are copied when there come more of them; those at both borders of a unit are kept."""

Counts = dict[tuple[int, tuple[int, ...]], Ints]
"""By field and axes of variables, counts of windows, whose dimensions are those of `Places`; of
size 1 along the other axes, where all windows have the same count. Counts along y and counts along
x are kept apart: their sum would be as large as y times x."""


@dataclass(frozen=True, eq=False)
class CountedPart:
    """The valid elements of one variable of a field.

    `spans`: by dimension of `Places`. `weight`: how often each element occurs in the field.
    """

    field: int
    variable: str
    spans: dict[int, Span]
    weight: int

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """Where its elements are counted."""
        return self.field, tuple(self.spans)


def least_count(total: int, at_least: float) -> int:
    """The smallest count whose share of ``total`` is at least ``at_least``."""
    # A product such as 0.07 * 100 is rounded up beyond 7, so that shares are compared.
    count = min(math.ceil(at_least * total), total)
    while count and (count - 1) / total >= at_least:
        count -= 1
    return count


class WindowCounter:
    """Counts valid elements, and packs complete windows into bits.

    `alone`: the windows that become bits; the counts of others are kept. `first`: the first window
    that has counts.
    """

    def __init__(
        self,
        check: SampleCheck,
        wanted: WantedElements | None = None,
        alone: tuple[int, int] | None = None,
        first: int = 0,
    ) -> None:
        self.check, self.wanted = check, wanted
        self._places = check.places
        self._alone = alone or (0, self._places.shape[0])
        self._first = first
        # Number of windows at each position along the sweep.
        self._num_below = math.prod(self._places.shape[1:])
        totals = [math.prod(layout.shape) for layout in check.layouts]
        self._dtype = int_dtype(max(totals))
        self._least = [least_count(total, check.at_least) for total in totals]
        self._read_parts: list[CountedPart] = []
        self._masked_parts: list[CountedPart] = []
        for number, layout in enumerate(check.layouts):
            for part in layout.parts:
                self._add_part(number, part)
        self.static = self._zeros(is_static=True)
        """Counts of variables without the sweep dimension, which all windows along it share."""
        self._moving = self._zeros(is_static=False)
        self.head = self._take(first, first)
        """Counts of the windows before those that become bits."""
        self._lock = threading.Lock()
        self.packer = BitPacker((self._alone[1] - self._alone[0]) * self._num_below)

    def _add_part(self, number: int, part: FieldPart) -> None:
        recipe, name, places = self.check.recipe, part.variable, self._places
        dims = recipe.dims_of(name)
        size = math.prod(side.stop - side.start for side in part.box)
        is_read = may_hold_nan(recipe, name)
        if not is_read:
            if self.wanted is None or not set(self.wanted.dims) <= set(dims):
                # Its elements are valid in any case.
                self._least[number] -= size
                return
            dims = self.wanted.dims
        spans = {
            axis: span
            for axis, dim in enumerate(places.dims)
            if dim in dims and (span := part.accesses[places.order[axis]]) is not None
        }
        whole_sizes = [recipe.dim_sizes[dim] for dim in dims if dim not in places.dims]
        once = math.prod(whole_sizes) * math.prod(span[2] for span in spans.values())
        parts = self._read_parts if is_read else self._masked_parts
        parts.append(CountedPart(number, name, spans, size // once))

    def _zeros(self, *, is_static: bool) -> Counts:
        """Counts for the variables without the sweep dimension, or for no window of the others."""
        counts, shape = {}, self._places.shape
        for part in self._read_parts:
            if is_static == (0 not in part.spans):
                sizes = [n if axis in part.spans else 1 for axis, n in enumerate(shape)]
                counts[part.key] = np.zeros([int(is_static), *sizes[1:]], self._dtype)
        return counts

    def counts_nbytes(self) -> tuple[int, int]:
        """Bytes of all counts: those in any case, and those for each window along the sweep."""
        unit = sum(math.prod(counts.shape[1:]) for counts in self._moving.values())
        fixed = sum(counts.nbytes for counts in self.static.values())
        return fixed, self._dtype.itemsize * unit

    def check_memory(self, memory_nbytes: int, num_tasks: int | None = None) -> None:
        """Check that the memory is enough for one chunk, and for the counts that it adds to."""
        footprint = self.check.footprint
        assert footprint is not None
        at_work = math.ceil(footprint.max_chunk_nbytes * self._work_ratio)
        fixed, unit = self.counts_nbytes()
        copies = _NUM_COPIES if num_tasks is None else 2 * _NUM_COPIES
        least = max(at_work, fixed + copies * unit * self._places.num_along)
        count = num_tasks or 1
        what = "one chunk at work and the counts of the windows that it reaches into"
        remedy = "call is_valid with a larger stride, or on fewer samples"
        check_memory(what, memory_nbytes, 2 * count * least, remedy, count)

    @cached_property
    def _work_ratio(self) -> float:
        """Bytes at work for each decoded byte of a chunk, while its valid elements are summed."""
        ratios = []
        for variable in {part.variable for part in self._read_parts}:
            stored = self.check.recipe.variable(variable)
            unpacked = 0 if stored.packing is None else stored.dtype.itemsize
            ratios.append(1 + (unpacked + _WORK_ITEMSIZE) / stored.stored_dtype.itemsize)
        return max(ratios)

    def read(
        self, line: BlockLine, memory_nbytes: int, num_threads: int, unit: SweepUnit | None = None
    ) -> int:
        """Read chunks and count their elements, and return the number of chunks."""
        footprint = self.check.footprint
        assert footprint is not None
        fixed, unit_nbytes = self.counts_nbytes()
        half, num_along = memory_nbytes // 2, self._places.num_along
        kept = 0 if unit is None else _NUM_COPIES * unit_nbytes * num_along
        most_along = max((half - fixed - kept) // max(_NUM_COPIES * unit_nbytes, 1), num_along)
        most_nbytes = int(half / self._work_ratio)
        share = (0, 1) if unit is None else unit.share
        with ChunkSweep(self.check.recipe, footprint, most_nbytes, num_threads) as sweep:
            for wave, complete in line.waves(most_along):
                self._reserve(int(wave.hi.max()))
                tasks = [
                    task
                    for group, blocks in wave.by_group()
                    for task in sweep.read(group, blocks, self._count, share)
                ]
                sweep.do(tasks)
                if complete is not None:
                    self.complete(complete)
        return sweep.num_reads

    def _count(self, chunk: ChunkValues) -> None:
        """Add the valid elements of a chunk to the counts of all windows that it reaches into."""
        variable, wanted = self.check.recipe.variable(chunk.variable), self.wanted
        values, dims = chunk.values, variable.dims
        if variable.packing is not None:
            values = variable.packing.unpack(values)
        is_valid = ~np.isnan(values)
        begins = dict(zip(dims, chunk.begins, strict=True))
        if wanted is not None and set(wanted.dims) <= set(dims):
            sizes = zip(dims, values.shape, strict=True)
            box = {dim: slice(begins[dim], begins[dim] + size) for dim, size in sizes}
            is_valid &= cut_along(wanted.flags, wanted.dims, dims, box)
        sums = self._along_windows(is_valid, dims)
        del is_valid, values
        for part in self._read_parts:
            if part.variable == chunk.variable:
                self._add_chunk(part, sums, begins)

    def _along_windows(self, flags: NDArray[np.bool_], dims: tuple[str, ...]) -> Ints:
        """How many flags are set, along the dimensions of `Places`."""
        windowed = self._places.dims
        whole_axes = tuple(axis for axis, dim in enumerate(dims) if dim not in windowed)
        sums = np.add.reduce(flags, axis=whole_axes, dtype=int_dtype(flags.size))
        kept = tuple(dim for dim in dims if dim in windowed)
        return placed_along(np.asarray(sums), kept, windowed)

    def _add_chunk(self, part: CountedPart, sums: Ints, begins: dict[str, int]) -> None:
        """Add the valid elements of a chunk, by element along its windowed dimensions."""
        box = [slice(None)] * sums.ndim
        for axis, span in part.spans.items():
            line, begin = self._places.lines[axis], begins[self._places.dims[axis]]
            bounds = np.array(begin), np.array(begin + sums.shape[axis])
            lo, hi = map(int, line.touching(*bounds, span))
            if lo >= hi:
                return
            sums = sum_windows(sums, axis, begin, line.starts(lo, hi), span)
            shift = 0 if axis else self._first
            box[axis] = slice(lo - shift, hi - shift)
        if part.weight > 1:
            sums = np.multiply(sums, part.weight, dtype=self._dtype)
        counts = (self._moving if 0 in part.spans else self.static)[part.key]
        with self._lock:
            counts[tuple(box)] += sums

    def _reserve(self, end: int) -> None:
        """Make room for the counts of windows up to ``end`` along the sweep."""
        for key, counts in self._moving.items():
            missing = end - self._first - len(counts)
            if missing > 0:
                more = np.zeros((missing, *counts.shape[1:]), counts.dtype)
                self._moving[key] = np.concatenate([counts, more])

    def _take(self, begin: int, end: int) -> Counts:
        """A copy of the counts of some windows along the sweep."""
        taken = {}
        for key, counts in self._moving.items():
            # No chunk that is needed may reach into some windows, so no room was made for them.
            taken[key] = np.zeros((end - begin, *counts.shape[1:]), counts.dtype)
            known = counts[begin - self._first : end - self._first]
            taken[key][: len(known)] = known
        return taken

    def _drop(self, end: int) -> None:
        """Forget the counts of the windows up to ``end`` along the sweep, which are done."""
        if end > self._first:
            for key, counts in self._moving.items():
                self._moving[key] = counts[end - self._first :].copy()
            self._first = end

    def complete(self, end: int) -> None:
        """Pack the windows up to ``end`` along the sweep into bits, and forget their counts."""
        if self._first < self._alone[0] <= end:
            self.head = self._take(self._first, self._alone[0])
            self._drop(self._alone[0])
        end = min(end, self._alone[1])
        if self._first < self._alone[0]:
            return
        step = max(_PIECE_SIZE // self._num_below, 1)
        for begin in range(self._first, end, step):
            until = min(begin + step, end)
            flags = np.ones((until - begin, *self._places.shape[1:]), np.bool_)
            taken = self._take(begin, until) | self.static
            for field, least in enumerate(self._least):
                counts = [taken[key] for key in taken if key[0] == field]
                masked = (part for part in self._masked_parts if part.field == field)
                counts.extend(self._masked(part, begin, until) for part in masked)
                flags &= sum(counts) >= least
            self.packer.add(flags.reshape(-1))
        self._drop(end)

    @cached_property
    def _wanted_sums(self) -> Ints:
        assert self.wanted is not None
        return self._along_windows(self.wanted.flags, self.wanted.dims)

    def _masked(self, part: CountedPart, begin: int, end: int) -> Ints:
        """The wanted elements of windows, of a variable that holds no NaN."""
        sums = self._wanted_sums
        for axis, span in part.spans.items():
            line = self._places.lines[axis]
            starts = line.starts(0, len(line)) if axis else line.starts(begin, end)
            first = int(starts[0]) + span[0]
            last = int(starts[-1]) + span[0] + span[1] * (span[2] - 1)
            box = (slice(None),) * axis + (slice(first, last + 1),)
            sums = sum_windows(sums[box], axis, first, starts, span)
        return np.multiply(sums, part.weight, dtype=self._dtype)

    def tail(self, end: int) -> Counts:
        """Counts of the windows up to ``end`` that did not become bits."""
        return self._take(self._first, max(end, self._first))

    def add_unit(self, unit: SweepUnit, counts: UnitCounts) -> None:
        """Add the counts of a unit, once those of all units before it are added."""
        for key, static in counts.static.items():
            self.static[key] += static
        self._add_counts(unit.first, counts.head)
        self.complete(unit.alone[0])
        for begin in range(0, counts.bits.size, _PIECE_SIZE):
            end = min(begin + _PIECE_SIZE, counts.bits.size)
            self.packer.add(counts.bits.flags(begin, end))
        self._drop(unit.alone[1])
        self._add_counts(unit.alone[1], counts.tail)
        self.complete(unit.done)

    def _add_counts(self, begin: int, added: Counts) -> None:
        for key, counts in added.items():
            self._reserve(begin + len(counts))
            first = begin - self._first
            self._moving[key][first : first + len(counts)] += counts


def count_valid(
    check: SampleCheck,
    argument: MaskArgument | None,
    memory_nbytes: int,
    num_threads: int,
    tasks: ClusterTasks | None,
) -> tuple[WindowBits, int]:
    """Find the samples of which enough elements are valid, in each field; and the reads."""
    wanted, num_reads = None, 0
    if argument is not None:
        if tasks is not None and isinstance(argument.mask, str):
            wanted = tasks.call("reading the mask", argument.read, memory_nbytes, 1)
        else:
            wanted = argument.read(memory_nbytes, num_threads)
        num_reads = wanted.num_reads
        memory_nbytes -= wanted.flags.nbytes
    counter = WindowCounter(check, wanted)
    if check.footprint is not None and tasks is None:
        counter.check_memory(memory_nbytes)
        num_reads += counter.read(check.line, memory_nbytes, num_threads)
    elif check.footprint is not None and tasks is not None:
        counter.check_memory(memory_nbytes, tasks.most_threads_of_worker)
        num_reads += _count_units(counter, memory_nbytes, tasks)
    counter.complete(check.places.shape[0])
    return _of_samples(check, counter.packer.bits()), num_reads


@dataclass(frozen=True, eq=False)
class CountTask:
    """A part of the sweep as it is counted by one task.

    `static`: None for the tasks that read these.
    """

    check: SampleCheck
    wanted: WantedElements | None
    memory_nbytes: int
    static: Counts | None = None


@dataclass(frozen=True, eq=False)
class UnitCounts:
    """The counts of one task: of the windows before those that it has alone, and after them."""

    num_reads: int
    head: Counts
    bits: WindowBits
    tail: Counts
    static: Counts


def count_unit(task: CountTask, unit: SweepUnit) -> UnitCounts:
    """Read the chunks of a unit, each once, and count their valid elements, on one thread."""
    counter = WindowCounter(task.check, task.wanted, unit.alone, unit.first)
    if task.static is not None:
        counter.static = task.static
    line = task.check.parts[0 if task.static is None else 1].take(slice(unit.begin, unit.end))
    num_reads = counter.read(line, task.memory_nbytes, 1, unit)
    counter.complete(unit.alone[1])
    static = counter.static if task.static is None else {}
    return UnitCounts(
        num_reads, counter.head, counter.packer.bits(), counter.tail(unit.last), static
    )


def _count_units(counter: WindowCounter, memory_nbytes: int, tasks: ClusterTasks) -> int:
    """Count on the workers of a cluster, and return the number of chunks that were read."""
    check = counter.check
    unit_nbytes = tasks.unit_nbytes(int(check.line.sizes.sum()))
    most_border = memory_nbytes // 2 // max(counter.counts_nbytes()[1], 1)
    num_reads = 0
    for is_static, line in zip((True, False), check.parts, strict=True):
        units = cut_sweep(line, unit_nbytes, 0 if is_static else most_border)
        static = None if is_static else counter.static
        task = CountTask(check, counter.wanted, tasks.task_memory(memory_nbytes), static)
        waiting: dict[SweepUnit, UnitCounts] = {}
        left = iter(units)
        ahead = next(left, None)
        results = tasks.run("counting valid values", count_unit, task, units) if units else ()
        for unit, counts in results:
            num_reads += counts.num_reads
            waiting[unit] = counts
            while ahead in waiting:
                counter.add_unit(ahead, waiting.pop(ahead))
                ahead = next(left, None)
    return num_reads


def _of_samples(check: SampleCheck, bits: WindowBits) -> WindowBits:
    """The bits of sample ids, given those of the windows that were counted."""
    recipe, places = check.recipe, check.places
    if recipe.subset is None and places.order == tuple(range(len(places.order))):
        return bits
    packer = BitPacker(recipe.num_ids)
    for begin in range(0, recipe.num_ids, _PIECE_SIZE):
        ids = np.arange(begin, min(begin + _PIECE_SIZE, recipe.num_ids))
        positions = recipe.positions_of(ids)
        window = np.zeros(len(ids), np.int64)
        for number, line in zip(places.order, places.lines, strict=True):
            along = positions[:, number]
            if line.positions is not None:
                along = np.searchsorted(line.positions, along)
            window = window * len(line) + along
        packer.add(bits.contains(window))
    return packer.bits()
