"""Writes the part of a source that samples cover as a store in other chunks."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import xarray as xr
from numpy.typing import DTypeLike

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
    find_bounds,
    packings_of,
    parse_dtype,
    parse_pack,
)
from xloader.jobs.progress_bar import ProgressBar
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.writable_store import open_writable
from xloader.sources.stores.write_places import check_apart, check_stored_names


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
    part: tuple[int, int] | None = None
    progress: bool | None = None
    dry_run: bool = False
    client: Any = None

    def __post_init__(self) -> None:
        self.memory_nbytes = parse_nbytes(self.memory)
        self.num_threads = check_threads(self.threads) or usable_cores()
        self.own_part = (0, 1) if self.part is None else check_part(self.part)


class TrainingStore:
    """A store of the values that samples take, which is planned when it is made."""

    def __init__(self, recipe: Recipe, target: object, options: StoreOptions) -> None:
        self._begun = time.monotonic()
        self._options = options
        # All ranks of a group share one store.
        self._recipe = recipe.planned
        self._store = store = open_writable(target, options.storage_options, recipe.retry_policy)
        if store.is_transaction and options.own_part[1] > 1:
            raise OptionError(
                "parts cannot share one session",
                given=f"part={options.own_part} with {store.name}",
                remedy="leave part= out, or write to a path or URL",
            )
        tasks = find_writing_cluster(options.client, self._recipe, store, options.own_part)
        self._tasks = tasks
        # What one task may take, of which a worker runs several at a time.
        self._num_tasks = 1 if tasks is None else tasks.most_threads_of_worker
        self._memory = options.memory_nbytes // self._num_tasks
        self._num_threads = options.num_threads if tasks is None else 1
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
        is_kept = options.dry_run or not options.overwrite
        self._contents = contents_of(store, overwrite=not is_kept, tasks=tasks)
        if options.overwrite:
            self._contents = TargetContents()
        # Names the source and the part of it that is kept.
        parts = (self._recipe.source.fingerprint, self._recipe.selection)
        self._source_key = hashlib.sha256(repr(parts).encode()).hexdigest()
        self._metadata = self._describe(names)
        arrays = self._metadata.arrays
        self._needed = {array.name: needed_shards(self._recipe, array) for array in arrays}
        self._job = self._facts()
        self._contents.check(self._job, store)
        with nullcontext() if tasks is None else tasks.memory_errors(options.memory_nbytes):
            self._jobs = self._plan()

    def plan(self) -> Materialized:
        """The plan: nothing is written."""
        return self._summary(is_plan=True, is_complete=False)

    def write(self) -> Materialized:
        """Write it."""
        store, records = self._store, self._records
        if self._contents.job is None:
            begin(store, self._metadata.objects, self._root(None))
        if self._tasks is not None:
            records.marks = mark_of(store)
        total = sum(int(job.wanted.sum()) for job in self._jobs)
        with ProgressBar("materialize", total, self._options.progress, unit="objects") as bar:
            write_arrays(self._jobs, bar.advance)
        keys = [key for job in self._jobs for key in job.keys]
        if not self._contents.is_complete and not records.done.keys() >= set(keys):
            records.load()
        if not records.done.keys() >= set(keys):
            # Another part that has completed the store has removed the records too.
            contents = contents_of(store, overwrite=False)
            return self._summary(is_complete=contents.is_complete, digests=contents.digests)
        return self._complete(keys)

    def _describe(self, names: Iterable[str]) -> TargetMetadata:
        """The arrays and the metadata. Bounds of packed values are read if nothing has them."""
        recipe, options, known = self._recipe, self._options, self._contents.job or {}
        requests = parse_pack(options.pack, {n: recipe.variable(n).dtype for n in names})
        dtype = parse_dtype(options.dtype)
        compressors = parse_compressors(options.compressor, checksum=options.checksum)
        self._bounds, self._num_bounds_reads = find_bounds(
            recipe,
            requests,
            known.get("bounds", {}) if known.get("source") == self._source_key else {},
            options.stats,
            self._memory,
            self._num_threads,
            self._tasks,
            is_dry=options.dry_run,
        )
        packings = packings_of(requests, self._bounds)
        chunks, shards = options.chunks, options.shards
        arrays = [make_array(recipe, n, chunks, shards, dtype, packings.get(n)) for n in names]
        if options.is_advised:
            memory = options.memory_nbytes
            arrays = [with_fitting_shards(a, memory, self._num_tasks) for a in arrays]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        attrs = {
            ORIGIN: recipe.source.fingerprint,
            "history": f"{now}: written by xloader from {recipe.source.name}",
        }
        return TargetMetadata(recipe, arrays, compressors, attrs)

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
            "codecs": {a.name: self._metadata.codecs_of(a.name) for a in arrays},
            "bounds": self._bounds,
            "samples": digest.hexdigest(),
        }
        return dict(json.loads(json.dumps(facts)))

    def _plan(self) -> list[ArrayRewrite]:
        """The jobs of all arrays, without what is written already."""
        key = hashlib.sha256(json.dumps(self._job, sort_keys=True).encode()).hexdigest()
        self._records = records = TargetRecords(self._store, key)
        if self._contents.is_complete:
            for array in self._metadata.arrays:
                records.find(array.keys_of(self._needed[array.name]))
        elif self._contents.job is not None:
            records.load()
        objects, part = self._metadata.objects, self._options.own_part
        return [
            ArrayRewrite(
                recipe=self._recipe,
                array=array,
                metadata=objects[f"{array.name}/zarr.json"],
                records=records,
                needed=self._needed[array.name],
                assigned=shards_of_part(self._needed[array.name], part),
                memory=self._memory,
                num_threads=self._num_threads,
                tasks=self._tasks,
                # Each part would fill an intermediate store of its own.
                may_pass_between=part[1] == 1 and not self._store.is_transaction,
            )
            for array in self._metadata.arrays
        ]

    def _complete(self, keys: Iterable[str]) -> Materialized:
        """Check what is written, which is all, and complete the store."""
        store, records, is_verified = self._store, self._records, self._options.verify
        if not is_verified:
            wrong = [key for key in keys if store.size_of(key) != records.done[key].nbytes]
        else:
            stored = records.read_back(keys)
            if self._tasks is not None:
                stored = read_back_on_cluster(self._tasks, records, keys)
            wrong = [key for key, record in stored if records.differs(key, record)]
        if wrong:
            raise TargetError(
                f"{len(wrong)} objects of {store.name} are not as they were written",
                given=", ".join(wrong[:5]),
                remedy="call the same again for those that are gone; else pass overwrite=True",
            )
        before = self._contents.digests or {}
        if before and not is_verified and not any(job.wanted.any() for job in self._jobs):
            return self._summary(is_complete=True, digests=before)
        digests = {job.array.name: records.digest_of(job.keys) for job in self._jobs}
        damaged = [n for n, text in digests.items() if is_verified and before.get(n, text) != text]
        if damaged:
            raise TargetError(
                f"{store.name} was changed after it was complete",
                given=f"another digest of {', '.join(damaged)}",
                remedy="pass overwrite=True to begin anew",
            )
        store.put("zarr.json", self._root(digests))
        end(store, self._tasks)
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


def materialize(recipe: Recipe, target: object, options: StoreOptions) -> Materialized:
    """Write the part of a source that samples cover; see `Samples.materialize`."""
    job = TrainingStore(recipe, target, options)
    return job.plan() if options.dry_run else job.write()
