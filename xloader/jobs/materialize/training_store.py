"""Writes the part of a source that samples cover as a store in other chunks."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import DTypeLike
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xloader.cluster.cluster_tasks import ClusterTasks, dump, find_cluster
from xloader.core.cores import usable_cores
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_part, check_threads
from xloader.errors import EmptySamplesError, OptionError, TargetError
from xloader.jobs.materialize.materialized import Materialized, MaterializedVariable
from xloader.jobs.materialize.rechunking import (
    Rechunking,
    SectionPlan,
    intermediate_chunks,
    plan_sections,
)
from xloader.jobs.materialize.section_writer import (
    Flags,
    SectionWriter,
    needed_shards,
    shards_of_part,
    write_sections,
)
from xloader.jobs.materialize.target_arrays import (
    ORIGIN,
    Sizes,
    TargetArray,
    TargetMetadata,
    check_sizes,
    make_array,
    parse_compressors,
    with_fitting_shards,
    written_names,
)
from xloader.jobs.materialize.target_records import (
    FOLDER,
    TargetContents,
    TargetRecords,
    begin,
    contents_of,
    end,
    mark_of,
    remove_mark,
)
from xloader.jobs.materialize.value_packing import (
    ValueBounds,
    bounds_in,
    packings_of,
    parse_dtype,
    parse_pack,
    read_bounds,
)
from xloader.jobs.progress_bar import ProgressBar
from xloader.recipe.recipe import Recipe
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.bounded_reads import plain
from xloader.sources.stores.writable_store import WritableStore, open_writable
from xloader.sources.stores.write_places import check_apart, check_stored_names

UNITS_PER_THREAD: Final = 8
"""Units to aim at for each thread of a small job, so that all threads end at about one time."""

_READ_AT_ONCE: Final = 64
"""Most objects that a task reads back for a check."""


@dataclass(eq=False, kw_only=True)
class StoreOptions:
    """The options of `Samples.materialize`, once the chunks are chosen."""

    chunks: Sizes
    shards: Sizes | None = None
    is_advised: bool = False
    memory: int | str = "2GiB"
    threads: int | None = None
    dtype: DTypeLike | None = None
    pack: Mapping[str, Any] | None = None
    stats: xr.Dataset | None = None
    compressor: Any = "zstd"
    checksum: bool = True
    storage_options: Mapping[str, Any] | None = None
    overwrite: bool = False
    verify: bool = False
    part: Any = None
    progress: bool | None = None
    dry_run: bool = False
    client: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.stats, xr.Dataset | None):
            raise OptionError(
                "stats is not the result of samples.stats()",
                given=type(self.stats).__name__,
                remedy="leave it out: the bounds are then found by one pass over the values",
            )
        self.memory_nbytes = parse_nbytes(self.memory)
        self.num_threads = check_threads(self.threads) or usable_cores()
        self.part = (0, 1) if self.part is None else check_part(self.part)


class TrainingStore:
    """A store of the values that samples take, which is planned when it is made."""

    def __init__(self, recipe: Recipe, target: object, options: StoreOptions) -> None:
        self._begun = time.monotonic()
        self.options = options
        # All ranks of a group share one store.
        self.recipe = recipe.planned
        self.store = store = open_writable(target, options.storage_options, recipe.retry_policy)
        # Each part would fill an intermediate store of its own.
        self.may_pass_between = options.part[1] == 1 and not store.is_transaction
        if store.is_transaction and options.part[1] > 1:
            raise OptionError(
                "parts cannot share one session",
                given=f"part={options.part} with {store.name}",
                remedy="leave part= out, or write to a path or URL",
            )
        self.tasks = tasks = find_writing_cluster(self.recipe, store, options)
        # What one task may take, of which a worker runs several at a time.
        self.num_tasks = 1 if tasks is None else tasks.most_threads_of_worker
        self.memory = options.memory_nbytes // self.num_tasks
        self.num_threads = options.num_threads if tasks is None else 1
        names = written_names(self.recipe)
        if not names:
            raise EmptySamplesError(
                "the samples take no stored variable, but forcings only",
                remedy="add a variable: forcings are computed again from the labels of any store",
            )
        check_stored_names(names)
        check_sizes("chunks", options.chunks, self.recipe, names)
        if options.shards is not None:
            check_sizes("shards", options.shards, self.recipe, names)
        check_apart(store.name, self.recipe.source)
        is_kept = options.dry_run or not options.overwrite
        self._contents = contents_of(store, overwrite=not is_kept, tasks=tasks)
        if options.overwrite:
            self._contents = TargetContents()
        # Names the source and the part of it that is kept.
        parts = (self.recipe.source.fingerprint, self.recipe.selection)
        self._source_key = hashlib.sha256(repr(parts).encode()).hexdigest()
        self._metadata = self._describe(names)
        arrays = self._metadata.arrays
        self._needed = {array.name: needed_shards(self.recipe, array) for array in arrays}
        self._job = self._facts()
        self._contents.check(self._job, store)
        self.records = self._find_records()
        with nullcontext() if tasks is None else tasks.memory_errors(options.memory_nbytes):
            self._rewrites = [
                ArrayRewrite(self, array, self._needed[array.name], self._metadata)
                for array in arrays
            ]

    def plan(self) -> Materialized:
        """The plan: nothing is written."""
        return self._summary(is_plan=True, is_complete=False)

    def write(self) -> Materialized:
        """Write it."""
        store, records = self.store, self.records
        if self._contents.job is None:
            begin(store, self._metadata.objects, self._root(None))
        if self.tasks is not None:
            records.marks = mark_of(store)
        rewrites = self._rewrites
        total = sum(int(rewrite.wanted.sum()) for rewrite in rewrites)
        with ProgressBar("materialize", total, self.options.progress, unit="objects") as bar:
            # Those of one pass at once. So no worker waits for the last section of each.
            direct = [rewrite.last for rewrite in rewrites if rewrite.middle is None]
            write_sections(self.tasks, direct, bar.advance)
            # One intermediate store after another, because each takes as much room as the array.
            for rewrite in rewrites:
                if rewrite.middle is not None:
                    rewrite.fill_middle()
                    write_sections(self.tasks, [rewrite.last], bar.advance)
                    rewrite.middle.remove(self.tasks)
        keys = [key for rewrite in rewrites for key in rewrite.keys]
        if not self._contents.is_complete and not records.done.keys() >= set(keys):
            records.load()
        if not records.done.keys() >= set(keys):
            # Another part that has completed the store has removed the records too.
            contents = contents_of(store, overwrite=False)
            return self._summary(is_complete=contents.is_complete, digests=contents.digests)
        return self._complete(keys)

    def _describe(self, names: Iterable[str]) -> TargetMetadata:
        """The arrays and the metadata. Bounds of packed values are read if nothing has them."""
        recipe, options = self.recipe, self.options
        requests = parse_pack(options.pack, {n: recipe.variable(n).dtype for n in names})
        dtype = parse_dtype(options.dtype)
        compressors = parse_compressors(options.compressor, checksum=options.checksum)
        self._num_bounds_reads = 0
        self._bounds = {name: self._bounds_of(name) for name in requests}
        packings = packings_of(requests, self._bounds)
        chunks, shards = options.chunks, options.shards
        arrays = [make_array(recipe, n, chunks, shards, dtype, packings.get(n)) for n in names]
        if options.is_advised:
            memory = options.memory_nbytes
            arrays = [with_fitting_shards(a, memory, self.num_tasks) for a in arrays]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        attrs = {
            ORIGIN: recipe.source.fingerprint,
            "history": f"{now}: written by xloader from {recipe.source.name}",
        }
        return TargetMetadata(recipe, arrays, compressors, attrs)

    def _bounds_of(self, name: str) -> ValueBounds:
        """The bounds of a variable that is packed."""
        before = self._contents.job or {}
        bounds = bounds_in(self.options.stats, name)
        if bounds is None and before.get("source") == self._source_key and name in before["bounds"]:
            bounds = ValueBounds(*before["bounds"][name])
        if bounds is not None:
            return bounds
        self._num_bounds_reads += math.prod(axis.num_blocks for axis in self.recipe.axes_of(name))
        if self.options.dry_run:
            return ValueBounds(0.0, 1.0)
        client = False if self.tasks is None else self.tasks.client
        memory, num_threads = self.options.memory_nbytes, self.options.num_threads
        return read_bounds(self.recipe, name, memory, num_threads, client)

    def _facts(self) -> dict[str, Any]:
        """Everything that fixes the bytes of the target, by what it says, as JSON holds it."""
        arrays = self._metadata.arrays
        # The samples are told by the shards that they need.
        digest = hashlib.sha256()
        for name in sorted(self._needed):
            digest.update(name.encode() + self._needed[name].tobytes())
        facts = {
            "source": self._source_key,
            "variables": sorted(a.name for a in arrays),
            "chunks": {a.name: a.chunks for a in arrays},
            "shards": {a.name: a.shards for a in arrays},
            "dtype": {a.name: a.dtype.str for a in arrays},
            "pack": {a.name: a.packing and a.packing.describe() for a in arrays},
            "codecs": {
                a.name: json.loads(self._metadata.of_array(a.name))["codecs"] for a in arrays
            },
            "bounds": self._bounds,
            "samples": digest.hexdigest(),
        }
        return dict(json.loads(json.dumps(facts)))

    def _find_records(self) -> TargetRecords:
        """The records of what is written already."""
        key = hashlib.sha256(json.dumps(self._job, sort_keys=True).encode()).hexdigest()
        records = TargetRecords(self.store, key)
        if self._contents.is_complete:
            for array in self._metadata.arrays:
                records.find(array.keys_of(self._needed[array.name]))
        elif self._contents.job is not None:
            records.load()
        return records

    def _complete(self, keys: Sequence[str]) -> Materialized:
        """Check what is written, which is all, and complete the store."""
        store, records, is_verified = self.store, self.records, self.options.verify
        if not is_verified:
            wrong = [key for key in keys if store.size_of(key) != records.done[key].nbytes]
        else:
            groups = [keys[n : n + _READ_AT_ONCE] for n in range(0, len(keys), _READ_AT_ONCE)]
            results = ((group, records.read_back(group)) for group in groups)
            if self.tasks is not None:
                what, read = "reading a store back", TargetRecords.read_back
                results = self.tasks.run(what, read, records.apart(), groups)
            stored = itertools.chain.from_iterable(result for _, result in results)
            wrong = [key for key, record in stored if records.differs(key, record)]
        if wrong:
            raise TargetError(
                f"{len(wrong)} objects of {store.name} are not as they were written",
                given=", ".join(wrong[:5]),
                remedy="call the same again for those that are gone; else pass overwrite=True",
            )
        before = self._contents.digests or {}
        is_new = is_verified or not before or any(job.wanted.any() for job in self._rewrites)
        if not is_new:
            return self._summary(is_complete=True, digests=before)
        digests = {job.array.name: records.digest_of(job.keys) for job in self._rewrites}
        damaged = [n for n, text in digests.items() if is_verified and before.get(n, text) != text]
        if damaged:
            raise TargetError(
                f"{store.name} was changed after it was complete",
                given=f"another digest of {', '.join(damaged)}",
                remedy="pass overwrite=True to begin anew",
            )
        store.put("zarr.json", self._root(digests))
        end(store, self.tasks)
        return self._summary(is_complete=True, is_verified=is_verified, digests=digests)

    def _root(self, digests: Mapping[str, str] | None) -> bytes:
        """The object of the store itself. A later call knows the job by its attribute."""
        is_complete = digests is not None
        job = {"job": self._job, "is_complete": is_complete, "digests": digests}
        return self._metadata.root(job, is_complete=is_complete)

    def _summary(
        self,
        *,
        is_complete: bool,
        is_plan: bool = False,
        is_verified: bool = False,
        digests: Mapping[str, str] | None = None,
    ) -> Materialized:
        known = digests or {}
        return Materialized(
            target=self.store.name,
            variables=tuple(job.summary(known.get(job.array.name, "")) for job in self._rewrites),
            is_plan=is_plan,
            is_complete=is_complete,
            is_verified=is_verified,
            expected_peak_nbytes=max(rewrite.peak_nbytes for rewrite in self._rewrites),
            num_bounds_reads=self._num_bounds_reads,
            num_cluster_threads=0 if self.tasks is None else self.tasks.num_threads,
            seconds=time.monotonic() - self._begun,
        )


class ArrayRewrite:
    """The writing of one variable, in one pass or in two with an intermediate store."""

    def __init__(
        self, store: TrainingStore, array: TargetArray, needed: Flags, metadata: TargetMetadata
    ) -> None:
        self._store, self.array, self._needed = store, array, needed
        self._metadata = metadata.of_array(array.name)
        self._assigned = shards_of_part(needed, store.options.part)
        self.wanted = self._assigned & ~store.records.written(array)
        self.middle: IntermediateStore | None = None
        change = array.rechunking()
        self._plan = self._sections_of(change)
        self.last = self.first = self._writer(store.recipe, array)
        if store.may_pass_between and self.wanted.any():
            chunks = intermediate_chunks(change, self._plan, store.memory, store.num_threads)
            if chunks is not None:
                self.middle = IntermediateStore(store.records, array, chunks)
                plan = self._sections_of(change.with_shards(chunks))
                self.first = self.middle.writer(store.recipe, plan)
                self._plan = self._sections_of(change.read_from(chunks))
        if store.recipe.source.is_waiting(array.name):
            self.first.plan = self.first.plan.waiting(store.memory)
        self._expected_reads = self.first.expected_reads

    @property
    def keys(self) -> list[str]:
        """Keys of all objects that samples need."""
        return self.array.keys_of(self._needed)

    @property
    def peak_nbytes(self) -> int:
        """Upper limit of the memory that it takes; on a cluster, in a worker."""
        return self._store.num_tasks * max(self.first.plan.peak_nbytes, self._plan.peak_nbytes)

    def fill_middle(self) -> None:
        """Write the intermediate store, from which the last pass then reads."""
        middle, records = self.middle, self._store.records
        assert middle is not None
        middle.begin()
        # Threads need no marks.
        marks = {**records.marks, **middle.mark} if records.marks else {}
        middle.records.marks = marks
        write_sections(self._store.tasks, [self.first], lambda _: None)
        recipe = middle.recipe(self._store.recipe)
        kept = tuple(range(len(self.array.dims)))
        array = replace(self.array, axes=recipe.axes_of(self.array.name), kept=kept)
        self.last = self._writer(recipe, array)
        self.last.records = replace(records, marks=marks)

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
            num_shards=self._needed.size,
            num_unneeded=int(np.count_nonzero(~self._needed)),
            num_done=int(np.count_nonzero(self._assigned & ~self.wanted)),
            num_others=int(np.count_nonzero(self._needed & ~self._assigned)),
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
        records = self._store.records
        return SectionWriter(recipe, array, self._metadata, self._plan, records, self.wanted)

    def _sections_of(self, job: Rechunking) -> SectionPlan:
        store = self._store
        num_units = 1 if store.tasks is None else UNITS_PER_THREAD * store.tasks.num_threads
        return plan_sections(job, store.memory, store.num_threads, num_units)


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


def find_writing_cluster(
    recipe: Recipe, store: WritableStore, options: StoreOptions
) -> ClusterTasks | None:
    """The cluster on which a store is written; None for the threads of this process."""
    client = options.client
    if options.part[1] > 1:
        if client is None or client is False:
            return None
        raise OptionError(
            "a cluster divides the work itself",
            given=f"part={options.part} together with client= or --scheduler",
            remedy="leave part= out, or pass client=False",
        )
    tasks = find_cluster(client, recipe)
    fault = None if tasks is None else _fault_of(store)
    if fault is None or client is None:
        return None if fault else tasks
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


def materialize(recipe: Recipe, target: object, options: StoreOptions) -> Materialized:
    """Write the part of a source that samples cover; see `Samples.materialize`."""
    job = TrainingStore(recipe, target, options)
    return job.plan() if options.dry_run else job.write()
