"""Rows whose chunks cannot be had: another row of their batch takes their place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.engine.job import OpenBatch


def note_rows(filling: OpenBatch, rows: Ints | int, error: BaseException | None) -> None:
    """Note rows of a batch whose chunks cannot be had. The run's lock is held."""
    if filling.bad_rows is None:
        filling.bad_rows = np.zeros(len(filling.step.ids), np.bool_)
    filling.bad_rows[rows] = True
    filling.first_error = filling.first_error or error


def fill_rows(filling: OpenBatch) -> None:
    """Put the good row before each bad one in its place, or the first good one.

    Raises
    ------
    ChunkError
        What the first bad row met, if there is no good one.
    """
    if filling.bad_rows is None:
        return
    good = np.flatnonzero(~filling.bad_rows)
    if not len(good):
        error = filling.first_error
        assert error is not None
        error.add_note(
            'on_error="skip" fills bad rows with good ones, and this batch has no good row. A '
            "larger batch_size, or shuffle=True, gives a batch samples of more chunks; or leave "
            "the samples of this chunk out with .select."
        )
        raise error
    bad = np.flatnonzero(filling.bad_rows)
    taken = np.arange(len(filling.bad_rows))
    taken[bad] = good[np.maximum(np.searchsorted(good, bad) - 1, 0)]
    assert filling.arrays is not None
    for array in filling.arrays.values():
        array[bad] = array[taken[bad]]
    step = filling.step
    times = None if step.occurrences is None else step.occurrences[taken]
    filling.step = replace(step, ids=step.ids[taken], occurrences=times)


def padding_of(filling: OpenBatch, num_rows: int) -> NDArray[np.bool_]:
    """Which rows of a batch repeat others: those behind its own, and those that were bad."""
    is_padding = np.arange(num_rows) >= len(filling.step.ids)
    if filling.bad_rows is not None:
        is_padding[: len(filling.bad_rows)] |= filling.bad_rows
    return is_padding
