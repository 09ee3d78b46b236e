"""Reads batches of any ids through a least-recently-used cache of decoded blocks.

It reads and drops the same blocks as `xloader.planning.cache_budget.simulate` does for the same
ids. All batches of a process are those of one run, whose program is made as they are asked for.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from functools import partial

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.engine.assembly import EngineParts
from xloader.engine.batches import BatchRows
from xloader.engine.buffers import Arrays, Fields, LeasedPool
from xloader.engine.finishes import BatchFinish
from xloader.engine.native_executor import BlockMemory
from xloader.engine.overlaps import NUM_COLUMNS, finders_of
from xloader.engine.program import COPY_COLUMNS, LOAD_COLUMNS, Segment
from xloader.engine.run import Job, Run, make_blocks
from xloader.engine.tables import Tables
from xloader.engine.tally import Tally
from xloader.errors import ChunkError, ClosedError, MemoryBudgetError, ReadTimeoutError
from xloader.planning.cache_budget import BlockNumbers, Recent, cache_budget, least_nbytes
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.per_process import PerProcess


class CacheProgram:
    """Makes a segment of one batch of each list of ids that is asked for."""

    num_steps = sys.maxsize
    # No hand of the run makes segments: who asks for a batch does.
    is_over = True

    def __init__(self, parts: EngineParts, capacity_nbytes: int) -> None:
        self.num_made = self.num_loads = 0
        self._footprint = parts.footprint
        self._keys = BlockNumbers(parts.footprint)
        self._finders = finders_of(parts.footprint.groups, parts.places.accesses)
        self._table_pool = LeasedPool(max(4, sum(map(len, self._finders))))
        self._recent = Recent(capacity_nbytes)
        self._ids: Ints = np.zeros(0, np.int64)
        # The load of each block in memory, by key; and those that the next segment ends.
        self._load_of: dict[int, int] = {}
        self._ends: list[int] = []

    @property
    def peak_nbytes(self) -> int:
        """The most decoded bytes that the cache held after any sample."""
        return self._recent.peak_nbytes

    def ask_for(self, ids: Ints, failed: Collection[int]) -> None:
        """Give the ids of the next segment, and the loads that failed, which are forgotten."""
        if failed:
            for key in [key for key, load in self._load_of.items() if load in failed]:
                self._recent.forget(key)
                self._ends.append(self._load_of.pop(key))
        self._ids = ids

    def next_segment(self, is_finished: Callable[[int], bool]) -> Segment:
        """Make the segment of the ids that were asked for."""
        positions = self._footprint.positions_of(self._ids)
        batch, first_load = BatchRows(self.num_made, self._ids), self.num_loads
        self.num_made += 1
        hits, places = self._find(self._footprint.windows.firsts_of(positions))
        # The pairs of a row and a block that it needs, by which blocks are used.
        touched, at = np.unique(places, return_inverse=True)
        rows, keys = np.divmod(touched, self._keys.bases[-1])
        numbers, loads = self._use(np.searchsorted(rows, np.arange(len(positions) + 1)), keys)
        copies = _copies(hits, numbers[at], len(positions.T))
        ends, self._ends = np.array(self._ends, np.int64), []
        copy_ends = np.array([len(copies)], np.int64)
        flags = np.array([is_finished(batch.index)], np.int64)
        return Segment(first_load, [batch], loads, copies, copy_ends, flags, ends)

    def _find(self, firsts: Ints) -> tuple[list[Ints], Ints]:
        """The hits by route, and in one number the row and the key of the block of each."""
        hits, places = [], []
        for base, finders in zip(self._keys.bases, self._finders, strict=False):
            for finder in finders:
                hits.append(taken := finder.find(firsts, self._table_pool))
                places.append(taken[0] * self._keys.bases[-1] + (taken[1] + base))
        return hits, np.concatenate(places)

    def _use(self, begins: Ints, keys: Ints) -> tuple[Ints, NDArray[np.int64]]:
        """Use blocks row by row. Return the load of each use, and the loads that are new."""
        recent, load_of, used = self._recent, self._load_of, keys.tolist()
        if load_of.keys() >= set(used):
            recent.touch(used, used, [False] * len(used))
            return np.array([load_of[key] for key in used], np.int64), self._loads(keys[:0])
        known = np.unique(keys)
        loads = self._loads(known)
        nbytes = dict(zip(known.tolist(), loads[:, 2].tolist(), strict=True))
        numbers, added, first_rows = list[int](), list[int](), list[int]()
        wave, needed, missing = 0, set[int](), list[int]()
        edges = begins.tolist()

        def end_wave(end: int) -> None:
            """Number the loads of rows whose blocks are in memory together.

            They may be read together, so all are said to be first needed by the first of the rows.
            """
            for key in sorted(missing):
                load_of[key] = self.num_loads
                self.num_loads += 1
                added.append(key)
                first_rows.append(wave)
            numbers.extend(load_of[key] for key in used[edges[wave] : edges[end]])

        for row, (lo, hi) in enumerate(itertools.pairwise(edges)):
            row_keys = used[lo:hi]
            is_last = [False] * (hi - lo - 1) + [True]
            new, dropped = recent.touch(row_keys, [nbytes[key] for key in row_keys], is_last)
            if not needed.isdisjoint(dropped):
                end_wave(row)
                wave, needed, missing = row, set(), []
            self._ends += [load_of.pop(key) for key in dropped]
            needed.update(row_keys)
            missing += new
        end_wave(len(edges) - 1)
        loads = loads[np.searchsorted(known, added)]
        loads[:, 7] = first_rows
        return np.array(numbers, np.int64), loads

    def _loads(self, keys: Ints) -> NDArray[np.int64]:
        """Rows of `Segment.loads` for some blocks."""
        loads = np.zeros((len(keys), len(LOAD_COLUMNS)), np.int64)
        if not len(keys):
            return loads
        loads[:, 0] = np.searchsorted(self._keys.bases, keys, "right") - 1
        loads[:, 1] = keys - np.take(self._keys.bases, loads[:, 0])
        loads[:, 3] = -1
        for number, group in enumerate(self._footprint.groups):
            members = np.flatnonzero(loads[:, 0] == number)
            blocks = loads[members, 1]
            loads[members, 2] = group.block_nbytes(blocks)
            loads[members, 6] = group.read_nbytes(blocks)
        return loads


def _copies(hits: list[Ints], loads: Ints, num_dims: int) -> NDArray[np.int32]:
    """Rows of `Segment.copies` for the hits of all routes, given the load of each."""
    width, begin = len(COPY_COLUMNS), 0
    copies = np.zeros((len(loads), width + 3 * num_dims), np.int32)
    copies[:, 0] = loads
    for route, taken in enumerate(hits):
        rows = copies[begin : begin + taken.shape[1]]
        rows[:, 1], rows[:, 3] = route, taken[0]
        rows[:, width:] = taken[NUM_COLUMNS : NUM_COLUMNS + 3 * num_dims].T
        begin += taken.shape[1]
    return copies


_MOST_LOADS = 1 << 30
"""Loads after which a run is followed by another one: their numbers are 32 bits wide."""


class CachedReader:
    """Reader of batches of any ids. Each process makes its own memory and threads on first use.

    Several threads may call `read`; one read follows the other. It keeps the chunks that were used
    last, of at most ``capacity_nbytes`` decoded bytes: at least those of any one sample.
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
        # A forked child starts afresh. It lacks its parent's threads, so a lock that they held
        # would never be released.
        make_runs = partial(_Runs, parts, capacity_nbytes)
        self._here = PerProcess(make_runs, "a reader", is_remade=True).get
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
        """Make a reader that uses one worker's share of a memory budget, for batches as well.

        `batch_size`: samples that are read at a time; a longer list of ids is read in parts.
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
    def tally(self) -> Tally:
        """Counts of what was read so far in this process; other fields are not filled in.

        ``peak_nbytes``: the most decoded bytes that the cache held after any sample.
        """
        return self._here().tally

    def read(self, ids: Ints) -> Arrays:
        """Read some samples, without transforms and without label fields' values.

        Ids may repeat. The caller may keep and change the arrays.
        """
        runs = self._here()
        with runs.lock:
            if self._is_closed:
                raise ClosedError("the reader is closed", remedy="make a new reader")
            size = self._batch_size
            begins = range(0, max(len(ids), 1), size)
            parts = [runs.read(ids[begin : begin + size]) for begin in begins]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        """Release the memory and end the threads. It may be called more than once."""
        runs = self._here()
        with runs.lock:
            self._is_closed = True
            runs.end()

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Runs:
    """The runs of one process, one after the other, and the counts of all of them."""

    def __init__(self, parts: EngineParts, capacity_nbytes: int) -> None:
        self._parts, self._capacity_nbytes = parts, capacity_nbytes
        self.lock = threading.Lock()
        self._before = Tally()
        self._program: CacheProgram
        self._run: Run | None = None

    @property
    def tally(self) -> Tally:
        """The counts of all runs."""
        before, run = self._before, self._run
        if run is None:
            return before
        tally = run.tally
        tally.refresh()
        return Tally(
            num_reads=before.num_reads + tally.num_reads,
            read_nbytes=before.read_nbytes + tally.read_nbytes,
            num_missing=before.num_missing + tally.num_missing,
            num_requests=before.num_requests + tally.num_requests,
            peak_nbytes=max(before.peak_nbytes, self._program.peak_nbytes),
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
            # One whose store hangs ends the run, maybe only after it was taken.
            goes_on = isinstance(error, ChunkError) and not isinstance(error, ReadTimeoutError)
            if not goes_on or self._run.num_taken < self._program.num_made:
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
        parts, capacity_nbytes = self._parts, self._capacity_nbytes
        self._program = CacheProgram(parts, capacity_nbytes)
        tables = Tables(parts, parts.reader.source, is_resident=False)
        blocks = make_blocks(parts, tables, capacity_nbytes)
        is_native = blocks.is_native and tables.is_native and not parts.borders
        job = Job(
            program=self._program,
            parts=parts,
            tables=tables,
            finisher=BatchFinish(),
            blocks=blocks,
            num_cores=parts.num_threads,
            num_hands=1 if is_native else parts.num_threads,
            # Each further chunk of a store that hangs would be waited for as long.
            ends_on_timeout=True,
        )
        self._run = Run(job)
        self._end = weakref.finalize(self, _end, self._run, blocks)
        self._end.atexit = False

    def end(self) -> None:
        """End the run, if there is one, and release the memory. The next read begins anew."""
        if self._run is not None:
            self._before, self._run = self.tally, None
            self._end()


def _end(run: Run, blocks: BlockMemory) -> None:
    run.close()
    blocks.drop()
