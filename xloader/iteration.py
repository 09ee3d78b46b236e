"""One epoch under way: the iterator that a training loop holds, and what has come of it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xloader.advice import advise
from xloader.engine.job import Delivery, Job, Tally
from xloader.engine.run import Run
from xloader.errors import ClosedError
from xloader.explain import Explanation
from xloader.headroom import Effort
from xloader.plan import Budget
from xloader.report import Report


@dataclass
class Progress:
    """What was delivered so far, and what it took. It outlives its iterator.

    Parameters
    ----------
    expected : Explanation
        What was predicted.
    tally : Tally
        What the engine counts.
    budget : Budget
        How memory was divided.
    num_threads, num_asked : int
        Threads of the run, and those asked for.
    batch_size : int
        Rows of a full batch.
        Mixing is that of full ones, where one rank's batch is the global one; else as predicted.
    """

    expected: Explanation
    tally: Tally
    budget: Budget
    num_threads: int
    num_asked: int
    batch_size: int
    begin: float = 0.0
    end: float = 0.0
    num_samples: int = 0
    num_steps: int = 0
    delivered_nbytes: int = 0
    num_full: int = 0
    num_regions: int = 0
    num_skipped: int = 0
    num_nan: dict[str, int] = field(default_factory=dict)

    def add(self, delivery: Delivery) -> None:
        """Count a batch."""
        self.num_steps += 1
        self.num_samples += len(delivery.step.ids) - delivery.num_skipped
        self.num_skipped += delivery.num_skipped
        for found in delivery.nans:
            self.num_nan[found.field] = self.num_nan.get(found.field, 0) + found.num
        self.delivered_nbytes += sum(array.nbytes for array in delivery.arrays.values())
        regions = delivery.step.num_regions
        if regions is not None and len(delivery.ids) == self.batch_size:
            self.num_full += 1
            self.num_regions += regions
        self.end = time.perf_counter()

    def report(self) -> Report:
        """The figures by now."""
        tally, expected, effort = self.tally, self.expected, self._effort()
        return Report(
            num_samples=self.num_samples,
            num_steps=self.num_steps,
            num_reads=tally.num_reads,
            read_nbytes=tally.read_nbytes,
            read_amplification=effort.read_amplification,
            peak_nbytes=tally.peak_nbytes,
            mixing=self.num_regions / self.num_full if self.num_full else expected.mixing,
            full_mixing=expected.full_mixing,
            num_dropped_windows=expected.num_dropped_windows,
            is_exact=True,
            tile=expected.tile,
            run=expected.run,
            streams=expected.streams,
            spread=expected.spread,
            lanes=expected.lanes,
            num_requests=tally.num_requests,
            num_retries=tally.num_retries,
            num_missing=tally.num_missing,
            num_skipped_samples=self.num_skipped,
            skipped_chunks=tuple(sorted(tally.skipped)),
            num_nan=dict(self.num_nan),
            delivered_nbytes=self.delivered_nbytes,
            seconds=effort.seconds,
            wait_seconds=tally.wait_seconds,
            num_threads=effort.num_threads,
            busy_seconds=effort.busy_seconds,
            num_ahead=tally.num_ahead,
            ahead_seconds=tally.ahead_seconds,
            least_seconds=effort.least_seconds,
            bottleneck=effort.bottleneck,
            advice=advise(effort),
        )

    def _effort(self) -> Effort:
        expected, tally = self.expected, self.tally
        needed = expected.num_reads / (expected.read_amplification or 1.0)
        return Effort(
            tally,
            self.budget,
            num_threads=self.num_threads,
            num_asked=self.num_asked,
            seconds=self.end - self.begin if self.num_steps else tally.wait_seconds,
            num_samples=self.num_samples,
            delivered_nbytes=self.delivered_nbytes,
            read_amplification=tally.num_reads / needed if needed else 0.0,
            is_direct=not any("through xarray" in path for path in expected.paths.values()),
        )


@dataclass(frozen=True)
class Leg:
    """An epoch, or the rest of one, about to be carried out.

    Parameters
    ----------
    run : Run
        What makes the batches.
    progress : Progress
        What is counted of them.
    num_steps : int
        Batches that are yielded.
    num_passed : int
        Batches before them that are made and not yielded.
    count : callable
        Called with 1 for each batch that is yielded; with 0 for an epoch of none.
    is_overtaken : callable
        Whether by now another epoch is to be carried out.
    """

    run: Run
    progress: Progress
    num_steps: int
    num_passed: int
    count: Callable[[int], None]
    is_overtaken: Callable[[], bool]


def make_leg(
    job: Job,
    expected: Explanation,
    budget: Budget,
    num_asked: int,
    *,
    num_passed: int,
    count: Callable[[int], None],
    is_overtaken: Callable[[], bool],
) -> Leg:
    """A leg of nothing yet.

    Parameters
    ----------
    job : Job
        What is carried out.
    expected : Explanation
        What was predicted of it.
    budget : Budget
        How its memory is divided.
    num_asked : int
        Threads that were asked for; the job may have fewer.
    num_passed, count, is_overtaken
        As of `Leg`.
    """
    run = Run(job)
    progress = Progress(expected, run.tally, budget, job.num_threads, num_asked, job.batch_size)
    num_steps = job.walker.num_steps - num_passed
    return Leg(run, progress, num_steps, num_passed, count, is_overtaken)


class Pass:
    """Iterates over one epoch, and owns the threads that make it.

    Parameters
    ----------
    begin : callable
        Makes what is carried out: now, and anew if that is overtaken before the first batch is
        asked for.
    deliver : callable
        Makes what the user gets from a delivery.
    """

    def __init__(self, begin: Callable[[], Leg], deliver: Callable[[Delivery], Any]) -> None:
        self._begin = begin
        self._deliver = deliver
        self._is_over = False
        self._has_begun = False
        self._is_replaced = False
        # Whoever has it may take it again: a collate_fn may close, or ask for a length.
        self._lock = threading.RLock()
        self._take_up(begin())

    @property
    def run(self) -> Run:
        """What makes the batches. It may outlive the iterator."""
        return self._leg.run

    @property
    def progress(self) -> Progress:
        """What has come of it."""
        return self._leg.progress

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        # Of several threads each takes a batch of its own, and all of them see the end.
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            if self._leg.is_overtaken():
                self.close()
                self._take_up(self._begin())
        run = self._leg.run
        self.progress.begin = self.progress.begin or time.perf_counter()
        try:
            # Closed before its end, the run says so: a loop must not take that for the end.
            while self._num_passed > 0:
                self._num_passed -= 1
                run.take()
            delivery = None if self._is_over else run.take()
        except ClosedError as error:
            self._is_over = True
            if self._is_replaced:
                raise _replaced() from error
            raise
        except BaseException:
            self._is_over = True
            self.close()
            raise
        if delivery is None:
            if not self._leg.num_steps:
                # With drop_last, an epoch of less than one batch is complete as it begins.
                self._leg.count(0)
            self._is_over = True
            self.close()
            raise StopIteration
        self.progress.add(delivery)
        batch = self._deliver(delivery)
        self._leg.count(1)
        # Whether or not the loop asks for one batch more, the epoch is complete.
        self._is_over = self.progress.num_steps == self._leg.num_steps
        return batch

    def close(self) -> None:
        """Stop the threads. More than once is fine."""
        self._close()

    def replace(self) -> None:
        """Note that another iteration of the same loader begins, which ends this one."""
        self._is_replaced = True

    def _take_up(self, leg: Leg) -> None:
        self._leg = leg
        self._num_passed = leg.num_passed
        # It closes also where the iterator is abandoned.
        self._close = weakref.finalize(self, leg.run.close)
        # The run sees to that itself, before what it reads with is taken down.
        self._close.atexit = False


def _replaced() -> ClosedError:
    return ClosedError(
        "this iteration has ended, because another one of the same loader began",
        given="a second iter(loader) before the first one was at its end, as in nested loops",
        allowed="one iteration of a loader at a time",
        remedy="make a second loader with samples.loader(...), and iterate over that one",
    )
