"""One epoch under way: the iterator that a training loop holds, and what has come of it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xloader.engine.job import Delivery, Job
from xloader.engine.run import Run
from xloader.errors import ClosedError
from xloader.loader.progress import EpochProgress
from xloader.planning.budget import Budget
from xloader.planning.explain import Explanation


@dataclass(frozen=True)
class EpochRun:
    """An epoch, or the rest of one, about to be carried out.

    Parameters
    ----------
    run : Run
        What makes the batches.
    progress : EpochProgress
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
    progress: EpochProgress
    num_steps: int
    num_passed: int
    count: Callable[[int], None]
    is_overtaken: Callable[[], bool]


def make_epoch_run(
    job: Job,
    expected: Explanation,
    budget: Budget,
    num_asked: int,
    *,
    num_passed: int,
    count: Callable[[int], None],
    is_overtaken: Callable[[], bool],
) -> EpochRun:
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
        As of `EpochRun`.
    """
    run = Run(job)
    progress = EpochProgress(
        expected, run.tally, budget, job.num_threads, num_asked, job.batch_size
    )
    num_steps = job.walker.num_steps - num_passed
    return EpochRun(run, progress, num_steps, num_passed, count, is_overtaken)


class EpochIterator:
    """Iterates over one epoch, and owns the threads that make it.

    Parameters
    ----------
    begin : callable
        Makes what is carried out: now, and anew if that is overtaken before the first batch is
        asked for.
    deliver : callable
        Makes what the user gets from a delivery.
    """

    def __init__(self, begin: Callable[[], EpochRun], deliver: Callable[[Delivery], Any]) -> None:
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
        return self._epoch_run.run

    @property
    def progress(self) -> EpochProgress:
        """What has come of it."""
        return self._epoch_run.progress

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        # Of several threads each takes a batch of its own, and all of them see the end.
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            if self._epoch_run.is_overtaken():
                self.close()
                self._take_up(self._begin())
        run = self._epoch_run.run
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
            if not self._epoch_run.num_steps:
                # With drop_last, an epoch of less than one batch is complete as it begins.
                self._epoch_run.count(0)
            self._is_over = True
            self.close()
            raise StopIteration
        self.progress.add(delivery)
        batch = self._deliver(delivery)
        self._epoch_run.count(1)
        # Whether or not the loop asks for one batch more, the epoch is complete.
        self._is_over = self.progress.num_steps == self._epoch_run.num_steps
        return batch

    def close(self) -> None:
        """Stop the threads. More than once is fine."""
        self._close()

    def replace(self) -> None:
        """Note that another iteration of the same loader begins, which ends this one."""
        self._is_replaced = True

    def _take_up(self, epoch_run: EpochRun) -> None:
        self._epoch_run = epoch_run
        self._num_passed = epoch_run.num_passed
        # It closes also where the iterator is abandoned.
        self._close = weakref.finalize(self, epoch_run.run.close)
        # The run sees to that itself, before what it reads with is taken down.
        self._close.atexit = False


def _replaced() -> ClosedError:
    return ClosedError(
        "this iteration has ended, because another one of the same loader began",
        given="a second iter(loader) before the first one was at its end, as in nested loops",
        allowed="one iteration of a loader at a time",
        remedy="make a second loader with samples.loader(...), and iterate over that one",
    )
