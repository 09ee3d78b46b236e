"""The forecast task: variables on one grid, samples to train on and samples to score.

The samples are normalised: each holds the departure from the mean of its place, and of its calendar
month if the data are monthly, in standard deviations. So a forecast of 0 is the climatology, and a
forecast of its own input is persistence. Where there is no value, the samples hold 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

import xloader
from xloader.core.messages import show_count, unknown
from xloader.core.option_checks import MOST, check_whole
from xloader.errors import EmptySamplesError, UnsupportedDataError
from xloader.forcings.coordinates import angle_of
from xloader.samples.samples import Samples

# Statistics come from at most so many steps of the training part, in blocks spread evenly over it.
_MOST_STEPS = 1024
_BLOCK = 16
# The standard deviation of cells that must not count: what is divided by it becomes 0.
_NO_DEPARTURES = 1e30


@dataclass(frozen=True, eq=False)
class ForecastTask:
    """The forecast of all variables ``lead`` time steps ahead, from all variables.

    The early part of the data is for training, the late part is held out for scores::

        steps    0 ............. 80 % ............. 100 %
                 [   training   )[   held-out   )

    `mean`: of each place, and month. `spread`: standard deviation about it, of each variable and
    level. `weights`: of the cells in loss and scores, shape (channel, row, column): the cosine of
    the latitude, and 0 where a value is missing at some step. Their mean is 1.
    """

    variables: tuple[str, ...]
    time_dim: str
    grid: tuple[str, str]
    lead: int
    training: Samples
    held_out: Samples
    mean: xr.Dataset
    spread: xr.Dataset
    weights: NDArray[np.float32]


def make_task(
    data: Any, *, variables: Sequence[str] = (), time_dim: str = "time", lead: int = 6
) -> ForecastTask:
    """Choose the variables, split time, and normalise by statistics of the training part."""
    check_whole("lead", lead, 1, MOST)
    names, grid = _maps(data, variables, time_dim)
    opened = xloader.open(data, variables=names)
    num_steps = opened.sizes[time_dim]
    num_train = num_steps * 4 // 5
    if num_steps - num_train <= lead:
        raise EmptySamplesError(
            f"too few time steps to train and score a forecast {lead} steps ahead",
            given=f"{num_steps} steps along {time_dim!r}",
            allowed=f">= {5 * lead + 1} steps",
            remedy="pass a smaller lead, or name another dimension of time",
        )
    part = opened.isel({time_dim: _spread_steps(num_train)})
    # Monthly data have a mean for each calendar month.
    over = ["month"] if num_train >= 24 and _is_monthly(opened.coords, time_dim) else []
    stats: Any = xloader.stats(part, dim=time_dim, by=over[0] if over else None, progress=False)
    count, mean, std = (stats[list(names)].sel(stat=s, drop=True) for s in ("count", "mean", "std"))
    is_whole = count.sum(over) == part.sizes[time_dim]
    variance = (count * std**2).sum(over) / part.sizes[time_dim]
    spread = np.sqrt(variance.where(is_whole).mean(grid))
    # Sums of many values keep only some of the digits of a float64.
    is_moving = (spread > 1e-7 * abs(mean).fillna(0).max()).all()
    for name in names:
        if not is_moving[name]:
            raise UnsupportedDataError(
                f"variable {name!r} has no place with values at every step that change with time",
                given=show_count(part.sizes[time_dim], "step") + " of the training part",
                remedy="look for infinite values, or name other variables with --variables",
            )

    def samples(steps: slice) -> Samples:
        """Samples of one part of time. No window spans both parts."""
        windows = opened.isel({time_dim: steps}).window({time_dim: lead + 1}, stride={time_dim: 1})
        fields = windows.inputs(*names, **{time_dim: 0}).targets(*names, **{time_dim: lead})
        # A cell without a weight may have any values later: its departures become 0.
        scale = spread.where(is_whole, _NO_DEPARTURES)
        return fields.normalize(mean=mean.fillna(0.0), std=scale).fillna(0.0)

    weights = _channels(is_whole * _row_weights(opened.coords, grid[0]), grid)
    return ForecastTask(
        variables=names,
        time_dim=time_dim,
        grid=grid,
        lead=lead,
        training=samples(slice(num_train)),
        held_out=samples(slice(num_train, None)),
        mean=mean,
        spread=spread,
        weights=(weights / weights.mean()).astype(np.float32),
    )


def is_periodic(coords: xr.Coordinates, dim: str) -> bool:
    """Whether the columns of a map go once round the Earth: one more step makes 360 degrees."""
    if dim not in coords or coords[dim].dtype.kind not in "fiu" or coords[dim].size < 4:
        return False
    values = coords[dim].values.astype(np.float64)
    step = np.diff(values).mean()
    return bool(abs(abs(values[-1] - values[0] + step) - 360.0) < abs(step) / 2)


def _maps(
    data: Any, variables: Sequence[str], time_dim: str
) -> tuple[tuple[str, ...], tuple[str, str]]:
    """The variables to forecast, and the dimensions of their rows and columns."""
    variables = tuple(dict.fromkeys(variables))
    opened = xloader.open(data, variables=variables or None)
    if time_dim not in opened.dims:
        what = "the data do not have this time dimension"
        raise unknown(time_dim, opened.dims, "dimension", what, "name it with --time-dim")
    dims = {name: variable.dims for name, variable in opened.recipe.source.variables.items()}
    grids = {
        name: dims[name][-2:]
        for name, variable in opened.recipe.source.variables.items()
        if variable.dtype.kind == "f" and time_dim in dims[name][:-2]
    }
    names = variables or tuple(grids)
    grid = grids.get(names[0]) if names else None
    others = [name for name in names if grids.get(name) != grid]
    if grid is None or (variables and others):
        raise UnsupportedDataError(
            "the benchmark forecasts float variables that are maps over time, all on one grid",
            given=", ".join(f"{name}{dims[name]}" for name in names or dims),
            allowed=f"dims ({time_dim!r}, ..., rows, columns)",
            remedy="name such variables with --variables, and their time with --time-dim",
        )
    rows, columns = grid
    return tuple(name for name in names if name not in others), (rows, columns)


def _channels(maps: xr.Dataset, grid: tuple[str, str]) -> NDArray[Any]:
    """The maps of all variables, one after another in the order of `Samples.channels`.

    All dimensions but those of the grid become the channels, shape (channel, row, column).
    """
    variables = [maps[name].transpose(..., *grid).values for name in maps]
    return np.concatenate([values.reshape(-1, *values.shape[-2:]) for values in variables])


def _spread_steps(num_train: int) -> NDArray[np.int64]:
    """The time steps that statistics come from."""
    if num_train <= _MOST_STEPS:
        return np.arange(num_train)
    blocks = np.linspace(0, num_train // _BLOCK - 1, _MOST_STEPS // _BLOCK).round().astype(int)
    return (_BLOCK * blocks[:, None] + np.arange(_BLOCK)).ravel()


def _is_monthly(coords: xr.Coordinates, time_dim: str) -> bool:
    """Whether all steps are as long as a month."""
    if time_dim not in coords or coords[time_dim].dtype.kind != "M":
        return False
    days = np.diff(coords[time_dim].values) / np.timedelta64(1, "D")
    return bool(days.min() >= 27 and days.max() <= 32)


def is_latitude(coords: xr.Coordinates, dim: str) -> bool:
    """Whether the labels of a dimension are latitudes."""
    return dim in coords and angle_of(dim, coords[dim].attrs) == "lat"


def _row_weights(coords: xr.Coordinates, rows: str) -> xr.DataArray | float:
    """The cosine of the latitude, or 1 where the rows are not latitudes."""
    if not is_latitude(coords, rows):
        return 1.0
    weights = np.cos(np.deg2rad(coords[rows].values.astype(np.float64)))
    return xr.DataArray(np.maximum(weights, 0.0), dims=[rows])
