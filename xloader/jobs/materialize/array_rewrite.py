"""The writing of one variable of a target: its plan, then the passes that carry it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xloader.core.axis import Ints
from xloader.jobs.materialize.intermediate_store import IntermediateStore
from xloader.jobs.materialize.materialized import MaterializedVariable
from xloader.jobs.materialize.section_writer import Flags, SectionWriter, section_work
from xloader.jobs.materialize.shard_encoder import ShardEncoder
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_records import TargetRecords
from xloader.planning.rechunking import (
    Rechunking,
    SectionPlan,
    intermediate_chunks,
    plan_sections,
)
from xloader.recipe.recipe import Recipe

OnSection = Callable[[int], None]


@dataclass(eq=False)
class ArrayRewrite:
    """The writing of one variable.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    array : TargetArray
        The array of the target.
    metadata : bytes
        Its ``zarr.json``.
    records : TargetRecords
        What is written so far.
    needed : numpy.ndarray of bool
        The shards that samples need.
    own : numpy.ndarray of bool
        Those of them that this process writes, if they are not written yet.
    memory, num_threads : int
        Bytes and threads that may be taken.
    may_pass_between : bool
        Whether values may go through an intermediate store.
    is_written : bool
        Whether the store was complete already. Then objects that are there count as written.
    """

    recipe: Recipe
    array: TargetArray
    metadata: bytes
    records: TargetRecords
    needed: Flags
    own: Flags
    memory: int
    num_threads: int
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
        self.wanted = self.own & ~self._done(self._encoder, self.array, self.records)
        self._num_done = int(np.count_nonzero(self.own & ~self.wanted))
        job = self.array.rechunking()
        self.plan = plan_sections(job, self.memory, self.num_threads)
        if self.may_pass_between and self.wanted.any():
            chunks = intermediate_chunks(job, self.plan, self.memory, self.num_threads)
            if chunks is not None:
                self.middle = IntermediateStore(self.records.store, self.array, chunks)
        self._passes = self._planned()
        if self.recipe.source.is_waiting(self.array.name):
            sections, plan = self._passes[0]
            self._passes[0] = sections, plan.waiting(self.memory)
        self.expected_reads = self._expected()

    @property
    def keys(self) -> list[str]:
        """Keys of all objects that samples need."""
        return [self._key(shard) for shard in np.argwhere(self.needed)]

    @property
    def peak_nbytes(self) -> int:
        """Upper limit of the memory that it takes."""
        return max(plan.peak_nbytes for _, plan in self._passes)

    def run(self, on_section: OnSection) -> None:
        """Write what is wanted."""
        if not self.wanted.any():
            return
        recipe, array = self.recipe, self.array
        if self.middle is not None:
            recipe, array = self._fill_middle()
        writer = SectionWriter(
            *(recipe, array, self.metadata, self._passes[-1][1], self.records, self.wanted)
        )
        writer.run(on_section)
        if self.middle is None:
            self.num_reads = writer.num_reads
        else:
            self.records.store.delete(self.middle.path)
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
            num_others=int(np.count_nonzero(self.needed & ~self.own)),
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

    def _key(self, shard: Ints) -> str:
        return f"{self.array.name}/{self._encoder.key_of(tuple(shard.tolist()))}"

    def _planned(self) -> list[tuple[Rechunking, SectionPlan]]:
        job = self.array.rechunking()
        if self.middle is None:
            return [(job, self.plan)]
        chunks = self.middle.array.chunks
        first, second = job.with_shards(chunks), job.read_from(chunks)
        return [
            (first, plan_sections(first, self.memory, self.num_threads)),
            (second, plan_sections(second, self.memory, self.num_threads)),
        ]

    def _expected(self) -> int:
        """Chunks of the source that will be read."""
        job, plan = self._passes[0]
        wanted = self.wanted
        if self.middle is not None:
            wanted = self._wanted_of_middle()
        if wanted.all():
            return plan.num_reads
        return sum(len(work.blocks) for work in section_work(job, plan, wanted))

    def _middle_records(self) -> TargetRecords:
        assert self.middle is not None
        own = TargetRecords(
            self.records.store, f"{self.records.job}-{self.middle.path}", self.middle.prefix
        )
        own.load()
        return own

    def _wanted_of_middle(self) -> Flags:
        """The chunks of the intermediate store that are not written yet."""
        assert self.middle is not None
        array = self.middle.array
        encoder = ShardEncoder(array, self.middle.metadata)
        grid = np.ones(array.rechunking().grid, np.bool_)
        return grid & ~self._done(encoder, array, self._middle_records())

    def _fill_middle(self) -> tuple[Recipe, TargetArray]:
        """Write the intermediate store, and give the values and the array to read from it."""
        middle = self.middle
        assert middle is not None
        middle.begin()
        wanted, records = self._wanted_of_middle(), self._middle_records()
        plan = self._passes[0][1]
        writer = SectionWriter(self.recipe, middle.array, middle.metadata, plan, records, wanted)
        writer.run(lambda _: None)
        self.num_reads = writer.num_reads
        return middle.reading(self.recipe, self.array)

    def _done(self, encoder: ShardEncoder, array: TargetArray, records: TargetRecords) -> Flags:
        done = np.zeros(array.rechunking().grid, np.bool_)
        if records.done:
            for shard in np.ndindex(done.shape):
                done[shard] = f"{array.name}/{encoder.key_of(shard)}" in records.done
        return done
