"""One pass over an epoch: threads that load, gather and finish, and a consumer that takes.

::

    walk      who needs what, a little ahead of the loads
    load      residences in the order of their first row, as memory allows
    gather    rows of open batches, as their blocks come in
    finish    transforms of whole batches
    deliver   in order

Every worker does whatever comes next of these, the work nearest to delivery first.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Callable

import numpy as np

from xloader.core.messages import warn_caller
from xloader.engine.block_loads import BlockLoads
from xloader.engine.deadlines import Deadlines
from xloader.engine.job import Delivery, Job, OpenBatch, RunLock
from xloader.engine.open_batches import OpenBatches
from xloader.engine.steps import BatchRows, Begin
from xloader.engine.tally import Tally
from xloader.engine.threads import MOST_SECONDS, SOME_SECONDS, Threads
from xloader.errors import ClosedError, ForkError, SkippedWarning, SlowReadWarning
from xloader.sources.attempts import Abandoned

_MOST_ROWS_AHEAD = 1 << 16
"""Rows whose needs are known before their batches are open."""


class Run:
    """Carries out one job. Safe to close at any time, from any thread, more than once."""

    def __init__(self, job: Job) -> None:
        self.tally = Tally()
        self._job = job
        self._pid = os.getpid()
        self._run_lock = RunLock()
        self._open_batches = OpenBatches(job, self.tally, self._run_lock)
        self._deadlines = Deadlines(job.retry_policy, job.reader.name, self._run_lock.tell)
        self._block_loads = BlockLoads(
            job,
            self.tally,
            self._run_lock,
            self._deadlines,
            on_loaded=self._open_batches.on_loaded,
            on_stuck=self._replace,
        )
        self._steps = job.walker.steps(job.block_table.known())
        self._is_walking = False
        self._is_walked = job.walker.num_steps == 0
        self._is_closed = False
        self._closing: set[threading.Thread] = set()
        self._is_dropped = False
        # Before zarr stops the loop that its stores are read in, which was there earlier: what
        # waits for it then would wait for ever.
        atexit.register(self.close)
        self._has_started = False
        self._has_told_of_skipped = False
        self._threads = Threads("xloader")

    # The consumer's side

    def take(self) -> Delivery | None:
        """The next batch; ``None`` after the last one.

        Raises
        ------
        ChunkError
            If a chunk of this batch cannot be had.
        StoreChangedError
            If the store is no longer what was opened.
        ForkError
            If this is the child of the process that made the run.
        ClosedError
            If the run is closed.
        """
        self._check_process()
        begin = time.perf_counter()
        change_watch = self._job.reader.change_watch
        if not (self._has_started or self._is_closed):
            change_watch.begin()
        with self._run_lock.lock:
            self._start()
            self._open_batches.is_wanted = True
            self.tally.mark(is_awaited=True)
            self._run_lock.work.notify()
        while not self._is_ready():
            self._run_lock.batch.wait()
            self._warn()
        with self._run_lock.lock:
            self.tally.wait_seconds += time.perf_counter() - begin
            if self._run_lock.failure is not None:
                raise self._run_lock.failure
            if self._is_closed:
                raise ClosedError(
                    "the iterator is closed",
                    remedy="iterate over the loader again; after loader.close(), make another one",
                )
            if not self._open_batches:
                return None
            open_batch = self._open_batches.pop()
            self._open_batches.is_wanted = False
            self.tally.mark(is_awaited=False)
        if open_batch.error is not None:
            raise open_batch.error
        # After the last read of the batch: what was read of another store is not handed out.
        change_watch.check(is_last=open_batch.step.index + 1 == self._job.walker.num_steps)
        if open_batch.num_skipped and not self._has_told_of_skipped:
            self._has_told_of_skipped = True
            rows = "1 row" if open_batch.num_skipped == 1 else f"{open_batch.num_skipped} rows"
            warn_caller(
                f"{rows} of this batch hold other samples, as batch.is_padding says, because of "
                f"this error: {open_batch.first_error} Later ones are counted in report() without "
                "a warning.",
                SkippedWarning,
            )
        return self._open_batches.delivery(open_batch)

    def close(self) -> None:
        """Stop the threads and give all memory back."""
        if os.getpid() != self._pid:
            # A worker may have held the lock at the fork, and nobody here would release it.
            return
        me = threading.current_thread()
        if me in self._closing:
            # A garbage collection in the midst of this.
            return
        self._closing.add(me)
        try:
            self._stop()
            atexit.unregister(self.close)
            # Where a garbage collection on one of its own threads ended the iterator, the others
            # may wait for a lock that this one holds, and stop by themselves.
            is_own = me in self._threads or self._block_loads.has(me) or self._deadlines.has(me)
            if not is_own:
                self._join()
        finally:
            self._closing.discard(me)

    def _is_ready(self) -> bool:
        """Whether there is a batch, an end or an error; if not, the signal for it will come."""
        with self._run_lock.lock:
            is_ready = (
                self._is_closed
                or self._run_lock.failure is not None
                or self._open_batches.head_is_ready
                or (self._is_walked and not self._open_batches)
            )
            if not is_ready:
                self._run_lock.batch.begin()
            return is_ready

    def _warn(self) -> None:
        """Tell the consumer of a read that takes long."""
        with self._run_lock.lock:
            notice, self._run_lock.notice = self._run_lock.notice, ""
        if notice:
            warn_caller(notice, SlowReadWarning)

    def _start(self) -> None:
        """Begin with the first batch that is asked for. The lock is held."""
        # Not before: trainers ask for an iterator to see whether they may, and throw it away.
        if self._has_started or self._is_closed:
            return
        self._has_started = True
        self.tally.mark(workers=self._job.num_threads)
        self._deadlines.start()
        for _ in range(self._job.num_threads):
            self._threads.begin(self._work)

    def _replace(self, stuck: threading.Thread) -> None:
        """Put another worker in the place of one that was given up. The lock is held."""
        self._threads.give_up(stuck)
        if self._is_closed:
            return
        try:
            self._threads.begin(self._work)
        except RuntimeError as error:
            # The others do it all, if there are any.
            if not self._threads:
                self._run_lock.fail(error)

    def _stop(self) -> None:
        with self._run_lock.lock:
            self._is_closed = True
            self._block_loads.close()
            self._run_lock.ring()
        self._deadlines.close()

    def _join(self) -> None:
        now = time.monotonic()
        if not self._have_ended(now + SOME_SECONDS):
            # They write nowhere any more, if they ever come back.
            for thread in self._deadlines.abandon():
                self._threads.give_up(thread)
                self._block_loads.give_up(thread)
        has_ended = self._have_ended(now + MOST_SECONDS)
        self._deadlines.join(now + MOST_SECONDS)
        with self._run_lock.lock:
            if self._is_dropped:
                # By now the shelf and the pool may be those of a later run.
                return
            self._is_dropped = True
            self._open_batches.clear()
            self._block_loads.clear()
            if has_ended:
                self._drop_blocks()
            else:
                # Such as a function that takes long: it may write to these blocks yet.
                self._job.pool.spoil()

    def _have_ended(self, until: float) -> bool:
        # Both, even if the first has not.
        return all([self._threads.join(until), self._block_loads.join(until)])

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(
                "a loader's iterator was carried over a fork, where its threads do not live",
                given=f"process {os.getpid()}, made in {self._pid}",
                remedy='make the loader in the child, or start it with "spawn" or "forkserver" '
                'under if __name__ == "__main__":',
            )

    def _drop_blocks(self) -> None:
        """Give memory back, but for whole blocks that are there to stay."""
        for block in self._job.block_table.there():
            if self._job.is_resident and block.is_loaded and block.error is None:
                block.waiting.clear()
                continue
            self._job.block_table.take_off(block)
            if block.buffer is not None:
                self._job.pool.give_back(block.buffer)

    # The workers' side

    def _work(self) -> None:
        try:
            while True:
                with self._run_lock.lock:
                    task = self._next_task()
                    if task is None and not self._is_closed:
                        self.tally.mark(workers=-1)
                        while task is None and not self._is_closed:
                            self._run_lock.work.wait()
                            task = self._next_task()
                        self.tally.mark(workers=1)
                    if self._is_closed:
                        return
                assert task is not None
                task()
                # It holds a batch, whose memory must not wait until there is another task.
                task = None
        except Abandoned:
            # Another thread is in its place.
            return
        except BaseException as error:
            with self._run_lock.lock:
                self._run_lock.fail(error)

    def _next_task(self) -> Callable[[], None] | None:
        """What to do next, claimed for the caller. The lock is held."""
        if self._is_closed:
            return None
        task = self._open_batches.next_task() or self._block_loads.next_task()
        if task is None and self._may_walk():
            self._is_walking = True
            return self._walk
        return task

    def _may_walk(self) -> bool:
        if self._is_walked or self._is_walking:
            return False
        if self._open_batches.num_ahead < 2:
            return True
        is_short = self._block_loads.is_idle or self._block_loads.can_fetch
        return is_short and self._open_batches.num_rows_ahead < _MOST_ROWS_AHEAD

    def _walk(self) -> None:
        begin = time.perf_counter()
        step = next(self._steps, None)
        with self._run_lock.lock:
            self.tally.walk_seconds += time.perf_counter() - begin
            self._is_walking = False
            if step is None:
                self._is_walked = True
            else:
                self._add(step)
                self._is_walked = step.index + 1 == self._job.walker.num_steps
            self._run_lock.work.notify()
            if self._is_walked:
                self._run_lock.batch.notify()

    def _add(self, step: BatchRows) -> None:
        """Queue a batch, and what begins with it. The lock is held."""
        num_hits = sum(len(hits) for accesses in step.hits for hits in accesses)
        open_batch = OpenBatch(step, num_missing=num_hits + len(step.begins))
        for _, begins in itertools.groupby(step.begins, key=lambda begin: (begin.row, begin.group)):
            blocks = [
                self._job.block_table.put(begin, self._is_row(step, begin)) for begin in begins
            ]
            self._block_loads.add(blocks, open_batch)
        self._open_batches.add(open_batch)

    def _is_row(self, step: BatchRows, begin: Begin) -> bool:
        """Whether a block is one row's window, and nobody else's: then it needs no pool."""
        if self._job.is_resident or begin.num_samples > 1:
            return False
        if not self._job.gatherer.is_direct(begin.group):
            return False
        (hits,) = step.hits[begin.group]
        first = int(np.searchsorted(hits.rows, begin.row))
        return bool(hits.is_whole[first]) and int(hits.residences[first]) == begin.residence
