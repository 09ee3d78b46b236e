"""Sections: how a stored array is rewritten in other chunks within a memory budget.

Shards of the target are grouped into sections. A section is held in memory as a whole: the source
chunks that it touches are read, then its shards are written::

    source chunks   |       0       |       1       |       2       |
    target shards   |   0   |   1   |   2   |   3   |   4   |   5   |
    sections         |           0           |           1           |   chunk 1 is read twice
    sections         |       0       |       1       |       2       |   each is read once

Larger sections read fewer chunks again. Where sections that fit read too much, the data goes
through an intermediate store, whose chunks fit both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np

from xloader.core.axis import Ints
from xloader.errors import MemoryBudgetError

Box = tuple[tuple[int, int], ...]
"""Per dimension, the first element of a box and the one after its last."""

_MOST_PARTS: Final = 24
"""A dimension is divided into fewer equal parts than this; powers of two come besides."""

_MOST_SHAPES: Final = 40_000
"""Most shapes of sections that are compared."""

_GOOD_NBYTES: Final = 128 << 20
"""Size of the sections that are taken where larger ones would read no less."""

_READ_COPIES: Final = 3
"""A chunk that is read takes up to so many times its decoded bytes."""

_WRITE_COPIES: Final = 3
"""A shard that is encoded takes up to so many times its bytes."""

_KEPT_SHARE: Final = 4
_MOST_KEPT_NBYTES: Final = 32 << 20
"""One part in so many of the memory, up to this limit, is left: for libraries that the first job of
a process loads (26 MiB), for lists of chunks, and for freed memory that the allocator keeps."""

_RECORD_NBYTES: Final = 1 << 10
"""Memory of the record of an object that is written, with its key and digest."""


@dataclass(frozen=True, eq=False)
class SectionAxis:
    """One dimension of an array that is rewritten."""

    edges: Ints
    read_sizes: Ints
    shard: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.edges[-1])

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return -(-self.size // self.shard)

    def blocks_of(self, begin: int, end: int) -> range:
        """The source chunks that hold some elements."""
        first = int(np.searchsorted(self.edges, begin, "right")) - 1
        return range(first, int(np.searchsorted(self.edges, end, "left")))

    def reads(self, step: int) -> tuple[int, int]:
        """Reads for sections of ``step`` shards: the number of chunks, and of their elements."""
        begins = np.arange(0, self.num_shards, step, dtype=np.int64) * self.shard
        ends = np.minimum(begins + step * self.shard, self.size)
        first = np.searchsorted(self.edges, begins, "right") - 1
        last = np.searchsorted(self.edges, ends, "left")
        before = np.concatenate([[0], np.cumsum(self.read_sizes)])
        return int((last - first).sum()), int((before[last] - before[first]).sum())

    def choices(self, most: int) -> list[int]:
        """Sizes of sections to try, in shards: divisions of the whole, and those along chunks."""
        count, chunk = self.num_shards, int(self.read_sizes.max(initial=1))
        aligned = math.lcm(chunk, self.shard) // self.shard
        ways = {-(-count // parts) for parts in range(1, _MOST_PARTS)} | {1}
        ways |= {1 << power for power in range(count.bit_length())}
        ways |= {aligned * factor for factor in (1, 2, 3, 4, 6, 8, 16)}
        sizes = sorted(way for way in ways if way <= count)
        if len(sizes) > most:
            picked = np.linspace(0, len(sizes) - 1, most).round().astype(int)
            sizes = [sizes[place] for place in picked.tolist()]
        return sizes


@dataclass(frozen=True, eq=False)
class Rechunking:
    """An array that is rewritten in other chunks."""

    axes: tuple[SectionAxis, ...]
    itemsize: int
    target_itemsize: int
    unit_size: int = 1

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of shards along each dimension."""
        return tuple(axis.num_shards for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.itemsize

    @cached_property
    def max_chunk_nbytes(self) -> int:
        """Decoded bytes of the largest source chunk."""
        sizes = (int(axis.read_sizes.max(initial=1)) for axis in self.axes)
        return math.prod(sizes) * self.unit_size * self.itemsize

    @cached_property
    def num_chunks(self) -> int:
        """Number of source chunks."""
        return math.prod(len(axis.read_sizes) for axis in self.axes)

    def section_nbytes(self, steps: Sequence[int]) -> int:
        """Bytes in memory of the largest section of so many shards along each dimension."""
        pairs = zip(steps, self.axes, strict=True)
        return math.prod(min(n * axis.shard, axis.size) for n, axis in pairs) * self.itemsize

    def work_nbytes(self, num_threads: int) -> int:
        """Bytes that reading and encoding take besides the section."""
        shard = self.section_nbytes([1] * len(self.axes)) // self.itemsize * self.target_itemsize
        return num_threads * max(_READ_COPIES * self.max_chunk_nbytes, _WRITE_COPIES * shard)

    def elements_of(self, shards: Box) -> Box:
        """The elements of a box of shards."""
        return tuple(
            (begin * axis.shard, min(end * axis.shard, axis.size))
            for (begin, end), axis in zip(shards, self.axes, strict=True)
        )

    def blocks_of(self, shards: Box) -> list[range]:
        """Per dimension, the source chunks that a box of shards touches."""
        box = self.elements_of(shards)
        return [axis.blocks_of(*part) for axis, part in zip(self.axes, box, strict=True)]

    def with_shards(self, shape: Sequence[int]) -> Rechunking:
        """The same array, rewritten in shards of another shape."""
        axes = tuple(replace(axis, shard=n) for axis, n in zip(self.axes, shape, strict=True))
        return replace(self, axes=axes, target_itemsize=self.itemsize)

    def read_from(self, chunks: Sequence[int]) -> Rechunking:
        """The same target, read from an array in regular chunks of a given shape."""
        axes = []
        for axis, chunk in zip(self.axes, chunks, strict=True):
            edges = np.append(np.arange(0, axis.size, chunk, dtype=np.int64), axis.size)
            axes.append(SectionAxis(edges, np.diff(edges), axis.shard))
        return replace(self, axes=tuple(axes), unit_size=1)


@dataclass(frozen=True)
class SectionPlan:
    """The sections by which an array is rewritten."""

    steps: tuple[int, ...]
    num_threads: int
    num_reads: int
    read_nbytes: int
    section_nbytes: int
    work_nbytes: int
    kept_nbytes: int = 0

    @property
    def peak_nbytes(self) -> int:
        """Bytes that are taken at most."""
        return self.section_nbytes + self.work_nbytes + self.kept_nbytes

    def waiting(self, memory: int) -> SectionPlan:
        """The same sections where reading mostly waits: the memory left is read ahead."""
        left = memory - self.kept_nbytes - self.section_nbytes
        return replace(self, work_nbytes=max(left, self.work_nbytes))

    @property
    def read_room(self) -> int:
        """Decoded bytes of chunks that may be on their way at a time."""
        return self.work_nbytes // _READ_COPIES


def plan_sections(
    job: Rechunking, memory: int, num_threads: int, num_sections: int = 1
) -> SectionPlan:
    """Choose the sections that fit into the memory and read the least."""
    plans = []
    kept = _kept_nbytes(job, memory)
    good = min(_GOOD_NBYTES, job.nbytes // num_sections)
    for threads in sorted({max(num_threads >> power, 1) for power in range(12)}, reverse=True):
        plan = _best(job, memory - kept - job.work_nbytes(threads), threads, good)
        if plan is not None:
            plans.append(replace(plan, kept_nbytes=kept))
    if not plans:
        least = job.section_nbytes([1] * len(job.axes)) + job.work_nbytes(1)
        raise MemoryBudgetError(
            "the memory is too small for a shard of the target and the chunks it is made of",
            given=f"memory={memory} bytes",
            minimum_nbytes=least + _kept_nbytes(job, 2 * least),
            remedy="choose smaller shards, or pass more memory",
        )
    return min(plans, key=lambda plan: (plan.read_nbytes, -plan.num_threads))


def _kept_nbytes(job: Rechunking, memory: int) -> int:
    """Memory that is left free beside sections and the work on them: half of it at most."""
    records = min(math.prod(job.grid) * _RECORD_NBYTES, memory // _KEPT_SHARE)
    return records + min(memory // _KEPT_SHARE, _MOST_KEPT_NBYTES)


def _best(job: Rechunking, room: int, num_threads: int, good: int) -> SectionPlan | None:
    # Dimensions of one shard leave the others more choices.
    num_cut = max(sum(axis.num_shards > 1 for axis in job.axes), 1)
    most = max(int(_MOST_SHAPES ** (1 / num_cut)), 2)
    choices = [axis.choices(most) for axis in job.axes]
    ways = list(product(*choices))
    shapes = np.array(ways, np.int64).reshape(len(ways), len(job.axes))
    nbytes = np.full(len(shapes), job.itemsize, np.int64)
    read = np.full(len(shapes), job.itemsize * job.unit_size, np.float64)
    for dim, axis in enumerate(job.axes):
        sizes = np.minimum(shapes[:, dim] * axis.shard, axis.size)
        nbytes *= sizes
        known = {step: axis.reads(step)[1] for step in choices[dim]}
        read *= np.array([known[step] for step in shapes[:, dim].tolist()], np.float64)
    fits = nbytes <= room
    if not fits.any():
        return None
    near = fits & (read <= read[fits].min() * (1 + 1e-9))
    taken = near & (nbytes >= min(good, int(nbytes[near].max())))
    steps = tuple(shapes[taken][nbytes[taken].argmin()].tolist())
    reads = [axis.reads(step) for axis, step in zip(job.axes, steps, strict=True)]
    return SectionPlan(
        steps,
        num_threads,
        math.prod(count for count, _ in reads),
        math.prod(size for _, size in reads) * job.unit_size * job.itemsize,
        job.section_nbytes(steps),
        job.work_nbytes(num_threads),
    )


def intermediate_chunks(
    job: Rechunking, direct: SectionPlan, memory: int, num_threads: int
) -> tuple[int, ...] | None:
    """Chunks of an intermediate store, if going through it moves fewer bytes.

    The first pass reads each source chunk once, in boxes of whole chunks; the second reads each
    intermediate chunk once, in sections of whole shards. The chunks fit into both.
    """
    num_read = math.prod(int(axis.read_sizes.sum()) for axis in job.axes) * job.unit_size
    if direct.read_nbytes <= num_read * job.itemsize + 2 * job.nbytes:
        return None
    best: tuple[int, tuple[int, ...]] | None = None
    shards = _cubes(job, (memory - _kept_nbytes(job, memory)) // 2)
    for chunks in shards:
        try:
            first = plan_sections(job.with_shards(chunks), memory, num_threads)
            second = plan_sections(job.read_from(chunks), memory, num_threads)
        except MemoryBudgetError:
            continue
        moved = first.read_nbytes + job.nbytes + second.read_nbytes
        if best is None or moved < best[0]:
            best = moved, chunks
    return None if best is None or best[0] >= direct.read_nbytes else best[1]


def _cubes(job: Rechunking, room: int) -> list[tuple[int, ...]]:
    """Chunks to try: where boxes of source chunks and sections of shards meet."""
    cubes = set()
    source = [int(axis.read_sizes.max(initial=1)) for axis in job.axes]
    target = [min(axis.shard, axis.size) for axis in job.axes]
    orders = [range(len(job.axes)), range(len(job.axes) - 1, -1, -1)]
    for read_order, write_order in product(orders, orders):
        read = _grown(source, job.shape, room // job.itemsize, read_order)
        write = _grown(target, job.shape, room // job.itemsize, write_order)
        cubes.add(tuple(map(min, read, write)))
    return sorted(cubes)


def _grown(
    sizes: Sequence[int], shape: Sequence[int], room: int, order: Sequence[int]
) -> list[int]:
    """A box of whole chunks that fits, grown along dimensions in a given order."""
    box = list(map(min, sizes, shape))
    for dim in order:
        num_across = math.prod(box) // box[dim]
        most = max(room // max(num_across, 1) // sizes[dim], 1)
        box[dim] = min(most * sizes[dim], shape[dim])
    return box
