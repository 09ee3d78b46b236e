"""Batches under way: rows are gathered as their blocks are loaded, then each batch is finished.

Batches are queued, opened and gathered in trays, and finished and delivered one by one.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from xloader.core.axis import Ints
from xloader.engine.block_table import LoadedBlock
from xloader.engine.buffers import Arrays
from xloader.engine.hit_parts import HitPart, WantedHits, join_parts
from xloader.engine.job import Delivery, Job, RunLock, Task
from xloader.engine.open_trays import OpenBatch, OpenTray
from xloader.engine.overlaps import Hits
from xloader.engine.skipped_rows import fill_rows, note_rows, padding_of
from xloader.engine.tally import Tally
from xloader.engine.uses import Uses, count_hits

_CLAIM_NBYTES = 4 << 20
"""Approximate number of bytes that a worker gathers at a time, so that several share a large
batch."""

_MANY_HITS = 1 << 8
"""Parts with fewer hits are not shared among workers. NumPy copies them one by one, and waiting for
Python's lock costs more than a second thread gains: rows of 14 KB took 1.33 s an epoch, and 1.54 s
if they were shared. With the compiled copy, which holds no lock, they are shared where idle workers
have nothing else to do."""


class OpenBatches:
    """The queue of a run's batches under way. The run's lock guards it.

    They are queued in trays. A tray is *open* once it has arrays. Only the first few are.

    Parameters
    ----------
    job : Job
        The work of the run.
    tally : Tally
        Counts times and memory.
    run_lock : RunLock
        The lock of the run.

    Attributes
    ----------
    is_wanted : bool
        Whether the consumer waits for a batch.
    """

    def __init__(self, job: Job, tally: Tally, run_lock: RunLock) -> None:
        self._job = job
        self._tally = tally
        self._run_lock = run_lock
        self._queue: deque[OpenTray] = deque()
        self._num_opened = 0
        self._num_delivered = 0
        self._gathers: deque[HitPart] = deque()
        self._row_nbytes = job.parts.gatherer.row_nbytes
        self._uses = (
            None
            if job.is_resident
            else [Uses(needs, job.walker.entry_counts) for needs in job.walker.groups]
        )
        self._is_plain = not (job.last_size or job.outbox is not None or job.parts.borders)
        self._to_finish: deque[OpenBatch] = deque()
        self._last_rows: Arrays | None = None
        self._last_id = -1
        self.is_wanted = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_unopened(self) -> int:
        """Number of trays in the queue that are not open yet."""
        return len(self._queue) - self._num_opened

    @property
    def num_unopened_rows(self) -> int:
        """Approximate number of rows of the trays that are not open yet."""
        fields = self._job.parts.fields
        return self.num_unopened * fields.tray_size * fields.batch_size

    @property
    def has_task(self) -> bool:
        """Whether there is a batch to finish, or something to gather."""
        return bool(self._to_finish) or self.has_gather

    @property
    def has_gather(self) -> bool:
        """Whether there is something to gather."""
        return bool(self._gathers)

    @property
    def head_is_ready(self) -> bool:
        """Whether the next batch can be delivered."""
        return bool(self._queue) and self._queue[0].batches[0].is_final

    def add(self, tray: OpenTray) -> None:
        """Add a tray at the end of the queue."""
        self._queue.append(tray)

    def pop(self) -> list[OpenBatch]:
        """Take the batches that are ready out of the first tray: one or more. The first must be."""
        batches = self._queue[0].batches
        ready = [batches.popleft()]
        while batches and batches[0].is_final:
            ready.append(batches.popleft())
        if not batches:
            self._queue.popleft()
            self._num_opened -= 1
            self._num_delivered = 1
            self._weigh()
        return ready

    def count_ready(self) -> int:
        """Number of batches that are ready. They become ready in order, but for a few."""
        queued = itertools.chain.from_iterable(tray.batches for tray in self._queue)
        return sum(1 for _ in itertools.takewhile(lambda one: one.is_final, queued))

    def clear(self) -> None:
        """Remove all batches."""
        self._queue.clear()
        self._gathers.clear()
        self._to_finish.clear()

    def delivery(self, open_batch: OpenBatch) -> Delivery:
        """A finished batch in the form in which it is handed over."""
        assert open_batch.arrays is not None
        ids = self._padded_ids(open_batch)
        return Delivery(
            open_batch.step,
            open_batch.arrays,
            ids,
            padding_of(open_batch, len(ids)),
            open_batch.nans,
            open_batch.num_skipped,
            open_batch.sent,
            first_error=open_batch.first_error,
        )

    def next_finish(self) -> Task | None:
        """A task for the caller that finishes a batch; None if there is none. Opens batches."""
        self._open()
        if self._to_finish:
            return partial(self._finish, self._to_finish.popleft())
        return None

    def next_gather(self, *, is_shared: bool) -> Task:
        """A task for the caller that gathers hits. There must be some.

        Parameters
        ----------
        is_shared : bool
            Whether idle workers have nothing else to do, as after the last load of an epoch.
        """
        parts, nbytes, most = [self._gathers.popleft()], 0, len(self._gathers)
        is_shared &= self._job.parts.gatherer.is_compiled
        if is_shared or parts[0].size >= _MANY_HITS:
            # Idle workers take a share of the other parts.
            most //= self._tally.num_threads
        while len(parts) <= most:
            nbytes += parts[-1].size * self._row_nbytes[parts[-1].wanted.group]
            if nbytes >= _CLAIM_NBYTES:
                break
            parts.append(self._gathers.popleft())
        return partial(self._gather, parts)

    def on_loaded(self, block: LoadedBlock, tray: OpenTray) -> None:
        """Queue the hits that waited for a block.

        Parameters
        ----------
        block : LoadedBlock
            The block, now loaded.
        tray : OpenTray
            The tray of the first row that needs it.
        """
        tray.num_missing -= 1
        if block.error is not None and (block.is_row or not self._job.skips(block.error)):
            self._note_error(tray, np.array([block.begin.row]), block.error)
        if block.is_row:
            # It was decoded straight into its row, and no other row needs it.
            tray.num_missing -= 1
            self._evict(block)
            self._finish_later(tray)
            return
        self._finish_later(tray)
        self._job.block_table.set_loaded(block)
        waiting, block.waiting = block.waiting, []
        if block.is_over:
            self._evict(block)
        else:
            self._gathers.extend(waiting)

    def _finish_later(self, tray: OpenTray) -> None:
        """Queue the batches of a tray to be finished if nothing of it is missing.

        One without rows of its own needs the last row of the batch before it.
        """
        if tray.num_missing or not tray.is_open:
            return
        # Once a batch is on its way to a device, its memory must have no other user.
        tray.places = ()
        is_waiting = self._job.last_size > 0 and self._last_rows is None
        for open_batch in tray.batches:
            if open_batch.is_finishing or (is_waiting and not len(open_batch.step.ids)):
                continue
            open_batch.is_finishing = True
            if self._is_final(open_batch):
                self._on_finished(open_batch, 0.0)
            else:
                self._to_finish.append(open_batch)

    def _is_final(self, open_batch: OpenBatch) -> bool:
        """Whether a gathered batch is delivered as it is: that spares a task for each."""
        is_plain = self._is_plain and open_batch.bad_rows is None
        return is_plain and not self._job.finish.is_needed(open_batch.step.index)

    def _open(self) -> None:
        # Until the consumer asks for another tray, it may hold batches of two, the previous one and
        # this one. So one more is opened only when it asks.
        most = self._job.num_trays_ahead + self.is_wanted
        fields = self._job.parts.fields
        while self._num_opened < min(most, len(self._queue)) and fields.has_room():
            tray = self._queue[self._num_opened]
            self._num_opened += 1
            num_last = len(tray.batches[-1].step.ids)
            num_rows = len(tray.rows.entries) + max(self._job.last_size - num_last, 0)
            arrays = fields.take(num_rows)
            self._weigh()
            tray.open(arrays, self._job.parts.gatherer.places(arrays))
            for group, accesses in enumerate(tray.rows.hits):
                for access, hits in enumerate(accesses):
                    self._sort(tray, group, access, hits)
            self._finish_later(tray)

    def _weigh(self) -> None:
        # The consumer may keep more than the last batch; these are not counted.
        num_trays = self._num_opened + self._num_delivered
        self._tally.batches_nbytes = self._job.parts.fields.nbytes_of(num_trays)
        self._tally.weigh(self._job.pool)

    def _sort(self, tray: OpenTray, group: int, access: int, hits: Hits) -> None:
        """Queue the hits whose blocks are loaded. Add the others to the lists of their blocks."""
        block_table = self._job.block_table
        slots = block_table.slots_of(group, hits.residences)
        wanted = WantedHits(tray, group, access, hits, slots)
        # With 32-bit indices NumPy would give up Python's lock, while the run's lock is held.
        is_there = block_table.is_loaded[slots.astype(np.intp)]
        if np.count_nonzero(is_there) == len(slots):
            self._queue_parts(wanted, None, len(slots))
            return
        # Loaded ones first, and the others block by block.
        keys = np.where(is_there, -1, slots)
        line = np.argsort(keys, kind="stable")
        keys = keys[line]
        cuts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(line)]
        for lo, hi in itertools.pairwise(cuts):
            if keys[lo] < 0:
                self._queue_parts(wanted, line[lo:hi], hi - lo)
                continue
            block = block_table.blocks[keys[lo]]
            assert block is not None
            if not block.is_row:
                block.waiting.append(HitPart(wanted, line[lo:hi], hi - lo))

    def _queue_parts(self, wanted: WantedHits, line: Ints | None, size: int) -> None:
        """Queue hits whose blocks are loaded, cut so that several workers share many bytes."""
        per_part = max(1, _CLAIM_NBYTES // max(self._row_nbytes[wanted.group], 1))
        for lo in range(0, size, per_part):
            own = slice(lo, min(lo + per_part, size))
            chosen = own if line is None else line[own]
            self._gathers.append(HitPart(wanted, chosen, own.stop - lo))

    # Gathering

    def _gather(self, parts: list[HitPart]) -> Callable[[], None]:
        begin = time.perf_counter()
        job, parts = self._job, join_parts(parts)
        for part in parts:
            wanted = part.wanted
            job.parts.gatherer.gather(
                wanted.group,
                wanted.access,
                wanted.hits,
                job.block_table,
                wanted.slots,
                wanted.tray.places,
                part.chosen,
            )
        return partial(self._on_gathered, parts, time.perf_counter() - begin)

    def _on_gathered(self, parts: list[HitPart], seconds: float) -> None:
        self._tally.gather_seconds += seconds
        for part in parts:
            self._pass(part)

    def _pass(self, part: HitPart) -> None:
        """Count gathered hits, and drop the blocks that no row needs any more.

        The lock must be held.
        """
        wanted = part.wanted
        if self._job.block_table.num_failed:
            self._note_failed(part)
        wanted.tray.num_missing -= part.size
        self._finish_later(wanted.tray)
        if self._uses is None:
            return
        for residence in self._count_down(self._uses[wanted.group], part):
            block = self._job.block_table.find(wanted.group, residence)
            assert block is not None
            block.is_over = True
            if block.is_loaded:
                self._evict(block)

    def _note_failed(self, part: HitPart) -> None:
        """Note the rows or the batches that need a block which could not be loaded."""
        slots = part.wanted.slots[part.chosen]
        for slot in np.unique(slots).tolist():
            block = self._job.block_table.blocks[slot]
            if block is not None and block.error is not None:
                rows = part.wanted.hits.take(part.chosen).rows
                self._note_error(part.wanted.tray, rows[slots == slot], block.error)

    def _note_error(self, tray: OpenTray, rows: Ints, error: BaseException) -> None:
        """Note that rows need a block which could not be loaded."""
        for open_batch, own in tray.find(rows):
            if self._job.skips(error):
                note_rows(open_batch, own, error)
            else:
                open_batch.error = open_batch.error or error

    @staticmethod
    def _count_down(uses: Uses, part: HitPart) -> list[int]:
        """Count the rows for which all hits of a group are gathered, now that this part is."""
        wanted, tray = part.wanted, part.wanted.tray
        entries, accesses, left = tray.rows.entries, tray.rows.hits[wanted.group], None
        if len(accesses) > 1 or part.size < len(wanted.hits):
            left = tray.left.get(wanted.group)
            if left is None:
                left = tray.left[wanted.group] = count_hits(accesses, len(entries))
        return uses.count_down(entries, wanted.hits, part.chosen, left)

    def _evict(self, block: LoadedBlock) -> None:
        self._job.block_table.take_off(block)
        if block.buffer is not None:
            self._job.pool.give_back(block.buffer)
        block.places, block.buffer = {}, None

    # Finishing

    def _finish(self, open_batch: OpenBatch) -> Callable[[], None]:
        begin = time.perf_counter()
        try:
            if open_batch.error is None:
                assert open_batch.arrays is not None
                self._job.parts.fill_borders(open_batch.arrays, open_batch.step.ids)
                if not self._job.is_part:
                    fill_rows(open_batch)
                self._pad(open_batch)
                step = open_batch.step
                ids = self._padded_ids(open_batch)
                occurrences = step.occurrences_in(len(ids))
                open_batch.arrays, open_batch.nans = self._job.finish.apply(
                    step.index, open_batch.arrays, ids, occurrences, len(step.ids)
                )
                if self._job.outbox is not None:
                    open_batch.sent = self._job.outbox.send(open_batch.arrays)
        except Exception as error:
            open_batch.error = error
        return partial(self._on_finished, open_batch, time.perf_counter() - begin)

    def _on_finished(self, open_batch: OpenBatch, seconds: float) -> None:
        self._tally.finish_seconds += seconds
        open_batch.is_final = True
        if self.head_is_ready:
            self._run_lock.batch.notify()

    def _padded_ids(self, open_batch: OpenBatch) -> Ints:
        """Ids of all rows of a batch, with those that fill it up."""
        ids = open_batch.step.ids
        num_more = self._job.last_size - len(ids)
        if num_more <= 0:
            return ids
        return np.append(ids, np.repeat(ids[-1] if len(ids) else self._last_id, num_more))

    def _pad(self, open_batch: OpenBatch) -> None:
        """Fill a short batch up with its last row, or with that of the batch before it."""
        assert open_batch.arrays is not None
        if not self._job.last_size:
            return
        num_rows = len(open_batch.step.ids)
        for name, array in open_batch.arrays.items():
            if num_rows:
                array[num_rows:] = array[num_rows - 1]
            else:
                assert self._last_rows is not None
                array[:] = self._last_rows[name]
        if open_batch.step.index + 2 == self._job.walker.num_steps:
            rows = {name: array[num_rows - 1].copy() for name, array in open_batch.arrays.items()}
            with self._run_lock.lock:
                self._last_id = int(open_batch.step.ids[-1])
                self._last_rows = rows
                # The last batch may have waited for this row.
                for waiting in itertools.islice(self._queue, self._num_opened):
                    self._finish_later(waiting)
