"""Which samples are valid: counts of valid elements by window, each chunk read once.

Chunks are read along one dimension, the *sweep*. Each adds the number of its valid elements to all
windows that it reaches into. Windows that no later chunk reaches are complete: they become one bit
each, and their counts are forgotten::

    sweep      ----------------------------------------->
    chunks     | read      | read      | being read | ...
    windows    1 0 1 1 1 0 1 1 | 40 38 12 7 ...          bits | counts of windows under way
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Footprint
from xloader.core.window_sets import BitPacker, WindowBits
from xloader.errors import MemoryBudgetError
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.valid.sweep_line import Places, SweepLine, choose_places
from xloader.jobs.valid.window_sums import RollingCounts, Span, sum_windows
from xloader.jobs.wanted_elements import WantedElements
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, FieldPart
from xloader.recipe.recipe import Recipe

_PIECE_SIZE = 1 << 16
"""Number of windows or samples that are handled in one call."""

_WORK_ITEMSIZE = 24
"""Bytes for each element of a chunk, beside its values, while its valid elements are summed."""


@dataclass(frozen=True, eq=False)
class PartSum:
    """The valid elements of one variable of a field, for each window under way.

    Parameters
    ----------
    field : int
        Number of the field.
    variable : str
        Name of the variable.
    axes : tuple of int
        The dimensions of `Places` that it has, ascending.
    spans : tuple of (int, int, int)
        What the field takes of a window along each of them.
    weight : int
        How often each element occurs in a sample.
    counts : RollingCounts, optional
        The counts; None if the variable holds no NaN, so that only the mask counts.
    """

    field: int
    variable: str
    axes: tuple[int, ...]
    spans: tuple[Span, ...]
    weight: int
    counts: RollingCounts | None = None


def may_hold_nan(recipe: Recipe, variable: str) -> bool:
    """Whether a variable can hold NaN. Integers can if they are packed with fill values.

    Computed variables count as valid: samples are chosen by what is stored.
    """
    stored = recipe.variable(variable)
    if stored.is_computed:
        return False
    if stored.packing is None:
        return stored.dtype.kind == "f"
    return bool(stored.packing.fills) or stored.packing.stored_dtype.kind == "f"


def least_count(total: int, at_least: float) -> int:
    """The smallest count whose share of ``total`` is at least ``at_least``.

    Examples
    --------
    >>> least_count(100, 0.07), least_count(3, 1.0), least_count(10, 0.0)
    (7, 3, 0)
    """
    # A product such as 0.07 * 100 is rounded up beyond 7, so that shares are compared.
    count = min(math.ceil(at_least * total), total)
    while count and (count - 1) / total >= at_least:
        count -= 1
    return count


def needed_footprint(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> Footprint | None:
    """The chunks that must be read, of variables that may hold NaN; None if there are none."""
    read = tuple(
        replace(own, parts=tuple(p for p in own.parts if may_hold_nan(recipe, p.variable)))
        for own in layouts
    )
    if not any(own.parts for own in read):
        return None
    return make_footprint(recipe, tuple(own for own in read if own.parts))


def count_valid(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    at_least: float,
    wanted: WantedElements | None,
    memory_nbytes: int,
    num_threads: int,
) -> tuple[WindowBits, int]:
    """Find the samples of which enough elements are valid, in each field.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    layouts : tuple of FieldLayout
        The layouts of the fields that count.
    at_least : float
        The share of a field's elements that must be valid.
    wanted : WantedElements, optional
        Elements where it is False are not valid.
    memory_nbytes : int
        Memory for chunks and counts.
    num_threads : int
        Number of threads.

    Returns
    -------
    bits : WindowBits
        One bit for each sample id.
    num_reads : int
        Number of (variable, chunk) pairs that were read.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small for one chunk, or for the counts of windows under way.
    ChunkError
        If a chunk cannot be read.
    """
    footprint = needed_footprint(recipe, layouts)
    counter = _Counter(recipe, layouts, footprint, at_least, wanted, memory_nbytes)
    num_reads = 0
    if footprint is not None:
        num_reads = counter.read(footprint, num_threads)
    counter.complete(len(counter.places.lines[0]))
    return _of_samples(recipe, counter.places, counter.packer.bits()), num_reads


class _Counter:
    """Counts valid elements, and packs complete windows into bits."""

    def __init__(
        self,
        recipe: Recipe,
        layouts: tuple[FieldLayout, ...],
        footprint: Footprint | None,
        at_least: float,
        wanted: WantedElements | None,
        memory_nbytes: int,
    ) -> None:
        self._recipe, self._wanted = recipe, wanted
        self._memory_nbytes = memory_nbytes
        self.places, self._num_along = choose_places(recipe, layouts, footprint)
        totals = [math.prod(layout.shape) for layout in layouts]
        self._least = [least_count(total, at_least) for total in totals]
        # What counts in any case: elements without NaN to which no mask applies.
        self._sure = [0] * len(layouts)
        self._parts: list[PartSum] = []
        self._dtype = int_dtype(max(totals))
        for number, layout in enumerate(layouts):
            for part in layout.parts:
                self._add_part(number, layout, part)
        self._wanted_sums: dict[tuple[int, ...], Ints] = {}
        self._lock = threading.Lock()
        self._num_done = 0
        self.packer = BitPacker(math.prod(self.places.shape))

    def _add_part(self, number: int, layout: FieldLayout, part: FieldPart) -> None:
        recipe, name = self._recipe, part.variable
        dims = recipe.dims_of(name)
        size = math.prod(layout.shape)
        if part.channels is not None:
            size = size // layout.shape[0] * (part.channels[1] - part.channels[0])
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
        others = [recipe.dim_sizes[dim] for dim in dims if dim not in self.places.dims]
        once = math.prod(others) * math.prod(span[2] for span in spans.values())
        counts = None
        if is_read:
            sizes = tuple(self.places.shape[axis] for axis in spans)
            counts = RollingCounts(sizes, 0 in spans, self._dtype)
        own = PartSum(number, name, tuple(spans), tuple(spans.values()), size // once, counts)
        self._parts.append(own)

    def read(self, footprint: Footprint, num_threads: int) -> int:
        """Read all chunks that are needed, and return their number."""
        blocks = SweepLine.of(footprint, self.places)
        ratio = self._work_ratio(footprint)
        at_work = math.ceil(footprint.max_chunk_nbytes * ratio)
        fixed, unit = self._counts_nbytes()
        half = self._memory_nbytes // 2
        # Counts are copied when there come more of them.
        least = max(at_work, fixed + 2 * unit * self._num_along)
        if least > half:
            raise MemoryBudgetError(
                "the memory is too small for one chunk at work and the counts of the windows that "
                "it reaches into",
                given=f"memory={self._memory_nbytes} bytes",
                minimum_nbytes=2 * least,
                remedy="call is_valid with a larger stride, or on fewer samples",
            )
        most_along = max((half - fixed) // max(2 * unit, 1), self._num_along)
        with ChunkSweep(self._recipe, footprint, int(half / ratio), num_threads) as sweep:
            for wave in blocks.waves(most_along):
                for part in self._parts:
                    if part.counts is not None:
                        part.counts.reserve(wave.end)
                tasks = [
                    task
                    for group, own in wave.blocks
                    for task in sweep.read(group, own, self._count)
                ]
                sweep.do(tasks)
                self.complete(wave.complete)
        return sweep.num_reads

    def _work_ratio(self, footprint: Footprint) -> float:
        """Bytes at work for each decoded byte of a chunk, while its valid elements are summed."""
        found = []
        for variable in map(self._recipe.variable, footprint.variables):
            own = variable.stored_dtype.itemsize
            unpacked = 0 if variable.packing is None else variable.dtype.itemsize
            found.append((own + unpacked + _WORK_ITEMSIZE) / own)
        return max(found)

    def _counts_nbytes(self) -> tuple[int, int]:
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
            is_valid &= wanted.along(variable.dims, parts)
        dims = [dim for dim in variable.dims if dim in self.places.dims]
        others = tuple(a for a, dim in enumerate(variable.dims) if dim not in self.places.dims)
        sums = np.add.reduce(is_valid, axis=others, dtype=int_dtype(values.size))
        del is_valid, values
        order = sorted(range(len(dims)), key=lambda axis: self.places.dims.index(dims[axis]))
        sums = np.asarray(sums).transpose(order)
        for part in self._parts:
            if part.variable == chunk.variable and part.counts is not None:
                self._add(part, sums, begins)

    def _add(self, part: PartSum, sums: Ints, begins: dict[str, int]) -> None:
        """Add the valid elements of a chunk, by element along its windowed dimensions."""
        firsts = []
        for axis, (number, span) in enumerate(zip(part.axes, part.spans, strict=True)):
            line, begin = self.places.lines[number], begins[self.places.dims[number]]
            end = begin + sums.shape[axis]
            ends = line.touching(np.array([begin]), np.array([end]), span)
            lo, hi = (int(own[0]) for own in ends)
            if lo >= hi:
                return
            sums = sum_windows(sums, axis, begin, line.starts(lo, hi), span)
            firsts.append(lo)
        if part.counts is not None:
            with self._lock:
                part.counts.add(tuple(firsts), sums)

    def complete(self, end: int) -> None:
        """Pack the windows up to ``end`` along the sweep into bits, and forget their counts."""
        below = self.places.shape[1:]
        step = max(_PIECE_SIZE // math.prod(below), 1)
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
        self._num_done = max(end, self._num_done)
        for part in self._parts:
            if part.counts is not None:
                part.counts.drop(end)

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
            others = tuple(a for a, dim in enumerate(wanted.dims) if dim not in self.places.dims)
            kept = [dim for dim in wanted.dims if dim in self.places.dims]
            sums = np.add.reduce(wanted.flags, axis=others, dtype=int_dtype(wanted.flags.size))
            order = sorted(range(len(kept)), key=lambda a: self.places.dims.index(kept[a]))
            self._wanted_sums[part.axes] = np.asarray(sums).transpose(order)
        found = self._wanted_sums[part.axes]
        for axis, (number, span) in enumerate(zip(part.axes, part.spans, strict=True)):
            line = self.places.lines[number]
            starts = line.starts(begin, end) if number == 0 else line.starts(0, len(line))
            first = int(starts[0]) + span[0]
            last = int(starts[-1]) + span[0] + span[1] * (span[2] - 1)
            own = (slice(None),) * axis + (slice(first, last + 1),)
            found = sum_windows(found[own], axis, first, starts, span)
        return found


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
