"""Counts of valid elements by window.

Chunks are read along one dimension, the *sweep*. Each adds the number of its valid elements to all
windows that it reaches into. Windows that no later chunk reaches are complete: they become one bit
each, and their counts are forgotten::

    sweep      ----------------------------------------->
    chunks     | read      | read      | being read | ...
    windows    1 0 1 1 1 0 1 1 | 40 38 12 7 ...          bits | counts of windows under way

Which samples are valid: valid elements are counted by window, each chunk read once.

On a cluster, each task counts a part of the sweep. It gives the bits of the windows that only its
own chunks reach, and counts of those at its borders, which are added up here::

    task 0     1 0 1 1 0 | 31 17                bits | counts
    task 1                  9 23 | 1 1 0 1
    mask       1 0 1 1 0   1  1    1 1 0 1      counts of 40 of 40 elements are valid
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Footprint
from xloader.core.window_sets import BitPacker, WindowBits
from xloader.errors import MemoryBudgetError
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.valid.sweep_line import (
    Places,
    RollingCounts,
    SampleCheck,
    Span,
    SweepLine,
    SweepUnit,
    cut_sweep,
    may_hold_nan,
    sum_windows,
)
from xloader.jobs.wanted_elements import WantedElements, cut_along
from xloader.recipe.layout import FieldPart
from xloader.recipe.recipe import Recipe

_PIECE_SIZE = 1 << 16
"""Number of windows or samples that are handled in one call."""

_WORK_ITEMSIZE = 24
"""Bytes for each element of a chunk, beside its values, while its valid elements are summed."""

_BORDER_COPIES = 2
"""The counts of the windows at both borders of a unit are kept to its end."""


@dataclass(frozen=True, eq=False)
class PartSum:
    """The valid elements of one variable of a field, for each window under way.

    `axes`: the dimensions of `Places` that it has, ascending. `counts`: the counts; None if the
    variable holds no NaN, so that only the mask counts.
    """

    field: int
    variable: str
    axes: tuple[int, ...]
    spans: tuple[Span, ...]
    weight: int
    counts: RollingCounts | None = None


def least_count(total: int, at_least: float) -> int:
    """The smallest count whose share of ``total`` is at least ``at_least``."""
    # A product such as 0.07 * 100 is rounded up beyond 7, so that shares are compared.
    count = min(math.ceil(at_least * total), total)
    while count and (count - 1) / total >= at_least:
        count -= 1
    return count


@dataclass(frozen=True, eq=False)
class WindowCounts:
    """Counts of the windows under way, for each `PartSum` that has the sweep dimension."""

    begin: int
    end: int
    counts: tuple[Ints, ...]


class WindowCounter:
    """Counts valid elements, and packs complete windows into bits."""

    def __init__(
        self,
        check: SampleCheck,
        wanted: WantedElements | None = None,
        unit: SweepUnit | None = None,
    ) -> None:
        self._recipe, self._wanted = check.recipe, wanted
        self._check = check
        self.places = check.places
        self._alone = (0, self.places.shape[0]) if unit is None else unit.alone
        # Number of windows at each position along the sweep.
        self._num_below = math.prod(self.places.shape[1:])
        self._num_done = 0 if unit is None else unit.first
        self._border_copies = 0 if unit is None else _BORDER_COPIES
        totals = [math.prod(layout.shape) for layout in check.layouts]
        self._least = [least_count(total, check.at_least) for total in totals]
        # What counts in any case: elements without NaN to which no mask applies.
        self._sure = [0] * len(check.layouts)
        self._parts: list[PartSum] = []
        self._dtype = int_dtype(max(totals))
        for number, layout in enumerate(check.layouts):
            for part in layout.parts:
                self._add_part(number, part)
        self._wanted_sums: dict[tuple[int, ...], Ints] = {}
        self._lock = threading.Lock()
        self.packer = BitPacker((self._alone[1] - self._alone[0]) * self._num_below)
        self.borders: list[WindowCounts] = []

    def _add_part(self, number: int, part: FieldPart) -> None:
        recipe, name = self._recipe, part.variable
        dims = recipe.dims_of(name)
        size = math.prod(side.stop - side.start for side in part.box)
        is_read = may_hold_nan(recipe, name)
        is_masked = self._wanted is not None and set(self._wanted.dims) <= set(dims)
        if not is_read and not is_masked:
            self._sure[number] += size
            return
        if not is_read and self._wanted is not None:
            dims = self._wanted.dims
        spans = {
            axis: span
            for axis, dim in enumerate(self.places.dims)
            if dim in dims and (span := part.accesses[self.places.order[axis]]) is not None
        }
        whole_sizes = [recipe.dim_sizes[dim] for dim in dims if dim not in self.places.dims]
        once = math.prod(whole_sizes) * math.prod(span[2] for span in spans.values())
        counts = None
        if is_read:
            sizes = tuple(self.places.shape[axis] for axis in spans)
            counts = RollingCounts(sizes, 0 in spans, self._dtype, self._num_done)
        part_sum = PartSum(number, name, tuple(spans), tuple(spans.values()), size // once, counts)
        self._parts.append(part_sum)

    def read(
        self, line: SweepLine, memory_nbytes: int, num_threads: int, share: tuple[int, int] = (0, 1)
    ) -> int:
        """Read chunks and count their elements, and return the number of chunks."""
        footprint = self._check.footprint
        assert footprint is not None
        fixed, unit = self.counts_nbytes()
        half, ratio = memory_nbytes // 2, self._work_ratio(footprint)
        room = half - fixed - self._border_copies * unit * self.places.num_along
        most_along = max(room // max(2 * unit, 1), self.places.num_along)
        with ChunkSweep(self._recipe, footprint, int(half / ratio), num_threads) as sweep:
            for wave in line.waves(most_along):
                for counts in self._counts(is_static=False):
                    counts.reserve(wave.end)
                tasks = [
                    task
                    for group, blocks in wave.blocks
                    for task in sweep.read(group, blocks, self._count, share)
                ]
                sweep.do(tasks)
                self.advance(wave.complete)
        return sweep.num_reads

    def check_memory(self, memory_nbytes: int, num_tasks: int | None = None) -> None:
        """Check that the memory is enough for one chunk, and for the counts that it adds to."""
        footprint = self._check.footprint
        assert footprint is not None
        at_work = math.ceil(footprint.max_chunk_nbytes * self._work_ratio(footprint))
        fixed, unit = self.counts_nbytes()
        # Counts are copied when there come more of them.
        copies = 2 if num_tasks is None else 2 + _BORDER_COPIES
        least = max(at_work, fixed + copies * unit * self.places.num_along)
        count = num_tasks or 1
        if least > memory_nbytes // count // 2:
            raise MemoryBudgetError(
                "the memory is too small for one chunk at work and the counts of the windows that "
                "it reaches into",
                given=f"memory={memory_nbytes} bytes",
                minimum_nbytes=2 * count * least,
                remedy="call is_valid with a larger stride, or on fewer samples",
                num_sharing=count,
            )

    def _work_ratio(self, footprint: Footprint) -> float:
        """Bytes at work for each decoded byte of a chunk, while its valid elements are summed."""
        ratios = []
        for variable in map(self._recipe.variable, footprint.variables):
            itemsize = variable.stored_dtype.itemsize
            unpacked = 0 if variable.packing is None else variable.dtype.itemsize
            ratios.append((itemsize + unpacked + _WORK_ITEMSIZE) / itemsize)
        return max(ratios)

    def _counts(self, *, is_static: bool) -> list[RollingCounts]:
        """The counts of the parts that lack the sweep dimension, or of those that have it."""
        return [
            part.counts
            for part in self._parts
            if part.counts is not None and is_static == (0 not in part.axes)
        ]

    def static_counts(self) -> tuple[Ints, ...]:
        """The counts of variables without the sweep dimension, which all windows along it share."""
        return tuple(counts.peek(0, 0) for counts in self._counts(is_static=True))

    def add_static(self, counts: tuple[Ints, ...]) -> None:
        """Add to `static_counts`."""
        for total, more in zip(self._counts(is_static=True), counts, strict=True):
            total.add((0,) * more.ndim, more)

    def counts_nbytes(self) -> tuple[int, int]:
        """Bytes of all counts: those in any case, and those for each window along the sweep."""
        fixed = unit = 0
        for part in self._parts:
            if part.counts is not None:
                sizes = [self.places.shape[axis] for axis in part.axes if axis]
                nbytes = self._dtype.itemsize * math.prod(sizes)
                fixed, unit = (fixed, unit + nbytes) if 0 in part.axes else (fixed + nbytes, unit)
        return fixed, unit

    def _count(self, chunk: ChunkValues) -> None:
        """Add the valid elements of a chunk to the counts of all windows that it reaches into."""
        variable = self._recipe.variable(chunk.variable)
        values = chunk.values
        if variable.packing is not None:
            values = variable.packing.unpack(values)
        is_valid = ~np.isnan(values)
        begins = dict(zip(variable.dims, chunk.begins, strict=True))
        wanted = self._wanted
        if wanted is not None and set(wanted.dims) <= set(variable.dims):
            sizes = dict(zip(variable.dims, values.shape, strict=True))
            parts = {dim: slice(begins[dim], begins[dim] + sizes[dim]) for dim in variable.dims}
            is_valid &= cut_along(wanted.flags, wanted.dims, variable.dims, parts)
        sums = self._along_windows(is_valid, variable.dims)
        del is_valid, values
        for part in self._parts:
            if part.variable == chunk.variable and part.counts is not None:
                self._add(part, sums, begins)

    def _along_windows(self, flags: NDArray[np.bool_], dims: tuple[str, ...]) -> Ints:
        """How many flags are set, along the windowed dimensions in the order of `places`."""
        windowed = self.places.dims
        whole_axes = tuple(axis for axis, dim in enumerate(dims) if dim not in windowed)
        sums = np.add.reduce(flags, axis=whole_axes, dtype=int_dtype(flags.size))
        kept = [dim for dim in dims if dim in windowed]
        order = sorted(range(len(kept)), key=lambda axis: windowed.index(kept[axis]))
        return np.asarray(sums).transpose(order)

    def _add(self, part: PartSum, sums: Ints, begins: dict[str, int]) -> None:
        """Add the valid elements of a chunk, by element along its windowed dimensions."""
        firsts = []
        for axis, (number, span) in enumerate(zip(part.axes, part.spans, strict=True)):
            line, begin = self.places.lines[number], begins[self.places.dims[number]]
            end = begin + sums.shape[axis]
            ends = line.touching(np.array([begin]), np.array([end]), span)
            lo, hi = (int(limit[0]) for limit in ends)
            if lo >= hi:
                return
            sums = sum_windows(sums, axis, begin, line.starts(lo, hi), span)
            firsts.append(lo)
        if part.counts is not None:
            with self._lock:
                part.counts.add(tuple(firsts), sums)

    def advance(self, end: int) -> None:
        """Finish the windows below ``end`` along the sweep, which no chunk to come reaches."""
        self.put_aside(min(end, self._alone[0]))
        self.complete(min(end, self._alone[1]))

    def put_aside(self, end: int) -> None:
        """Take the counts of the windows up to ``end`` along the sweep as they are."""
        begin = self._num_done
        if end > begin:
            every = self._counts(is_static=False)
            taken = tuple(counts.peek(begin, end).copy() for counts in every)
            self.borders.append(WindowCounts(begin, end, taken))
            self._drop(end)

    def add_border(self, border: WindowCounts) -> None:
        """Add counts that another counter has put aside."""
        for total, more in zip(self._counts(is_static=False), border.counts, strict=True):
            total.reserve(border.end)
            total.add((border.begin,) + (0,) * (more.ndim - 1), more)

    def add_bits(self, end: int, bits: WindowBits) -> None:
        """Append the bits of the windows up to ``end`` along the sweep, from another counter."""
        for begin in range(0, bits.size, _PIECE_SIZE):
            self.packer.add(bits.flags(begin, min(begin + _PIECE_SIZE, bits.size)))
        self._drop(end)

    def complete(self, end: int) -> None:
        """Pack the windows up to ``end`` along the sweep into bits, and forget their counts."""
        below = self.places.shape[1:]
        step = max(_PIECE_SIZE // self._num_below, 1)
        for begin in range(self._num_done, end, step):
            until = min(begin + step, end)
            flags = np.ones((until - begin, *below), np.bool_)
            for field, least in enumerate(self._least):
                total: NDArray[np.int64] = np.full((1,) * flags.ndim, self._sure[field], np.int64)
                for part in self._parts:
                    if part.field == field:
                        total = total + part.weight * self._counts_of(part, begin, until)
                flags &= total >= least
            self.packer.add(flags.reshape(-1))
        self._drop(max(end, self._num_done))

    def _drop(self, end: int) -> None:
        """Forget the counts of the windows up to ``end`` along the sweep, which are done."""
        self._num_done = end
        for counts in self._counts(is_static=False):
            counts.drop(end)

    def _counts_of(self, part: PartSum, begin: int, end: int) -> NDArray[np.int64]:
        """Counts for the windows ``begin`` to ``end`` along the sweep, ready to be broadcast."""
        if part.counts is not None:
            counts = part.counts.peek(begin, end)
        else:
            counts = self._wanted_counts(part, begin, end)
        shape = [1] * len(self.places.dims)
        for axis, size in zip(part.axes, counts.shape, strict=True):
            shape[axis] = size
        return counts.astype(np.int64).reshape(shape)

    def _wanted_counts(self, part: PartSum, begin: int, end: int) -> Ints:
        """The wanted elements of windows, of a variable that holds no NaN."""
        wanted = self._wanted
        assert wanted is not None
        if part.axes not in self._wanted_sums:
            self._wanted_sums[part.axes] = self._along_windows(wanted.flags, wanted.dims)
        counts = self._wanted_sums[part.axes]
        for axis, (number, span) in enumerate(zip(part.axes, part.spans, strict=True)):
            line = self.places.lines[number]
            starts = line.starts(begin, end) if number == 0 else line.starts(0, len(line))
            first = int(starts[0]) + span[0]
            last = int(starts[-1]) + span[0] + span[1] * (span[2] - 1)
            box = (slice(None),) * axis + (slice(first, last + 1),)
            counts = sum_windows(counts[box], axis, first, starts, span)
        return counts


def count_valid(
    check: SampleCheck, wanted: WantedElements | None, memory_nbytes: int, num_threads: int
) -> tuple[WindowBits, int]:
    """Find the samples of which enough elements are valid, in each field."""
    counter = WindowCounter(check, wanted)
    num_reads = 0
    if check.footprint is not None:
        counter.check_memory(memory_nbytes)
        num_reads = counter.read(check.line, memory_nbytes, num_threads)
    counter.complete(check.places.shape[0])
    return _of_samples(check.recipe, check.places, counter.packer.bits()), num_reads


@dataclass(frozen=True, eq=False)
class CountTask:
    """A part of the sweep as it is counted by one task.

    `static`: None for the tasks that read these.
    """

    check: SampleCheck
    wanted: WantedElements | None
    memory_nbytes: int
    static: tuple[Ints, ...] | None = None


@dataclass(frozen=True, eq=False)
class UnitCounts:
    """The counts of one task."""

    num_reads: int
    borders: list[WindowCounts]
    bits: WindowBits
    static: tuple[Ints, ...] = ()


def count_unit(task: CountTask, unit: SweepUnit) -> UnitCounts:
    """Read the chunks of a unit, each once, and count their valid elements, on one thread."""
    counter = WindowCounter(task.check, task.wanted, unit)
    if task.static is not None:
        counter.add_static(task.static)
    blocks = task.check.parts[0 if task.static is None else 1]
    line = blocks.take(slice(unit.begin, unit.end))
    num_reads = counter.read(line, task.memory_nbytes, 1, unit.share)
    counter.advance(unit.alone[1])
    counter.put_aside(unit.last)
    static = counter.static_counts() if task.static is None else ()
    return UnitCounts(num_reads, counter.borders, counter.packer.bits(), static)


Results = Iterator[tuple[SweepUnit, UnitCounts]]
"""Units with their counts, as they come."""


def count_on_cluster(
    check: SampleCheck, wanted: WantedElements | None, memory_nbytes: int, tasks: ClusterTasks
) -> tuple[WindowBits, int]:
    """Find the samples of which enough elements are valid, on the workers of a cluster."""
    if check.footprint is None:
        return count_valid(check, wanted, memory_nbytes, 1)
    WindowCounter(check).check_memory(memory_nbytes, tasks.most_threads_of_worker)
    return count_in_units(
        check,
        wanted,
        tasks.task_memory(memory_nbytes),
        tasks.unit_nbytes(int(check.line.sizes.sum())),
        memory_nbytes // 2,
        partial(tasks.run, "counting valid values", count_unit),
    )


def count_in_units(
    check: SampleCheck,
    wanted: WantedElements | None,
    task_memory: int,
    unit_nbytes: int,
    border_nbytes: int,
    run: Callable[[CountTask, list[SweepUnit]], Results],
) -> tuple[WindowBits, int]:
    """Find the samples of which enough elements are valid, by counts of parts of the sweep."""
    counter, num_reads = WindowCounter(check, wanted), 0
    static, moving = check.parts
    cut = partial(cut_sweep, recipe=check.recipe, places=check.places, most_nbytes=unit_nbytes)
    units = cut(static, most_border=0)
    for _, counts in run(CountTask(check, wanted, task_memory), units) if units else ():
        counter.add_static(counts.static)
        num_reads += counts.num_reads
    units = cut(moving, most_border=border_nbytes // max(counter.counts_nbytes()[1], 1))
    task = CountTask(check, wanted, task_memory, counter.static_counts())
    waiting: dict[SweepUnit, UnitCounts] = {}
    left = iter(units)
    ahead = next(left, None)
    for unit, counts in run(task, units) if units else ():
        num_reads += counts.num_reads
        waiting[unit] = counts
        while ahead in waiting:
            _add_unit(counter, ahead, waiting.pop(ahead))
            ahead = next(left, None)
    counter.complete(check.places.shape[0])
    return _of_samples(check.recipe, check.places, counter.packer.bits()), num_reads


def _add_unit(counter: WindowCounter, unit: SweepUnit, counts: UnitCounts) -> None:
    """Add the counts of a unit, once those of all units before it are added."""
    begin, end = unit.alone
    for border in counts.borders:
        if border.begin < begin:
            counter.add_border(border)
    if begin < end:
        counter.complete(begin)
        counter.add_bits(end, counts.bits)
    for border in counts.borders:
        if border.begin >= begin:
            counter.add_border(border)
    counter.complete(unit.done)


def _of_samples(recipe: Recipe, places: Places, bits: WindowBits) -> WindowBits:
    """The bits of sample ids, given those of the windows that were counted."""
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
