"""What a run is given, what it counts, and what it delivers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.engine.blocks import BlockReader
from xloader.engine.fields import Arrays, Fields
from xloader.engine.gather import Gatherer, Views
from xloader.engine.pool import BlockPool
from xloader.engine.shelf import Shelf
from xloader.engine.steps import Step, Walker
from xloader.errors import ChunkError
from xloader.footprint import Group
from xloader.grid import Ints
from xloader.nans import FieldNans, OnNan
from xloader.patience import Patience

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
    shelf : Shelf
        Blocks that stay from run to run, where the pool holds the whole selection; else empty.
    is_resident : bool
    in_flight_nbytes : int
        Bytes that may be fetched ahead.
    patience : Patience
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
    shelf: Shelf
    is_resident: bool
    in_flight_nbytes: int
    patience: Patience
    on_nan: OnNan = "ignore"
    on_error: OnError = "raise"

    def skips(self, error: BaseException | None) -> bool:
        """Whether rows that meet an error are left out, and the epoch goes on."""
        return self.on_error == "skip" and isinstance(error, ChunkError)


@dataclass
class Gauge:
    """How many are at work, and their seconds: summed while the consumer waits, and while not.

    Parameters
    ----------
    num, peak : int
        Now, and the most at a time.
    awaited_seconds, unasked_seconds : float
    """

    num: int = 0
    peak: int = 0
    awaited_seconds: float = 0.0
    unasked_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All seconds of work."""
        return self.awaited_seconds + self.unasked_seconds

    def pass_time(self, seconds: float, *, is_awaited: bool) -> None:
        """Let those at work work on."""
        if is_awaited:
            self.awaited_seconds += self.num * seconds
        else:
            self.unasked_seconds += self.num * seconds

    def change(self, num: int) -> None:
        """So many more are at work from now on."""
        self.num += num
        self.peak = max(self.peak, self.num)


@dataclass
class Tally:
    """What a run has done so far. Seconds are summed over its threads.

    What is fetched ahead, ``num_ahead`` bundles of ``ahead_nbytes`` decoded bytes, is counted
    apart from ``fetch_seconds``, which the workers spend. What is held at a time is the memory of
    the batches under way and of the one that was delivered last, ``flight_nbytes`` of chunks that
    are being read, and decoded chunks: ``peak_nbytes`` at most so far. The run's lock guards all
    of it.
    """

    num_reads: int = 0
    read_nbytes: int = 0
    num_missing: int = 0
    num_requests: int = 0
    num_retries: int = 0
    skipped: dict[tuple[str, tuple[int, ...]], None] = field(default_factory=dict)
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    gather_seconds: float = 0.0
    finish_seconds: float = 0.0
    walk_seconds: float = 0.0
    wait_seconds: float = 0.0
    num_ahead: int = 0
    ahead_nbytes: int = 0
    ahead_seconds: float = 0.0
    batches_nbytes: int = 0
    flight_nbytes: int = 0
    peak_nbytes: int = 0
    workers: Gauge = field(default_factory=Gauge)
    fetches: Gauge = field(default_factory=Gauge)
    is_awaited: bool = False
    since: float = field(default_factory=time.perf_counter)

    def weigh(self, pool: BlockPool) -> None:
        """Note what is held now, beside so much in the pool."""
        held = self.batches_nbytes + self.flight_nbytes + pool.used_nbytes
        self.peak_nbytes = max(self.peak_nbytes, held)

    def mark(self, *, workers: int = 0, fetches: int = 0, is_awaited: bool | None = None) -> None:
        """Note that more or fewer are at work, or that the consumer begins or ends to wait."""
        now = time.perf_counter()
        for gauge, num in ((self.workers, workers), (self.fetches, fetches)):
            gauge.pass_time(now - self.since, is_awaited=self.is_awaited)
            gauge.change(num)
        self.since = now
        if is_awaited is not None:
            self.is_awaited = is_awaited


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


class Bell:
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
    step : Step
    arrays : dict of str to numpy.ndarray
    ids : numpy.ndarray of int64, shape (n,)
        Those of the step, and of the rows that fill the batch up.
    is_padding : numpy.ndarray of bool, shape (n,)
    nans : tuple of FieldNans
        The NaN that it holds, as far as it was looked for.
    num_skipped : int
        Rows whose chunks could not be had. Others of the batch are in their place.
    """

    step: Step
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
class Filling:
    """A batch under way, and what it waits for.

    Parameters
    ----------
    step : Step
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

    step: Step
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
