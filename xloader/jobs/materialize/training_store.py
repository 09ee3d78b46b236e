"""Writes the part of a source that samples cover as a store in other chunks."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import xarray as xr
from numpy.typing import DTypeLike

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.cores import usable_cores
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_part, check_threads
from xloader.errors import EmptySamplesError, OptionError, TargetError
from xloader.jobs.materialize.array_rewrite import (
    ArrayRewrite,
    find_writing_cluster,
    read_back_on_cluster,
    write_arrays,
)
from xloader.jobs.materialize.materialized import Materialized
from xloader.jobs.materialize.section_writer import needed_shards, shards_of_part
from xloader.jobs.materialize.target_arrays import (
    Sizes,
    check_sizes,
    make_array,
    with_fitting_shards,
    written_names,
)
from xloader.jobs.materialize.target_metadata import ORIGIN, TargetMetadata, parse_compressors
from xloader.jobs.materialize.target_records import (
    TargetContents,
    TargetRecords,
    begin,
    contents_of,
    end,
    mark_of,
)
from xloader.jobs.materialize.value_packing import (
    ValueBounds,
    find_bounds,
    packings_of,
    parse_dtype,
    parse_pack,
)
from xloader.jobs.progress_bar import ProgressBar
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.writable_store import WritableStore, open_writable
from xloader.sources.stores.write_places import check_apart, check_stored_names


@dataclass(frozen=True, eq=False)
class StoreOptions:
    """The options of `Samples.materialize` that say what is written."""

    chunks: Sizes
    shards: Sizes | None
    dtype: DTypeLike | None
    pack: Mapping[str, Any] | None
    stats: xr.Dataset | None
    compressor: Any
    checksum: bool
    is_advised: bool = False


@dataclass(frozen=True, eq=False)
class StoreRun:
    """The options of `Samples.materialize` that say how it is written."""

    memory: int
    num_threads: int
    part: tuple[int, int]
    overwrite: bool
    verify: bool
    progress: bool | None


def parse_run(
    memory: int | str,
    threads: int | None,
    part: Any,
    *,
    overwrite: bool,
    verify: bool,
    progress: bool | None,
) -> StoreRun:
    """Check the options that say how a store is written."""
    nbytes = parse_nbytes(memory)
    num_threads = check_threads(threads) or usable_cores()
    return StoreRun(
        nbytes,
        num_threads,
        (0, 1) if part is None else check_part(part),
        overwrite,
        verify,
        progress,
    )


class TrainingStore:
    """A store of the values that samples take, which is planned, and then written.

    `tasks`: the cluster that writes it; None for the threads of this process.
    """

    def __init__(
        self,
        recipe: Recipe,
        store: WritableStore,
        options: StoreOptions,
        run: StoreRun,
        tasks: ClusterTasks | None,
        *,
        is_dry: bool = False,
    ) -> None:
        self._begun = time.monotonic()
        # All ranks of a group share one store.
        self._recipe, self._store, self._run = recipe.planned, store, run
        self._tasks = tasks
        # What one task may take, of which a worker runs several at a time.
        self._num_tasks = 1 if tasks is None else tasks.most_threads_of_worker
        self._memory = run.memory if tasks is None else tasks.task_memory(run.memory)
        self._num_threads = run.num_threads if tasks is None else 1
        names = written_names(self._recipe)
        if not names:
            raise EmptySamplesError(
                "the samples take no stored variable, but forcings only",
                remedy="add a variable: forcings are computed again from the labels of any store",
            )
        check_stored_names(names)
        check_sizes("chunks", options.chunks, self._recipe, names)
        if options.shards is not None:
            check_sizes("shards", options.shards, self._recipe, names)
        check_apart(store.name, self._recipe.source)
        self._contents = contents_of(store, overwrite=run.overwrite and not is_dry, tasks=tasks)
        if is_dry and run.overwrite:
            self._contents = TargetContents()
        self._num_bounds_reads = 0
        self._metadata = self._describe(names, options, is_dry=is_dry)
        self._job = self._facts()
        self._contents.check(self._job, store)
        with nullcontext() if tasks is None else tasks.memory_errors(run.memory):
            self._jobs = self._plan()

    def plan(self) -> Materialized:
        """The plan: nothing is written."""
        return self._summary(is_plan=True, is_complete=False)

    def write(self) -> Materialized:
        """Write it."""
        run, store = self._run, self._store
        if self._contents.job is None:
            root = self._metadata.root(self._attribute(None), is_complete=False)
            begin(store, self._metadata.objects, root)
        if self._tasks is not None:
            self._records.marks = mark_of(store)
        total = sum(int(job.wanted.sum()) for job in self._jobs)
        with ProgressBar("materialize", total, run.progress, unit="objects") as bar:
            write_arrays(self._jobs, bar.advance)
        return self._finish()

    def _describe(
        self, names: Sequence[str], options: StoreOptions, *, is_dry: bool
    ) -> TargetMetadata:
        """The arrays and the metadata. Bounds of packed values are read if nothing has them."""
        recipe, known = self._recipe, self._contents.job or {}
        requests = parse_pack(options.pack, {n: recipe.variable(n).dtype for n in names})
        dtype = parse_dtype(options.dtype)
        compressors = parse_compressors(options.compressor, checksum=options.checksum)
        known_bounds = known.get("bounds", {}) if known.get("source") == self._source_key else {}
        bounds, self._num_bounds_reads = find_bounds(
            recipe,
            requests,
            known_bounds,
            options.stats,
            self._memory,
            self._num_threads,
            self._tasks,
            is_dry=is_dry,
        )
        self._bounds: dict[str, ValueBounds] = bounds
        packings = packings_of(requests, bounds)
        chunks, shards = options.chunks, options.shards
        arrays = [make_array(recipe, n, chunks, shards, dtype, packings.get(n)) for n in names]
        if options.is_advised:
            arrays = [with_fitting_shards(a, self._run.memory, self._num_tasks) for a in arrays]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        attrs = {
            ORIGIN: recipe.source.fingerprint,
            "history": f"{now}: written by xloader from {recipe.source.name}",
        }
        return TargetMetadata(recipe, arrays, compressors, attrs)

    @property
    def _source_key(self) -> str:
        """Names the source and the part of it that is kept."""
        parts = (self._recipe.source.fingerprint, self._recipe.selection)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _facts(self) -> dict[str, Any]:
        """Everything that fixes the bytes of the target, by what it says, as JSON holds it."""
        arrays = self._metadata.arrays
        # The samples are told by the shards that they need.
        self._needed = {a.name: needed_shards(self._recipe, a) for a in arrays}
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
            "codecs": {a.name: self._metadata.codecs_of(a.name) for a in arrays},
            "bounds": {n: [bounds.least, bounds.most] for n, bounds in self._bounds.items()},
            "samples": digest.hexdigest(),
        }
        return dict(json.loads(json.dumps(facts)))

    def _plan(self) -> list[ArrayRewrite]:
        key = hashlib.sha256(json.dumps(self._job, sort_keys=True).encode()).hexdigest()
        self._records = TargetRecords(self._store, key)
        if self._contents.job is not None and not self._contents.is_complete:
            self._records.load()
        objects = self._metadata.objects
        run = self._run
        return [
            ArrayRewrite(
                recipe=self._recipe,
                array=array,
                metadata=objects[f"{array.name}/zarr.json"],
                records=self._records,
                needed=self._needed[array.name],
                assigned=shards_of_part(self._needed[array.name], run.part),
                memory=self._memory,
                num_threads=self._num_threads,
                tasks=self._tasks,
                is_written=self._contents.is_complete,
                # Each part would fill an intermediate store of its own.
                may_pass_between=run.part[1] == 1 and not self._store.is_transaction,
            )
            for array in self._metadata.arrays
        ]

    def _finish(self) -> Materialized:
        """Check what is written, and complete the store if every part is."""
        store, records = self._store, self._records
        keys = {job.array.name: job.keys for job in self._jobs}
        if not self._contents.is_complete and not records.has_all(keys.values()):
            records.load()
        if not records.has_all(keys.values()):
            # Another part that has completed the store has removed the records too.
            contents = contents_of(store, overwrite=False)
            return self._summary(is_complete=contents.is_complete, digests=contents.digests)
        is_verified = self._run.verify
        tasks = self._tasks
        read = None if tasks is None else partial(read_back_on_cluster, tasks, records)
        wrong = [
            key
            for shards in keys.values()
            for key in records.check(shards, is_whole=is_verified, read=read)
        ]
        if wrong:
            raise TargetError(
                f"{len(wrong)} objects of {store.name} are not as they were written",
                given=", ".join(wrong[:5]),
                remedy="call the same again for those that are gone; else pass overwrite=True",
            )
        before = self._contents.digests or {}
        is_new = is_verified or not before or any(job.wanted.any() for job in self._jobs)
        if not is_new:
            return self._summary(is_complete=True, digests=before)
        digests = {name: records.digest_of(shards) for name, shards in keys.items()}
        damaged = [n for n, text in digests.items() if is_verified and before.get(n, text) != text]
        if damaged:
            raise TargetError(
                f"{store.name} was changed after it was complete",
                given=f"another digest of {', '.join(damaged)}",
                remedy="pass overwrite=True to begin anew",
            )
        store.put("zarr.json", self._metadata.root(self._attribute(digests), is_complete=True))
        end(store, self._tasks)
        return self._summary(is_complete=True, is_verified=is_verified, digests=digests)

    def _attribute(self, digests: Mapping[str, str] | None) -> dict[str, Any]:
        """The attribute of the store by which a later call knows the job."""
        return {"job": self._job, "is_complete": digests is not None, "digests": digests}

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
            target=self._store.name,
            variables=tuple(job.summary(known.get(job.array.name, "")) for job in self._jobs),
            is_plan=is_plan,
            is_complete=is_complete,
            is_verified=is_verified,
            expected_peak_nbytes=max(job.peak_nbytes for job in self._jobs),
            num_bounds_reads=self._num_bounds_reads,
            num_cluster_threads=0 if self._tasks is None else self._tasks.num_threads,
            seconds=time.monotonic() - self._begun,
        )


def materialize(
    recipe: Recipe,
    target: object,
    options: StoreOptions,
    run: StoreRun,
    *,
    client: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> Materialized:
    """Write the part of a source that samples cover; see `Samples.materialize`."""
    store = open_writable(target, storage_options, recipe.retry_policy)
    if store.is_transaction and run.part[1] > 1:
        raise OptionError(
            "parts cannot share one session",
            given=f"part={run.part} with {store.name}",
            remedy="leave part= out, or write to a path or URL",
        )
    tasks = find_writing_cluster(client, recipe.planned, store, run.part)
    job = TrainingStore(recipe, store, options, run, tasks, is_dry=dry_run)
    return job.plan() if dry_run else job.write()
