"""Writes the sections of one array: chunks are read into memory, then encoded shard by shard."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.option_checks import is_whole
from xloader.engine.threads import ThreadTask
from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import NUM_BLOCKS, ChunkSweep, ChunkValues, one_sample
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.materialize.rechunking import Box, Rechunking, SectionPlan
from xloader.jobs.materialize.shard_encoder import Index, ShardEncoder
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_records import ShardRecord, TargetRecords, writing
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources.chunk_sizes import boxes_of
from xloader.sources.retries import Attempts

Flags = NDArray[np.bool_]
OnSection = Callable[[int], None]
"""Called with the number of shards when those of a section are written."""


class SectionWork(NamedTuple):
    """The work on one section."""

    box: Box
    shards: list[Index]
    blocks: list[Index]


def section_work(job: Rechunking, plan: SectionPlan, wanted: Flags) -> Iterator[SectionWork]:
    """The sections in which shards are wanted, in order."""
    for box, flags in wanted_sections(job, plan, wanted):
        yield work_on(job, box, flags)


def wanted_sections(
    job: Rechunking, plan: SectionPlan, wanted: Flags
) -> Iterator[tuple[Box, Flags]]:
    """The sections in which shards are wanted, each with the flags of its shards, in order."""
    for box in boxes_of(job.grid, plan.steps):
        flags = wanted[tuple(slice(*part) for part in box)]
        if flags.any():
            yield box, flags


def work_on(job: Rechunking, box: Box, wanted: Flags) -> SectionWork:
    """The work on one section."""
    first = [begin for begin, _ in box]
    shards = [
        tuple(int(n) + b for n, b in zip(index, first, strict=True))
        for index in np.argwhere(wanted)
    ]
    ranges = job.blocks_of(box)
    if wanted.all():
        return SectionWork(box, shards, list(itertools.product(*ranges)))
    is_read = np.zeros([len(part) for part in ranges], np.bool_)
    for shard in shards:
        parts = job.blocks_of(tuple((n, n + 1) for n in shard))
        pairs = zip(parts, ranges, strict=True)
        is_read[tuple(slice(p.start - r.start, p.stop - r.start) for p, r in pairs)] = True
    blocks = [
        tuple(int(n) + r.start for n, r in zip(index, ranges, strict=True))
        for index in np.argwhere(is_read)
    ]
    return SectionWork(box, shards, blocks)


@dataclass(eq=False)
class SectionWriter:
    """Writes one array."""

    recipe: Recipe
    array: TargetArray
    metadata: bytes
    plan: SectionPlan
    records: TargetRecords
    wanted: Flags
    num_reads: int = 0
    written_nbytes: int = 0
    max_error: float = 0.0

    def apart(self) -> SectionWriter:
        """A writer of the same array that has written nothing, with records of its own."""
        records = self.records.apart()
        return replace(self, records=records, num_reads=0, written_nbytes=0, max_error=0.0)

    def run(self, on_section: OnSection) -> None:
        """Write all shards that are wanted."""
        if self.wanted.any():
            job = self.array.rechunking()
            self.write(section_work(job, self.plan, self.wanted), on_section)

    def write(self, sections: Iterable[SectionWork], on_section: OnSection) -> None:
        """Write some sections."""
        job = self.array.rechunking()
        encoder = ShardEncoder(self.array, self.metadata)
        whole, footprint = one_sample(self.recipe, self.array.name)
        group = footprint.groups[0]
        room = max(self.plan.read_room, job.max_chunk_nbytes)
        with ChunkSweep(whole, footprint, room, self.plan.num_threads) as sweep:
            for work in sections:
                box = job.elements_of(work.box)
                shape = [end - begin for begin, end in box]
                section = _HeldSection(self.array, box, np.empty(shape, self.array.source_dtype))
                # Without dimensions, the one block of the sample's window is read.
                blocks = work.blocks if self.array.dims else [(0,)]
                for begin in range(0, len(blocks), NUM_BLOCKS):
                    some = blocks[begin : begin + NUM_BLOCKS]
                    sweep.do(sweep.read(group, some, section.place))
                made: dict[str, tuple[ShardRecord, float]] = {}
                tasks = [
                    ThreadTask((), partial(self._write, encoder, section, shard, made))
                    for shard in work.shards
                ]
                with writing(self.records.store, self.records.marks):
                    sweep.do(tasks, self.plan.num_threads)
                    self.records.add({key: record for key, (record, _) in made.items()})
                # Its memory is free before that of the next section is taken.
                del section, tasks
                num_reads = sweep.num_reads - self.num_reads
                errors = (error for _, error in made.values())
                self.count((record for record, _ in made.values()), num_reads, max(errors))
                on_section(len(work.shards))

    def count(self, shards: Iterable[ShardRecord], num_reads: int, max_error: float) -> None:
        """Add what was written and read to the figures."""
        self.written_nbytes += sum(record.nbytes for record in shards)
        self.num_reads += num_reads
        self.max_error = max(self.max_error, max_error)

    def _write(
        self,
        encoder: ShardEncoder,
        section: _HeldSection,
        shard: Index,
        made: dict[str, tuple[ShardRecord, float]],
        _: Attempts,
    ) -> None:
        numbers, error = self.array.convert(section.shard(shard))
        data = encoder.encode(shard, numbers)
        key = f"{self.array.name}/{encoder.key_of(shard)}"
        self.records.store.put(self.records.prefix + key, data)
        made[key] = ShardRecord.of(data), error


@dataclass(frozen=True, eq=False)
class _HeldSection:
    """The values of a section in memory."""

    array: TargetArray
    box: Box
    values: NDArray[Any]

    def place(self, chunk: ChunkValues) -> None:
        """Copy the part of a chunk that lies in the section."""
        kept = self.array.kept
        shape = [chunk.values.shape[number] for number in kept]
        values = chunk.values.reshape(shape)
        to, of = [], []
        for number, size, (begin, end) in zip(kept, shape, self.box, strict=True):
            first = chunk.begins[number]
            low, high = max(first, begin), min(first + size, end)
            to.append(slice(low - begin, high - begin))
            of.append(slice(low - first, high - first))
        self.values[tuple(to)] = values[tuple(of)]

    def shard(self, shard: Index) -> NDArray[Any]:
        """The values of a shard."""
        places = zip(shard, self.array.objects, self.box, strict=True)
        place: list[Any] = [
            slice(n * size - begin, min((n + 1) * size, end) - begin)
            for n, size, (begin, end) in places
        ]
        # With the ellipsis, a variable without dimensions stays an array.
        return np.asarray(self.values[(*place, ...)])


def needed_shards(recipe: Recipe, array: TargetArray) -> Flags:
    """Which shards of an array hold an element that some sample needs."""
    job = array.rechunking()
    if recipe.windows is None:
        return np.ones(job.grid, np.bool_)
    covered = CoveredElements(recipe, make_layouts(recipe), array.name)
    if recipe.subset is None:
        whole = covered.of_box(*_stored_box(array, tuple((0, size) for size in job.shape)))
        if whole.is_all:
            return np.ones(job.grid, np.bool_)
    flags = np.zeros(job.grid, np.bool_)
    for shard in itertools.product(*map(range, job.grid)):
        box = job.elements_of(tuple((n, n + 1) for n in shard))
        flags[shard] = not covered.of_box(*_stored_box(array, box)).is_empty
    return flags


def _stored_box(
    array: TargetArray, box: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A box of the array as first elements and sizes along all stored dimensions."""
    begins, sizes = [0] * len(array.axes), [1] * len(array.axes)
    for number, (begin, end) in zip(array.kept, box, strict=True):
        begins[number], sizes[number] = begin, end - begin
    return tuple(begins), tuple(sizes)


def parse_part(part: Any) -> tuple[int, int]:
    """Check the option ``part``."""
    if part is None:
        return 0, 1
    is_pair = isinstance(part, tuple | list) and len(part) == 2 and all(map(is_whole, part))
    if not is_pair or not 0 <= part[0] < part[1]:
        raise OptionError(
            "part is not one of several",
            given=repr(part),
            remedy="pass part=(0, 4) to part=(3, 4) in four processes",
        )
    return int(part[0]), int(part[1])


def shards_of_part(needed: Flags, part: tuple[int, int]) -> Flags:
    """The shards that one part writes: neighbours, and as many as any other part."""
    number, count = part
    places = np.flatnonzero(needed)
    flags = np.zeros(needed.shape, np.bool_)
    flags.flat[places[number * len(places) // count : (number + 1) * len(places) // count]] = True
    return flags
