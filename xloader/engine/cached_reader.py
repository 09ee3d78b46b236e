"""Reads batches of any ids through a least-recently-used cache of decoded blocks.

It reads, and drops, what `xloader.planning.lru_simulation.simulate` says for the same ids. A batch
is read in *waves*: as many rows as fit before a block that they need has to be dropped. The missing
blocks of a wave are read by several threads, and then its rows are copied.
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
from xloader.core.footprint import Boxes, Footprint
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.block_cache import BlockCache
from xloader.engine.block_loads import MOST_REQUESTS
from xloader.engine.block_reader import BlockReader, Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.gather import Gatherer, Views
from xloader.engine.overlaps import Hits, find_hits
from xloader.engine.readers import Readers, ReadTask
from xloader.engine.worker_threads import WorkerThreads
from xloader.errors import ChunkError, ClosedError, MemoryBudgetError
from xloader.planning.cache_budget import least_nbytes
from xloader.planning.lru_simulation import BlockNumbers
from xloader.sources.attempts import Attempts
from xloader.sources.base import Outcome

_GATHER_NBYTES = 4 << 20
"""What a thread gathers at a time, about."""

_Found = list[list[tuple[Hits, Ints]]]
"""Per group and access, what rows take, and the key of the block that each hit is of."""


@dataclass
class CacheTally:
    """What was read in this process.

    Attributes
    ----------
    num_reads : int
        (variable, chunk) pairs that were read.
    read_nbytes : int
        Decoded bytes of these chunks, not cut down.
    num_missing : int
        Chunks that were absent and were read as the fill value.
    num_requests : int
        Requests made of the store.
    peak_nbytes : int
        The most decoded bytes that were held at a time.
    """

    num_reads: int = 0
    read_nbytes: int = 0
    num_missing: int = 0
    num_requests: int = 0
    peak_nbytes: int = 0


class CachedReader:
    """Reads batches of any ids. Memory and threads are made at the first one, in each process.

    Safe for threads, which read one after the other. It pickles as None: what it holds stays
    behind, and its owner makes another where there is none.

    Parameters
    ----------
    footprint : Footprint
    reader : BlockReader
    gatherer : Gatherer
    fields : Fields
        Those that the gatherer was made with.
    batch_size : int
        Rows of a full batch, as the fields were told.
    capacity_nbytes : int
        The most decoded bytes held: see `xloader.planning.cache_budget.cache_budget`.
    in_flight_nbytes : int
        Decoded bytes of chunks that are being read at a time.
    num_threads : int
        Threads that decode; where reading waits for a network, there are as many as there may be
        requests.
    retry_policy : RetryPolicy, optional
        How long reads are waited for.

    Raises
    ------
    MemoryBudgetError
        If some sample alone needs more than the capacity.
    """

    def __init__(
        self,
        footprint: Footprint,
        reader: BlockReader,
        gatherer: Gatherer,
        fields: Fields,
        *,
        batch_size: int,
        capacity_nbytes: int,
        in_flight_nbytes: int,
        num_threads: int = 1,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        least = least_nbytes(footprint)
        if capacity_nbytes < least:
            raise MemoryBudgetError(
                "the cache is too small for the chunks of one sample",
                given=f"{capacity_nbytes} bytes",
                minimum_nbytes=least,
            )
        self._footprint = footprint
        self._reader = reader
        self._gatherer = gatherer
        self._fields = fields
        self._batch_size = batch_size
        self._in_flight_nbytes = in_flight_nbytes
        self._num_threads = num_threads
        self._keys = BlockNumbers(footprint)
        self._row_nbytes = [gatherer.row_nbytes(number) for number in range(len(footprint.groups))]
        self._make_held = partial(
            _Held,
            partial(BlockCache, footprint, self._keys, reader, capacity_nbytes),
            partial(Readers, retry_policy or RetryPolicy(), reader.name),
        )
        self._held: dict[int, _Held] = {}
        self._is_closed = False

    @property
    def tally(self) -> CacheTally:
        """What was read so far, in this process."""
        return self._here().tally

    def read(self, ids: Ints) -> Arrays:
        """Read some samples, no transform applied.

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Any sample ids, in any order and number, also repeated ones.

        Returns
        -------
        dict of str to numpy.ndarray
            By field, shape ``(n, *layout.shape)``. They are the caller's.

        Raises
        ------
        ChunkError
            If a chunk cannot be had. A later read tries again.
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
                raise ClosedError("the reader is closed", remedy="make a new one")
            size = self._batch_size
            try:
                parts = [
                    self._read_part(held, ids[begin : begin + size])
                    for begin in range(0, max(len(ids), 1), size)
                ]
                self._reader.change_watch.check()
            except ChunkError:
                if held.readers.is_spoilt:
                    held.begin_anew()
                held.cache.mend()
                raise
            except BaseException:
                # Some thread may still write to a block, or a count be half done.
                held.begin_anew()
                raise
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        """Give the memory back and end the threads. More than once is fine."""
        held = self._here()
        with held.lock:
            self._is_closed = True
            held.worker_threads.close()
            held.readers.close()
            held.begin_anew()

    def __enter__(self) -> CachedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()

    def _here(self) -> _Held:
        """What this process holds."""
        # A forked child begins anew: its parent's threads are not there, nor ever release a lock.
        pid = os.getpid()
        held = self._held.get(pid) or self._held.setdefault(pid, self._make_held())
        for other in [own for own in self._held if own != pid]:
            self._held.pop(other, None)
        return held

    def _read_part(self, held: _Held, ids: Ints) -> Arrays:
        arrays = self._fields.take(len(ids))
        views = self._gatherer.views(arrays)
        positions = self._footprint.positions_of(ids)
        found = self._find(positions * np.asarray(self._footprint.windows.strides, np.int64))
        for rows, keys in self._waves(held.cache, positions):
            self._load(held, keys)
            self._gather(held, found, rows, views)
        held.tally.peak_nbytes = max(held.tally.peak_nbytes, held.cache.peak_nbytes)
        if 2 * len(ids) <= self._batch_size:
            # They lie in memory for a full batch, which somebody who collects samples would keep.
            return {name: array.copy() for name, array in arrays.items()}
        return arrays

    def _find(self, firsts: Ints) -> _Found:
        """What rows take of which blocks."""
        found: _Found = []
        accesses = zip(
            self._footprint.groups, self._keys.bases, self._gatherer.accesses, strict=False
        )
        for group, base, own in accesses:
            pairs = [find_hits(group, access, firsts) for access in own]
            found.append([(hits, blocks + base) for hits, blocks in pairs])
        return found

    def _waves(self, cache: BlockCache, positions: Ints) -> Iterator[tuple[range, list[int]]]:
        """Rows that can be read together, and the blocks that they miss. What goes is gone."""
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
        """Read blocks that are not there."""
        jobs: list[tuple[Bundle, list[LoadedBlock]]] = [
            (bundle, blocks)
            for group, blocks in zip(self._footprint.groups, held.cache.add(keys), strict=True)
            for bundle in self._reader.bundles(group, [block.begin.block for block in blocks])
        ]
        if not jobs:
            return
        outcomes: list[Outcome | None] = [None] * len(jobs)

        def load(number: int, attempts: Attempts) -> None:
            outcome = self._decode(*jobs[number])
            asked = attempts.num_requests or outcome.num_requests
            outcomes[number] = replace(outcome, num_requests=asked)

        most = self._in_flight_nbytes // max(bundle.room_nbytes for bundle, _ in jobs)
        num_threads = MOST_REQUESTS if self._reader.is_waiting else self._num_threads
        try:
            tasks = [ReadTask(b.reads, partial(load, number)) for number, (b, _) in enumerate(jobs)]
            held.readers.do(tasks, min(num_threads, most))
        finally:
            for (bundle, blocks), outcome in zip(jobs, outcomes, strict=True):
                if outcome is not None:
                    held.count(bundle, blocks, outcome)

    def _decode(self, bundle: Bundle, blocks: list[LoadedBlock]) -> Outcome:
        outs = [
            blocks[number].places[read.variable].values[at]
            for read, (number, at) in zip(bundle.reads, bundle.places, strict=True)
        ]
        return self._reader.fetch(bundle).decode(outs)

    def _gather(self, held: _Held, found: _Found, rows: range, views: Views) -> None:
        """Copy what rows take of blocks, all of which are there."""
        tasks = []
        for group, accesses in enumerate(found):
            per_task = max(1, _GATHER_NBYTES // max(self._row_nbytes[group], 1))
            for access, (hits, keys) in enumerate(accesses):
                begin, end = np.searchsorted(hits.rows, [rows.start, rows.stop]).tolist()
                for lo in range(begin, end, per_task):
                    own = slice(lo, min(lo + per_task, end))
                    slots = held.cache.slots_of(keys[own])
                    tasks.append(
                        partial(
                            self._gatherer.gather,
                            group,
                            access,
                            hits.take(own),
                            held.cache.block_table,
                            slots,
                            views,
                        )
                    )
        held.worker_threads.do(tasks, self._num_threads)


class _Held:
    """What a process holds of a reader."""

    def __init__(
        self, make_cache: Callable[[], BlockCache], make_readers: Callable[[], Readers]
    ) -> None:
        self._make_cache = make_cache
        self._make_readers = make_readers
        self.lock = threading.Lock()
        self.tally = CacheTally()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all blocks, and leave threads to end by themselves."""
        self.cache = self._make_cache()
        self.worker_threads = WorkerThreads("xloader-cache")
        self.readers = self._make_readers()

    def count(self, bundle: Bundle, blocks: list[LoadedBlock], outcome: Outcome) -> None:
        """Count what was read."""
        self.tally.num_reads += len(bundle.reads)
        self.tally.num_missing += outcome.num_missing
        self.tally.num_requests += outcome.num_requests
        for number, _ in bundle.places:
            block = blocks[number]
            block.num_reads_left -= 1
            if block.is_loaded:
                self.cache.block_table.set_loaded(block)
                self.tally.read_nbytes += block.begin.read_nbytes


def _nothing() -> None:
    """What a reader is elsewhere."""
