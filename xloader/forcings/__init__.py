"""Forcings: variables that are computed from time and place, and need no reading.

Each function takes labels by the names of its parameters, ``time``, ``lat`` and ``lon``, and gives
one value for each element. ``samples.forcing("insolation")`` computes them where batches are made.
They also take coordinates of xarray, and then give a DataArray:

>>> import numpy as np, xarray as xr
>>> time = xr.DataArray(np.arange("2000-03-20T00", "2000-03-21T00", 6, "M8[h]"), dims="time")
>>> lat = xr.DataArray([-60.0, 0.0, 60.0], dims="lat")
>>> insolation(time, lat, 0.0).round().values.astype(int).tolist()
[[0, 0, 0], [0, 0, 0], [684, 1371, 687], [18, 44, 25]]
"""

from xloader.forcings.cycles import (
    cos_day_of_year,
    cos_local_time,
    cos_longitude,
    latitude,
    sin_day_of_year,
    sin_local_time,
    sin_longitude,
)
from xloader.forcings.solar_radiation import insolation

__all__ = [
    "cos_day_of_year",
    "cos_local_time",
    "cos_longitude",
    "insolation",
    "latitude",
    "sin_day_of_year",
    "sin_local_time",
    "sin_longitude",
]
