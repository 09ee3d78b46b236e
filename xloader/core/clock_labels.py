"""The month, day of the year, hour or season of times, as numbers of rows in a table.

They are those of xarray's ``time.dt.month``, ``dayofyear``, ``hour`` and ``season``, for
datetime64 and for the objects of cftime, whatever their calendar.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, UnsupportedDataError

CLOCKS: Final = {
    "month": np.arange(1, 13),
    "dayofyear": np.arange(1, 367),
    "hour": np.arange(24),
    "season": np.array(["DJF", "MAM", "JJA", "SON"]),
}
"""The labels of each clock, in the order of the rows."""


def clock_rows(times: Any, clock: str) -> Ints:
    """The row, from 0 on, of each time in a table by month, day of the year, hour or season."""
    labels = checked_times(times, f", and have no {clock}", "open the data with decode_times=True")
    if labels.dtype.kind == "M":
        return _rows_of_datetime64(labels, clock)
    rows = [_row_of_cftime(label, clock) for label in labels.flat]
    return np.array(rows, np.int64).reshape(labels.shape)


def checked_times(times: Any, lack: str, remedy: str) -> NDArray[Any]:
    """Labels as an array of datetime64, or of the objects of cftime."""
    labels = np.asarray(times)
    if labels.dtype.kind == "M":
        if np.isnat(labels).any():
            raise OptionError(
                "a time is missing",
                given="NaT among the labels",
                allowed="a time for each element",
                remedy="leave these elements out with .isel(time=...)",
            )
        return labels
    if labels.dtype == object and all(hasattr(label, "dayofyr") for label in labels.flat):
        return labels
    raise UnsupportedDataError(
        f"these labels are no times{lack}",
        given=f"dtype {labels.dtype}" + (f", such as {labels.flat[0]!r}" if labels.size else ""),
        allowed="datetime64, or the objects of cftime",
        remedy=remedy,
    )


def _rows_of_datetime64(labels: NDArray[Any], clock: str) -> Ints:
    if clock in ("month", "season"):
        months: Ints = labels.astype("M8[M]").astype(np.int64) % 12
        return months if clock == "month" else _seasons(months)
    day = labels.astype("M8[D]")
    if clock == "hour":
        return np.asarray((labels - day) // np.timedelta64(1, "h"), np.int64)
    return np.asarray((day - labels.astype("M8[Y]")).astype("m8[D]"), np.int64)


def _row_of_cftime(label: Any, clock: str) -> int:
    if clock == "month":
        return int(label.month) - 1
    if clock == "season":
        return int(_seasons(np.int64(label.month - 1)))
    return int(label.hour) if clock == "hour" else int(label.dayofyr) - 1


def _seasons(months: Any) -> Any:
    """Seasons of months from 0 on: December, January and February come first."""
    return (months + 1) % 12 // 3
