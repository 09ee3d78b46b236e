"""The worker processes of a loader: started once, they finish the batches of all its epochs.

Threads of a run hand them gathered batches, each to a process that is idle, and wait for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, cast

from xloader.core.axis import Ints
from xloader.engine.batches import OpenBatch
from xloader.engine.buffers import ArrayKind, BatchPool, Fields
from xloader.engine.finishes import BatchFinish, Finisher
from xloader.engine.shared_slots import SharedMemory, SharedSlots
from xloader.engine.slot_layout import SlotLayout
from xloader.engine.threads import MOST_SECONDS
from xloader.errors import ForkError, WorkersError
from xloader.loader.processes.finishing_process import (
    FinishBatch,
    FinishedBatch,
    ProcessSetup,
    run_process,
)
from xloader.loader.processes.script_import import refuse_while_importing
from xloader.loader.ranks.finishing import Finishing


@dataclass(eq=False)
class _Member:
    """One process of a team. `did`: for the error of one that dies."""

    number: int
    process: BaseProcess
    connection: Connection
    is_ready: bool = False
    did: str = "was starting"


class ProcessTeam:
    """The processes, their shared memory and the connections to them.

    `num_slots`: number of batches that the memory holds.
    """

    def __init__(
        self, finishing: Finishing, num_rows: int, room_nbytes: int, num_slots: int
    ) -> None:
        self.num = finishing.options.processes
        self.collates = finishing.options.collates_in_processes
        self._pid = os.getpid()
        # Made anew each time it is raised: it would keep the frames that it went through.
        self._make_error: Callable[[], BaseException] | None = None
        self._is_closed = False
        self._lock = threading.RLock()
        self._members: list[_Member] = []
        self._idle: SimpleQueue[_Member] = SimpleQueue()
        setup = ProcessSetup(finishing, num_rows, room_nbytes).pickled()
        kinds = Fields(finishing.layouts, num_rows, 1, BatchPool, room_nbytes).kinds
        self.slot_nbytes = SlotLayout.of(kinds).nbytes
        self.memory = SharedMemory(num_slots * self.slot_nbytes)
        self._slots = SharedSlots(self.memory.buffer, kinds, num_slots)
        try:
            self._start(setup, num_slots)
        except BaseException:
            self.close(is_stuck=True)
            raise

    def make_slots(self, kinds: Sequence[ArrayKind], num_batches: int) -> SharedSlots:
        """The memory of batches, whatever their number."""
        return self._slots

    def finisher(self, local: BatchFinish, epoch: int) -> TeamFinisher:
        """The finisher of the batches of an epoch; `local` says which of them it concerns."""
        return TeamFinisher(self, local, epoch)

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked since: the other processes belong to its parent."""
        return os.getpid() != self._pid

    @property
    def is_usable(self) -> bool:
        """Whether all processes are there, and no error has ended them."""
        if self._is_closed or self._make_error is not None or self.is_foreign:
            return False
        return all(member.process.is_alive() for member in self._members)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return [member.process.pid or 0 for member in self._members]

    def slot_of(self, batch: OpenBatch) -> int:
        """Number of the slot of a batch."""
        return self._slots.number_of(next(iter(batch.arrays.values())))

    def finish(self, task: FinishBatch) -> FinishedBatch:
        """Have a process finish a batch, and wait for it."""
        member = self._idle.get()
        try:
            if not member.is_ready:
                error = member.connection.recv()
                if error is not None:
                    raise self._fail(partial(error.restored, self._name(member)))
                member.is_ready = True
            member.did = f"was finishing batch {task.step.index} of epoch {task.epoch}"
            member.connection.send(task)
            finished: FinishedBatch = member.connection.recv()
        except (EOFError, OSError):
            with self._lock:
                raise self._fail(self._death_of(member)) from None
        finally:
            self._idle.put(member)
        member.did = f"had last finished batch {task.step.index} of epoch {task.epoch}"
        return finished._replace(where=self._name(member))

    def close(self, *, is_stuck: bool = False) -> None:
        """End the processes, within two seconds. It may be called more than once.

        `is_stuck`: whether a process is known not to answer any more, so that all are killed.
        """
        if self.is_foreign or self._is_closed:
            return
        self._is_closed = True
        until = time.monotonic() + (0.0 if is_stuck else MOST_SECONDS)
        for member in self._members:
            # It may have died.
            with contextlib.suppress(OSError):
                member.connection.send(None)
        with self._lock:
            for member in self._members:
                member.process.join(max(0.0, until - time.monotonic()))
        self._end()
        # Others may still refer to the team, and arrays to single slots.
        for member in self._members:
            member.connection.close()
        self._slots.close()
        self.memory.close()

    def _start(self, setup: bytes, num_slots: int) -> None:
        if multiprocessing.current_process().daemon:
            raise WorkersError(
                "a worker process is about to start worker processes of its own",
                given=f"processes={self.num} in a worker of a DataLoader, or the like",
                remedy="leave processes= out here",
            )
        refuse_while_importing(f"processes={self.num}")
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is not None and not os.path.exists(script):
            raise WorkersError(
                "worker processes cannot import the program that starts them",
                given=f"a program read from {script}",
                remedy="run it from a file or a notebook, or with python -m or python -c",
            )
        methods = multiprocessing.get_all_start_methods()
        method = "forkserver" if "forkserver" in methods else "spawn"
        context = cast(Any, multiprocessing.get_context(method))
        if method == "forkserver":
            # The server imports xloader once, and each process begins as a copy of it. Without
            # effect if the server runs already, or the user has chosen other modules.
            chosen = getattr(forkserver, "_forkserver", None)
            if getattr(chosen, "_preload_modules", None) == ["__main__"]:
                context.set_forkserver_preload(["__main__", run_process.__module__])
        for number in range(self.num):
            ours, theirs = multiprocessing.Pipe()
            try:
                process: BaseProcess = context.Process(
                    target=run_process,
                    args=(theirs, self.memory, num_slots, setup),
                    name=f"xloader-{number}",
                    daemon=True,
                )
                _begin(process)
                self._members.append(_Member(number, process, ours))
            finally:
                # A copy here would hide that the process has ended.
                theirs.close()
            self._idle.put(self._members[-1])

    def _end(self) -> None:
        """End all processes at once."""
        with self._lock:
            for member in self._members:
                if member.process.is_alive():
                    member.process.kill()
                member.process.join(0.3)

    def _name(self, member: _Member) -> str:
        return f"worker process {member.number + 1} of {self.num}"

    def _fail(self, make_error: Callable[[], BaseException]) -> BaseException:
        """The first error that ended the team. All processes are ended."""
        with self._lock:
            if self._make_error is None:
                self._make_error = make_error
                self._end()
            return self._make_error()

    def _death_of(self, member: _Member) -> Callable[[], BaseException]:
        """Makes the error of a process that has died."""
        process = member.process
        process.join(0.3)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            known = {one.value: one.name for one in signal.Signals}
            how = f"killed by {known.get(-code, f'signal {-code}')}"
        remedy = "see what it printed above, and the system's log if memory may have run out"
        if not member.is_ready:
            remedy = (
                'in a script, put what starts the training under if __name__ == "__main__":, as '
                "the script is imported in each process; " + remedy
            )
        return partial(
            WorkersError,
            f"{self._name(member)} has died; it {member.did}",
            given=f"process {process.pid}, {how}",
            remedy=remedy,
        )


@dataclass(frozen=True, eq=False)
class TeamFinisher(Finisher):
    """Has the processes of a team finish the batches of an epoch."""

    team: ProcessTeam
    local: BatchFinish
    epoch: int

    def is_needed(self, index: int) -> bool:
        """Whether there is something to do for a batch."""
        return self.team.collates or self.local.is_needed(index)

    def apply(self, batch: OpenBatch, ids: Ints) -> None:
        """Have a process finish a batch."""
        slot, is_padding = self.team.slot_of(batch), batch.is_padding(len(ids))
        finished = self.team.finish(FinishBatch(self.epoch, batch.step, slot, ids, is_padding))
        batch.warnings = [(warned.message, warned.category) for warned in finished.warnings]
        batch.spent = finished.spent
        if finished.error is not None:
            raise finished.error.restored(finished.where)
        batch.nans, batch.parcel = finished.nans, finished.parcel
        batch.collated_nbytes = finished.collated_nbytes

    def give_up(self) -> bool:
        """End the processes: one may not answer, as the run does not end."""
        self.team.close(is_stuck=True)
        return True


def _begin(process: BaseProcess) -> None:
    try:
        process.start()
    except ChildProcessError as error:
        raise ForkError(
            "worker processes cannot be started in a forked child of a process that has some",
            given=f"process {os.getpid()}",
            remedy='start the child with "spawn" or "forkserver", or leave processes= out',
        ) from error
    # At its exit, and at that of a forked child, multiprocessing would end all daemons that it
    # knows by SIGTERM, and wait for them. These ignore it, and end when this process has ended.
    known: set[Any] = getattr(multiprocessing.process, "_children", set())
    known.discard(process)
