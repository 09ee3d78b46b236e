"""Mean, standard deviation and mask of the training part, from at most 1024 of its time steps.

The demo normalises values by them, and scores its forecast against the climatology.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.demo.task import ForecastTask, channel_variables, stack_channels
from xloader.errors import UnsupportedDataError

_MAX_STEPS = 1024
_DEFAULT_BLOCK = 16
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
    phases = _phases(dataset, task)
    num_phases = int(phases.max()) + 1
    count = total = square = np.zeros(0)
    num_steps = 0
    for start, stop in _blocks(dataset, task):
        steps = dataset.isel({task.time_dim: slice(start, stop)})
        block = stack_channels(steps, task).astype(np.float64)
        if not num_steps:
            count, total, square = (np.zeros((num_phases, *block.shape[1:])) for _ in range(3))
        is_valid = np.isfinite(block)
        values = np.where(is_valid, block, 0.0)
        for phase in np.unique(phases[start:stop]):
            rows = phases[start:stop] == phase
            count[phase] += is_valid[rows].sum(axis=0)
            total[phase] += values[rows].sum(axis=0)
            square[phase] += np.square(values[rows]).sum(axis=0)
        num_steps += stop - start
    return _sum_up(task, channel_variables(dataset, task), phases, num_steps, count, total, square)


def _sum_up(
    task: ForecastTask,
    names: tuple[str, ...],
    phases: NDArray[np.int64],
    num_steps: int,
    count: NDArray[np.float64],
    total: NDArray[np.float64],
    square: NDArray[np.float64],
) -> Climate:
    """The `Climate` from sums over time."""
    mask = count.sum(axis=0) == num_steps
    mean, std, nan_share = {}, {}, {}
    for name in task.variables:
        rows = [channel for channel, owner in enumerate(names) if owner == name]
        if not all(mask[row].any() for row in rows):
            raise UnsupportedDataError(
                f"variable {name!r} has no grid point with values at every step",
                given=f"{num_steps} steps of the training part",
                remedy="name other variables with --variables",
            )
        num_values = count[:, rows].sum()
        mean[name] = float(total[:, rows].sum() / num_values)
        variance = square[:, rows].sum() / num_values - mean[name] ** 2
        std[name] = float(np.sqrt(max(variance, 0.0)))
        nan_share[name] = float(1 - num_values / (num_steps * mask[rows].size))
    fill = np.array([mean[name] for name in names])[:, None, None]
    points = count.sum(axis=0)
    point_mean = np.where(points > 0, total.sum(axis=0) / np.maximum(points, 1), fill)
    cycle = np.where(count > 0, total / np.maximum(count, 1), point_mean)
    scatter = (square - total**2 / np.maximum(count, 1)).sum(axis=0) / np.maximum(points, 1)
    spread = np.sqrt([np.mean(np.maximum(s[m], 0.0)) for s, m in zip(scatter, mask, strict=True)])
    for name, size in zip(names, spread, strict=True):
        # A difference of sums of squares keeps only about half of the digits of a float64.
        if not size > 1e-7 * max(abs(mean[name]), std[name]):
            raise UnsupportedDataError(
                f"variable {name!r} does not change with time",
                given=f"standard deviation {size:.3g} about each grid point's mean",
                remedy="name other variables with --variables",
            )
    return Climate(
        mean, std, cycle.astype(np.float32), phases, spread, mask, nan_share, names, num_steps
    )


def _blocks(dataset: xr.Dataset, task: ForecastTask) -> list[tuple[int, int]]:
    """Blocks ``[start, stop)`` of time steps to read, spread evenly over the training part."""
    chunks = dataset[task.variables[0]].encoding.get("preferred_chunks", {})
    size = int(chunks.get(task.time_dim, _DEFAULT_BLOCK))
    # Short chunks are read several at a time, for speed. Long ones are cut, to save memory.
    size = min(size * -(-_DEFAULT_BLOCK // size), 4 * _DEFAULT_BLOCK)
    starts = np.arange(0, task.num_train, size)
    num_blocks = min(starts.size, max(1, _MAX_STEPS // size))
    chosen = starts[np.linspace(0, starts.size - 1, num_blocks).round().astype(int)]
    return [(int(start), min(int(start) + size, task.num_train)) for start in chosen]


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
