"""What a run is given, what it counts, and what it delivers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Group
from xloader.core.nans import FieldNans, OnNan
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.block_reader import BlockReader
from xloader.engine.block_table import BlockTable
from xloader.engine.buffers import Arrays, BlockPool, Fields
from xloader.engine.gather import Gatherer, Views
from xloader.engine.steps import BatchRows, Walker
from xloader.errors import ChunkError

OnError = Literal["raise", "skip"]
"""What is done about a chunk that cannot be had."""


class Finish(Protocol):
    """What is done to a gathered batch before it is delivered."""

    def __call__(self, arrays: Arrays, ids: Ints, occurrences: Ints | None = None, /) -> Arrays:
        """Give what is delivered; without occurrences, each sample comes for the first time."""
        ...


@dataclass(frozen=True)
class Job:
    """What a run carries out.

    Parameters
    ----------
    walker : Walker
    groups : tuple of Group
    fields : Fields
    reader : BlockReader
    gatherer : Gatherer
    finish : callable
        Takes gathered arrays, ids and, where samples may come more than once, their
        occurrences; gives what is delivered. Runs on the workers.
    batch_size : int
        Rows of a full batch.
    is_padded : bool
        Whether short batches are filled up with their last row.
    prefetch : int
        Batches that are filled or wait for delivery while the consumer is busy.
    num_threads : int
    pool : BlockPool
    block_table : BlockTable
        Blocks that stay from run to run, where the pool holds the whole selection; else empty.
    is_resident : bool
    in_flight_nbytes : int
        Bytes that may be fetched ahead.
    retry_policy : RetryPolicy
        How long reads are waited for.
    on_nan : {"warn", "count", "raise", "ignore"}
        In which batches NaN is looked for.
    on_error : {"raise", "skip"}
        What is done about a chunk that cannot be had.
    """

    walker: Walker
    groups: tuple[Group, ...]
    fields: Fields
    reader: BlockReader
    gatherer: Gatherer
    finish: Finish
    batch_size: int
    is_padded: bool
    prefetch: int
    num_threads: int
    pool: BlockPool
    block_table: BlockTable
    is_resident: bool
    in_flight_nbytes: int
    retry_policy: RetryPolicy
    on_nan: OnNan = "ignore"
    on_error: OnError = "raise"

    def skips(self, error: BaseException | None) -> bool:
        """Whether rows that meet an error are left out, and the epoch goes on."""
        return self.on_error == "skip" and isinstance(error, ChunkError)


class Signal:
    """What one thread waits for, and Ctrl-C may interrupt at any time.

    A condition of `threading` is Python code, which loses its lock if it is interrupted at the
    wrong place. Whoever notifies, or begins to wait, holds a lock.
    """

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_awaited = False

    def begin(self) -> None:
        """Be woken by what comes from now on; `wait` is to follow, without the lock."""
        self._is_awaited = True

    def wait(self) -> None:
        """Wait until somebody notifies."""
        self._tokens.get()

    def notify(self) -> None:
        """Wake who waits."""
        if self._is_awaited:
            self._is_awaited = False
            self._tokens.put(None)


class RunLock:
    """The lock of a run, and who waits: its workers for work, its consumer for a batch.

    They wait apart, so that nobody is woken for what is not for him. Who holds the lock may take
    it again: a garbage collection that comes meanwhile may end the run's iterator.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)
        self.batch = Signal()
        self.failure: BaseException | None = None
        self.notice = ""

    def tell(self, notice: str) -> None:
        """Have the consumer warned, if it waits or once it does. The lock is not held."""
        with self.lock:
            self.notice = notice
            self.batch.notify()

    def fail(self, error: BaseException) -> None:
        """End the iteration with a bug of the engine itself, rather than leave it waiting.

        The lock is held.
        """
        self.failure = error
        self.ring()

    def ring(self) -> None:
        """Wake everybody."""
        self.work.notify_all()
        self.batch.notify()


@dataclass(frozen=True)
class Delivery:
    """A batch as the engine hands it over.

    Parameters
    ----------
    step : BatchRows
    arrays : dict of str to numpy.ndarray
    ids : numpy.ndarray of int64, shape (n,)
        Those of the step, and of the rows that fill the batch up.
    is_padding : numpy.ndarray of bool, shape (n,)
    nans : tuple of FieldNans
        The NaN that it holds, as far as it was looked for.
    num_skipped : int
        Rows whose chunks could not be had. Others of the batch are in their place.
    """

    step: BatchRows
    arrays: Arrays
    ids: Ints
    is_padding: NDArray[np.bool_]
    nans: tuple[FieldNans, ...] = ()
    num_skipped: int = 0

    @property
    def occurrences(self) -> Ints | None:
        """Which time in the epoch it is that each of ``ids`` comes; None: always the first."""
        return self.step.occurrences_in(len(self.ids))


@dataclass(eq=False)
class OpenBatch:
    """A batch under way, and what it waits for.

    Parameters
    ----------
    step : BatchRows
    num_missing : int
        Hits that are not gathered yet, and blocks that begin with it and are not loaded.
    arrays, views
        Its fields, once it is open.
    error : BaseException, optional
        What is raised in its place.
    bad_rows : numpy.ndarray of bool, shape (n,), optional
        Which of its own rows have chunks that cannot be had, where those are skipped.
    first_error : BaseException, optional
        What the first of them met.
    """

    step: BatchRows
    num_missing: int
    arrays: Arrays | None = None
    views: Views = ()
    is_final: bool = False
    is_finishing: bool = False
    error: BaseException | None = None
    bad_rows: NDArray[np.bool_] | None = None
    first_error: BaseException | None = None
    nans: tuple[FieldNans, ...] = ()
    left: dict[int, Ints] = field(default_factory=dict)

    @property
    def num_skipped(self) -> int:
        """How many of its own rows were skipped."""
        return 0 if self.bad_rows is None else int(np.count_nonzero(self.bad_rows))
