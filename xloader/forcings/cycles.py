"""The cycles of the year, of the day and of the globe: angles as cosine and sine.

A cosine and a sine together give a model a cycle without a jump: 31 December lies beside
1 January, and 359.9 degrees east beside 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from xloader.forcings.calendar import Floats, instants_of
from xloader.forcings.coordinates import on_arrays

Cycle = Callable[[Floats], Floats]
"""Cosine or sine."""


def cos_day_of_year(time: Any) -> Any:
    """Cosine of the time of the year: 1 at the beginning of 1 January, -1 half a year later.

    The angle is ``2 pi`` times the part of the calendar's year that has passed: ``(day of year - 1
    + part of the day) / days of the year``, with 365 or 366 days, or 360 in that calendar.

    Parameters
    ----------
    time : array-like of datetime64 or cftime.datetime
        Times in UTC.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape of ``time``.

    Raises
    ------
    UnsupportedDataError
        If ``time`` holds no times.
    OptionError
        If a time is missing.

    Examples
    --------
    >>> cos_day_of_year(np.array(["2001-01-01", "2001-07-02T12"], "M8[h]")).tolist()
    [1.0, -1.0]
    """
    return _of_year(np.cos, time)


def sin_day_of_year(time: Any) -> Any:
    """Sine of the time of the year: 0 at the beginning of 1 January, 1 a quarter of a year later.

    The angle is that of :func:`cos_day_of_year`.

    Parameters
    ----------
    time : array-like of datetime64 or cftime.datetime
        Times in UTC.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape of ``time``.

    Raises
    ------
    UnsupportedDataError, OptionError
        As for :func:`cos_day_of_year`.

    Examples
    --------
    >>> sin_day_of_year(np.array(["2004-04-01T12"], "M8[h]")).round(9).tolist()
    [1.0]
    """
    return _of_year(np.sin, time)


def cos_local_time(time: Any, lon: Any) -> Any:
    """Cosine of the local mean solar time: 1 at midnight, -1 at noon.

    Local mean solar time is UTC plus one hour for every 15 degrees east. It differs from a sundial
    by the equation of time, 16 minutes at most.

    Parameters
    ----------
    time : array-like of datetime64 or cftime.datetime
        Times in UTC.
    lon : array-like of float
        Longitudes, in degrees east; from 0 to 360 or from -180 to 180.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape that ``time`` and ``lon`` give together.

    Raises
    ------
    UnsupportedDataError, OptionError
        As for :func:`cos_day_of_year`.

    Examples
    --------
    >>> cos_local_time(np.array(["2001-01-01T06"], "M8[h]"), np.array([-90.0, 90.0])).tolist()
    [1.0, -1.0]
    """
    return _of_day(np.cos, time, lon)


def sin_local_time(time: Any, lon: Any) -> Any:
    """Sine of the local mean solar time: 0 at midnight, 1 at 6 h, -1 at 18 h.

    Parameters
    ----------
    time : array-like of datetime64 or cftime.datetime
        Times in UTC.
    lon : array-like of float
        Longitudes, in degrees east; from 0 to 360 or from -180 to 180.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape that ``time`` and ``lon`` give together.

    Raises
    ------
    UnsupportedDataError, OptionError
        As for :func:`cos_day_of_year`.

    Examples
    --------
    >>> sin_local_time(np.array(["2001-01-01T06"], "M8[h]"), np.array([0.0, 180.0])).tolist()
    [1.0, -1.0]
    """
    return _of_day(np.sin, time, lon)


def cos_longitude(lon: Any) -> Any:
    """Cosine of the longitude.

    Parameters
    ----------
    lon : array-like of float
        Longitudes, in degrees east; from 0 to 360 or from -180 to 180.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape of ``lon``.

    Examples
    --------
    >>> cos_longitude(np.array([0.0, 180.0, -180.0])).tolist()
    [1.0, -1.0, -1.0]
    """
    return _of_longitude(np.cos, lon)


def sin_longitude(lon: Any) -> Any:
    """Sine of the longitude.

    Parameters
    ----------
    lon : array-like of float
        Longitudes, in degrees east; from 0 to 360 or from -180 to 180.

    Returns
    -------
    array-like of float64
        Without a unit, from -1 to 1, in the shape of ``lon``.

    Examples
    --------
    >>> sin_longitude(np.array([90.0, 270.0, -90.0])).tolist()
    [1.0, -1.0, -1.0]
    """
    return _of_longitude(np.sin, lon)


def latitude(lat: Any) -> Any:
    """The latitude itself.

    Parameters
    ----------
    lat : array-like of float
        Latitudes, in degrees north.

    Returns
    -------
    array-like of float64
        In degrees north, in the shape of ``lat``.

    Examples
    --------
    >>> latitude(np.array([-90.0, 45.5])).tolist()
    [-90.0, 45.5]
    """
    attrs = {"long_name": "latitude", "units": "degrees_north"}
    return on_arrays(partial(np.array, dtype=np.float64), attrs, lat)


def _of_year(cycle: Cycle, time: Any) -> Any:
    def angle(times: Any) -> Floats:
        return 2 * np.pi * instants_of(times).year_fraction

    return _cycle(cycle, angle, "the time of the year", time)


def _of_day(cycle: Cycle, time: Any, lon: Any) -> Any:
    def angle(times: Any, east: Any) -> Floats:
        return 2 * np.pi * instants_of(times).day_fraction + _radians(east)

    return _cycle(cycle, angle, "the local mean solar time", time, lon)


def _of_longitude(cycle: Cycle, lon: Any) -> Any:
    return _cycle(cycle, _radians, "the longitude", lon)


def _cycle(cycle: Cycle, angle: Callable[..., Floats], name: str, *labels: Any) -> Any:
    """The cosine or sine of an angle that follows from labels."""
    function = "cosine" if cycle is np.cos else "sine"
    attrs = {"long_name": f"{function} of {name}", "units": "1"}
    return on_arrays(lambda *arrays: cycle(angle(*arrays)), attrs, *labels)


def _radians(degrees: Any) -> Floats:
    return np.asarray(np.deg2rad(degrees, dtype=np.float64))
