"""Rows whose chunks cannot be read: another row of the same batch replaces each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count, warn_caller
from xloader.engine.open_trays import OpenBatch
from xloader.errors import SkippedWarning


def note_rows(open_batch: OpenBatch, rows: Ints, error: BaseException | None) -> None:
    """Note rows of a batch whose chunks cannot be read. The run's lock must be held.

    Parameters
    ----------
    open_batch : OpenBatch
        The batch.
    rows : numpy.ndarray of int64
        The rows.
    error : BaseException or None
        The error that they met.
    """
    if open_batch.bad_rows is None:
        open_batch.bad_rows = np.zeros(len(open_batch.step.ids), np.bool_)
    open_batch.bad_rows[rows] = True
    open_batch.first_error = open_batch.first_error or error


def fill_rows(open_batch: OpenBatch) -> None:
    """Replace each bad row of a batch, as `good_rows_for` says.

    The ids and occurrences of the batch's step are replaced as well.

    Parameters
    ----------
    open_batch : OpenBatch
        The batch, with all other rows gathered.

    Raises
    ------
    ChunkError
        The error of the first bad row, if there is no good row.
    """
    if open_batch.bad_rows is None:
        return
    taken = good_rows_for(open_batch.bad_rows, open_batch.first_error)
    bad = open_batch.bad_rows
    assert open_batch.arrays is not None
    for array in open_batch.arrays.values():
        # The rows that fill up a short batch come later.
        own = array[: len(bad)]
        own[bad] = own[taken[bad]]
    step = open_batch.step
    times = None if step.occurrences is None else step.occurrences[taken]
    open_batch.step = replace(step, ids=step.ids[taken], occurrences=times)


def good_rows_for(bad_rows: NDArray[np.bool_], error: BaseException | None) -> Ints:
    """The row that each row takes its values from, so that bad rows are replaced.

    A bad row is replaced by the good row before it, or else by the first good row.

    Parameters
    ----------
    bad_rows : numpy.ndarray of bool, shape (n,)
        Whether each row has a chunk that could not be read.
    error : BaseException or None
        The error of the first one.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)

    Raises
    ------
    ChunkError
        The given error, if there is no good row.
    """
    good = np.flatnonzero(~bad_rows)
    if not len(good):
        assert error is not None
        error.add_note(
            'on_error="skip" replaces bad rows by good ones, but this batch has no good row. '
            "Pass a larger batch_size or shuffle=True, so that a batch has samples from more "
            "chunks; or leave the samples of this chunk out with .select."
        )
        raise error
    bad = np.flatnonzero(bad_rows)
    taken = np.arange(len(bad_rows))
    taken[bad] = good[np.maximum(np.searchsorted(good, bad) - 1, 0)]
    return taken


def warn_of_skipped(num_skipped: int, error: object) -> None:
    """Warn the user of the first batch with replaced rows.

    Parameters
    ----------
    num_skipped : int
        Number of these rows.
    error : object
        The first error.
    """
    rows = show_count(num_skipped, "row")
    warn_caller(
        f"{rows} of this batch could not be read and repeat other rows; batch.is_padding "
        f"marks them. The error was: {error} Later errors are counted in report() without a "
        "warning.",
        SkippedWarning,
    )


def padding_of(open_batch: OpenBatch, num_rows: int) -> NDArray[np.bool_]:
    """Whether each row of a batch repeats another: rows after its own ones, and replaced bad rows.

    Parameters
    ----------
    open_batch : OpenBatch
        The batch.
    num_rows : int
        Rows of the batch, including those that fill it up.

    Returns
    -------
    numpy.ndarray of bool, shape (num_rows,)
    """
    is_padding = np.zeros(num_rows, np.bool_)
    is_padding[len(open_batch.step.ids) :] = True
    if open_batch.bad_rows is not None:
        is_padding[: len(open_batch.bad_rows)] |= open_batch.bad_rows
    return is_padding
