"""Times of any calendar as plain numbers: days, fractions of the day and of the year, months.

Idealised calendars (``noleap``, ``all_leap``, ``360_day``) have no days of the real world. A time
in one of them has the place of the Earth at the same fraction of the same real year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, UnsupportedDataError

Floats = NDArray[np.float64]

J2000: Final = np.datetime64("2000-01-01T12:00:00", "ns")
"""The instant from which `Instants.days` count."""

_ONE_YEAR: Final = np.timedelta64(1, "Y")
_J2000_JULIAN_DATE: Final = 2451545.0
_YEAR_SIZES: Final = {
    "noleap": 365,
    "365_day": 365,
    "all_leap": 366,
    "366_day": 366,
    "360_day": 360,
}
"""Days of every year in the calendars in which all years are equally long."""

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
    flat, field = labels.reshape(-1), clock
    if labels.dtype.kind == "M":
        index: Any = pd.DatetimeIndex(flat)
        # Its other name is deprecated, and xarray's index has only the other.
        field = "day_of_year" if clock == "dayofyear" else clock
    else:
        index = xr.CFTimeIndex(flat)  # type: ignore[no-untyped-call]
    # Of the seasons, December, January and February come first.
    rows = index.month % 12 // 3 if clock == "season" else getattr(index, field) - CLOCKS[clock][0]
    return np.asarray(rows, np.int64).reshape(labels.shape)


def checked_times(times: Any, lack: str, remedy: str) -> NDArray[Any]:
    """Labels as an array of datetime64, or of the objects of cftime."""
    labels = np.asarray(times)
    if labels.dtype.kind == "M":
        if np.isnat(labels).any():
            raise OptionError(
                "a time is missing (NaT)", remedy="leave these elements out with .isel(time=...)"
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


@dataclass(frozen=True)
class Instants:
    """Some times as numbers."""

    days: Floats
    day_fraction: Floats
    year_fraction: Floats


def instants_of(time: Any) -> Instants:
    """Times as numbers, in arrays of the shape of ``time``."""
    labels = checked_times(
        time,
        "",
        "open the data with decode_times=True, or name the coordinate with times, "
        'as in forcing(..., coords={"time": "valid_time"})',
    )
    return _of_datetime64(labels) if labels.dtype.kind == "M" else _of_cftime(labels)


def _of_datetime64(labels: NDArray[Any]) -> Instants:
    day, year = labels.astype("M8[D]"), labels.astype("M8[Y]")
    begin = year.astype("M8[D]")
    size = ((year + _ONE_YEAR).astype("M8[D]") - begin).astype(np.float64)
    day_fraction = (labels - day) / np.timedelta64(1, "D")
    # Counted in two steps, because nanoseconds do not reach far beyond 2262.
    since = (day - J2000.astype("M8[D]")).astype(np.float64)
    return Instants(
        since - 0.5 + day_fraction,
        day_fraction,
        ((day - begin).astype(np.float64) + day_fraction) / size,
    )


def _of_cftime(labels: NDArray[Any]) -> Instants:
    numbers = [_number_of(label) for label in labels.flat]
    columns = np.array(numbers, np.float64).reshape(-1, 3).T
    return Instants(*(column.reshape(labels.shape) for column in columns))


def _number_of(label: Any) -> tuple[float, float, float]:
    """Days, fraction of the day and of the year of one object of cftime."""
    seconds = 3600 * label.hour + 60 * label.minute + label.second + 1e-6 * label.microsecond
    day_fraction = seconds / 86400
    passed = label.dayofyr - 1 + day_fraction
    size = _YEAR_SIZES.get(label.calendar)
    if size is None:
        begin = label.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
        size = begin.replace(year=label.year + 1).toordinal() - begin.toordinal()
        days = label.toordinal(fractional=True) - _J2000_JULIAN_DATE
        return days, day_fraction, passed / size
    real = np.datetime64(f"{label.year:04d}", "Y")
    begin, end = (year.astype("M8[D]") for year in (real, real + _ONE_YEAR))
    since = float((begin - J2000.astype("M8[D]")).astype(int))
    share = passed / size
    return since - 0.5 + share * float((end - begin).astype(int)), day_fraction, share
