"""A worker process of a loader: it gathers its lanes' rows of every batch into shared memory.

::

    receiver      a thread: takes messages of the loader and of the other processes
    carry_out     the main thread: takes the parts from a run, as a training loop takes batches
    finishers     threads: transform whole batches, once all processes have gathered their rows

The processes finish batches in turn. The loader is told of each that is ready.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from xloader.engine.batch_finish import BatchFinish
from xloader.engine.batch_slots import NOTE_NBYTES, BatchSlots, GrantedRows
from xloader.engine.buffers import Fields
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.engine.shared_memory import SharedMemory
from xloader.engine.tally import Tally
from xloader.engine.work_clock import WorkTime
from xloader.errors import ChunkError, ClosedError
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.processes.batch_finisher import BatchFinisher
from xloader.loader.processes.process_messages import (
    BeginRun,
    Ended,
    EndRun,
    Failed,
    Finished,
    Gathered,
    GrantSlot,
    Ready,
    SentError,
    StopProcess,
    forward_warnings,
)
from xloader.loader.processes.process_setup import ProcessSetup
from xloader.loader.ranks.job_factory import JobFactory, Share
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.sources.arrays.dask_cluster import compute_synchronously
from xloader.transforms.packed_fields import stored_layouts

_SWITCH_SECONDS = 5e-4
"""Seconds after which a thread hands on Python's lock. With Python's 5 ms, two processes with a
transform of 20 ms a batch made 1.57 times as many batches as threads, and with
this 1.74 times."""


class Wiring(NamedTuple):
    """The connections of one process.

    Parameters
    ----------
    number : int
        Number of the process.
    loader : Connection
        To and from the loader.
    inbox : Connection
        From the other processes.
    outboxes : tuple of Connection
        To the inbox of each process, in order; this process's own among them.
    memory : SharedMemory
        All slots.
    """

    number: int
    loader: Connection
    inbox: Connection
    outboxes: tuple[Connection, ...]
    memory: SharedMemory


def run_process(wiring: Wiring, setup: bytes) -> None:
    """Serve a loader until it says stop, or ends.

    Parameters
    ----------
    wiring : Wiring
        The connections.
    setup : bytes
        A pickled `ProcessSetup`.
    """
    import cloudpickle

    # Ctrl-C goes to all processes of a terminal. The loader's process decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _seed_globally()
    compute_synchronously()
    try:
        process = EngineProcess(wiring, cloudpickle.loads(setup))
    except BaseException as error:
        wiring.loader.send(Failed(-1, 0, SentError.of(error)))
        return
    process.serve()


def _seed_globally() -> None:
    """Give this process random numbers of its own: it begins as a copy of another one."""
    random.seed()
    np.random.seed()  # noqa: NPY002  (users may still use these)
    if torch := sys.modules.get("torch"):
        torch.seed()


def _note_of(error: BaseException | None) -> bytes:
    """An error as bytes for a slot; none without an error."""
    if error is None:
        return b""
    sent = SentError.of(error)
    for told in (sent, sent._replace(text="")):
        if len(note := pickle.dumps(told)) <= NOTE_NBYTES:
            return note
    return pickle.dumps(SentError.of(ChunkError(str(error)[: NOTE_NBYTES // 8])))


class _Pass:
    """One run, as this process sees it.

    Attributes
    ----------
    granted : deque of int
        Slots for the batches that are not open yet.
    slots : list of int
        All slots so far, by step.
    counts : Counter
        By step, how many processes have gathered their rows.
    finishing : list of Future
        The batches that are being finished here, and those that are.
    run : Run or None
        The run, once it has begun.
    num_steps : int
        Number of its steps.
    finisher : BatchFinisher or None
        Finishes its batches, once it has begun.
    regions : dict of int to int
        By step, the distinct regions, where this process sees whole batches.
    is_last_due : bool
        Whether the batch before the last one is finished.
    is_over : threading.Event
        Set once the loader has ended the run.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.granted: deque[int] = deque()
        self.slots: list[int] = []
        self.counts: Counter[int] = Counter()
        self.run: Run | None = None
        self.num_steps = 0
        self.finisher: BatchFinisher | None = None
        self.regions: dict[int, int | None] = {}
        self.is_last_due = False
        self.finishing: list[futures.Future[None]] = []
        self.is_over = threading.Event()
        self.lock = threading.Lock()


class EngineProcess:
    """The work of one process.

    Parameters
    ----------
    wiring : Wiring
        Its connections.
    setup : ProcessSetup
        All that the processes share.
    """

    def __init__(self, wiring: Wiring, setup: ProcessSetup) -> None:
        self._wiring = wiring
        self._setup = setup
        self._num = len(wiring.outboxes)
        self._rank_plan = RankPlan(setup.recipe, setup.options, plan=setup.plan)
        own = self._rank_plan
        self._layouts = stored_layouts(own.layouts, setup.packed_fields)
        self._fields = Fields(self._layouts, own.full_size, 1)
        slots = BatchSlots.of(self._layouts, own.full_size, self._num, own.extra_nbytes)
        self._slots = [
            slots.slot(buffer) for buffer in wiring.memory.buffer.reshape(-1, slots.slot_nbytes)
        ]
        share = own.full_size // self._num
        self._first_row = wiring.number * share
        self._rows = GrantedRows(self._slots, slice(self._first_row, self._first_row + share))
        self._lanes = own.process_lanes[wiring.number]
        self._job_factory = JobFactory(
            own,
            num_ready=len(self._slots),
            num_cores=own.process_threads,
            packed_fields=setup.packed_fields,
            share=Share(len(self._lanes), share, self._num, lambda kinds, num: self._rows),
        )
        self._passes = _PassTable()
        self._num_ended = 0
        self._tasks: SimpleQueue[BeginRun | None] = SimpleQueue()
        # Re-entrant: a garbage collection in the middle may give a warning.
        self._sending = threading.RLock()
        self._finishers = ThreadPoolExecutor(own.process_threads)

    def serve(self) -> None:
        """Carry out runs, until the loader says stop or ends."""
        # Other processes wait for the rows that this one gathers, while a transform of the user may
        # hold Python's lock.
        sys.setswitchinterval(_SWITCH_SECONDS)
        forward_warnings(self._send)
        threading.Thread(target=self._receive, daemon=True).start()
        self._send(Ready())
        while (task := self._tasks.get()) is not None:
            self._carry_out(task)
        # Threads may be stuck in reads or in functions of the user.
        os._exit(0)

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            with self._sending:
                self._wiring.loader.send(message)
        except OSError:
            # The loader's process is gone.
            os._exit(1)

    # Messages

    def _receive(self) -> None:
        loader, inbox = self._wiring.loader, self._wiring.inbox
        try:
            while True:
                for connection in wait([loader, inbox]):
                    assert isinstance(connection, Connection)
                    self._handle(connection.recv())
        except (EOFError, OSError):
            # The loader's process is gone: nobody takes what this one makes.
            os._exit(1)

    def _handle(self, message: Any) -> None:
        if isinstance(message, StopProcess):
            self._tasks.put(None)
            return
        if message.run <= self._num_ended:
            # Another process has not seen the end of the run yet.
            return
        ours = self._passes[message.run]
        if isinstance(message, BeginRun):
            self._tasks.put(message)
        elif isinstance(message, GrantSlot):
            ours.slots.append(message.slot)
            ours.granted.append(message.slot)
            if ours.run is not None:
                ours.run.wake()
        elif isinstance(message, Gathered):
            self._count(ours, message.step)
        elif isinstance(message, EndRun):
            ours.is_over.set()
            if ours.run is not None:
                ours.run.close()

    # Parts

    def _carry_out(self, begin: BeginRun) -> None:
        ours = self._passes[begin.run]
        index = 0
        try:
            ours.run = self._begin(ours, begin)
            if ours.is_over.is_set():
                ours.run.close()
            while (delivery := ours.run.take()) is not None:
                self._publish(ours, delivery)
                index += 1
                del delivery
        except ClosedError:
            pass
        except BaseException as error:
            self._send(Failed(begin.run, index, SentError.of(error)))
        ours.is_over.wait()
        tally = Tally()
        if ours.run is not None:
            ours.run.close()
            tally = ours.run.snapshot()
        self._rows.begin(None)
        if self._job_factory.pool.is_spoilt:
            # A thread may still write to a slot. The loader ends this process before it goes on.
            return
        # They write to slots, which later runs use.
        futures.wait(ours.finishing)
        self._num_ended = begin.run
        del self._passes[begin.run]
        self._send(Ended(begin.run, tally, frozenset(self._job_factory.loaded())))

    def _begin(self, ours: _Pass, begin: BeginRun) -> Run:
        part = self._rank_plan.remainder(begin.epoch, begin.first_step)
        self._rows.begin(None)
        job = self._job_factory.job(part, self._lanes)
        ours.num_steps = job.walker.num_steps
        setup = self._setup
        ours.finisher = BatchFinisher(
            self._fields,
            job.finish,
            ours.num_steps,
            last_size=job.last_size,
            collate_fn=setup.options.collate_fn,
            hand_over=setup.hand_over,
            origin_of=partial(BatchOrigin.of, setup.recipe, setup.options.seed, begin.epoch),
        )
        self._rows.begin(ours.granted)
        # Transforms need whole batches, and so does filling them up.
        return Run(replace(job, finish=BatchFinish(), last_size=0, is_part=True))

    def _publish(self, ours: _Pass, delivery: Delivery) -> None:
        """Note the rows that were gathered, and tell the process that finishes the batch."""
        index, number, times = delivery.step.index, self._wiring.number, delivery.occurrences
        slot, num_rows = self._slots[ours.slots[index]], len(delivery.ids)
        rows = slice(self._first_row, self._first_row + num_rows)
        slot.ids[rows] = delivery.ids
        slot.occurrences[rows] = 0 if times is None else times
        slot.is_replaced[rows] = delivery.is_padding
        note = _note_of(delivery.first_error)
        slot.notes[number, : len(note)] = np.frombuffer(note, np.uint8)
        slot.counts[number] = num_rows, times is not None, len(note)
        if self._num == 1:
            ours.regions[index] = delivery.step.num_regions
        # The last batch may need a row of the one before it, so the same process finishes both.
        finisher = max(0, min(index, ours.num_steps - 2)) % self._num
        if finisher == number:
            self._count(ours, index)
        else:
            # The loader finds out if that process has died.
            with contextlib.suppress(OSError):
                self._wiring.outboxes[finisher].send(Gathered(ours.number, index))

    # Whole batches

    def _count(self, ours: _Pass, index: int) -> None:
        """Count a process that has gathered its rows, and finish the batch if it was the last."""
        last = ours.num_steps - 1
        with ours.lock:
            ours.counts[index] += 1
            is_due = ours.counts[index] == self._num
            if is_due and (index < last or last == 0 or ours.is_last_due):
                self._submit(ours, index)

    def _submit(self, ours: _Pass, index: int) -> None:
        ours.finishing.append(self._finishers.submit(self._finish, ours, index))

    def _finish(self, ours: _Pass, index: int) -> None:
        try:
            if not ours.is_over.is_set():
                self._finish_now(ours, index)
        except BaseException as error:
            self._send(Failed(ours.number, index, SentError.of(error)))
        last = ours.num_steps - 1
        if index == last - 1:
            # The last batch comes after the one before it, of which it may need a row.
            with ours.lock:
                ours.is_last_due = True
                if ours.counts[last] == self._num:
                    self._submit(ours, last)

    def _finish_now(self, ours: _Pass, index: int) -> None:
        assert ours.run is not None
        assert ours.finisher is not None
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        done = ours.finisher.finish(index, self._slots[ours.slots[index]])
        seconds = time.perf_counter() - begin
        ours.run.add_finish(WorkTime(seconds, time.thread_time() - cpu_begin))
        self._send(
            Finished(
                ours.number,
                index,
                ours.slots[index],
                done,
                ours.regions.pop(index, None),
                ours.run.snapshot(),
            )
        )


class _PassTable(defaultdict[int, _Pass]):
    """The runs under way, by number. Other processes may mention a run before it begins here."""

    def __missing__(self, number: int) -> _Pass:
        self[number] = made = _Pass(number)
        return made
