"""One epoch being carried out: the iterator that a training loop holds, and its counters.

An `EpochIterator` takes batches from the run of an `EpochRun`. It starts anew if the user chooses
another epoch before the first batch.
"""

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
    """One epoch, or the remainder of one, that is about to be carried out.

    Parameters
    ----------
    run : Run
        The threads that make the batches.
    progress : EpochProgress
        Counters of the batches delivered.
    num_steps : int
        Number of batches that are yielded.
    num_passed : int
        Number of batches before them that are made and not yielded.
    count : callable
        Called with 1 for each batch that is yielded, and with 0 for an epoch without batches.
    is_overtaken : callable
        Returns whether the user has chosen another epoch since.
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
    """Make the run of a job, with counters that start at zero.

    Parameters
    ----------
    job : Job
        The job to carry out.
    expected : Explanation
        The prediction for it.
    budget : Budget
        How its memory is divided.
    num_asked : int
        Number of threads asked for; the job may have fewer.
    num_passed, count, is_overtaken
        As in `EpochRun`.

    Returns
    -------
    EpochRun
        A run that has not started.
    """
    run = Run(job)
    progress = EpochProgress(
        expected, run.tally, budget, job.num_threads, num_asked, job.batch_size
    )
    num_steps = job.walker.num_steps - num_passed
    return EpochRun(run, progress, num_steps, num_passed, count, is_overtaken)


class EpochIterator:
    """Iterator over the batches of one epoch. It owns the threads that make them.

    Parameters
    ----------
    begin : callable
        Makes the `EpochRun`. It is called at once, and again if another epoch is chosen before
        the first batch is asked for.
    deliver : callable
        Converts a `Delivery` into the batch that the user gets.
    """

    def __init__(self, begin: Callable[[], EpochRun], deliver: Callable[[Delivery], Any]) -> None:
        self._begin = begin
        self._deliver = deliver
        self._is_over = False
        self._has_begun = False
        self._is_replaced = False
        # Re-entrant: the user's collate_fn runs under this lock, and may ask for the next batch.
        self._lock = threading.RLock()
        self._take_up(begin())

    @property
    def run(self) -> Run:
        """The run that makes the batches. It may outlive the iterator."""
        return self._epoch_run.run

    @property
    def progress(self) -> EpochProgress:
        """Counters of the batches delivered so far."""
        return self._epoch_run.progress

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        # Several threads may share the iterator. Each batch goes to one; all of them see the end.
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
            # A run that is closed early raises ClosedError: a loop must not take that for the end.
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
                # With drop_last, an epoch with less than one batch is complete at once.
                self._epoch_run.count(0)
            self._is_over = True
            self.close()
            raise StopIteration
        self.progress.add(delivery)
        batch = self._deliver(delivery)
        self._epoch_run.count(1)
        # The epoch is complete now, even if the loop never asks for another batch.
        self._is_over = self.progress.num_steps == self._epoch_run.num_steps
        return batch

    def close(self) -> None:
        """Stop the threads. It may be called more than once."""
        self._close()

    def replace(self) -> None:
        """Note that another iteration of the same loader begins and ends this one."""
        self._is_replaced = True

    def _take_up(self, epoch_run: EpochRun) -> None:
        self._epoch_run = epoch_run
        self._num_passed = epoch_run.num_passed
        # The run is also closed if the iterator is abandoned.
        self._close = weakref.finalize(self, epoch_run.run.close)
        # At exit the run closes itself, earlier: the store's event loop must still be running.
        self._close.atexit = False


def _replaced() -> ClosedError:
    return ClosedError(
        "this iteration has ended, because another one over the same loader began",
        given="a second iter(loader) before the first one was finished, as in nested loops",
        allowed="one iteration over a loader at a time",
        remedy="make a second loader with samples.loader(...), and iterate over it",
    )
