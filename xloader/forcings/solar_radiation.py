"""Insolation: the sunlight that falls on a horizontal plane at the top of the atmosphere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from xloader.errors import OptionError
from xloader.forcings.calendar import Floats, Instants, instants_of
from xloader.forcings.coordinates import on_arrays

Series = tuple[tuple[float, float, float], ...]
"""Terms ``a cos(b + c t)``, with t in millennia: ``a`` in 1e-8, ``b`` and ``c`` in radians."""

_LONGITUDE: Final[tuple[Series, ...]] = (
    (
        (175347046.0, 0.0, 0.0),
        (3341656.0, 4.6692568, 6283.07585),
        (34894.0, 4.6261, 12566.1517),
        (3497.0, 2.7441, 5753.3849),
        (3418.0, 2.8289, 3.5231),
        (3136.0, 3.6277, 77713.7715),
        (2676.0, 4.4181, 7860.4194),
        (2343.0, 6.1352, 3930.2097),
        (1324.0, 0.7425, 11506.7698),
        (1273.0, 2.0371, 529.691),
        (1199.0, 1.1096, 1577.3435),
        (990.0, 5.233, 5884.927),
        (902.0, 2.045, 26.298),
        (857.0, 3.508, 398.149),
        (780.0, 1.179, 5223.694),
        (753.0, 2.533, 5507.553),
        (505.0, 4.583, 18849.228),
        (492.0, 4.205, 775.523),
    ),
    (
        (628331966747.0, 0.0, 0.0),
        (206059.0, 2.678235, 6283.07585),
        (4303.0, 2.6351, 12566.1517),
        (425.0, 1.59, 3.523),
    ),
    ((52919.0, 0.0, 0.0), (8720.0, 1.0721, 6283.0758)),
)
"""Longitude of the Earth seen from the Sun, one series for each power of t: table A4.2."""

_DISTANCE: Final[tuple[Series, ...]] = (
    (
        (100013989.0, 0.0, 0.0),
        (1670700.0, 3.0984635, 6283.07585),
        (13956.0, 3.05525, 12566.1517),
        (3084.0, 5.1985, 77713.7715),
        (1628.0, 1.1739, 5753.3849),
        (1576.0, 2.8469, 7860.4194),
        (925.0, 5.453, 11506.77),
        (542.0, 4.564, 3930.21),
        (472.0, 3.661, 5884.927),
        (346.0, 0.964, 5507.553),
        (329.0, 5.9, 5223.694),
        (307.0, 0.299, 5573.143),
        (243.0, 4.273, 11790.629),
        (212.0, 5.847, 1577.344),
        (186.0, 5.022, 10977.079),
        (175.0, 3.012, 18849.228),
    ),
    ((103019.0, 1.10749, 6283.07585), (1721.0, 1.0644, 12566.1517)),
)
"""Distance of the Earth from the Sun, one series for each power of t."""

_CLOCK_LAG: Final = 67.0 / 86400
"""Days by which clocks on Earth lag behind uniform time; that of the year 2015 is used always."""

_ARC_SECOND: Final = np.pi / (180 * 3600)

SOLAR_CONSTANT: Final = 1361.0
"""Total solar irradiance at one astronomical unit, in W/m2.

G. Kopp and J. L. Lean, "A new, lower value of total solar irradiance", Geophysical Research Letters
38, L01706, 2011: 1360.8 +- 0.5 W/m2.
"""

_MOST_DAYS: Final = 3 / 24
"""Longest interval, in days, over which the Sun counts as standing still beside the stars. Over a
day its drift would change the mean by 0.7 W/m2, over three hours by 0.06."""


@dataclass(frozen=True)
class SunPosition:
    """The place of the Sun as seen from the centre of the Earth, at some times.

    `declination`: its angle above the equator, in radians. `equation_of_time`: apparent less mean
    solar time, as an angle in radians; ``2 pi`` is a day.
    """

    declination: Floats
    equation_of_time: Floats
    distance: Floats


def sun_at(days: Floats) -> SunPosition:
    """The place of the Sun at some times, in arrays of the shape of ``days``."""
    t = (np.asarray(days, np.float64) + _CLOCK_LAG) / 365250.0
    distance = _sum(_DISTANCE, t)
    nodding, tilt_change = _nutation(10 * t)
    aberration = -20.4898 * _ARC_SECOND / distance
    longitude = _sum(_LONGITUDE, t) + np.pi + nodding + aberration
    tilt = _ARC_SECOND * (84381.448 - 468.0150 * t - 0.059 * t**2 + 1.813 * t**3) + tilt_change
    ascension = np.arctan2(np.sin(longitude) * np.cos(tilt), np.cos(longitude))
    mean_longitude = 280.4664567 + 360007.6982779 * t + 0.03032028 * t**2 + t**3 / 49931
    lead = np.deg2rad(mean_longitude - 0.0057183) - ascension + nodding * np.cos(tilt)
    return SunPosition(
        declination=np.arcsin(np.sin(tilt) * np.sin(longitude)),
        equation_of_time=(lead + np.pi) % (2 * np.pi) - np.pi,
        distance=distance,
    )


def _sum(powers: tuple[Series, ...], t: Floats) -> Floats:
    """Sum of the series, each times its power of t."""
    total = np.zeros_like(t)
    for power, series in enumerate(powers):
        size, phase, speed = np.array(series).T
        total += 1e-8 * (np.cos(phase + speed * t[..., None]) @ size) * t**power
    return total


def _nutation(centuries: Floats) -> tuple[Floats, Floats]:
    """Nutation in longitude and in the tilt of the axis, in radians: the four largest terms."""
    node = np.deg2rad(125.04452 - 1934.136261 * centuries)
    sun = np.deg2rad(280.4665 + 36000.7698 * centuries)
    moon = np.deg2rad(218.3165 + 481267.8813 * centuries)
    in_longitude = -17.20 * np.sin(node) - 1.32 * np.sin(2 * sun)
    in_longitude += -0.23 * np.sin(2 * moon) + 0.21 * np.sin(2 * node)
    in_tilt = 9.20 * np.cos(node) + 0.57 * np.cos(2 * sun)
    in_tilt += 0.10 * np.cos(2 * moon) - 0.09 * np.cos(2 * node)
    return _ARC_SECOND * in_longitude, _ARC_SECOND * in_tilt


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
            remedy=f"pass a number of W/m2, or leave it out for {SOLAR_CONSTANT}",
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
    num_pieces = math.ceil(days / _MOST_DAYS - 1e-9)
    means = []
    for piece in range(num_pieces):
        middle = days * ((piece + 0.5) / num_pieces - 1)
        upright, level, angle = _angles(instants, middle, north)
        means.append(_mean_above_horizon(upright, level, angle + east, days / num_pieces))
    return np.asarray(sum(means) * (solar_constant / num_pieces))


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
            remedy='pass a duration above 0, such as "6h", or leave mean out for an instant',
        )
    return days
