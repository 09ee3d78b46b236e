"""Weights and labels of maps, from the coordinates of a dataset.

The demo scores and draws maps from stores that it has not made itself. These functions find
latitudes and time steps in the coordinates, and have a default where there are none.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.demo.task import ForecastTask
from xloader.forcings.coordinates import angle_of


def row_weights(dataset: xr.Dataset, rows: str) -> NDArray[np.float64]:
    """Weight of each row of a map: the cosine of its latitude, scaled to a mean of 1.

    `dataset`: its coordinate ``rows`` holds the latitudes in degrees north. float64, shape (row,).
    """
    if not is_latitude(dataset, rows):
        return np.ones(dataset.sizes[rows])
    weights = np.maximum(np.cos(np.deg2rad(dataset[rows].values.astype(np.float64))), 0.0)
    return np.asarray(weights / weights.mean())


def is_latitude(dataset: xr.Dataset, dim: str) -> bool:
    """Whether the coordinate of a dim is a latitude, by its CF attributes or its name."""
    if dim not in dataset.coords:
        return False
    return angle_of(dim, dataset[dim].attrs) == "lat"


def is_periodic(dataset: xr.Dataset, dim: str) -> bool:
    """Whether the columns of a map go once round the Earth.

    They do where one more step after the last column makes 360 degrees.
    """
    if dim not in dataset.coords or dataset.sizes[dim] < 4:
        return False
    if dataset[dim].dtype.kind not in "fiu":
        return False
    values = dataset[dim].values.astype(np.float64)
    step = (values[-1] - values[0]) / (len(values) - 1)
    return bool(abs(abs(values[-1] - values[0] + step) - 360.0) < abs(step) / 2)


def lead_label(dataset: xr.Dataset, task: ForecastTask) -> str:
    """The lead as text: in hours or days where the time coordinate holds dates, else in steps."""
    steps = show_count(task.lead, "step")
    times = dataset[task.time_dim].values if task.time_dim in dataset.coords else np.zeros(0)
    if times.dtype.kind != "M":
        return steps
    hours = float((times[task.lead] - times[0]) / np.timedelta64(1, "h"))
    return f"{hours:g} h" if hours <= 240 else f"{steps} (about {hours / 24:.0f} days)"
