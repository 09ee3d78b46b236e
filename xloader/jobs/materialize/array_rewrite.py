"""The writing of one variable of a target: its plan, then the passes that carry it out.

Where a dask cluster writes, each task gets some neighbouring sections. It reads their source
chunks, writes their shards into the target, and adds a record of them. Its result is small: sizes
and digests of shards, and figures::

    client    unit: sections 0-2, flags of their shards                 sizes, digests, num_reads
    worker    source chunks -> section in memory -> shards -> record --^
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks, dump, find_cluster
from xloader.errors import OptionError
from xloader.jobs.materialize.materialized import MaterializedVariable
from xloader.jobs.materialize.rechunking import (
    Rechunking,
    SectionPlan,
    intermediate_chunks,
    plan_sections,
)
from xloader.jobs.materialize.section_writer import Flags, OnSection, Section, SectionWriter
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_records import FOLDER, ShardRecord, TargetRecords, remove_mark
from xloader.recipe.recipe import Recipe
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.bounded_reads import plain
from xloader.sources.stores.writable_store import WritableStore

UNITS_PER_THREAD: Final = 8
"""Units to aim at for each thread of a small job, so that all threads end at about one time."""

_VERIFIED_AT_ONCE: Final = 64
"""Most objects that a task reads back."""

Unit = tuple[int, Sequence[Section]]
"""Some neighbouring sections of an array, which one task writes, and the number of its writer."""

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
    rest = iter(keys)
    groups = iter(lambda: list(itertools.islice(rest, _VERIFIED_AT_ONCE)), [])
    for _, stored in tasks.run("reading a store back", _read_back, records.apart(), groups):
        yield from stored


class IntermediateStore:
    """The intermediate store of one variable, a plain array of stored numbers."""

    def __init__(self, records: TargetRecords, array: TargetArray, chunks: tuple[int, ...]) -> None:
        shape = "x".join(map(str, chunks))
        self.path = f"{FOLDER}/middle-{array.name.replace('/', '-')}-{shape}"
        self.array = array.stored_in(chunks)
        held: dict[str, Any] = {}
        zarr.create_group(MemoryStore(held), zarr_format=3).create_array(
            array.name,
            shape=array.shape,
            chunks=chunks,
            dtype=array.source_dtype,
            dimension_names=array.dims,
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")],
        )
        self.objects = {f"{self.path}/{key}": bytes(held[key].to_bytes()) for key in held}
        mark = f"{self.path}/zarr.json"
        # Without it, tasks neither write the store nor use what they have read of it.
        self.mark = {mark: self.objects[mark]}
        job = f"{records.job}-{self.path}"
        self.records = TargetRecords(records.store, job, f"{self.path}/")
        self.records.load()

    def writer(self, recipe: Recipe, plan: SectionPlan) -> SectionWriter:
        """The writer of all chunks that are not written yet."""
        metadata = self.objects[f"{self.path}/{self.array.name}/zarr.json"]
        wanted = ~self.records.written(self.array)
        return SectionWriter(recipe, self.array, metadata, plan, self.records, wanted)

    def begin(self) -> None:
        """Write its metadata."""
        store = self.records.store
        # zarr would warn of these files.
        store.delete_partial(f"{self.path}/")
        for key, data in self.objects.items():
            store.put(key, data)

    def recipe(self, recipe: Recipe) -> Recipe:
        """The values as they are read from here."""
        source = open_source(
            plain(self.records.store.store),
            variables=[self.array.name],
            group=self.path,
            # All chunks are written. Tasks of an earlier call may read while they are removed.
            on_missing="raise",
        )
        return Recipe(source, (self.array.name,), retry_policy=recipe.retry_policy)

    def remove(self, tasks: ClusterTasks | None) -> None:
        """Remove it, its mark first."""
        for key in self.mark:
            remove_mark(self.records.store, key, tasks)
        self.records.store.delete(self.path)


@dataclass(eq=False)
class ArrayRewrite:
    """The writing of one variable, in one pass or in two with an intermediate store.

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
    middle: IntermediateStore | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.wanted = self.assigned & ~self.records.written(self.array)
        job = self.array.rechunking()
        self._plan = self._sections_of(job)
        self.last = self.first = self._writer(self.recipe, self.array)
        if self.may_pass_between and self.wanted.any():
            chunks = intermediate_chunks(job, self._plan, self.memory, self.num_threads)
            if chunks is not None:
                self.middle = IntermediateStore(self.records, self.array, chunks)
                plan = self._sections_of(job.with_shards(chunks))
                self.first = self.middle.writer(self.recipe, plan)
                self._plan = self._sections_of(job.read_from(chunks))
        if self.recipe.source.is_waiting(self.array.name):
            self.first.plan = self.first.plan.waiting(self.memory)
        self._expected_reads = self.first.expected_reads

    @property
    def keys(self) -> list[str]:
        """Keys of all objects that samples need."""
        return self.array.keys_of(self.needed)

    @property
    def peak_nbytes(self) -> int:
        """Upper limit of the memory that it takes; on a cluster, in a worker."""
        num_tasks = 1 if self.tasks is None else self.tasks.most_threads_of_worker
        return num_tasks * max(self.first.plan.peak_nbytes, self._plan.peak_nbytes)

    def fill_middle(self) -> None:
        """Write the intermediate store, from which the last pass then reads."""
        middle = self.middle
        assert middle is not None
        middle.begin()
        # Threads need no marks.
        marks = {**self.records.marks, **middle.mark} if self.records.marks else {}
        middle.records.marks = marks
        write_sections(self.tasks, [self.first], lambda _: None)
        recipe = middle.recipe(self.recipe)
        kept = tuple(range(len(self.array.dims)))
        array = replace(self.array, axes=recipe.axes_of(self.array.name), kept=kept)
        self.last = self._writer(recipe, array)
        self.last.records = replace(self.records, marks=marks)

    def summary(self, digest: str) -> MaterializedVariable:
        """The figures of the variable, given the digest of its objects, if it is known."""
        array, last = self.array, self.last
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
            num_done=int(np.count_nonzero(self.assigned & ~self.wanted)),
            num_others=int(np.count_nonzero(self.needed & ~self.assigned)),
            num_written=last.num_written,
            num_chunks=array.rechunking().num_chunks,
            expected_reads=self._expected_reads,
            num_reads=self.first.num_reads,
            intermediate_chunks=None if self.middle is None else self.middle.array.chunks,
            section_nbytes=self._plan.section_nbytes,
            stored_nbytes=last.written_nbytes,
            error_bound=array.bound,
            max_error=last.max_error,
            digest=digest,
        )

    def _writer(self, recipe: Recipe, array: TargetArray) -> SectionWriter:
        return SectionWriter(recipe, array, self.metadata, self._plan, self.records, self.wanted)

    def _sections_of(self, job: Rechunking) -> SectionPlan:
        num_units = 1 if self.tasks is None else UNITS_PER_THREAD * self.tasks.num_threads
        return plan_sections(job, self.memory, self.num_threads, num_units)


def write_arrays(jobs: Sequence[ArrayRewrite], on_section: OnSection) -> None:
    """Write what is wanted of some arrays."""
    tasks = jobs[0].tasks
    # Those without an intermediate store at once. So no worker waits for the last section of each.
    write_sections(tasks, [job.last for job in jobs if job.middle is None], on_section)
    # One intermediate store after another, because each takes as much room as the array.
    for job in jobs:
        if job.middle is not None:
            job.fill_middle()
            write_sections(tasks, [job.last], on_section)
            job.middle.remove(tasks)


def write_sections(
    tasks: ClusterTasks | None, writers: Sequence[SectionWriter], on_section: OnSection
) -> None:
    """Write all shards that some writers want, on a cluster or in this process.

    The figures that tasks have found are added up in the writers.
    """
    left = [writer for writer in writers if writer.wanted.any()]
    if tasks is None or not left:
        for writer in left:
            writer.write(writer.sections(), on_section)
        return
    shared = tuple(writer.apart() for writer in left)
    for unit, result in tasks.run("writing a store", _write, shared, _units(left)):
        shards, num_reads, max_error = result
        writer = left[unit[0]]
        writer.records.done |= shards
        writer.count(shards, num_reads, max_error)
        on_section(len(shards))


def _units(writers: Sequence[SectionWriter]) -> Iterator[Unit]:
    """The sections in which shards are wanted, so many in a unit that there are not too many."""
    num_sections = 0
    for writer in writers:
        grid = zip(writer.array.rechunking().grid, writer.plan.steps, strict=True)
        num_sections += math.prod(-(-count // step) for count, step in grid)
    # The last unit of each array may be a small one.
    size = -(-num_sections // max(MOST_UNITS - len(writers), 1))
    for number, writer in enumerate(writers):
        sections = writer.sections()
        while some := tuple(itertools.islice(sections, size)):
            yield number, some


def _write(shared: Sequence[SectionWriter], unit: Unit) -> SectionResult:
    """Write the sections of a unit. Runs on a worker."""
    number, sections = unit
    writer = shared[number].apart()
    writer.write(sections, lambda _: None)
    return writer.records.done, writer.num_reads, writer.max_error


def _read_back(records: TargetRecords, keys: Sequence[str]) -> list[tuple[str, ShardRecord | None]]:
    """Read some shards. Runs on a worker."""
    return list(records.read_back(keys))
