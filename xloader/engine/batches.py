"""The batches of a run: the rows of one, the batch while it is finished, and what is delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count, warn_caller
from xloader.core.nans import FieldNans
from xloader.engine.buffers import Arrays, Buffer
from xloader.engine.shared_slots import Parcel
from xloader.engine.tally import WorkTime
from xloader.errors import ChunkWarning


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch, lane by lane.

    `num_regions`: distinct regions of its samples, if they are counted. `occurrences`: which time
    in the epoch each sample occurs; None for the first. `last_occurrence`: that of the last row so
    far, which fills up a batch that is short of rows.
    """

    index: int
    ids: Ints
    num_regions: int | None = None
    occurrences: Ints | None = None
    last_occurrence: int = 0

    def occurrences_in(self, num_rows: int) -> Ints | None:
        """The occurrences of a batch of so many rows, filled up with the last row so far."""
        if self.occurrences is None:
            return None
        filled = np.full(num_rows, self.last_occurrence)
        filled[: len(self.occurrences)] = self.occurrences
        return filled


class Sent(Protocol):
    """A batch on its way to a device."""

    @property
    def nbytes(self) -> int:
        """Bytes of its fields, as they cross."""
        ...

    def release(self) -> None:
        """Give up the device's memory of the batch, unless it was received. May be repeated."""
        ...


class Outbox(Protocol):
    """Sends the finished batches of one run to a device."""

    def start(self, wake: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Begin a run. Both functions are called on any thread, without a lock.

        `wake`: whenever memory of batches has come back. `fail`: with an error that ends the run.
        """
        ...

    def send(self, arrays: Arrays) -> Sent:
        """Start to copy a finished batch to the device. Called on the threads of a run.

        The dict is emptied: the arrays live until they are copied.
        """
        ...

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread belongs to the outbox."""
        ...

    def close(self) -> None:
        """End the run: release the batches that were not received. Waits for nothing."""
        ...

    def join(self, until: float) -> bool:
        """Wait until the copies are done or the time is over, by `time.monotonic`.

        Return whether they are done.
        """
        ...


@dataclass(eq=False)
class OpenBatch:
    """A batch whose rows are gathered, while it is finished and until it is taken.

    `arrays`: its fields. `room`: memory of its slot beside the fields, if there is some.
    `bad_rows`: the rows whose chunks cannot be read, and which others replace; `first_error`: why.
    `parcel`: the finished fields as another process left them, or what ``collate_fn`` returned
    there for fields of `collated_nbytes`. `warnings` and `spent`: those given, and the time that
    it took, in the other process.
    """

    step: BatchRows
    arrays: Arrays
    room: Buffer | None = None
    error: BaseException | None = None
    bad_rows: NDArray[np.bool_] | None = None
    first_error: BaseException | None = None
    nans: tuple[FieldNans, ...] = ()
    sent: Sent | None = None
    parcel: Parcel | None = None
    collated_nbytes: int | None = None
    warnings: Sequence[tuple[str, type[Warning]]] = ()
    spent: WorkTime | None = None

    @property
    def num_skipped(self) -> int:
        """Number of rows that were skipped."""
        return 0 if self.bad_rows is None else int(np.count_nonzero(self.bad_rows))

    def is_padding(self, num_rows: int) -> NDArray[np.bool_]:
        """Whether each of so many rows repeats another: to fill up, or in place of a bad one."""
        is_padding = np.zeros(num_rows, np.bool_)
        is_padding[len(self.step.ids) :] = True
        if self.bad_rows is not None:
            is_padding[: len(self.bad_rows)] |= self.bad_rows
        return is_padding

    def note_bad_rows(self, rows: Ints, error: BaseException) -> None:
        """Note rows whose chunks cannot be read."""
        if self.bad_rows is None:
            self.bad_rows = np.zeros(len(self.step.ids), np.bool_)
        self.bad_rows[rows] = True
        self.first_error = self.first_error or error

    def replace_bad_rows(self) -> None:
        """Replace each bad row by the good row before it, or else by the first good row.

        If there is none, the error of the first bad row is raised.
        """
        if self.bad_rows is None:
            return
        good = np.flatnonzero(~self.bad_rows)
        if not len(good):
            assert self.first_error is not None
            self.first_error.add_note(
                'on_error="skip" replaces bad rows by good ones, but this batch has no good row. '
                "Pass a larger batch_size or shuffle=True, so that a batch has samples from more "
                "chunks; or leave the samples of this chunk out with .select."
            )
            raise self.first_error
        bad = np.flatnonzero(self.bad_rows)
        taken = np.arange(len(self.bad_rows))
        taken[bad] = good[np.maximum(np.searchsorted(good, bad) - 1, 0)]
        for array in self.arrays.values():
            # The rows that fill up a short batch come later.
            rows = array[: len(taken)]
            rows[bad] = rows[taken[bad]]
        step, times = self.step, self.step.occurrences
        self.step = replace(
            step, ids=step.ids[taken], occurrences=None if times is None else times[taken]
        )


def warn_of_skipped(num_skipped: int, error: object) -> None:
    """Warn the user of the first batch with replaced rows, given their number and first error."""
    rows = show_count(num_skipped, "row")
    warn_caller(
        f"{rows} of this batch could not be read and repeat other rows; batch.is_padding "
        f"marks them. The error was: {error} Later errors are counted in report() without a "
        "warning.",
        ChunkWarning,
    )


class Collated(NamedTuple):
    """The result of ``collate_fn`` for a batch, and the bytes of the batch's fields."""

    value: object
    nbytes: int


@dataclass(frozen=True)
class Delivery:
    """A batch as it is handed over.

    `arrays`: the finished fields; empty if they were sent, or collated in another process. `ids`
    and `is_padding`: of all rows. `num_skipped`: rows that others replace; `first_error`: why.
    """

    step: BatchRows
    arrays: Arrays
    ids: Ints
    is_padding: NDArray[np.bool_]
    nans: tuple[FieldNans, ...] = ()
    num_skipped: int = 0
    sent: Sent | None = None
    collated: Collated | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the fields, as they are handed over."""
        if self.sent is not None:
            return self.sent.nbytes
        if self.collated is not None:
            return self.collated.nbytes
        return sum(array.nbytes for array in self.arrays.values())

    def release(self) -> None:
        """Give up the batch, unless it was received. May be repeated."""
        if self.sent is not None:
            self.sent.release()

    @property
    def occurrences(self) -> Ints | None:
        """Which time in the epoch each of ``ids`` occurs; None if all occur for the first."""
        return self.step.occurrences_in(len(self.ids))
