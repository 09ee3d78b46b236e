"""The last steps of gathered batches: borders, bad rows, padding, transforms, a look for NaN.

Batches that go to a device are sent then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.nans import CountNans, OnNan, is_looked_at, look_for_nans
from xloader.engine.assembly import EngineParts
from xloader.engine.batches import BatchRows, Collated, Delivery, OpenBatch, Outbox
from xloader.engine.buffers import Arrays
from xloader.engine.shared_slots import unpack
from xloader.sources.retries import Abandoned

BatchTransform = Callable[[Arrays, Ints, Ints | None], Arrays]
"""Turns a gathered batch into what is delivered, given the sample of each row and which time in the
epoch it occurs; None for the first."""


class Finisher(Protocol):
    """Transforms batches and looks for NaN, in this process or another."""

    def is_needed(self, index: int) -> bool:
        """Whether there is something to do for a batch, given the number of its step."""
        ...

    def apply(self, batch: OpenBatch, ids: Ints) -> None:
        """Do it, given the samples of all rows, also of those that fill the batch up."""
        ...

    def give_up(self) -> bool:
        """Have calls of `apply` under way end, if that can be. Return whether they will."""
        return False


@dataclass(frozen=True, eq=False)
class BatchFinish(Finisher):
    """The steps of the user between a gathered batch and a delivered one, by default none.

    `transform`, `convert`: functions, if there are any; the second brings transformed arrays to the
    dtypes in which they are delivered. `nan_counts`: by
    field that is delivered as stored, how its NaN values are counted.
    """

    transform: BatchTransform | None = None
    convert: Callable[[Arrays], Arrays] | None = None
    on_nan: OnNan = "ignore"
    nan_counts: Mapping[str, CountNans] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether batches stay as they are gathered."""
        return self.transform is None and self.convert is None

    def is_needed(self, index: int) -> bool:
        """Whether a batch is changed or looked at, given the number of its step."""
        return not self.is_plain or is_looked_at(self.on_nan, index)

    def apply(self, batch: OpenBatch, ids: Ints) -> None:
        """Transform a batch, look for NaN in its own rows, and convert it."""
        step, arrays = batch.step, batch.arrays
        if self.transform is not None:
            arrays = self.transform(arrays, ids, step.occurrences_in(len(ids)))
        of_samples = ids[: len(step.ids)]
        batch.nans = look_for_nans(self.on_nan, step.index, arrays, of_samples, self.nan_counts)
        batch.arrays = arrays if self.convert is None else self.convert(arrays)


@dataclass(eq=False)
class Finishes:
    """The batches of one run that are finished, until they are taken.

    `last_size`: rows up to which the last batch is filled up; 0 to leave it as it is.
    """

    parts: EngineParts
    finisher: Finisher
    num_steps: int
    last_size: int
    outbox: Outbox | None
    _done: dict[int, OpenBatch] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # The last row before the last batch, and that batch while it waits for the row.
    _last_rows: Arrays | None = None
    _last_id: int = -1
    _waiting: OpenBatch | None = None

    def is_needed(self, index: int) -> bool:
        """Whether a batch is finished here, even if all its rows are there."""
        is_filled = self.last_size > 0 and index + 2 >= self.num_steps
        is_sent = self.outbox is not None
        return is_sent or is_filled or bool(self.parts.borders) or self.finisher.is_needed(index)

    def finish(self, batch: OpenBatch) -> list[int]:
        """Finish a batch, and one that waited for it. Return the numbers of those that are done."""
        index = batch.step.index
        if self.last_size and not len(batch.step.ids):
            with self._lock:
                if self._last_rows is None:
                    self._waiting = batch
                    return []
        self._apply(batch)
        with self._lock:
            self._done[index] = batch
            if index + 2 != self.num_steps or self._waiting is None:
                return [index]
            waiting, self._waiting = self._waiting, None
        return [index, *self.finish(waiting)]

    def take(self, step: BatchRows, joints: list[NDArray[Any]] | None) -> OpenBatch:
        """Take a batch, given its memory unless it was sent, as its user gets it."""
        with self._lock:
            batch = self._done.pop(step.index, None)
        fields = self.parts.fields
        if batch is not None and batch.error is not None:
            # Whoever keeps the error must not keep the memory, too.
            batch.arrays, batch.room = {}, None
            return batch
        if joints is None:
            assert batch is not None
            return batch
        given = fields.memory.deliver(joints)
        if batch is None:
            return OpenBatch(step, fields.named(given, len(step.ids)))
        if given is not joints:
            batch.arrays = fields.named(given, len(self._padded_ids(batch.step)))
        batch.room = fields.room(given)
        return batch

    def clear(self) -> None:
        """Forget all batches."""
        with self._lock:
            self._done.clear()
            self._waiting = None

    def delivery(self, batch: OpenBatch) -> Delivery:
        """A batch in the form in which it is handed over."""
        ids, collated = self._padded_ids(batch.step), None
        if batch.parcel is not None and batch.collated_nbytes is not None:
            batch.arrays = {}
            collated = Collated(unpack(batch.parcel, batch.room), batch.collated_nbytes)
        elif batch.parcel is not None and batch.sent is None:
            batch.arrays = unpack(batch.parcel, batch.room)
        return Delivery(
            batch.step,
            batch.arrays,
            ids,
            batch.is_padding(len(ids)),
            batch.nans,
            batch.num_skipped,
            batch.sent,
            collated,
        )

    def _apply(self, batch: OpenBatch) -> None:
        try:
            if batch.error is not None:
                return
            self.parts.fill_borders(batch.arrays, batch.step.ids)
            batch.replace_bad_rows()
            self._pad(batch)
            if self.finisher.is_needed(batch.step.index):
                self.finisher.apply(batch, self._padded_ids(batch.step))
            if self.outbox is not None:
                if batch.parcel is not None:
                    batch.arrays = unpack(batch.parcel, batch.room)
                batch.room = None
                batch.sent = self.outbox.send(batch.arrays)
        except Abandoned:
            raise
        except BaseException as error:
            batch.error = error

    def _padded_ids(self, step: BatchRows) -> Ints:
        """Ids of all rows of a batch, with those that fill it up."""
        num_more = self.last_size - len(step.ids)
        if num_more <= 0:
            return step.ids
        last = step.ids[-1] if len(step.ids) else self._last_id
        return np.append(step.ids, np.repeat(last, num_more))

    def _pad(self, batch: OpenBatch) -> None:
        """Fill a short batch up with its last row, or with that of the batch before it."""
        if not self.last_size:
            return
        num_rows = len(batch.step.ids)
        for name, array in batch.arrays.items():
            if num_rows:
                array[num_rows:] = array[num_rows - 1]
            else:
                assert self._last_rows is not None
                array[:] = self._last_rows[name]
        if batch.step.index + 2 == self.num_steps:
            rows = {name: array[num_rows - 1].copy() for name, array in batch.arrays.items()}
            with self._lock:
                self._last_id, self._last_rows = int(batch.step.ids[-1]), rows
