"""One pass over an epoch: threads that make the batches, and a consumer that takes them.

::

    walk      find which blocks each row needs, a little ahead of the loads
    load      read blocks in the order of the first row that needs each, as memory allows
    gather    copy rows into open batches, as their blocks are loaded
    finish    transform whole batches
    deliver   in order

Each worker does whichever of these tasks is due, and the work nearest to delivery first. But one
walks first where all batches are open and all blocks have memory: the others would soon wait.
"""

from __future__ import annotations

import atexit
import copy
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from xloader.compiled.helpers import Helpers
from xloader.core.messages import warn_caller
from xloader.engine.block_loads import BlockLoads
from xloader.engine.deadlines import Deadlines
from xloader.engine.job import Delivery, Job, RunLock, Task, check_process, closed_iterator
from xloader.engine.open_batches import OpenBatches
from xloader.engine.open_trays import OpenBatch
from xloader.engine.read_room import ReadRoom
from xloader.engine.skipped_rows import warn_of_skipped
from xloader.engine.tally import Tally
from xloader.engine.thread_group import MOST_SECONDS, SOME_SECONDS, Threads
from xloader.engine.walks import Walks
from xloader.engine.work_clock import Kind, WorkClock, WorkTime
from xloader.errors import SlowReadWarning
from xloader.sources.retries import Abandoned


class Run:
    """One job being carried out. It may be closed at any time, from any thread, repeatedly.

    Parameters
    ----------
    job : Job
        The work of the run.

    Attributes
    ----------
    tally : Tally
        Counts of the run so far.
    """

    def __init__(self, job: Job) -> None:
        self.tally = Tally(num_threads=job.parts.num_threads)
        self._job = job
        self._pid = os.getpid()
        self._run_lock = RunLock()
        self._open_batches = OpenBatches(job, self.tally, self._run_lock)
        self._deadlines = Deadlines(
            job.parts.retry_policy, job.parts.reader.name, self._run_lock.tell
        )
        self._helpers = Helpers(job.parts.num_helpers)
        self._read_room = ReadRoom(job.parts)
        self._block_loads = BlockLoads(
            job,
            self.tally,
            self._read_room,
            self._run_lock,
            self._deadlines,
            on_loaded=self._open_batches.on_loaded,
            on_stuck=self._replace,
        )
        self._taken: deque[OpenBatch] = deque()
        self._walks = Walks(job, self.tally, self._run_lock, self._block_loads, self._open_batches)
        self._is_closed = False
        self._closing: set[threading.Thread] = set()
        self._is_dropped = False
        self._num_idle = 0
        # Exit handlers run in reverse order, so this one runs before zarr stops its event loop. A
        # thread that waits for that loop afterwards would wait for ever.
        atexit.register(self.close)
        self._has_started = False
        self._has_told_of_skipped = False
        self._threads = Threads("xloader")

    @property
    def num_steps(self) -> int:
        """Number of batches."""
        return self._job.walker.num_steps

    @property
    def is_closed(self) -> bool:
        """Whether the run was closed."""
        return self._is_closed

    # The consumer's side

    def take(self) -> Delivery | None:
        """The next batch; None after the last one.

        The first call starts the threads.

        Raises
        ------
        ChunkError
            If a chunk of this batch cannot be read.
        NanError
            If this batch holds NaN, with ``on_nan="raise"``.
        StoreChangedError
            If the store is no longer what was opened.
        SourceAccessError
            If the store does not answer when it is checked for changes.
        ForkError
            If this process is a forked child of the one that made the run.
        ClosedError
            If the run is closed.
        """
        check_process(self._pid)
        begin = time.perf_counter()
        change_watch = self._job.parts.reader.change_watch
        if not (self._has_started or self._is_closed):
            change_watch.begin()
        # `close` puts another queue in its place.
        taken = self._taken
        is_looked_at = not taken or self._is_closed or self._run_lock.failure is not None
        if is_looked_at:
            self._take_ready(taken, begin)
        if not taken:
            return None
        open_batch = taken.popleft()
        if self.tally.is_recorded:
            with self._run_lock.lock:
                self.tally.num_ready = len(taken) + self._open_batches.count_ready()
        if open_batch.error is not None:
            raise open_batch.error
        is_last = open_batch.step.index + 1 == self._job.walker.num_steps
        # After the last read of all that were taken, so that values read after a change are not
        # handed out.
        if is_looked_at or is_last:
            change_watch.check(is_last=is_last)
        if open_batch.num_skipped and not (self._has_told_of_skipped or self._job.is_part):
            self._has_told_of_skipped = True
            warn_of_skipped(open_batch.num_skipped, open_batch.first_error)
        return self._open_batches.delivery(open_batch)

    def close(self) -> None:
        """Stop the threads and release the memory, except for blocks that stay for later runs.

        A thread that does not end in time is left behind, and the pool is marked as spoilt. Called
        on a thread of the run itself, this does not wait for the threads. In a forked child it does
        nothing.
        """
        if os.getpid() != self._pid:
            # A thread may have held the lock at the fork, and would never release it here.
            return
        me = threading.current_thread()
        if me in self._closing:
            # A garbage collection called this again while it was running.
            return
        self._closing.add(me)
        try:
            self._stop()
            atexit.unregister(self.close)
            # A garbage collection may end the iterator on a thread of the run. The other threads
            # may wait for a lock that this thread holds, so it must not wait for them. They stop by
            # themselves.
            is_own = me in self._threads or self._block_loads.has(me) or self._deadlines.has(me)
            if self._job.outbox is not None:
                is_own |= self._job.outbox.has(me)
            if not is_own:
                self._join()
        finally:
            self._closing.discard(me)

    def add_finish(self, spent: WorkTime) -> None:
        """Count time that another thread spent on finishing whole batches.

        Parameters
        ----------
        spent : WorkTime
            The time.
        """
        with self._run_lock.lock:
            self.tally.finish_seconds += spent.seconds
            self.tally.workers.awaited_seconds += spent.seconds
            self.tally.add_work({"finish": spent})

    def snapshot(self) -> Tally:
        """Copy of the counts so far, which does not change any more."""
        with self._run_lock.lock:
            return copy.deepcopy(self.tally)

    def wake(self) -> None:
        """Look for work again: memory of batches has come back. Called on any thread."""
        with self._run_lock.lock:
            self._run_lock.work.notify()

    def _take_ready(self, taken: deque[OpenBatch], begin: float) -> None:
        """Wait for a batch, and take it with those of its tray that are ready; none at the end."""
        with self._run_lock.lock:
            self._start()
            self._open_batches.is_wanted = True
            self.tally.mark(is_awaited=True)
            self._run_lock.work.notify()
            is_done = self._is_answered(taken, begin)
        while not is_done:
            self._run_lock.batch.wait()
            if self._run_lock.notice:
                self._warn()
            with self._run_lock.lock:
                is_done = self._is_answered(taken, begin)

    def _warn(self) -> None:
        """Warn the consumer of a slow read."""
        with self._run_lock.lock:
            notice, self._run_lock.notice = self._run_lock.notice, ""
        warn_caller(notice, SlowReadWarning)

    def _is_answered(self, taken: deque[OpenBatch], begin: float) -> bool:
        """Take the batches that are ready. If there is none, register for the signal.

        All at once, and with the lock taken once: it may be held by a worker, and to wait for it
        costs more than all the rest. The lock must be held.

        Returns
        -------
        bool
            Whether there is a batch or the end.
        """
        is_over = self._walks.is_over and not self._open_batches
        has_failed = self._is_closed or self._run_lock.failure is not None
        if not (is_over or has_failed or self._open_batches.head_is_ready):
            self._run_lock.batch.begin()
            return False
        self.tally.wait_seconds += time.perf_counter() - begin
        if self._run_lock.failure is not None:
            raise self._run_lock.failure
        if self._is_closed:
            raise closed_iterator()
        if not is_over:
            taken.extend(self._open_batches.pop())
        self._open_batches.is_wanted = False
        self.tally.mark(is_awaited=False)
        return True

    def _start(self) -> None:
        """Start the threads at the first call. The lock must be held."""
        # Not earlier: trainers may make an iterator only to see if that works, and discard it.
        if self._has_started or self._is_closed:
            return
        self._has_started = True
        if self._job.outbox is not None:
            self._job.outbox.start(self.wake, self._fail)
        self.tally.mark(workers=self.tally.num_threads)
        self._deadlines.start()
        # The system may not allow all of them.
        self.tally.num_helpers = self._helpers.start()
        self._begin_threads()

    def _begin_threads(self) -> None:
        """Start workers until there are as many as there is memory for. The lock must be held."""
        while len(self._threads) < self._read_room.num_threads and not self._is_closed:
            try:
                self._threads.begin(self._work)
            except RuntimeError as error:
                # The system allows no more. The other workers go on, if there are any.
                if not self._threads:
                    self._run_lock.fail(error)
                self._read_room.limit_threads(len(self._threads))
        if (num := len(self._threads) - self.tally.num_threads) > 0:
            self.tally.num_threads += num
            self.tally.mark(workers=num)

    def _is_left_over(self) -> bool:
        """Adapt the number of workers to the last reads. Return whether the caller ends."""
        if self._is_closed or len(self._threads) <= self._read_room.num_threads:
            self._begin_threads()
            return False
        # The end of its thread frees the memory that it reads into.
        self._threads.give_up(threading.current_thread())
        self.tally.mark(workers=-1)
        self._run_lock.work.notify()
        return True

    def _fail(self, error: BaseException) -> None:
        """End the iteration with an error."""
        with self._run_lock.lock:
            self._run_lock.fail(error)

    def _replace(self, stuck: threading.Thread) -> None:
        """Start another worker in place of one that was given up. The lock must be held."""
        self._threads.give_up(stuck)
        self._begin_threads()

    def _stop(self) -> None:
        with self._run_lock.lock:
            self._is_closed = True
            self._block_loads.close()
            self._run_lock.ring()
        self._deadlines.close()
        self._helpers.close(0.0)
        if self._job.outbox is not None:
            self._job.outbox.close()

    def _join(self) -> None:
        now = time.monotonic()
        if not self._have_ended(now + SOME_SECONDS):
            # These threads can no longer write anywhere, even if their calls return.
            for thread in self._deadlines.abandon():
                self._threads.give_up(thread)
                self._block_loads.give_up(thread)
        has_ended = self._have_ended(now + MOST_SECONDS)
        self._deadlines.join(now + MOST_SECONDS)
        self._helpers.close(now + MOST_SECONDS)
        if self._job.outbox is not None:
            self._job.outbox.join(now + MOST_SECONDS)
        with self._run_lock.lock:
            if self._is_dropped:
                # A later run may use the block table and the pool by now.
                return
            self._is_dropped = True
            self._open_batches.clear()
            self._taken = deque()
            self._block_loads.clear()
            if has_ended:
                self._job.drop_blocks()
            else:
                # A thread is still at work, say in a slow function of the user. It may yet write to
                # these blocks.
                self._job.pool.spoil()

    def _have_ended(self, until: float) -> bool:
        # In a list, so that both are waited for even if the first has not ended.
        return all([self._threads.join(until), self._block_loads.join(until)])

    # The workers' side

    def _work(self) -> None:
        clock = WorkClock()
        conclude: Callable[[], None] = _nothing
        self._helpers.use()
        try:
            while True:
                with self._run_lock.lock:
                    conclude()
                    # It refers to a batch, whose memory must be free before the next task comes.
                    conclude = _nothing
                    self.tally.add_work(clock.take())
                    if self._is_left_over():
                        return
                    kind, task = self._next_task()
                    if task is None and not self._is_closed:
                        self.tally.mark(workers=-1)
                        since = self.tally.since
                        self._num_idle += 1
                        while task is None and not self._is_closed:
                            self._run_lock.work.wait()
                            kind, task = self._next_task()
                        self._num_idle -= 1
                        self.tally.mark(workers=1)
                        clock.skip(self.tally.since - since)
                    if self._is_closed:
                        return
                    # Each worker wakes the next one: none is woken that would find nothing to do.
                    if self._num_idle and self._has_more():
                        self._run_lock.work.notify()
                assert task is not None
                clock.begin(kind)
                conclude, task = task(), None
                clock.end()
        except Abandoned:
            # Another thread replaces this one.
            return
        except BaseException as error:
            with self._run_lock.lock:
                self._run_lock.fail(error)
        finally:
            clock.close()
            self._helpers.leave()

    def _next_task(self) -> tuple[Kind, Task | None]:
        """The next task for the calling worker; None if there is none. The lock must be held."""
        if self._is_closed:
            return "own", None
        if task := self._open_batches.next_finish():
            return "finish", task
        if len(self._threads) > 1 and self._walks.is_urgent():
            return "own", self._walks.begin()
        if self._open_batches.has_gather:
            is_shared = not self._block_loads.has_task()
            return "own", self._open_batches.next_gather(is_shared=is_shared)
        if task := self._block_loads.next_task():
            return "load", task
        if self._walks.is_due():
            return "own", self._walks.begin()
        return "own", None

    def _has_more(self) -> bool:
        """Whether another worker would find a task. The lock must be held."""
        return self._open_batches.has_task or self._block_loads.has_task() or self._walks.is_due()


def _nothing() -> None:
    """Conclude nothing: no task was carried out yet."""
