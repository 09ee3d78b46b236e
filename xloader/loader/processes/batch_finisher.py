"""Whole batches in shared memory, finished once all processes have gathered their rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.axis import Ints
from xloader.core.messages import names_function
from xloader.engine.batch_finish import BatchFinish
from xloader.engine.batch_slots import Slot
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.parcels import Parcel, pack
from xloader.engine.skipped_rows import good_rows_for
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.batches.row_list import Rows
from xloader.loader.processes.process_messages import FinishedRows, SentError

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class _ClosedRows:
    """The rows of a batch, closed up and perhaps filled up.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The fields.
    ids, occurrences, is_padding : numpy.ndarray
        Of the rows; occurrences may be None.
    """

    arrays: Arrays
    ids: Ints
    occurrences: Ints | None
    is_padding: Flags

    def filled_up(self, size: int, before: _ClosedRows | None) -> _ClosedRows:
        """Fill the batch up with its last row, or with that of the batch before it."""
        num_own = len(self.ids)
        source = self if num_own else before
        assert source is not None

        def fill(own: NDArray[Any], last: Any) -> NDArray[Any]:
            filled = np.empty((size, *own.shape[1:]), own.dtype)
            filled[:num_own], filled[num_own:] = own, last
            return filled

        times = self.occurrences
        if times is not None:
            assert source.occurrences is not None
            times = fill(times, source.occurrences[-1])
        return _ClosedRows(
            {name: fill(array, source.arrays[name][-1]) for name, array in self.arrays.items()},
            fill(self.ids, source.ids[-1]),
            times,
            fill(self.is_padding, True),
        )

    def replaced(self, taken: Ints) -> _ClosedRows:
        """Replace bad rows. The fields are changed in place."""
        bad = self.is_padding
        for array in self.arrays.values():
            array[bad] = array[taken[bad]]
        times = self.occurrences
        return _ClosedRows(
            self.arrays, self.ids[taken], None if times is None else times[taken], bad
        )

    def last_row(self) -> _ClosedRows:
        """Copy of the last row."""
        times = self.occurrences
        return _ClosedRows(
            {name: array[-1:].copy() for name, array in self.arrays.items()},
            self.ids[-1:].copy(),
            None if times is None else times[-1:].copy(),
            self.is_padding[-1:].copy(),
        )


class BatchFinisher:
    """Finishes the batches of one run that fall to this process.

    Parameters
    ----------
    fields : Fields
        The fields of whole batches.
    finish : BatchFinish
        The transforms and checks.
    num_steps : int
        Number of steps of the run.
    last_size : int
        Rows to which the last batch is filled up; 0 if it is not.
    collate_fn : callable, optional
        Makes the delivered value of a list of samples.
    hand_over : callable
        Converts an array into what ``collate_fn`` gets.
    origin_of : callable
        Gives the origin of a batch, from the occurrences of its rows or None.
    """

    def __init__(
        self,
        fields: Fields,
        finish: BatchFinish,
        num_steps: int,
        *,
        last_size: int,
        collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None,
        hand_over: Callable[[Any], Any],
        origin_of: Callable[[Ints | None], BatchOrigin],
    ) -> None:
        self._fields = fields
        self._finish = finish
        self._num_steps = num_steps
        self._last_size = last_size
        self._collate_fn = collate_fn
        self._hand_over = hand_over
        self._origin_of = origin_of
        self._last_row: _ClosedRows | None = None

    def finish(self, step: int, slot: Slot) -> FinishedRows:
        """Finish a batch, and leave it in its slot.

        Parameters
        ----------
        step : int
            Number of the step. The last one comes after the one before it.
        slot : Slot
            The slot, with the rows of all processes.

        Raises
        ------
        NanError
            If the batch holds NaN, with ``on_nan="raise"``.
        TransformError
            If a function of the user fails.
        """
        size = self._fields.batch_size
        fields = self._fields.named(slot.gathered, size)
        rows = _filled_rows(slot.counts, size)
        is_whole = len(rows) == size
        batch = _ClosedRows(
            fields if is_whole else {name: array[rows] for name, array in fields.items()},
            slot.ids[rows],
            slot.occurrences[rows] if slot.counts[:, 1].any() else None,
            slot.is_replaced[rows],
        )
        first_error = _first_error(slot)
        if batch.is_padding.any():
            error = None if first_error is None else first_error.restored()
            batch = batch.replaced(good_rows_for(batch.is_padding, error))
        if len(rows) < self._last_size:
            batch = batch.filled_up(self._last_size, self._last_row)
        if step == self._num_steps - 2:
            self._last_row = batch.last_row()
        ids, is_padding, times = batch.ids, batch.is_padding, batch.occurrences
        arrays, nans = self._finish.apply(step, batch.arrays, ids, times, len(rows))
        batch = replace(batch, arrays=arrays)
        parcel = self._leave(slot, fields, batch)
        is_plain = is_whole and first_error is None
        return FinishedRows(
            len(ids),
            len(rows),
            None if is_plain else ids,
            None if is_plain else is_padding,
            times,
            nans,
            parcel,
            self._collate_fn is not None,
            sum(array.nbytes for array in arrays.values()),
            first_error,
        )

    def _leave(self, slot: Slot, gathered: Arrays, rows: _ClosedRows) -> Parcel | None:
        """Leave a finished batch in its slot, in place of the gathered fields where they fit."""
        arrays = rows.arrays
        if self._collate_fn is not None:
            made = [self._hand_over(array) for array in arrays.values()]
            origin = self._origin_of(rows.occurrences)
            batch = Batch(made, arrays, rows.ids, rows.is_padding, origin)
            with names_function(f"collate_fn on a batch of {len(rows.ids)} samples"):
                value = self._collate_fn(Rows(batch))
                return pack(value, slot.extra, self._hand_over)
        if not _fits(arrays, gathered):
            return pack(arrays, slot.extra, self._hand_over)
        for name, array in arrays.items():
            target = gathered[name][: len(array)]
            if not _is_same(array, target):
                np.copyto(target, array)
        return None


def _first_error(slot: Slot) -> SentError | None:
    """The error that the first process with skipped rows has noted."""
    for num, note in zip(slot.counts[:, 2].tolist(), slot.notes, strict=True):
        if num:
            error: SentError = pickle.loads(note[:num].tobytes())
            return error
    return None


def _fits(arrays: Arrays, gathered: Arrays) -> bool:
    """Whether finished arrays can take the place of the gathered ones, one after the other."""
    if list(arrays) != list(gathered):
        return False
    return all(
        array.dtype == gathered[name].dtype
        and array.shape[1:] == gathered[name].shape[1:]
        # A function may return another field, or the same one turned round.
        and (
            _is_same(array, gathered[name][: len(array)])
            or not any(np.may_share_memory(array, other) for other in gathered.values())
        )
        for name, array in arrays.items()
    )


def _is_same(array: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays of one dtype and shape are views of the same memory."""
    return address_of(array) == address_of(other) and array.strides == other.strides


def _filled_rows(counts: Ints, size: int) -> Ints:
    """The rows of a slot that processes have filled, in order."""
    rows = np.arange(size).reshape(len(counts), -1)
    filled: Ints = rows[rows - rows[:, :1] < counts[:, :1]]
    return filled
