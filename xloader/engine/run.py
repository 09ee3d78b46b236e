"""One pass over an epoch: an executor carries out its program, and Python does what C cannot.

::

    program     segments of loads, copies and batches, made a little ahead
    executor    threads that load blocks and copy parts of them into batches
    hands       threads of Python that make segments, read what C cannot, and finish batches
    consumer    takes the batches in order
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of, load_library
from xloader.core.messages import warn_caller
from xloader.engine.assembly import EngineParts
from xloader.engine.batches import BatchRows, Delivery, OpenBatch, Outbox, warn_of_skipped
from xloader.engine.block_reader import Bundle
from xloader.engine.fetches_ahead import FetchesAhead
from xloader.engine.finishes import Finisher, Finishes
from xloader.engine.native_executor import (
    DECODE_ALONE,
    EVERY_CHUNK,
    FINISH_BATCH,
    IS_OVER,
    LET_GO,
    LOAD_CHUNK,
    MAKE_SEGMENT,
    MOST_WAIT_SECONDS,
    BlockMemory,
    Limits,
    NativeBlocks,
    NativeExecutor,
    WorkItem,
)
from xloader.engine.plain_executor import Executor, PlainBlocks, PlainExecutor
from xloader.engine.program import Segments
from xloader.engine.python_loads import LoadTask, PythonLoads
from xloader.engine.tables import Tables, can_run_natively
from xloader.engine.tally import Gauge, Tally, WorkClock, WorkTime, no_refresh
from xloader.engine.threads import LONG_SECONDS, MOST_SECONDS, SOME_SECONDS, Deadlines, Threads
from xloader.errors import (
    ChunkError,
    ChunkWarning,
    ClosedError,
    EnvironmentWarning,
    ForkError,
    ReadTimeoutError,
)
from xloader.sources.retries import Abandoned, Attempts

OnError = Literal["raise", "skip"]
"""Raise an error if a chunk cannot be read, or skip its rows."""

_SLICE_SECONDS: Final = MOST_WAIT_SECONDS or 0.2
"""Seconds of a wait, after which Python looks for Ctrl-C."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """The work of one run: its program, and everything that is needed to carry it out.

    `num_cores`: most threads that compute. `num_hands`: threads of Python. `num_ahead`: batches
    that are made ahead, and `spare_nbytes`: of those in flight, bytes that some of them take.
    `batch_nbytes`, `num_held`, `num_known`: as in `Limits`.
    """

    program: Segments
    parts: EngineParts
    tables: Tables
    finisher: Finisher
    blocks: BlockMemory
    num_cores: int
    num_hands: int
    last_size: int = 0
    num_ahead: int = 0
    spare_nbytes: int = 0
    batch_nbytes: int = 0
    num_held: int = 0
    num_known: int = 0
    on_error: OnError = "raise"
    outbox: Outbox | None = None
    ends_on_timeout: bool = False

    @functools.cached_property
    def scratch_nbytes(self) -> int:
        """Memory for chunks that are fetched ahead and not decompressed right into place."""
        return self.tables.scratch_nbytes(self.num_cores)

    @property
    def most_fetched_nbytes(self) -> int:
        """Most bytes of chunks that are fetched ahead."""
        return self.parts.in_flight_nbytes - self.scratch_nbytes

    @property
    def limits(self) -> Limits:
        """The limits that the executor keeps."""
        chunk_nbytes = self.parts.footprint.max_chunk_nbytes
        return Limits(
            batch_nbytes=self.batch_nbytes,
            in_flight_nbytes=self.parts.in_flight_nbytes - self.spare_nbytes,
            most_chunk_nbytes=chunk_nbytes,
            num_cores=self.num_cores,
            num_held=self.num_held,
            num_known=self.num_known,
            most_scratch=max(1, self.scratch_nbytes // chunk_nbytes),
            most_loading_hands=self.parts.num_threads,
        )


def make_blocks(parts: EngineParts, tables: Tables, capacity_nbytes: int) -> BlockMemory:
    """Memory for so many bytes of blocks, for native threads if they can copy the samples."""
    if can_run_natively(parts):
        return NativeBlocks(capacity_nbytes, tables)
    _warn_of_missing_library()
    return PlainBlocks(capacity_nbytes, tables)


@functools.cache
def _warn_of_missing_library() -> None:
    reason = load_library()[1]
    if reason and "XLOADER_COMPILED" not in reason:
        warn_caller(
            f"xloader runs without its compiled library: {reason}. Whole fields take up to 1.4 "
            "times the processor time, patches two to three times, series of single pixels forty "
            "times: run `xloader doctor`, which says what to do",
            EnvironmentWarning,
        )


def _make_executor(job: Job, slots: dict[int, list[NDArray[Any]]]) -> Executor:
    if isinstance(job.blocks, NativeBlocks):
        return NativeExecutor(job.blocks, job.limits)
    assert isinstance(job.blocks, PlainBlocks)
    return PlainExecutor(job.blocks, job.limits, job.parts, slots)


class Run:
    """One job being carried out. It may be closed at any time, from any thread, repeatedly.

    Attributes
    ----------
    tally : Tally
        Counts of the run so far.
    errors : dict of int to BaseException
        Why loads failed, by their numbers.
    num_taken : int
        Batches that were taken, with or without an error.
    is_closed : bool
        Whether it was closed.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._slots: dict[int, list[NDArray[Any]]] = {}
        self._executor = _make_executor(job, self._slots)
        self.tally = Tally(num_threads=job.parts.num_threads, refresh=self._refresh)
        self._pid = os.getpid()
        self._lock, self._adding = threading.RLock(), threading.Lock()
        # Warnings that the consumer gives when it next looks.
        self._notices: deque[str] = deque()
        policy, tell = job.parts.retry_policy, self._notices.append
        self._deadlines = Deadlines(policy, job.parts.reader.name, tell)
        self._hands = Threads("xloader")
        self._steps: dict[int, BatchRows] = {}
        self._num_slots = 0
        self._loads = PythonLoads(
            job.parts,
            self._deadlines,
            self._lock,
            job.blocks.view,
            self._executor.add_flight,
            self._let_go,
            is_skipping=job.on_error == "skip",
        )
        self._ahead: FetchesAhead | None = None
        if job.parts.reader.is_waiting:
            self._ahead = FetchesAhead(
                job.parts,
                self._deadlines,
                self._loads,
                self._executor,
                self.tally,
                self._lock,
                job.tables,
                job.most_fetched_nbytes,
                self._fail,
            )
        self._finishes = Finishes(
            job.parts, job.finisher, job.program.num_steps, job.last_size, job.outbox
        )
        self.errors: dict[int, BaseException] = {}
        self._failure: BaseException | None = None
        self._told_of_read: tuple[int, ...] = ()
        self.num_taken = 0
        self._is_awaited = False
        self._num_reads = 0
        self._has_told_of_skipped = self._has_started = self.is_closed = self._is_dropped = False
        self._closing: set[threading.Thread] = set()
        self._watches = list(job.parts.reader.watches())
        # Exit handlers run in reverse order, so this one runs before zarr stops its event loop.
        atexit.register(self.close)

    @property
    def num_steps(self) -> int:
        """Number of batches."""
        return self._job.program.num_steps

    # The consumer's side

    def take(self) -> Delivery | None:
        """The next batch; None after the last one.

        The first call starts the threads.
        """
        if os.getpid() != self._pid:
            raise ForkError(
                "an iterator was used after a fork, in a child process that lacks its threads",
                given=f"process {os.getpid()}, iterator made in process {self._pid}",
                remedy='make the loader in the child process, or start the child with "spawn" or '
                '"forkserver" under if __name__ == "__main__":',
            )
        begin = time.perf_counter()
        change_watch = self._job.parts.reader.change_watch
        if not (self._has_started or self.is_closed):
            change_watch.begin()
        num_steps = self._job.program.num_steps
        if self.num_taken == num_steps and not self.is_closed:
            return None
        self._start()
        self._mark_awaited(True)
        slot = self._wait()
        index = self.num_taken
        self.num_taken += 1
        if not index and self._ahead is not None:
            self._ahead.go_on()
        self._mark_awaited(False)
        self.tally.wait_seconds += time.perf_counter() - begin
        with self._lock:
            # What is sent to a device has left its slot.
            step, joints = self._steps.pop(index), self._slots.pop(slot, None)
            batch = self._finishes.take(step, joints)
        del joints
        for text, category in batch.warnings:
            warn_caller(text, category)  # type: ignore[arg-type]
        if batch.error is not None:
            raise batch.error
        is_last = index + 1 == num_steps
        if self._executor.num_reads != self._num_reads:
            self._num_reads = self._executor.num_reads
            for watch in self._watches:
                watch.note_read()
        change_watch.check(is_last=is_last)
        if batch.num_skipped and not self._has_told_of_skipped:
            self._has_told_of_skipped = True
            warn_of_skipped(batch.num_skipped, batch.first_error)
        return self._finishes.delivery(batch)

    def make_segment(self) -> None:
        """Make the next segment of the program."""
        begin = time.perf_counter()
        program = self._job.program
        segment = program.next_segment(self._finishes.is_needed)
        for step in segment.batches:
            self._steps[step.index] = step
        self.tally.walk_seconds += time.perf_counter() - begin
        # Another hand may make the next segment as soon as the executor knows of this one.
        with self._adding:
            self._executor.add(segment, is_last=program.is_over)
            if self._ahead is not None:
                self._ahead.add(segment)

    def close(self) -> None:
        """Stop the threads and release the memory, except for blocks that stay for later runs.

        A thread that does not end in time is left behind, and the memory is marked as spoilt.
        Called on a thread of the run itself, this does not wait for the threads. In a forked child
        it does nothing.
        """
        if os.getpid() != self._pid:
            # A thread may have held a lock at the fork, and would never release it here.
            return
        me = threading.current_thread()
        if me in self._closing:
            # A garbage collection called this again while it was running.
            return
        self._closing.add(me)
        try:
            with self._lock:
                self.is_closed = True
            self._executor.close()
            if self._ahead is not None:
                self._ahead.close()
            self._deadlines.close()
            if self._job.outbox is not None:
                self._job.outbox.close()
            atexit.unregister(self.close)
            if not (self._has(me) or self._is_dropped):
                self._join()
        finally:
            self._closing.discard(me)

    def _has(self, thread: threading.Thread) -> bool:
        """Whether a thread is one of the run's."""
        others = (self._ahead, self._job.outbox, self._deadlines)
        return thread in self._hands or any(o is not None and o.has(thread) for o in others)

    def _start(self) -> None:
        """Start the threads at the first call."""
        # Not earlier: trainers may make an iterator only to see if that works, and discard it.
        if self._has_started or self.is_closed:
            return
        self._has_started = True
        if self._job.outbox is not None:
            self._job.outbox.start(self._give_slots, self._fail)
        self._deadlines.start()
        if not self._executor.start() and not self.is_closed:
            self._fail(RuntimeError("can't start new thread"))
        for number in range(self._job.num_hands):
            try:
                self._hands.begin(self._work)
            except RuntimeError as error:
                # The system allows no more. The others do their work.
                if not number:
                    self._fail(error)
                break
        # Now chunks are being read. To pin the first slots for a device takes a while.
        self._give_slots()

    def _mark_awaited(self, is_awaited: bool) -> None:
        """Note whether the consumer waits: then one more batch may be made."""
        with self._lock:
            self._is_awaited = is_awaited
            if self._ahead is not None:
                self.tally.mark(is_awaited=is_awaited)
        self._give_slots()

    def _give_slots(self) -> None:
        """Give the executor memory for batches that may be made now, if there is some."""
        fields = self._job.parts.fields
        with self._lock:
            most = self.num_taken + self._job.num_ahead + self._is_awaited
            if self._job.outbox is not None:
                # Each one under way may take memory of the device.
                most = self.num_taken + max(self._job.num_ahead, self._is_awaited)
            most = min(most, self._job.program.num_steps)
            while self._num_slots < most and not self.is_closed and fields.memory.has_room():
                joints = fields.take_joints()
                number = self._num_slots
                self._num_slots += 1
                self._slots[number] = joints
                self._executor.give_slot(number, [address_of(joint) for joint in joints])

    def _wait(self) -> int:
        """Wait for the next batch, and return its slot."""
        while True:
            slot = None if self.is_closed else self._executor.take(_SLICE_SECONDS)
            while self._notices:
                warn_caller(self._notices.popleft(), ChunkWarning)
            if self._failure is not None:
                raise self._failure
            if self.is_closed or slot == IS_OVER:
                raise ClosedError(
                    "the iterator is closed",
                    remedy="iterate over the loader again; after loader.close(), make a new loader",
                )
            if slot is not None:
                return slot
            self._give_slots()
            self._executor.give_up_reads(self._job.parts.retry_policy.read_timeout)
            self._look_for_slow_read()

    def _look_for_slow_read(self) -> None:
        """Warn of a read of native threads that takes long, once for each chunk."""
        slow = self._executor.find_slow_read(LONG_SECONDS)
        if slow is None or slow[:3] == self._told_of_read:
            return
        self._told_of_read = slow[:3]
        group = self._job.parts.footprint.groups[slow.group]
        block = group.index_of(slow.block)
        (read,) = self._job.parts.reader.chunk(group, block, slow.part).reads
        self._notices.append(
            f"chunk {read.chunk} of variable {read.variable!r} of {self._job.parts.reader.name} "
            f"has not arrived after {slow.seconds:.0f} s"
        )

    def _refresh(self) -> None:
        """Bring the tally up to date."""
        if os.getpid() != self._pid:
            # A thread may have held the lock at the fork, and would never release it here.
            return
        with self._lock:
            figures, reads, nbytes = self._executor.figures()
        tally, loads = self.tally, self._loads
        names, reader = self._job.tables.variables, self._job.parts.reader
        pairs = zip(names, reads.tolist(), strict=True)
        tally.variable_reads = Counter({n: num for n, num in pairs if num and reader.is_read(n)})
        tally.num_reads = tally.variable_reads.total()
        tally.group_nbytes = Counter({g: num for g, num in enumerate(nbytes.tolist()) if num})
        tally.read_nbytes = tally.group_nbytes.total()
        tally.num_ahead, tally.ahead_nbytes = loads.num_ahead, loads.ahead_nbytes
        tally.ahead_seconds = loads.ahead_seconds
        tally.num_requests = loads.num_requests + figures.num_requests
        tally.num_retries, tally.num_missing = loads.num_retries, loads.num_missing
        tally.skipped = dict(loads.skipped)
        tally.fetch_seconds = loads.fetch_seconds + figures.read_ns * 1e-9
        tally.decode_seconds = loads.decode_seconds + figures.decode_ns * 1e-9
        tally.gather_seconds = figures.copy_ns * 1e-9
        peak_nbytes = figures.peak_nbytes
        if self._has_started:
            peak_nbytes += self._job.parts.fields.memory.nbytes_of(0)
        tally.peak_nbytes = max(tally.peak_nbytes, peak_nbytes)
        tally.flight_nbytes = figures.flight_nbytes
        tally.num_ready = figures.num_ready
        tally.num_threads = max(min(figures.num_threads, self._job.parts.num_threads), 1)
        tally.workers = Gauge(
            figures.num_working,
            figures.peak_working,
            figures.awaited_ns * 1e-9,
            figures.unasked_ns * 1e-9,
        )
        # All that native threads at work wait for are reads, and cores.
        in_python = sum(spent.seconds for kind, spent in tally.work.items() if kind != "native")
        seconds = max(tally.workers.seconds - in_python, 0.0)
        cpu_seconds = min(figures.cpu_ns * 1e-9, seconds)
        core_seconds = max(seconds - figures.read_ns * 1e-9 - cpu_seconds, 0.0)
        tally.work["native"] = WorkTime(seconds, cpu_seconds, core_seconds)

    def _fail(self, error: BaseException) -> None:
        """End the iteration with an unexpected error. The consumer gets it."""
        self._failure = error
        self._executor.close()

    # The hands' side

    def _work(self, task: LoadTask | None = None, num_hung: int = 0) -> None:
        """Do one piece of work after the other; first the loads of a hand that was given up."""
        clock: WorkClock | None = None
        try:
            # The executor does not count what comes before the first piece of work.
            item = self._executor.next_work(None) if task is None else None
            clock = WorkClock()
            if task is not None:
                self._load(task, num_hung, clock)
                done = WorkItem(LOAD_CHUNK, task.run.numbers[0], EVERY_CHUNK)
                item = self._executor.next_work(done)
            while item is not None:
                self._do(item, clock)
                clock.end()
                with self._lock:
                    self.tally.add_work(clock.take())
                item = self._executor.next_work(item)
                if item is not None:
                    clock.skip(item.waited_ns * 1e-9)
        except Abandoned:
            # Another thread replaces this one.
            return
        except BaseException as error:
            self._fail(error)
        finally:
            if clock is not None:
                clock.close()

    def _do(self, item: WorkItem, clock: WorkClock) -> None:
        clock.begin("own")
        if item.kind == MAKE_SEGMENT:
            self.make_segment()
        elif item.kind == LET_GO:
            assert self._ahead is not None
            self._ahead.let_go_empty()
        elif item.kind == FINISH_BATCH:
            batch = self._open_batch(item.number)
            clock.begin("finish")
            begin = time.perf_counter()
            done = self._finishes.finish(batch)
            seconds = time.perf_counter() - begin
            with self._lock:
                if batch.spent is not None:
                    # Another process has worked, while this thread waited.
                    clock.skip(seconds)
                    seconds = batch.spent.seconds
                    self.tally.add_work({"finish": batch.spent})
                self.tally.finish_seconds += seconds
            clock.begin("own")
            # The consumer may drop the batch before this thread goes on.
            del batch
            for index in done:
                self._executor.batch_done(index)
        else:
            clock.begin("load")
            task = self._task_of(item)
            if task is not None:
                self._load(task, 0, clock)

    def _task_of(self, item: WorkItem) -> LoadTask | None:
        """The chunks to read or decode; None if another hand has taken them."""
        if item.kind == LOAD_CHUNK:
            return self._placed(item)
        assert self._ahead is not None
        if item.kind == DECODE_ALONE:
            return self._ahead.take_alone(item.number, item.part)
        return self._ahead.take(item.number)

    def _placed(self, item: WorkItem) -> LoadTask:
        """A task that reads the chunks of an item, whose blocks have memory."""
        numbers = range(item.number, item.number + item.num)
        places = [self._executor.find_load(number) for number in numbers]
        if item.part == EVERY_CHUNK:
            run = self._loads.begin(numbers, places[0].group, [place.block for place in places])
        else:
            run = self._loads.begin_chunk(item.number, places[0], item.part)
        for number, place in zip(numbers, places, strict=True):
            joints = None if place.slot < 0 else self._slots[place.slot]
            self._loads.give_memory(run, number, place, joints)
        return LoadTask(run, run.take_ready(numbers[-1]))

    def _load(self, task: LoadTask, num_hung: int, clock: WorkClock) -> None:
        def on_read(bundle: Bundle) -> None:
            """Note that chunks of some blocks are there, or will never be."""
            clock.begin("own")
            counts = Counter(task.run.numbers[at] for at, *_ in bundle.places)
            for number, count in counts.items():
                if bundle.error is not None:
                    self.errors.setdefault(number, bundle.error)
                self._executor.chunks_done(number, count, has_failed=bundle.error is not None)
            if self._job.ends_on_timeout and isinstance(bundle.error, ReadTimeoutError):
                # The other chunks of the batch would hang as well.
                self._fail(bundle.error)
            clock.begin("load")

        self._loads.read(task, num_hung, partial(self._on_left, task), on_read)

    def _open_batch(self, index: int) -> OpenBatch:
        """A batch that is gathered, with the errors of the blocks that it lacks."""
        step, slot = self._steps[index], self._executor.slot_of(index)
        # What is sent to a device leaves its slot.
        joints = self._slots[slot] if self._job.outbox is None else self._slots.pop(slot)
        fields, num_rows = self._job.parts.fields, max(len(step.ids), self._job.last_size)
        batch = OpenBatch(step, fields.named(joints, num_rows), fields.room(joints))
        gaps = self._executor.gaps(index)
        # The first load comes first, in the order of the rows.
        for load in np.unique(gaps[:, 1]).tolist():
            error = self.errors[load]
            if self._job.on_error == "skip" and isinstance(error, ChunkError):
                batch.note_bad_rows(gaps[gaps[:, 1] == load, 0], error)
            else:
                batch.error = batch.error or error
        return batch

    def _on_left(self, task: LoadTask, attempts: Attempts) -> None:
        """Have another hand do the work of one that was given up. Called by `Deadlines`."""
        with self._lock:
            self._hands.give_up(attempts.thread)
            bundle = task.bundles[0]
            try:
                self._loads.note_hung(bundle, attempts)
                self._loads.count_attempts(bundle, attempts)
                self._let_go(bundle, bundle.held_nbytes)
                if not self.is_closed:
                    self._hands.begin(partial(self._work, task, attempts.num_failed))
            except BaseException as error:
                self._fail(error)

    def _let_go(self, bundle: Bundle, held_nbytes: int) -> None:
        """Note that the bytes of a bundle are decoded or given up, if they were fetched ahead."""
        if self._ahead is not None and bundle.is_waiting:
            self._ahead.let_go(bundle, held_nbytes)

    def _join(self) -> None:
        now = time.monotonic()
        if not self._have_ended(now + SOME_SECONDS):
            # These threads can no longer write anywhere, even if their calls return.
            for thread in self._deadlines.abandon():
                self._hands.give_up(thread)
                if self._ahead is not None:
                    self._ahead.give_up(thread)
        has_ended = self._have_ended(now + MOST_SECONDS)
        if not has_ended and self._job.finisher.give_up():
            has_ended = self._have_ended(now + MOST_SECONDS + SOME_SECONDS)
        self._deadlines.join(now + MOST_SECONDS)
        if self._job.outbox is not None:
            self._job.outbox.join(now + MOST_SECONDS)
        self._refresh()
        with self._lock:
            if self._is_dropped:
                return
            self._is_dropped = True
            self.tally.refresh = no_refresh
            slots = dict(self._slots)
            self._slots.clear()
            self._steps.clear()
            self._finishes.clear()
            if has_ended:
                self._executor.keep_blocks()
                if self._ahead is not None:
                    self._ahead.clear()
            else:
                # A thread is still at work. It may yet write to these blocks.
                self._job.blocks.spoil()
                # And native threads may still decode what was fetched, and copy it into batches.
                self._executor.leave(None if self._executor.join(0.0) else (self._ahead, slots))

    def _have_ended(self, until: float) -> bool:
        # In a list, so that both are waited for even if the first has not ended.
        has_fetched = self._ahead is None or self._ahead.join(until)
        hands = self._hands.join(until)
        return all([has_fetched, hands, self._executor.join(until - time.monotonic())])
