"""Where the Sun stands: its declination, its distance and the equation of time.

The formulas are those of the Solar Position Algorithm of the National Renewable Energy Laboratory
(I. Reda and A. Andreas, "Solar position algorithm for solar radiation applications", Solar Energy
76, 577-589, 2004, revised 2008), which is exact to 0.0003 degrees. Only the largest terms of its
series are kept: from 1940 to 2100, insolation differs by 0.04 W/m2 at most from that of the
complete algorithm. Simpler formulas, such as Spencer's of 1971, miss it by several tenths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.forcings.calendar import Floats

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
    """The place of the Sun at some times.

    Arrays of the shape of ``days``.
    """
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
