"""Times of any calendar as plain numbers: days, the fraction of the day, the fraction of the year.

Idealised calendars (``noleap``, ``all_leap``, ``360_day``) have no days of the real world. A time
in one of them has the place of the Earth at the same fraction of the same real year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.clock_labels import checked_times

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
