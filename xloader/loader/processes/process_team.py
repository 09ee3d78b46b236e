"""The worker processes of a loader: started once, they carry out one run after the other.

A thread of the loader's process takes their messages, and notices at once if one of them dies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from xloader.engine.batch_slots import BatchSlots, Slot
from xloader.engine.buffers import Buffer, Fields
from xloader.engine.shared_memory import SharedMemory
from xloader.engine.thread_group import MOST_SECONDS, SOME_SECONDS, Threads
from xloader.errors import ForkError, WorkersError
from xloader.loader.processes.engine_process import Wiring, run_process
from xloader.loader.processes.process_messages import Failed, Ready, StopProcess
from xloader.loader.processes.process_setup import ProcessSetup
from xloader.loader.processes.script_import import refuse_while_importing
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.transforms.packed_fields import PackedField, stored_layouts

_ours: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""All processes that this one has started."""


def _disown() -> None:
    """In a forked child, let the processes be those of its parent alone."""
    # At its exit, multiprocessing would end all daemons that it knows. Where it forks by itself, it
    # forgets them, too.
    known: set[Any] = getattr(multiprocessing.process, "_children", set())
    known.difference_update(_ours)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


class ProcessTeam:
    """The processes, their shared memory and the connections to them.

    Parameters
    ----------
    rank_plan : RankPlan
        The plan that they carry out.
    hand_over : callable
        Converts an array into what ``collate_fn`` gets.
    packed_fields : sequence of PackedField
        Fields that are gathered as stored.
    num_slots : int
        Number of batches that the shared memory holds.

    Attributes
    ----------
    fields : Fields
        The fields of whole batches.
    buffers : list of numpy.ndarray
        The memory of each slot.
    listener : callable or None
        Called on a thread of the team with the number of a process and each message of it, or the
        error of a process that has died.

    Raises
    ------
    OptionError
        If something cannot be sent to the processes.
    WorkersError
        If there is no memory to share, or this process must not start others.
    """

    def __init__(
        self,
        rank_plan: RankPlan,
        hand_over: Callable[[Any], Any],
        packed_fields: Sequence[PackedField],
        num_slots: int,
    ) -> None:
        options = rank_plan.options
        self.num = options.processes
        self._pid = os.getpid()
        self.listener: Callable[[int, Any], None] | None = None
        self._is_failed = False
        self._error: BaseException | None = None
        self._last = ["was starting"] * self.num
        self._are_ready: set[int] = set()
        setup = ProcessSetup(
            rank_plan.recipe,
            options.for_process(),
            rank_plan.plan,
            hand_over,
            tuple(packed_fields),
        ).pickled()
        layouts, size = stored_layouts(rank_plan.layouts, packed_fields), rank_plan.full_size
        self.fields = Fields(layouts, size, 1)
        self._slots = BatchSlots.of(layouts, size, self.num, rank_plan.extra_nbytes)
        self._memory = SharedMemory(num_slots * self._slots.slot_nbytes)
        self.buffers: list[Buffer] = list(self._memory.buffer.reshape(num_slots, -1))
        self._threads = Threads("xloader-processes")
        # Re-entrant: a garbage collection in the middle may end an iteration.
        self._sending = threading.RLock()
        self._bell, self._ring = multiprocessing.Pipe(duplex=False)
        self._is_closed = False
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        try:
            self._start(setup)
            self._threads.begin(self._listen)
        except BaseException:
            self.close(is_stuck=True)
            raise

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked since: the other processes belong to its parent."""
        return os.getpid() != self._pid

    @property
    def is_usable(self) -> bool:
        """Whether all processes are there and no error has occurred."""
        return not self._is_closed and not self._is_failed and not self.is_foreign

    def take_error(self) -> BaseException | None:
        """The error of a team that failed while nobody listened. It is given once."""
        # An error that was raised refers to the loop that it ended, and must not be kept here.
        error, self._error = self._error, None
        return error

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return [process.pid or 0 for process in self._processes]

    @property
    def memory(self) -> Buffer:
        """The memory of all slots, one after the other."""
        return self._memory.buffer

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot."""
        return self._slots.slot_nbytes

    def slot(self, buffer: Buffer) -> Slot:
        """The arrays of a slot, as views of its memory."""
        return self._slots.slot(buffer)

    def tell(self, message: tuple[Any, ...], doing: str = "") -> None:
        """Send a message to all processes.

        Parameters
        ----------
        message : tuple
            The message.
        doing : str, optional
            What the processes do from now on, for the error of one that dies.
        """
        for number, connection in enumerate(self._connections):
            if doing:
                self._last[number] = doing
            try:
                with self._sending:
                    connection.send(message)
            except OSError:
                # It has died, which the thread that listens finds out.
                continue

    def note(self, number: int, doing: str) -> None:
        """Note what a process has done last, for the error if it dies."""
        self._last[number] = doing

    @property
    def is_listening_here(self) -> bool:
        """Whether this is the thread that takes the messages of the processes."""
        return threading.current_thread() in self._threads

    def close(self, *, is_stuck: bool = False) -> None:
        """End the processes, within two seconds. It may be called more than once.

        Parameters
        ----------
        is_stuck : bool
            Whether a process is known not to answer any more, so that all are killed at once.
        """
        if self.is_foreign or self._is_closed:
            return
        self._is_closed = True
        until = time.monotonic() + (0.0 if is_stuck else MOST_SECONDS)
        self.tell(StopProcess())
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        self._kill()
        self._ring.close()
        if not self.is_listening_here:
            self._threads.join(time.monotonic() + SOME_SECONDS)
        for connection in (*self._connections, self._bell):
            connection.close()
        # Others may still refer to the team, and arrays to single slots.
        self.listener, self._error, self.buffers = None, None, []
        self._memory.close()

    def _start(self, setup: bytes) -> None:
        if multiprocessing.current_process().daemon:
            raise WorkersError(
                "a worker process is about to start worker processes of its own",
                given=f"processes={self.num} in a worker of a DataLoader, or the like",
                allowed="processes= in the process that trains",
                remedy="leave processes= out here",
            )
        refuse_while_importing(f"processes={self.num}")
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is not None and not os.path.exists(script):
            raise WorkersError(
                "worker processes cannot import the program that starts them",
                given=f"a program read from {script}",
                allowed="a file, a notebook, python -m or python -c",
                remedy="save the program to a file, and run that",
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
        inboxes = [multiprocessing.Pipe(duplex=False) for _ in range(self.num)]
        outboxes = tuple(writer for _, writer in inboxes)
        ends = [multiprocessing.Pipe() for _ in range(self.num)]
        self._connections = [ours for ours, _ in ends]
        try:
            for number, ((inbox, _), (_, theirs)) in enumerate(zip(inboxes, ends, strict=True)):
                process: BaseProcess = context.Process(
                    target=run_process,
                    args=(Wiring(number, theirs, inbox, outboxes, self._memory), setup),
                    name=f"xloader-{number}",
                    daemon=True,
                )
                _begin(process)
                self._processes.append(process)
                _ours.add(process)
        finally:
            # Copies here would keep a process from noticing that another one has ended.
            for (inbox, outbox), (_, theirs) in zip(inboxes, ends, strict=True):
                for connection in (inbox, outbox, theirs):
                    connection.close()

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join(0.3)

    # The thread that listens

    def _listen(self) -> None:
        try:
            self._hear_all()
        except BaseException as error:
            # The loop that waits for a batch must be told.
            self._fail(0, error)
        if self._is_failed:
            self._kill()

    def _hear_all(self) -> None:
        numbers: dict[Any, int] = {one: at for at, one in enumerate(self._connections)}
        sentinels = {process.sentinel: at for at, process in enumerate(self._processes)}
        while self.is_usable:
            ready = wait([self._bell, *numbers, *sentinels])
            if self._bell in ready:
                return
            # Messages first: a process may have said why it ended.
            for one in ready:
                if one in numbers and not self._take(one, numbers[one]):
                    del numbers[one]
            for at in [at for one, at in sentinels.items() if one in ready]:
                del sentinels[self._processes[at].sentinel]
                self._drain(at, numbers)
                self._fail(at, self._death(at))

    def _drain(self, at: int, numbers: dict[Any, int]) -> None:
        connection = self._connections[at]
        while connection in numbers and connection.poll():
            if not self._take(connection, at):
                del numbers[connection]

    def _take(self, connection: Any, number: int) -> bool:
        """Take one message of a process. Returns False at their end."""
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, Ready):
            self._are_ready.add(number)
        elif isinstance(message, Failed) and message.run < 0:
            self._fail(number, message.error.restored(self._name(number)))
        elif (listener := self.listener) is not None:
            listener(number, message)
        return True

    def _fail(self, number: int, error: BaseException) -> None:
        if self._is_failed or self._is_closed:
            return
        self._is_failed, self._error = True, error
        # A run that begins now sets the listener first, and takes the error then.
        if (listener := self.listener) is not None and self.take_error():
            listener(number, error)

    def _name(self, number: int) -> str:
        return f"worker process {number + 1} of {self.num}"

    def _death(self, number: int) -> WorkersError:
        process = self._processes[number]
        process.join(0.3)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            known = {one.value: one.name for one in signal.Signals}
            how = f"killed by {known.get(-code, f'signal {-code}')}"
        remedy = "see what it printed above, and the system's log if memory may have run out"
        did = self._last[number]
        if number not in self._are_ready:
            did = "was starting"
            remedy = (
                'in a script, put what starts the training under if __name__ == "__main__":, as '
                "the script is imported in each process; " + remedy
            )
        return WorkersError(
            f"{self._name(number)} has died; it {did}",
            given=f"process {process.pid}, {how}",
            remedy=remedy,
        )


def _begin(process: BaseProcess) -> None:
    try:
        process.start()
    except ChildProcessError as error:
        raise ForkError(
            "worker processes cannot be started in a forked child of a process that has some",
            given=f"process {os.getpid()}",
            allowed="processes= in a process that was not forked",
            remedy='start the child with "spawn" or "forkserver", or leave processes= out',
        ) from error
