"""Insolation: the sunlight that falls on a horizontal plane at the top of the atmosphere."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr

from xloader.errors import OptionError
from xloader.forcings.calendar import as_labels, moments_of
from xloader.forcings.sun import SunPosition, sun_at

SOLAR_CONSTANT: Final = 1361.0
"""Total solar irradiance at one astronomical unit, in W/m2.

G. Kopp and J. L. Lean, "A new, lower value of total solar irradiance", Geophysical Research Letters
38, L01706, 2011: 1360.8 +- 0.5 W/m2.
"""


_MOST_DAYS: Final = 2 / 24
"""Longest interval, in days, over which the Sun counts as standing still beside the stars. Over a
day its drift would change the mean by 0.7 W/m2, over two hours by less than 0.05."""


def insolation(
    time: Any, lat: Any, lon: Any, *, solar_constant: float = SOLAR_CONSTANT, mean: Any = None
) -> Any:
    """Sunlight on a horizontal plane at the top of the atmosphere, in W/m2.

    ``solar_constant / distance**2 * max(0, cosine of the zenith angle)``, for the Sun as seen from
    the centre of the Earth. Its position is that of the Solar Position Algorithm (Reda and Andreas,
    2004), with the largest terms only: values differ from those of the complete algorithm, as in
    ``pvlib``, by less than 0.1 W/m2.

    Parameters
    ----------
    time : array-like of datetime64 or cftime.datetime
        Times in UTC. In calendars without real days, such as ``noleap``, the Sun stands where it
        does at the same part of the real year.
    lat : array-like of float
        Latitudes, in degrees north.
    lon : array-like of float
        Longitudes, in degrees east; from 0 to 360 or from -180 to 180.
    solar_constant : float, default 1361.0
        Irradiance at one astronomical unit, in W/m2 (Kopp and Lean, 2011).
    mean : duration, optional
        Take the mean over this time before each label, such as ``"1h"`` or ``"1D"``. By default,
        values are those of the instant. Models often store sunlight summed over the hour before
        the label, in J/m2: divided by 3600 s, that is ``mean="1h"``.

    Returns
    -------
    array-like of float64
        In W/m2, 0 or more, in the shape that the labels give together.

    Raises
    ------
    UnsupportedDataError
        If ``time`` holds no times.
    OptionError
        If a time is missing, ``mean`` is no duration above 0, or ``solar_constant`` is not above 0.

    Examples
    --------
    Noon at the equator, at an equinox:

    >>> round(float(insolation(np.datetime64("2000-03-20T12:07"), 0.0, 0.0)), 1)
    1371.0
    >>> round(float(insolation(np.datetime64("2000-03-21T00"), 0.0, 0.0, mean="1D")), 1)
    435.8
    """
    if not solar_constant > 0:
        raise OptionError(
            "the solar constant is not above 0",
            given=repr(solar_constant),
            allowed="a number of W/m2",
            remedy=f"leave it out for {SOLAR_CONSTANT}",
        )
    moments = moments_of(time)
    north, east = _radians(lat), _radians(lon)
    if mean is None:
        sun = sun_at(moments.days)
        at_noon = moments.day_fraction * 2 * np.pi - np.pi + sun.equation_of_time
        upright, level = _factors(time, sun, north)
        total = upright + level * np.cos(as_labels(time, at_noon) + east)
        total = np.maximum(total, 0.0)
    else:
        days = _days_of(mean)
        num_parts = math.ceil(days / _MOST_DAYS - 1e-9)
        total = 0.0
        for part in range(num_parts):
            middle = days * ((part + 0.5) / num_parts - 1)
            sun = sun_at(moments.days + middle)
            turned = (moments.day_fraction + middle) * 2 * np.pi - np.pi + sun.equation_of_time
            upright, level = _factors(time, sun, north)
            angle = as_labels(time, turned) + east
            total = total + _mean_above_horizon(upright, level, angle, days / num_parts) / num_parts
    found = total * solar_constant
    if isinstance(found, xr.DataArray):
        found.attrs = {"long_name": "insolation at the top of the atmosphere", "units": "W m-2"}
    return found


def _radians(degrees: Any) -> Any:
    if isinstance(degrees, xr.DataArray):
        return np.deg2rad(degrees.astype(np.float64))
    return np.deg2rad(np.asarray(degrees, np.float64))


def _factors(time: Any, sun: SunPosition, north: Any) -> tuple[Any, Any]:
    """The numbers a and b in ``a + b cos(hour angle)``, the light that falls on the plane.

    The light at one astronomical unit counts as 1.
    """
    strength = sun.distance**-2.0
    upright = as_labels(time, strength * np.sin(sun.declination)) * np.sin(north)
    level = as_labels(time, strength * np.cos(sun.declination)) * np.cos(north)
    return upright, level


def _mean_above_horizon(upright: Any, level: Any, angle: Any, days: float) -> Any:
    """The mean of ``max(0, upright + level cos h)`` over the hours around an hour angle.

    ``h`` runs over ``2 pi days``, with ``angle`` in the middle.
    """
    # At the poles there is no sunset, and nothing to divide by.
    sunset = np.arccos(np.clip(-upright / np.maximum(level, 1e-12), -1.0, 1.0))
    whole = 2 * (upright * sunset + level * np.sin(sunset))
    half = np.pi * days
    ends = []
    for end in (angle - half, angle + half):
        turns = np.floor((end + np.pi) / (2 * np.pi))
        within = np.minimum(np.maximum(end - 2 * np.pi * turns, -sunset), sunset)
        since = upright * (within + sunset) + level * (np.sin(within) + np.sin(sunset))
        ends.append(turns * whole + since)
    return np.maximum((ends[1] - ends[0]) / (2 * half), 0.0)


def _days_of(mean: Any) -> float:
    """Length of an interval, in days."""
    try:
        days = float(pd.Timedelta(mean) / pd.Timedelta(1, "D"))
    except (TypeError, ValueError):
        days = math.nan
    if isinstance(mean, int | float) or not days > 0:
        raise OptionError(
            "the interval of a mean is no duration",
            given=f"mean={mean!r}",
            allowed='a duration above 0, such as "1h", "6h" or "1D", or a timedelta',
            remedy="leave mean out for the value at the instant",
        )
    return days
