"""Reads batches of any ids through a least-recently-used cache of decoded blocks.

It reads and drops the same blocks as `xloader.planning.cache_budget.simulate` does for the same
ids. All batches of a process are those of one run, whose program is made as they are asked for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from xloader.core.axis import Ints
from xloader.engine.assembly import EngineParts
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.cache_program import CacheProgram
from xloader.engine.executor import BlockMemory, Limits
from xloader.engine.finishes import BatchFinish
from xloader.engine.run import Job, Run, make_blocks
from xloader.engine.tables import Tables
from xloader.errors import ChunkError, ClosedError, MemoryBudgetError
from xloader.planning.cache_budget import cache_budget, least_nbytes
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe

_MOST_LOADS = 1 << 30
"""Loads after which a run is followed by another one: their numbers are 32 bits wide."""


@dataclass
class CacheTally:
    """Counts of what was read in this process.

    Attributes
    ----------
    num_reads : int
        (variable, chunk) pairs that were read.
    read_nbytes : int
        Decoded bytes of these chunks, not cut down to the selection.
    num_missing : int
        Absent chunks, read as the fill value.
    num_requests : int
        Requests made of the store.
    peak_nbytes : int
        The most decoded bytes that the cache held after any sample.
    """

    num_reads: int = 0
    read_nbytes: int = 0
    num_missing: int = 0
    num_requests: int = 0
    peak_nbytes: int = 0


class CachedReader:
    """Reader of batches of any ids. Each process makes its own memory and threads on first use.

    Several threads may call `read`; one read follows the other. A reader pickles as None, because
    its memory and threads cannot be sent to another process. Its owner makes a new one there.

    Parameters
    ----------
    parts : EngineParts
        The parts that read and copy.
    capacity_nbytes : int
        The most decoded bytes held: see `xloader.planning.cache_budget.cache_budget`.

    Raises
    ------
    MemoryBudgetError
        If some sample alone needs more than the capacity.
    """

    def __init__(self, parts: EngineParts, capacity_nbytes: int) -> None:
        least = least_nbytes(parts.footprint)
        if capacity_nbytes < least:
            raise MemoryBudgetError(
                "the cache is too small for the chunks of one sample",
                given=f"{capacity_nbytes} bytes",
                minimum_nbytes=least,
            )
        self._batch_size = parts.fields.batch_size
        self._make_held = partial(_Held, parts, capacity_nbytes)
        self._held: dict[int, _Held] = {}
        self._is_closed = False

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        memory_nbytes: int,
        batch_size: int,
        *,
        prefetch: int,
        num_cores: int,
        num_workers: int = 1,
    ) -> CachedReader:
        """Make a reader of the samples of a recipe that keeps within a memory budget.

        Parameters
        ----------
        recipe : Recipe
            The samples. Its transforms are not run.
        memory_nbytes : int
            Bytes for batches, for chunks that are being read and for kept chunks.
        batch_size : int
            Number of samples that are read at a time. A longer list of ids is read in parts.
        prefetch : int
            Number of batches that wait for the consumer.
        num_cores : int
            Most threads that read and copy.
        num_workers : int, default 1
            Number of workers that share the memory. The reader uses the share of one.

        Returns
        -------
        CachedReader
            The reader. It keeps the chunks that were used last.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small for the chunks of some single sample. The error gives the
            minimum that suffices.
        """
        layouts = make_layouts(recipe)
        footprint = make_footprint(recipe, layouts)
        budget = cache_budget(
            footprint, layouts, memory_nbytes, batch_size, prefetch, num_workers=num_workers
        )
        fields = Fields(layouts, min(batch_size, footprint.num_samples), budget.num_batches)
        parts = EngineParts.of(
            recipe,
            layouts,
            footprint,
            fields,
            budget.in_flight_nbytes,
            num_cores,
            recipe.retry_policy,
        )
        return cls(parts, budget.lane_nbytes)

    @property
    def tally(self) -> CacheTally:
        """Counts of what was read so far in this process."""
        return self._here().tally

    def read(self, ids: Ints) -> Arrays:
        """Read some samples, without transforms and without label fields' values.

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Sample ids in any order and number. They may repeat.

        Returns
        -------
        dict of str to numpy.ndarray
            By field, shape ``(n, *layout.shape)``. The caller may keep and change the arrays.

        Raises
        ------
        ChunkError
            If a chunk cannot be read. A later read tries again.
        StoreChangedError
            If the store is no longer what was opened.
        SampleIndexError
            If an id lies outside ``[0, num_samples)``.
        ClosedError
            If the reader is closed.
        """
        held = self._here()
        with held.lock:
            if self._is_closed:
                raise ClosedError("the reader is closed", remedy="make a new reader")
            size = self._batch_size
            begins = range(0, max(len(ids), 1), size)
            parts = [held.read(ids[begin : begin + size]) for begin in begins]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        """Release the memory and end the threads. It may be called more than once."""
        held = self._here()
        with held.lock:
            self._is_closed = True
            held.end()

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()

    def _here(self) -> _Held:
        """The run of this process."""
        # A forked child starts afresh. It lacks its parent's threads, so a lock that they held
        # would never be released.
        pid = os.getpid()
        held = self._held.get(pid) or self._held.setdefault(pid, self._make_held())
        for other in [own for own in self._held if own != pid]:
            self._held.pop(other, None)
        return held


class _Held:
    """The run of one process, its counts, and those of the runs before it."""

    def __init__(self, parts: EngineParts, capacity_nbytes: int) -> None:
        self._parts, self._capacity_nbytes = parts, capacity_nbytes
        self.lock = threading.Lock()
        self._before = CacheTally()
        self._program: CacheProgram
        self._run: Run | None = None

    @property
    def tally(self) -> CacheTally:
        """The counts of all runs."""
        before, run = self._before, self._run
        if run is None:
            return before
        tally = run.tally
        tally.refresh()
        return CacheTally(
            before.num_reads + tally.num_reads,
            before.read_nbytes + tally.read_nbytes,
            before.num_missing + tally.num_missing,
            before.num_requests + tally.num_requests,
            max(before.peak_nbytes, self._program.peak_nbytes),
        )

    def read(self, ids: Ints) -> Arrays:
        """Read a batch."""
        if self._run is None or self._program.num_loads > _MOST_LOADS:
            self._begin()
        assert self._run is not None
        try:
            self._program.ask_for(ids, self._run.errors)
            self._run.errors.clear()
            self._run.make_segment()
            delivery = self._run.take()
        except BaseException as error:
            # A batch whose chunks could not be read is taken nevertheless, and the run can go on.
            is_taken = self._run.num_taken == self._program.num_made
            if not (is_taken and isinstance(error, ChunkError)):
                self.end()
            raise
        assert delivery is not None
        if 2 * len(ids) <= self._parts.fields.batch_size:
            # The arrays are views of a full batch's buffer, which a user who collects samples would
            # keep.
            return {name: array.copy() for name, array in delivery.arrays.items()}
        return delivery.arrays

    def _begin(self) -> None:
        self.end()
        self._program = CacheProgram(self._parts, self._capacity_nbytes)
        job = _make_job(self._parts, self._program, self._capacity_nbytes)
        self._run = Run(job)
        self._end = weakref.finalize(self, _end, self._run, job.blocks)
        self._end.atexit = False

    def end(self) -> None:
        """End the run, if there is one, and release the memory. The next read begins anew."""
        if self._run is not None:
            self._before, self._run = self.tally, None
            self._end()


def _end(run: Run, blocks: BlockMemory) -> None:
    run.close()
    blocks.drop()


def _make_job(parts: EngineParts, program: CacheProgram, capacity_nbytes: int) -> Job:
    """The job of a run, with memory for blocks."""
    tables = Tables(parts, parts.reader.source, is_resident=False)
    blocks = make_blocks(parts, tables, capacity_nbytes)
    num_threads, chunk_nbytes = parts.num_threads, parts.footprint.max_chunk_nbytes
    scratch_nbytes = tables.scratch_nbytes(chunk_nbytes, num_threads)
    is_native = blocks.is_native and tables.is_native and not parts.borders
    return Job(
        program=program,
        parts=parts,
        tables=tables,
        finisher=BatchFinish(),
        last_size=0,
        num_ahead=0,
        blocks=blocks,
        limits=Limits(
            batch_nbytes=0,
            in_flight_nbytes=parts.in_flight_nbytes,
            most_chunk_nbytes=chunk_nbytes,
            num_cores=num_threads,
            num_held=0,
            num_known=0,
            most_scratch=max(1, scratch_nbytes // chunk_nbytes),
            most_loading_hands=num_threads,
        ),
        num_threads=num_threads,
        num_hands=1 if is_native else num_threads,
        most_fetched_nbytes=parts.in_flight_nbytes - scratch_nbytes,
    )


def _nothing() -> None:
    """The value that a pickled reader has in another process: None."""
