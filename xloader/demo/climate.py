"""Mean, standard deviation and mask of the training part, from at most 1024 of its time steps.

The demo normalises values by them, and scores its forecast against the climatology.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

import xloader
from xloader.demo.task import ForecastTask, channel_variables, stack_channels
from xloader.errors import UnsupportedDataError

_MAX_STEPS = 1024
_BLOCK = 16
_MONTH = np.timedelta64(27 * 24, "h"), np.timedelta64(32 * 24, "h")


@dataclass(frozen=True)
class Climate:
    """Statistics of the training part per variable, per channel and per grid point."""

    mean: dict[str, float]
    std: dict[str, float]
    cycle: NDArray[np.float32]
    phases: NDArray[np.int64]
    spread: NDArray[np.float64]
    mask: NDArray[np.bool_]
    nan_share: dict[str, float]
    channel_variables: tuple[str, ...]
    num_steps: int

    @property
    def channel_mean(self) -> NDArray[np.float32]:
        """Mean of each channel's variable, shape (channel, 1, 1)."""
        return _per_channel(self.mean, self.channel_variables)

    @property
    def channel_std(self) -> NDArray[np.float32]:
        """Standard deviation of each channel's variable, shape (channel, 1, 1)."""
        return _per_channel(self.std, self.channel_variables)


def _per_channel(values: dict[str, float], names: tuple[str, ...]) -> NDArray[np.float32]:
    """The value of each channel's variable, float32 (channel, 1, 1)."""
    return np.array([values[name] for name in names], dtype=np.float32)[:, None, None]


def measure_climate(dataset: xr.Dataset, task: ForecastTask) -> Climate:
    """Statistics of the training part, from blocks of time steps spread evenly over it."""
    names, phases, steps = channel_variables(dataset, task), _phases(dataset, task), _steps(task)
    part = dataset[list(task.variables)].isel({task.time_dim: steps})
    by = "month" if phases.any() else None
    stats: Any = xloader.stats(part, dim=task.time_dim, by=by, progress=False)
    stats = stats.rename({by: task.time_dim}) if by else stats.expand_dims(task.time_dim)
    # Each is float64 (phase, channel, row, column).
    count, mean, std = (
        np.nan_to_num(stack_channels(stats.sel(stat=stat), task))
        for stat in ("count", "mean", "std")
    )
    points = count.sum(axis=0)
    mask = points == len(steps)
    means, stds, nan_share = {}, {}, {}
    for name in task.variables:
        rows = [channel for channel, owner in enumerate(names) if owner == name]
        if not all(mask[row].any() for row in rows):
            raise UnsupportedDataError(
                f"variable {name!r} has no grid point with values at every step",
                given=f"{len(steps)} steps of the training part",
                remedy="name other variables with --variables",
            )
        weights = count[:, rows]
        means[name] = float(np.average(mean[:, rows], weights=weights))
        squares = std[:, rows] ** 2 + (mean[:, rows] - means[name]) ** 2
        stds[name] = float(np.sqrt(np.average(squares, weights=weights)))
        nan_share[name] = float(1 - weights.sum() / (len(steps) * mask[rows].size))
    fill = np.array([means[name] for name in names])[:, None, None]
    held = np.maximum(points, 1)
    point_mean = np.where(points > 0, (count * mean).sum(axis=0) / held, fill)
    scatter = (count * std**2).sum(axis=0) / held
    spread = np.sqrt([np.mean(values[has]) for values, has in zip(scatter, mask, strict=True)])
    for name, size in zip(names, spread, strict=True):
        # Sums of many values keep only some of the digits of a float64.
        if not size > 1e-7 * max(abs(means[name]), stds[name]):
            raise UnsupportedDataError(
                f"variable {name!r} does not change with time",
                given=f"standard deviation {size:.3g} about each grid point's mean",
                remedy="name other variables with --variables",
            )
    cycle = np.where(count > 0, mean, point_mean).astype(np.float32)
    return Climate(means, stds, cycle, phases, spread, mask, nan_share, names, len(steps))


def _steps(task: ForecastTask) -> NDArray[np.int64]:
    """The time steps to read: all, or blocks of them spread evenly over the training part."""
    if task.num_train <= _MAX_STEPS:
        return np.arange(task.num_train)
    blocks = np.linspace(0, task.num_train // _BLOCK - 1, _MAX_STEPS // _BLOCK).round().astype(int)
    return (_BLOCK * blocks[:, None] + np.arange(_BLOCK)).ravel()


def _phases(dataset: xr.Dataset, task: ForecastTask) -> NDArray[np.int64]:
    """Phase of every time step: the calendar month from 0 to 11 for monthly data, else 0.

    The data count as monthly where all steps are 27 to 32 days apart. The training part must have
    24 steps or more, so that each month has a mean.
    """
    still = np.zeros(task.num_steps, dtype=np.int64)
    if task.time_dim not in dataset.coords or task.num_train < 24:
        return still
    times = dataset[task.time_dim]
    if times.dtype.kind != "M":
        return still
    shortest, longest = _MONTH
    gaps = np.diff(times.values)
    if not ((gaps >= shortest) & (gaps <= longest)).all():
        return still
    return np.asarray(times.dt.month.values, dtype=np.int64) - 1
