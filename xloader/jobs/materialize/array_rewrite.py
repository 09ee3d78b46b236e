"""The writing of one variable of a target: its plan, then the passes that carry it out.

Sections that workers of a dask cluster write, some neighbouring ones in each task.

A task reads the source chunks of its sections, writes their shards into the target, and adds a
record of them. Its result is small: sizes and digests of shards, and figures::

    client    unit: sections 0-2, flags of their shards                 sizes, digests, num_reads
    worker    source chunks -> section in memory -> shards -> record --^
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks, dump, find_cluster
from xloader.errors import OptionError
from xloader.jobs.materialize.materialized import MaterializedVariable
from xloader.jobs.materialize.rechunking import (
    Box,
    Rechunking,
    SectionPlan,
    intermediate_chunks,
    plan_sections,
)
from xloader.jobs.materialize.section_writer import (
    Flags,
    OnSection,
    SectionWriter,
    ShardEncoder,
    section_work,
    wanted_sections,
    work_on,
)
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_records import FOLDER, ShardRecord, TargetRecords, remove_mark
from xloader.recipe.recipe import Recipe
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.bounded_reads import plain
from xloader.sources.stores.writable_store import WritableStore

UNITS_PER_THREAD: Final = 8
"""Units to aim at for each thread of a small job, so that all threads end at about one time."""

_VERIFIED_NBYTES: Final = 256 << 20
"""Stored bytes that a task reads back."""

_MOST_VERIFIED: Final = 1000
"""Most objects that a task reads back."""


class SectionUnit(NamedTuple):
    """Some neighbouring sections of an array, which one task writes.

    `sections`: the shards that each section spans, and the packed flags of those that are wanted;
    None for all.
    """

    number: int
    sections: tuple[tuple[Box, bytes | None], ...]


SectionResult = tuple[dict[str, ShardRecord], int, float]
"""The shards that a task has written, the number of its reads, and the largest error."""


def find_writing_cluster(
    client: object, recipe: Recipe, store: WritableStore, part: tuple[int, int]
) -> ClusterTasks | None:
    """The cluster on which a store is written; None for the threads of this process."""
    if part[1] > 1:
        if client is None or client is False:
            return None
        raise OptionError(
            "a cluster divides the work itself",
            given=f"part={part} together with client= or --scheduler",
            remedy="leave part= out, or pass client=False",
        )
    tasks = find_cluster(client, recipe)
    fault = None if tasks is None else _fault_of(store)
    if fault is None:
        return tasks
    if client is None:
        return None
    raise OptionError(
        "the workers of a cluster cannot write to the target",
        given=f"{store.name}: {fault}",
        remedy="write to a folder that all workers share or to a URL, or pass client=False",
    )


def _fault_of(store: WritableStore) -> str | None:
    """Why workers cannot write to a store; None if nothing is known against it."""
    if store.is_transaction:
        return "a session of icechunk, which one process writes"
    if store.is_in_memory:
        return "a store in the memory of this process"
    try:
        dump(store)
    except Exception as error:
        return f"it cannot be sent to them ({type(error).__name__}: {error})"
    return None


def read_back_on_cluster(
    tasks: ClusterTasks, records: TargetRecords, keys: Iterable[str]
) -> Iterator[tuple[str, ShardRecord | None]]:
    """Read shards on the workers, and yield what they are now; None for those that are gone."""
    groups = _groups(records, keys)
    for _, group_records in tasks.run("reading a store back", _read_back, records.apart(), groups):
        yield from group_records


def _units(writers: Sequence[SectionWriter]) -> Iterator[SectionUnit]:
    """The sections in which shards are wanted, so many in a unit that there are not too many."""
    num_sections = 0
    for writer in writers:
        grid = zip(writer.array.rechunking().grid, writer.plan.steps, strict=True)
        num_sections += math.prod(-(-count // step) for count, step in grid)
    # The last unit of each array may be a small one.
    size = -(-num_sections // max(MOST_UNITS - len(writers), 1))
    for number, writer in enumerate(writers):
        sections = wanted_sections(writer.array.rechunking(), writer.plan, writer.wanted)
        packed = ((box, _pack(flags)) for box, flags in sections)
        while some := tuple(itertools.islice(packed, size)):
            yield SectionUnit(number, some)


def _pack(flags: Flags) -> bytes | None:
    return None if flags.all() else np.packbits(flags).tobytes()


def _unpack(box: Box, packed: bytes | None) -> Flags:
    shape = [end - begin for begin, end in box]
    if packed is None:
        return np.ones(shape, np.bool_)
    flat = np.unpackbits(np.frombuffer(packed, np.uint8), count=math.prod(shape))
    return flat.astype(np.bool_).reshape(shape)


def _groups(records: TargetRecords, keys: Iterable[str]) -> Iterator[list[str]]:
    """The keys in groups that a task reads back."""
    group: list[str] = []
    nbytes = 0
    for key in keys:
        group.append(key)
        nbytes += records.done[key].nbytes
        if nbytes >= _VERIFIED_NBYTES or len(group) == _MOST_VERIFIED:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def _write(shared: Sequence[SectionWriter], unit: SectionUnit) -> SectionResult:
    """Write the sections of a unit. Runs on a worker."""
    writer = shared[unit.number].apart()
    job = writer.array.rechunking()
    sections = (work_on(job, box, _unpack(box, packed)) for box, packed in unit.sections)
    writer.write(sections, lambda _: None)
    return writer.records.done, writer.num_reads, writer.max_error


def _read_back(records: TargetRecords, keys: Sequence[str]) -> list[tuple[str, ShardRecord | None]]:
    """Read some shards. Runs on a worker."""
    return list(records.read_back(keys))


class IntermediateStore:
    """The intermediate store of one variable."""

    def __init__(self, store: WritableStore, array: TargetArray, chunks: tuple[int, ...]) -> None:
        shape = "x".join(map(str, chunks))
        self.path = f"{FOLDER}/middle-{array.name.replace('/', '-')}-{shape}"
        self.prefix = f"{self.path}/"
        self._store = store
        self.array = replace(
            array,
            chunks=chunks,
            shards=None,
            unpacking=None,
            dtype=array.source_dtype,
            packing=None,
            bound=0.0,
            attrs={},
        )
        self.metadata = self._objects()[f"{array.name}/zarr.json"]

    @property
    def mark(self) -> dict[str, bytes]:
        """The object without which tasks neither write it nor use what they have read of it."""
        return {f"{self.prefix}zarr.json": self._objects()["zarr.json"]}

    def begin(self) -> None:
        """Write its metadata."""
        # zarr would warn of these files.
        self._store.delete_partial(self.prefix)
        for key, data in self._objects().items():
            self._store.put(self.prefix + key, data)

    def reading(self, recipe: Recipe, array: TargetArray) -> tuple[Recipe, TargetArray]:
        """The values as they are read from here, and the array that is written of them."""
        source = open_source(
            plain(self._store.store),
            variables=[array.name],
            group=self.path,
            # All chunks are written. Tasks of an earlier call may read while they are removed.
            on_missing="raise",
        )
        middle = Recipe(source, (array.name,), retry_policy=recipe.retry_policy)
        kept = tuple(range(len(array.dims)))
        return middle, replace(array, axes=middle.axes_of(array.name), kept=kept)

    def remove(self, tasks: ClusterTasks | None) -> None:
        """Remove it."""
        for key in self.mark:
            remove_mark(self._store, key, tasks)
        self._store.delete(self.path)

    def _objects(self) -> dict[str, bytes]:
        held: dict[str, Any] = {}
        group = zarr.create_group(MemoryStore(held), zarr_format=3)
        group.create_array(
            self.array.name,
            shape=self.array.shape,
            chunks=self.array.chunks,
            dtype=self.array.source_dtype,
            dimension_names=self.array.dims,
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")],
        )
        return {key: bytes(buffer.to_bytes()) for key, buffer in held.items()}


@dataclass(eq=False)
class ArrayRewrite:
    """The writing of one variable.

    `assigned`: the shards of this part of the job. `tasks`: the cluster that writes it; None for
    the threads of this process.
    """

    recipe: Recipe
    array: TargetArray
    metadata: bytes
    records: TargetRecords
    needed: Flags
    assigned: Flags
    memory: int
    num_threads: int
    tasks: ClusterTasks | None
    may_pass_between: bool
    is_written: bool = False
    num_reads: int = 0
    written_nbytes: int = 0
    num_written: int = 0
    max_error: float = 0.0
    wanted: Flags = field(init=False)
    plan: SectionPlan = field(init=False)
    middle: IntermediateStore | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._encoder = ShardEncoder(self.array, self.metadata)
        if self.is_written:
            self.records.find(self.keys)
        self.wanted = self.assigned & ~self._done(self._encoder, self.array, self.records)
        self._num_done = int(np.count_nonzero(self.assigned & ~self.wanted))
        job = self.array.rechunking()
        self.plan = self._sections_of(job)
        self._passes = [(job, self.plan)]
        if self.may_pass_between and self.wanted.any():
            chunks = intermediate_chunks(job, self.plan, self.memory, self.num_threads)
            if chunks is not None:
                self.middle = IntermediateStore(self.records.store, self.array, chunks)
                halves = job.with_shards(chunks), job.read_from(chunks)
                self._passes = [(half, self._sections_of(half)) for half in halves]
        if self.recipe.source.is_waiting(self.array.name):
            sections, plan = self._passes[0]
            self._passes[0] = sections, plan.waiting(self.memory)
        job, plan = self._passes[0]
        wanted = self.wanted if self.middle is None else self._wanted_of(self.middle)
        self.expected_reads = plan.num_reads
        if not wanted.all():
            self.expected_reads = sum(len(work.blocks) for work in section_work(job, plan, wanted))

    @property
    def keys(self) -> list[str]:
        """Keys of all objects that samples need."""
        shards = map(tuple, np.argwhere(self.needed).tolist())
        return [f"{self.array.name}/{self._encoder.key_of(shard)}" for shard in shards]

    @property
    def peak_nbytes(self) -> int:
        """Upper limit of the memory that it takes; on a cluster, in a worker."""
        num_tasks = 1 if self.tasks is None else self.tasks.most_threads_of_worker
        return num_tasks * max(plan.peak_nbytes for _, plan in self._passes)

    def writer(self) -> SectionWriter:
        """The writer of what is wanted. It reads the intermediate store, if there is one."""
        recipe, array, records = self.recipe, self.array, self.records
        if self.middle is not None:
            recipe, array = self.middle.reading(recipe, array)
            records = replace(records, marks=self._marks_of(self.middle))
        plan = self._passes[-1][1]
        return SectionWriter(recipe, array, self.metadata, plan, records, self.wanted)

    def fill_middle(self) -> None:
        """Write the intermediate store."""
        middle = self.middle
        assert middle is not None
        middle.begin()
        wanted, records = self._wanted_of(middle), self._records_of(middle)
        records.marks = self._marks_of(middle)
        plan = self._passes[0][1]
        writer = SectionWriter(self.recipe, middle.array, middle.metadata, plan, records, wanted)
        write_sections(self.tasks, [writer], lambda _: None)
        self.num_reads = writer.num_reads

    def note(self, writer: SectionWriter) -> None:
        """Take the figures of the writer, which has written all."""
        if self.middle is None:
            self.num_reads = writer.num_reads
        else:
            self.middle.remove(self.tasks)
        self.num_written = int(np.count_nonzero(self.wanted))
        self.written_nbytes, self.max_error = writer.written_nbytes, writer.max_error

    def summary(self, digest: str) -> MaterializedVariable:
        """The figures of the variable, given the digest of its objects, if it is known."""
        array, job = self.array, self.array.rechunking()
        return MaterializedVariable(
            name=array.name,
            dims=array.dims,
            shape=array.shape,
            chunks=array.chunks,
            shards=array.shards,
            dtype=str(array.written_dtype),
            nbytes=array.nbytes,
            num_shards=self.needed.size,
            num_unneeded=int(np.count_nonzero(~self.needed)),
            num_done=self._num_done,
            num_others=int(np.count_nonzero(self.needed & ~self.assigned)),
            num_written=self.num_written,
            num_chunks=job.num_chunks,
            expected_reads=self.expected_reads,
            num_reads=self.num_reads,
            intermediate_chunks=None if self.middle is None else self.middle.array.chunks,
            section_nbytes=self._passes[-1][1].section_nbytes,
            stored_nbytes=self.written_nbytes,
            error_bound=array.bound,
            max_error=self.max_error,
            digest=digest,
        )

    def _sections_of(self, job: Rechunking) -> SectionPlan:
        num_units = 1 if self.tasks is None else UNITS_PER_THREAD * self.tasks.num_threads
        return plan_sections(job, self.memory, self.num_threads, num_units)

    def _records_of(self, middle: IntermediateStore) -> TargetRecords:
        job = f"{self.records.job}-{middle.path}"
        records = TargetRecords(self.records.store, job, middle.prefix)
        records.load()
        return records

    def _wanted_of(self, middle: IntermediateStore) -> Flags:
        """The chunks of the intermediate store that are not written yet."""
        encoder = ShardEncoder(middle.array, middle.metadata)
        return ~self._done(encoder, middle.array, self._records_of(middle))

    def _marks_of(self, middle: IntermediateStore) -> dict[str, bytes]:
        """The marks of tasks that write or read the intermediate store; none for threads."""
        return {**self.records.marks, **middle.mark} if self.records.marks else {}

    def _done(self, encoder: ShardEncoder, array: TargetArray, records: TargetRecords) -> Flags:
        done = np.zeros(array.rechunking().grid, np.bool_)
        if records.done:
            for shard in np.ndindex(done.shape):
                done[shard] = f"{array.name}/{encoder.key_of(shard)}" in records.done
        return done


def write_arrays(jobs: Sequence[ArrayRewrite], on_section: OnSection) -> None:
    """Write what is wanted of some arrays."""
    left = [job for job in jobs if job.wanted.any()]
    # Those without an intermediate store at once. So no worker waits for the last section of each.
    direct = [job for job in left if job.middle is None]
    # One intermediate store after another, because each takes as much room as the array.
    for group in [direct, *([job] for job in left if job.middle is not None)]:
        for job in group:
            if job.middle is not None:
                job.fill_middle()
        writers = [job.writer() for job in group]
        write_sections(group[0].tasks if group else None, writers, on_section)
        for job, writer in zip(group, writers, strict=True):
            job.note(writer)


def write_sections(
    tasks: ClusterTasks | None, writers: Sequence[SectionWriter], on_section: OnSection
) -> None:
    """Write all shards that some writers want, on a cluster or in this process.

    The figures that tasks have found are added up in the writers.
    """
    if tasks is None:
        for writer in writers:
            writer.run(on_section)
        return
    nothing = np.zeros(0, np.bool_)
    shared = tuple(replace(writer.apart(), wanted=nothing) for writer in writers)
    for unit, result in tasks.run("writing a store", _write, shared, _units(writers)):
        shards, num_reads, max_error = result
        writer = writers[unit.number]
        writer.records.done |= shards
        writer.count(shards.values(), num_reads, max_error)
        on_section(len(shards))
