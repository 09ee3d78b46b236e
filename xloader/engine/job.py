"""The data types of a run: its job, its lock and the batches it delivers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.nans import FieldNans
from xloader.engine.assembly import EngineParts
from xloader.engine.batch_finish import BatchFinish
from xloader.engine.block_table import BlockTable
from xloader.engine.buffers import Arrays, BlockPool
from xloader.engine.group_needs import Begin
from xloader.engine.step_needs import BatchRows, TrayRows, Walker
from xloader.errors import ChunkError, ClosedError, ForkError

OnError = Literal["raise", "skip"]
"""Raise an error if a chunk cannot be read, or skip its rows."""


Task = Callable[[], Callable[[], None]]
"""A task for a worker. It returns a function that is called once with the run's lock, to note what
was done: to take the lock once for that and for the next task spares half of the times."""


class Sent(Protocol):
    """A batch on its way to a device."""

    @property
    def nbytes(self) -> int:
        """Bytes of its fields, as they cross."""
        ...

    def release(self) -> None:
        """Give up the device's memory of the batch, unless it was received. May be repeated."""
        ...


class Outbox(Protocol):
    """Sends the finished batches of one run to a device."""

    def start(self, wake: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Begin a run.

        Parameters
        ----------
        wake : callable
            Called on any thread, without a lock, whenever memory of batches has come back.
        fail : callable
            Called likewise with an error that ends the run.
        """
        ...

    def send(self, arrays: Arrays) -> Sent:
        """Start to copy a finished batch to the device. Called on the workers.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The fields. The dict is emptied: the arrays live until they are copied.
        """
        ...

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread belongs to the outbox."""
        ...

    def close(self) -> None:
        """End the run: release the batches that were not received. Waits for nothing."""
        ...

    def join(self, until: float) -> bool:
        """Wait until the copies are done or the time is over, by `time.monotonic`.

        Returns
        -------
        bool
            Whether they are done.
        """
        ...


@dataclass(frozen=True)
class Job:
    """The work of one run: the steps to make, and everything that is needed to make them.

    Parameters
    ----------
    walker : Walker
        Gives the steps in order.
    parts : EngineParts
        The parts that read and copy, with the number of workers and the bytes in flight.
    finish : BatchFinish
        What is done to gathered batches, on the workers.
    last_size : int
        Rows to which the last batch is filled up with its last row; 0 if it is not.
    num_trays_ahead : int
        Number of trays that are being filled, or wait for delivery, while the consumer is busy.
    pool : BlockPool
        Memory of the decoded chunks.
    block_table : BlockTable
        The blocks in memory. If the pool holds the whole selection, they stay from run to run.
        Otherwise the table is empty before and after a run.
    is_resident : bool
        Whether the pool holds the whole selection, so that blocks stay in memory.
    on_error : {"raise", "skip"}
        What happens if a chunk cannot be read.
    outbox : Outbox, optional
        Sends finished batches to a device; by default they stay in this process's memory.
    is_part : bool
        Whether these are some rows of larger batches, whose bad rows are replaced later.
    has_visits : bool
        Whether tiles are visited several times, and each visit holds blocks for other rows.
    """

    walker: Walker
    parts: EngineParts
    finish: BatchFinish
    last_size: int
    num_trays_ahead: int
    pool: BlockPool
    block_table: BlockTable
    is_resident: bool
    on_error: OnError = "raise"
    outbox: Outbox | None = None
    is_part: bool = False
    has_visits: bool = False

    def skips(self, error: BaseException | None) -> bool:
        """Whether rows that meet this error are skipped, so that the epoch goes on.

        Parameters
        ----------
        error : BaseException or None
            The error, if there is one.
        """
        return self.on_error == "skip" and isinstance(error, ChunkError)

    def drop_blocks(self) -> None:
        """Release the memory of all blocks, except complete ones that stay for later runs."""
        for block in self.block_table.there():
            if self.is_resident and block.is_loaded and block.error is None:
                block.waiting.clear()
                continue
            self.block_table.take_off(block)
            if block.buffer is not None:
                self.pool.give_back(block.buffer)

    def is_row(self, tray: TrayRows, begin: Begin) -> bool:
        """Whether a block is exactly the window of one row, and no other row needs it.

        Such a block is decoded straight into the batch and takes no memory of the pool.

        Parameters
        ----------
        tray : TrayRows
            The rows.
        begin : Begin
            The first need of the block, in one of them.
        """
        # Such a row is not counted, and the other blocks of its visit would never be freed.
        if self.is_resident or self.has_visits or begin.num_samples > 1:
            return False
        if not self.parts.gatherer.is_direct(begin.group):
            return False
        (hits,) = tray.hits[begin.group]
        first = int(np.searchsorted(hits.rows, begin.row))
        return bool(hits.is_whole[first]) and int(hits.residences[first]) == begin.residence


def check_process(pid: int) -> None:
    """Refuse to use a run that another process has made, given the id of that process."""
    if os.getpid() != pid:
        raise ForkError(
            "an iterator was used after a fork, in a child process that lacks its threads",
            given=f"process {os.getpid()}, iterator made in process {pid}",
            remedy='make the loader in the child process, or start the child with "spawn" or '
            '"forkserver" under if __name__ == "__main__":',
        )


def closed_iterator() -> ClosedError:
    """The error where a closed iterator is asked for a batch."""
    return ClosedError(
        "the iterator is closed",
        remedy="iterate over the loader again; after loader.close(), make a new loader",
    )


class Signal:
    """A signal that one thread waits for. Ctrl-C may interrupt the wait at any time.

    A `threading.Condition` is Python code. It loses its lock if it is interrupted at the wrong
    place. Call `begin` and `notify` with the same lock held.
    """

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_awaited = False

    def begin(self) -> None:
        """Register for the next notification. Call `wait` afterwards, without the lock."""
        self._is_awaited = True

    def wait(self) -> None:
        """Wait for the notification."""
        self._tokens.get()

    def notify(self) -> None:
        """Wake the waiting thread, if there is one."""
        if self._is_awaited:
            self._is_awaited = False
            self._tokens.put(None)


class RunLock:
    """The lock of a run, and two signals: workers wait for work, the consumer for a batch.

    The signals are separate, so that no thread is woken without need. The lock is reentrant: a
    garbage collection may end the run's iterator on a thread that holds it.

    Attributes
    ----------
    lock : threading.RLock
        Guards the state of the run.
    work : threading.Condition
        Notified when there is work.
    batch : Signal
        Notified when the consumer must look again.
    failure : BaseException or None
        A bug in the engine that ended the iteration.
    notice : str
        A warning for the consumer that was not given yet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)
        self.batch = Signal()
        self.failure: BaseException | None = None
        self.notice = ""

    def tell(self, notice: str) -> None:
        """Give the consumer a warning, now if it waits for a batch, or else when it next waits.

        The lock must not be held.

        Parameters
        ----------
        notice : str
            The text. It replaces an earlier one that was not given yet.
        """
        with self.lock:
            self.notice = notice
            self.batch.notify()

    def fail(self, error: BaseException) -> None:
        """End the iteration because of an unexpected error in the engine itself.

        Otherwise the consumer would wait for ever. The lock must be held.

        Parameters
        ----------
        error : BaseException
            The error that the consumer gets.
        """
        self.failure = error
        self.ring()

    def ring(self) -> None:
        """Wake all waiting threads. The lock must be held."""
        self.work.notify_all()
        self.batch.notify()


class Collated(NamedTuple):
    """The result of ``collate_fn`` for a batch, and the bytes of the batch's fields."""

    value: Any
    nbytes: int


@dataclass(frozen=True)
class Delivery:
    """A batch as the engine hands it over.

    Parameters
    ----------
    step : BatchRows
        The rows of the batch.
    arrays : dict of str to numpy.ndarray
        The finished arrays, by field name; empty if they were sent.
    ids : numpy.ndarray of int64, shape (n,)
        The sample of each row, including the rows that fill the batch up.
    is_padding : numpy.ndarray of bool, shape (n,)
        Whether the row repeats another one: it fills the batch up, or replaces a skipped row.
    nans : tuple of FieldNans
        The NaN values found, if they were looked for.
    num_skipped : int
        Rows whose chunks could not be read. Other rows of the batch replace them.
    sent : Sent, optional
        The batch on its way to a device, if it was sent to one.
    collated : Collated, optional
        The result of ``collate_fn``, where a worker process has called it. ``arrays`` is empty
        then.
    first_error : BaseException, optional
        The error of the first skipped row.
    """

    step: BatchRows
    arrays: Arrays
    ids: Ints
    is_padding: NDArray[np.bool_]
    nans: tuple[FieldNans, ...] = ()
    num_skipped: int = 0
    sent: Sent | None = None
    collated: Collated | None = None
    first_error: BaseException | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the fields, as they are handed over."""
        if self.sent is not None:
            return self.sent.nbytes
        if self.collated is not None:
            return self.collated.nbytes
        return sum(array.nbytes for array in self.arrays.values())

    def release(self) -> None:
        """Give up the batch, unless it was received. May be repeated."""
        if self.sent is not None:
            self.sent.release()

    @property
    def occurrences(self) -> Ints | None:
        """Which time in the epoch each of ``ids`` occurs; None if all occur for the first."""
        return self.step.occurrences_in(len(self.ids))
