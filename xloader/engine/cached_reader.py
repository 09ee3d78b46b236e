"""Reads batches of any ids through a least-recently-used cache of decoded blocks.

It reads and drops the same blocks as `xloader.planning.cache_budget.simulate` does for the same
ids. A batch is read in *waves*: as many rows as can be copied before one of their blocks has to be
dropped. Several threads read the missing blocks of a wave, and then its rows are copied.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.engine.assembly import EngineParts
from xloader.engine.block_cache import BlockCache
from xloader.engine.block_loads import MOST_REQUESTS
from xloader.engine.block_reader import Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.gather import Places
from xloader.engine.overlaps import Hits, finders_of
from xloader.engine.task_threads import TaskThreads, ThreadTask
from xloader.errors import ChunkError, ClosedError, MemoryBudgetError
from xloader.planning.cache_budget import BlockNumbers, cache_budget, least_nbytes
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Outcome
from xloader.sources.retries import Attempts

_GATHER_NBYTES = 4 << 20
"""Approximate number of bytes that a thread gathers at a time."""

_Found = list[list[tuple[Hits, Ints]]]
"""Per group and access, the hits of the rows, and the key of the block of each hit."""


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
        The most decoded bytes held at any time.
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
        The parts that read and copy. If reads wait for a network, up to `MOST_REQUESTS` threads
        read instead of ``parts.num_threads``.
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
        self._parts = parts
        self._footprint = parts.footprint
        self._reader = parts.reader
        self._gatherer = parts.gatherer
        self._finders = finders_of(parts.footprint.groups, parts.gatherer.accesses)
        self._keys = BlockNumbers(parts.footprint)
        self._make_held = partial(
            _Held,
            partial(BlockCache, parts.footprint, self._keys, parts.reader, capacity_nbytes),
            partial(TaskThreads, parts.retry_policy, parts.reader.name),
        )
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
            size = self._parts.fields.batch_size
            try:
                parts = [
                    self._read_part(held, ids[begin : begin + size])
                    for begin in range(0, max(len(ids), 1), size)
                ]
                self._reader.change_watch.check()
            except ChunkError:
                if held.threads.is_spoilt:
                    held.begin_anew()
                held.cache.mend()
                raise
            except BaseException:
                # Some thread may still write to a block, or the counts of the cache may be
                # incomplete.
                held.begin_anew()
                raise
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        """Release the memory and end the threads. It may be called more than once."""
        held = self._here()
        with held.lock:
            self._is_closed = True
            held.threads.close()
            held.begin_anew()

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()

    def _here(self) -> _Held:
        """The cache and threads of this process."""
        # A forked child starts afresh. It lacks its parent's threads, so a lock that they held
        # would never be released.
        pid = os.getpid()
        held = self._held.get(pid) or self._held.setdefault(pid, self._make_held())
        for other in [own for own in self._held if own != pid]:
            self._held.pop(other, None)
        return held

    def _read_part(self, held: _Held, ids: Ints) -> Arrays:
        arrays = self._parts.fields.take(len(ids))
        places = self._gatherer.places(arrays)
        positions = self._footprint.positions_of(ids)
        found = self._find(self._footprint.windows.firsts_of(positions))
        for rows, keys in self._waves(held.cache, positions):
            self._load(held, keys)
            self._gather(held, found, rows, places)
        held.tally.peak_nbytes = max(held.tally.peak_nbytes, held.cache.peak_nbytes)
        self._parts.fill_borders(arrays, ids)
        if 2 * len(ids) <= self._parts.fields.batch_size:
            # The arrays are views of a full batch's buffer, which a user who collects samples would
            # keep.
            return {name: array.copy() for name, array in arrays.items()}
        return arrays

    def _find(self, firsts: Ints) -> _Found:
        """The hits of all rows, and the keys of their blocks."""
        found: _Found = []
        for base, own in zip(self._keys.bases, self._finders, strict=False):
            pairs = [finder.find(firsts) for finder in own]
            found.append([(hits, blocks + base) for hits, blocks in pairs])
        return found

    def _waves(self, cache: BlockCache, positions: Ints) -> Iterator[tuple[range, list[int]]]:
        """Divide the rows into waves, and drop blocks between them.

        Yields
        ------
        rows : range
            Rows that are copied together.
        missed : list of int
            Keys of the blocks that must be read before.
        """
        touches = self._keys.touches(Boxes.at(positions))
        keys, nbytes, is_last = (
            column.tolist() for column in (touches.keys, touches.nbytes, touches.is_last)
        )
        begin, needed, missed = 0, set[int](), list[int]()
        for row, (lo, hi) in enumerate(itertools.pairwise(touches.begins.tolist())):
            missing, dropped = cache.recent.touch(keys[lo:hi], nbytes[lo:hi], is_last[lo:hi])
            if not needed.isdisjoint(dropped):
                yield range(begin, row), missed
                begin, needed, missed = row, set(), []
            for key in dropped:
                cache.drop(key)
            needed.update(keys[lo:hi])
            missed += missing
        yield range(begin, len(positions)), missed

    def _load(self, held: _Held, keys: list[int]) -> None:
        """Read blocks that are not in the cache."""
        jobs: list[tuple[Bundle, list[LoadedBlock]]] = [
            (bundle, blocks)
            for group, blocks in zip(self._footprint.groups, held.cache.add(keys), strict=True)
            for bundle in self._reader.bundles(group, [block.begin.block for block in blocks])
        ]
        if not jobs:
            return
        outcomes: list[Outcome | None] = [None] * len(jobs)

        def load(number: int, attempts: Attempts) -> None:
            """Read and decode one bundle, and keep its outcome under its number."""
            outcome = self._decode(*jobs[number])
            asked = attempts.num_requests or outcome.num_requests
            outcomes[number] = replace(outcome, num_requests=asked)

        most = self._parts.in_flight_nbytes // max(bundle.room_nbytes for bundle, _ in jobs)
        num_threads = MOST_REQUESTS if self._reader.is_waiting else self._parts.num_threads
        try:
            tasks = [
                ThreadTask(b.reads, partial(load, number)) for number, (b, _) in enumerate(jobs)
            ]
            held.threads.do(tasks, min(num_threads, most))
        finally:
            for (bundle, blocks), outcome in zip(jobs, outcomes, strict=True):
                if outcome is not None:
                    held.count(bundle, blocks, outcome)

    def _decode(self, bundle: Bundle, blocks: list[LoadedBlock]) -> Outcome:
        return self._reader.fetch(bundle).decode(bundle.outs(blocks))

    def _gather(self, held: _Held, found: _Found, rows: range, places: Places) -> None:
        """Copy the parts of blocks that rows take. All these blocks are in the cache."""
        pieces = []
        for group, accesses in enumerate(found):
            per_task = max(1, _GATHER_NBYTES // max(self._gatherer.row_nbytes[group], 1))
            for access, (hits, keys) in enumerate(accesses):
                begin, end = np.searchsorted(hits.rows, [rows.start, rows.stop]).tolist()
                for lo in range(begin, end, per_task):
                    own = slice(lo, min(lo + per_task, end))
                    slots = held.cache.slots_of(keys[own])
                    pieces.append((group, access, hits.take(own), slots))

        def copy(number: int, _: Attempts | None = None) -> None:
            group, access, hits, slots = pieces[number]
            self._gatherer.gather(group, access, hits, held.cache.block_table, slots, places)

        num_threads = min(self._parts.num_threads, len(pieces))
        if num_threads > 1:
            tasks = [ThreadTask((), partial(copy, number)) for number in range(len(pieces))]
            held.threads.do(tasks, num_threads)
            return
        # The calling thread needs no hand-over, which takes longer than copying a few rows.
        for number in range(len(pieces)):
            copy(number)


class _Held:
    """The cache, threads and counts of one process."""

    def __init__(
        self, make_cache: Callable[[], BlockCache], make_threads: Callable[[], TaskThreads]
    ) -> None:
        self._make_cache = make_cache
        self._make_threads = make_threads
        self.lock = threading.Lock()
        self.tally = CacheTally()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Replace the cache and the threads by new ones. The old threads end by themselves."""
        self.cache = self._make_cache()
        self.threads = self._make_threads()

    def count(self, bundle: Bundle, blocks: list[LoadedBlock], outcome: Outcome) -> None:
        """Count a bundle that was read, and mark the blocks that it completes as loaded."""
        self.tally.num_reads += bundle.num_reads
        self.tally.num_missing += outcome.num_missing
        self.tally.num_requests += outcome.num_requests
        for number, *_ in bundle.places:
            block = blocks[number]
            block.num_reads_left -= 1
            if block.is_loaded:
                self.cache.block_table.set_loaded(block)
                self.tally.read_nbytes += block.begin.read_nbytes


def _nothing() -> None:
    """The value that a pickled reader has in another process: None."""
