"""Insolation: the sunlight that falls on a horizontal plane at the top of the atmosphere."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from xloader.errors import OptionError
from xloader.forcings.broadcasting import on_arrays
from xloader.forcings.calendar import Floats, Instants, instants_of
from xloader.forcings.sun import sun_at

SOLAR_CONSTANT: Final = 1361.0
"""Total solar irradiance at one astronomical unit, in W/m2.

G. Kopp and J. L. Lean, "A new, lower value of total solar irradiance", Geophysical Research Letters
38, L01706, 2011: 1360.8 +- 0.5 W/m2.
"""


_MOST_DAYS: Final = 3 / 24
"""Longest interval, in days, over which the Sun counts as standing still beside the stars. Over a
day its drift would change the mean by 0.7 W/m2, over three hours by 0.06."""


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
    1371.9
    >>> round(float(insolation(np.datetime64("2000-03-21T00"), 0.0, 0.0, mean="1D")), 1)
    436.6
    """
    if not solar_constant > 0:
        raise OptionError(
            "the solar constant is not above 0",
            given=repr(solar_constant),
            allowed="a number of W/m2",
            remedy=f"leave it out for {SOLAR_CONSTANT}",
        )
    days = None if mean is None else _days_of(mean)
    attrs = {"long_name": "insolation at the top of the atmosphere", "units": "W m-2"}
    return on_arrays(partial(_sunlight, solar_constant, days), attrs, time, lat, lon)


def _sunlight(
    solar_constant: float, days: float | None, time: Any, lat: Floats, lon: Floats
) -> Floats:
    """Insolation at each time, or its mean over some days before."""
    instants = instants_of(time)
    north, east = np.deg2rad(lat, dtype=np.float64), np.deg2rad(lon, dtype=np.float64)
    if days is None:
        upright, level, angle = _angles(instants, 0.0, north)
        total = level * np.cos(angle + east)
        total += upright
        return np.asarray(np.maximum(total, 0.0) * solar_constant)
    num_parts = math.ceil(days / _MOST_DAYS - 1e-9)
    parts = []
    for part in range(num_parts):
        middle = days * ((part + 0.5) / num_parts - 1)
        upright, level, angle = _angles(instants, middle, north)
        parts.append(_mean_above_horizon(upright, level, angle + east, days / num_parts))
    return np.asarray(sum(parts) * (solar_constant / num_parts))


def _angles(instants: Instants, later: float, north: Floats) -> tuple[Floats, Floats, Floats]:
    """The numbers a, b and h in ``a + b cos(h + longitude)``, the light that falls on the plane.

    They are those of ``later`` days after the times. The light at one astronomical unit counts as
    1.
    """
    sun = sun_at(instants.days + later)
    strength = sun.distance**-2.0
    upright = strength * np.sin(sun.declination) * np.sin(north)
    level = strength * np.cos(sun.declination) * np.cos(north)
    turned = (instants.day_fraction + later) * 2 * np.pi - np.pi
    return upright, level, turned + sun.equation_of_time


def _mean_above_horizon(upright: Floats, level: Floats, angle: Floats, days: float) -> Floats:
    """The mean of ``max(0, upright + level cos h)`` over the hours around an hour angle.

    ``h`` runs over ``2 pi days``, with ``angle`` in the middle.
    """
    # At the poles there is no sunset, and nothing to divide by.
    sunset = np.arccos(np.clip(-upright / np.maximum(level, 1e-12), -1.0, 1.0))
    half_day = upright * sunset + level * np.sin(sunset)
    half = np.pi * days
    ends = []
    for end in (angle - half, angle + half):
        turns = np.floor((end + np.pi) / (2 * np.pi))
        within = np.minimum(np.maximum(end - 2 * np.pi * turns, -sunset), sunset)
        since = level * np.sin(within)
        since += upright * within
        since += (2 * turns + 1) * half_day
        ends.append(since)
    return np.maximum(ends[1] - ends[0], 0.0) / (2 * half)


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
