"""Which samples are valid: valid elements are counted by window, each chunk read once.

On a cluster, each task counts a part of the sweep. It gives the bits of the windows that only its
own chunks reach, and counts of those at its borders, which are added up here::

    task 0     1 0 1 1 0 | 31 17                bits | counts
    task 1                  9 23 | 1 1 0 1
    mask       1 0 1 1 0   1  1    1 1 0 1      counts of 40 of 40 elements are valid
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.axis import Ints
from xloader.core.window_sets import BitPacker, WindowBits
from xloader.jobs.valid.sweep_line import Places, SampleCheck, SweepUnit, cut_sweep
from xloader.jobs.valid.window_counter import WindowCounter, WindowCounts
from xloader.jobs.wanted_elements import WantedElements
from xloader.recipe.recipe import Recipe

_PIECE_SIZE = 1 << 16
"""Number of samples that are handled in one call."""


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
