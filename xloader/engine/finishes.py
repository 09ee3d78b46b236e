"""The batches that Python finishes: borders, replaced rows, padding, transforms, looks for NaN.

Those that go to a device are sent then.
"""

from __future__ import annotations

import threading

import numpy as np

from xloader.core.axis import Ints
from xloader.engine.assembly import EngineParts
from xloader.engine.batch_finish import BatchFinish
from xloader.engine.buffers import Arrays
from xloader.engine.job import Delivery, Outbox
from xloader.engine.open_trays import OpenBatch
from xloader.engine.skipped_rows import fill_rows, padding_of
from xloader.engine.step_needs import BatchRows


class Finishes:
    """The batches of one run that Python finishes, until they are taken."""

    def __init__(
        self,
        parts: EngineParts,
        finish: BatchFinish,
        num_steps: int,
        last_size: int,
        outbox: Outbox | None,
    ) -> None:
        self._parts = parts
        self._finish = finish
        self._num_steps = num_steps
        self._last_size = last_size
        self._outbox = outbox
        self._done: dict[int, OpenBatch] = {}
        self._lock = threading.Lock()
        # The last row before the last batch, and that batch while it waits for the row.
        self._last_rows: Arrays | None = None
        self._last_id = -1
        self._waiting: tuple[int, OpenBatch] | None = None

    def is_needed(self, index: int) -> bool:
        """Whether a batch is finished here, even if all its rows are there."""
        is_filled = self._last_size > 0 and index + 2 >= self._num_steps
        is_sent = self._outbox is not None
        return is_sent or is_filled or bool(self._parts.borders) or self._finish.is_needed(index)

    def finish(self, index: int, open_batch: OpenBatch) -> list[int]:
        """Finish a batch, and one that waited for it. Return the numbers of those that are done."""
        if self._last_size and not len(open_batch.step.ids):
            with self._lock:
                if self._last_rows is None:
                    self._waiting = index, open_batch
                    return []
        self._apply(index, open_batch)
        with self._lock:
            self._done[index] = open_batch
            if index + 2 != self._num_steps or self._waiting is None:
                return [index]
            waiting, self._waiting = self._waiting, None
        return [index, *self.finish(*waiting)]

    def take(self, index: int) -> OpenBatch | None:
        """Take a finished batch; None if it needed none of this."""
        with self._lock:
            return self._done.pop(index, None)

    def clear(self) -> None:
        """Forget all batches."""
        with self._lock:
            self._done.clear()
            self._waiting = None

    def delivery(self, open_batch: OpenBatch) -> Delivery:
        """A finished batch in the form in which it is handed over."""
        assert open_batch.arrays is not None
        ids = self._padded_ids(open_batch.step)
        return Delivery(
            open_batch.step,
            open_batch.arrays,
            ids,
            padding_of(open_batch, len(ids)),
            open_batch.nans,
            open_batch.num_skipped,
            open_batch.sent,
            first_error=open_batch.first_error,
        )

    def _apply(self, index: int, open_batch: OpenBatch) -> None:
        try:
            if open_batch.error is None:
                assert open_batch.arrays is not None
                self._parts.fill_borders(open_batch.arrays, open_batch.step.ids)
                fill_rows(open_batch)
                self._pad(index, open_batch)
                step = open_batch.step
                ids = self._padded_ids(step)
                times = step.occurrences_in(len(ids))
                open_batch.arrays, open_batch.nans = self._finish.apply(
                    index, open_batch.arrays, ids, times, len(step.ids)
                )
                if self._outbox is not None:
                    open_batch.sent = self._outbox.send(open_batch.arrays)
        except Exception as error:
            open_batch.error = error

    def _padded_ids(self, step: BatchRows) -> Ints:
        """Ids of all rows of a batch, with those that fill it up."""
        num_more = self._last_size - len(step.ids)
        if num_more <= 0:
            return step.ids
        last = step.ids[-1] if len(step.ids) else self._last_id
        return np.append(step.ids, np.repeat(last, num_more))

    def _pad(self, index: int, open_batch: OpenBatch) -> None:
        """Fill a short batch up with its last row, or with that of the batch before it."""
        assert open_batch.arrays is not None
        if not self._last_size:
            return
        num_rows = len(open_batch.step.ids)
        for name, array in open_batch.arrays.items():
            if num_rows:
                array[num_rows:] = array[num_rows - 1]
            else:
                assert self._last_rows is not None
                array[:] = self._last_rows[name]
        if index + 2 == self._num_steps:
            rows = {name: array[num_rows - 1].copy() for name, array in open_batch.arrays.items()}
            with self._lock:
                self._last_id, self._last_rows = int(open_batch.step.ids[-1]), rows
