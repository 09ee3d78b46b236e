"""Sections that workers of a dask cluster write, some neighbouring ones in each task.

A task reads the source chunks of its sections, writes their shards into the target, and adds a
record of them. Its result is small: sizes and digests of shards, and figures::

    client    unit: sections 0-2, flags of their shards                 sizes, digests, num_reads
    worker    source chunks -> section in memory -> shards -> record --^
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks, dump, find_cluster
from xloader.errors import OptionError
from xloader.jobs.materialize.rechunking import Box
from xloader.jobs.materialize.section_writer import (
    Flags,
    OnSection,
    SectionWriter,
    wanted_sections,
    work_on,
)
from xloader.jobs.materialize.target_records import ShardRecord, TargetRecords
from xloader.recipe.recipe import Recipe
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


def write_on_cluster(
    tasks: ClusterTasks, writers: Sequence[SectionWriter], on_section: OnSection
) -> None:
    """Write all shards that some writers want, and add up what the tasks found in the writers."""
    nothing = np.zeros(0, np.bool_)
    shared = tuple(replace(writer.apart(), wanted=nothing) for writer in writers)
    for unit, result in tasks.run("writing a store", _write, shared, _units(writers)):
        shards, num_reads, max_error = result
        writer = writers[unit.number]
        writer.records.done |= shards
        writer.count(shards.values(), num_reads, max_error)
        on_section(len(shards))


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
