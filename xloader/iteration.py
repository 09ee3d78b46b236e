"""One epoch under way: the iterator that a training loop holds."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from xloader.engine.job import Delivery, Job
from xloader.engine.run import Run
from xloader.explain import Explanation
from xloader.report import Report


class Pass:
    """Iterates over one epoch, and owns the threads that make it.

    Parameters
    ----------
    job : Job
        What is carried out.
    expected : Explanation
        What was predicted of it.
    deliver : callable
        Makes what the user gets from a delivery.
    move_on : callable
        Called once the last batch is out.
    keep : callable
        Called with the report when the pass has ended, complete or not.
    """

    def __init__(
        self,
        job: Job,
        expected: Explanation,
        deliver: Callable[[Delivery], Any],
        move_on: Callable[[], None],
        keep: Callable[[Report], None],
    ) -> None:
        self._job = job
        self._expected = expected
        self._deliver = deliver
        self._move_on = move_on
        self._keep = keep
        self._run = Run(job)
        self._begin = self._end = 0.0
        self._num_samples = self._num_steps = self._delivered_nbytes = 0
        # It runs also where the iterator is abandoned, and before the interpreter ends.
        self._close_run = weakref.finalize(self, self._run.close)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        self._begin = self._begin or time.perf_counter()
        try:
            delivery = self._run.take() if self._close_run.alive else None
        except BaseException:
            self.close()
            raise
        if delivery is None:
            self.close()
            raise StopIteration
        self._num_steps += 1
        self._num_samples += int((~delivery.is_padding).sum())
        self._delivered_nbytes += sum(array.nbytes for array in delivery.arrays.values())
        self._end = time.perf_counter()
        if self._num_steps == self._job.num_steps:
            # Whether or not the loop asks for one batch more, the epoch is complete.
            self._move_on()
        return self._deliver(delivery)

    def close(self) -> None:
        """Stop the threads. More than once is fine."""
        if self._close_run.alive:
            self._close_run()
            self._keep(self.report())

    def report(self) -> Report:
        """What was done so far."""
        tally, expected = self._run.tally, self._expected
        seconds = self._end - self._begin if self._num_steps else 0.0
        busy = {
            "load": tally.load_seconds,
            "gather": tally.gather_seconds,
            "transforms": tally.finish_seconds,
        }
        is_model = tally.wait_seconds < 0.1 * seconds
        needed = expected.num_reads / (expected.read_amplification or 1.0)
        return Report(
            num_samples=self._num_samples,
            num_steps=self._num_steps,
            num_reads=tally.num_reads,
            read_nbytes=tally.read_nbytes,
            read_amplification=tally.num_reads / needed if needed else 0.0,
            peak_nbytes=self._job.fixed_nbytes + self._job.pool.peak_nbytes,
            mixing=expected.mixing,
            full_mixing=expected.full_mixing,
            num_dropped_windows=expected.num_dropped_windows,
            is_exact=True,
            tile=expected.tile,
            run=expected.run,
            streams=expected.streams,
            spread=expected.spread,
            lanes=expected.lanes,
            num_requests=tally.num_reads,
            num_retries=0,
            num_missing=tally.num_missing,
            delivered_nbytes=self._delivered_nbytes,
            seconds=seconds,
            wait_seconds=tally.wait_seconds,
            bottleneck="model" if is_model else max(busy, key=lambda name: busy[name]),
        )
