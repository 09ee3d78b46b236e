"""One epoch being carried out: the iterator that a training loop holds.

An `EpochIterator` takes batches from the run of an `EpochRun` and counts them at the loader's
cursor. It starts anew if the user chooses another epoch before the first batch.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from xloader.errors import ClosedError
from xloader.loader.progress import Progress
from xloader.loader.ranks.cursor import Cursor, Position


class StepRun(Protocol):
    """Makes the batches of one epoch, or of the rest of one."""

    @property
    def is_closed(self) -> bool:
        """Whether the run was closed."""

    def take(self) -> Any:
        """The next batch, before it is handed over; None after the last one."""

    def close(self) -> None:
        """End the run. It may be called more than once, from any thread."""


@dataclass(frozen=True)
class EpochRun:
    """One epoch, or the remainder of one, that is about to be carried out."""

    run: StepRun
    progress: Progress
    start: Position
    num_steps: int
    num_again: int


class EpochIterator:
    """Iterator over the batches of one epoch. It owns the threads that make them."""

    def __init__(
        self,
        cursor: Cursor,
        number: int,
        begin: Callable[[], EpochRun],
        deliver: Callable[[Any, int], Any],
    ) -> None:
        self._cursor = cursor
        self._number = number
        self._begin = begin
        self._deliver = deliver
        self._position: Position
        self._is_over = False
        self._has_begun = False
        # Re-entrant: the user's collate_fn runs under this lock, and may ask for the next batch.
        self._lock = threading.RLock()
        self._take_up(begin())

    @property
    def run(self) -> StepRun:
        """The run that makes the batches. It may outlive the iterator."""
        return self._epoch_run.run

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        # Several threads may share the iterator. Each batch goes to one; all of them see the end.
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            if not self.run.is_closed:
                # As in DataLoader. Lightning makes the iterator before it calls set_epoch.
                if self._cursor.epoch != self._position.epoch:
                    self.close()
                    self._take_up(self._begin())
                self._cursor.repeats.begin(self._position)
        run, progress = self._epoch_run.run, self._epoch_run.progress
        progress.start()
        try:
            # A run that is closed early raises ClosedError: a loop must not take that for the end.
            while self._num_again > 0:
                self._num_again -= 1
                if again := run.take():
                    again.release()
            delivery = None if self._is_over else run.take()
        except ClosedError as error:
            self._is_over = True
            if self._cursor.num_begun != self._number:
                raise ClosedError(
                    "this iteration has ended, because another one over the same loader began",
                    given="a second iter(loader) before the first one was finished, as in nested "
                    "loops",
                    remedy="make a second loader with samples.loader(...), and iterate over it",
                ) from error
            raise
        except BaseException:
            self._is_over = True
            self.close()
            # Whoever begins anew after an error knows it.
            self._cursor.repeats.clear()
            raise
        num_steps = self._epoch_run.num_steps
        if delivery is None:
            if not num_steps:
                # With drop_last, an epoch with less than one batch is complete at once.
                self._cursor.count(self._position, num_steps)
            self._is_over = True
            self.close()
            raise StopIteration
        progress.add(delivery)
        batch = self._deliver(delivery, self._position.epoch)
        self._position = Position(self._position.epoch, self._position.step + 1)
        self._cursor.count(self._position, num_steps)
        self._cursor.repeats.count()
        # The epoch is complete now, even if the loop never asks for another batch.
        self._is_over = progress.num_steps == num_steps - self._epoch_run.start.step
        return batch

    def close(self) -> None:
        """Stop the threads. It may be called more than once."""
        self._close()

    def _take_up(self, epoch_run: EpochRun) -> None:
        self._epoch_run = epoch_run
        self._position = epoch_run.start
        self._num_again = epoch_run.num_again
        # The run is also closed if the iterator is abandoned.
        self._close = weakref.finalize(self, epoch_run.run.close)
        # At exit the run closes itself, earlier: the store's event loop must still be running.
        self._close.atexit = False
