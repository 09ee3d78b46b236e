"""The demo's forecast task: variables, dims, lead and the split of time.

The functions open a dataset, choose variables that are maps over time, and stack them as channels.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import show_count, unknown
from xloader.core.option_checks import MOST, check_whole
from xloader.errors import (
    EmptySamplesError,
    MissingDependencyError,
    OptionError,
    SourceNotFoundError,
    UnsupportedDataError,
)
from xloader.forcings.coordinates import angle_of

_TRAIN_SHARE = 0.8
_MIN_TRAIN_SAMPLES = 8


@dataclass(frozen=True)
class ForecastTask:
    """The forecast of all variables ``lead`` time steps ahead, from all variables.

    The early part of the data is for training, the late part is held out for scores::

        steps    0 ............ num_train ............ num_steps
                 [   training   )[   held-out   )
    """

    variables: tuple[str, ...]
    time_dim: str
    space_dims: tuple[str, str]
    lead: int
    num_steps: int
    num_train: int

    @property
    def num_train_samples(self) -> int:
        """Number of (input, target) pairs within the training part."""
        return self.num_train - self.lead

    @property
    def num_test_samples(self) -> int:
        """Number of (input, target) pairs within the held-out part."""
        return self.num_steps - self.num_train - self.lead


def open_dataset(path: str) -> xr.Dataset:
    """Open a Zarr store, or a file in a format that xarray reads, lazily and without dask."""
    is_url = "://" in path
    if not is_url and not Path(path).exists():
        raise SourceNotFoundError(
            "there is no store or file to open",
            given=path,
            remedy="check the path; without --store the demo makes a store of its own",
        )
    is_netcdf = path.endswith((".nc", ".nc4", ".cdf", ".h5"))
    is_zarr = path.rstrip("/").endswith(".zarr") or (not is_url and Path(path).is_dir())
    try:
        with warnings.catch_warnings():
            # xarray warns where there is no consolidated metadata, which Zarr v3 does not have.
            warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated")
            return xr.open_dataset(path, engine="zarr" if is_zarr else None, chunks=None)
    except (OSError, ValueError, KeyError) as error:
        if is_netcdf and not any(find_spec(name) for name in ("netCDF4", "h5netcdf")):
            raise MissingDependencyError(
                "xarray lacks a library for netCDF files", given=path, remedy="pip install netCDF4"
            ) from error
        raise UnsupportedDataError(
            f"the data cannot be opened: {_first_sentence(error)}",
            given=path,
            remedy="pass a Zarr group, or a file that xarray.open_dataset opens",
        ) from error


def find_task(
    dataset: xr.Dataset, *, variables: Sequence[str] = (), time_dim: str = "time", lead: int = 6
) -> ForecastTask:
    """Choose the variables and split time, and check that the data suffice."""
    if time_dim not in dataset.dims:
        what = "the data do not have this time dimension"
        raise unknown(time_dim, dataset.dims, "dimension", what, "name it with --time-dim")
    names = _named(dataset, variables) if variables else _mappable(dataset, time_dim)
    space_dims = _space_dims(dataset, names, time_dim)
    num_steps = dataset.sizes[time_dim]
    num_train = int(num_steps * _TRAIN_SHARE)
    task = ForecastTask(names, time_dim, space_dims, lead, num_steps, num_train)
    check_whole("lead", lead, 1, MOST)
    if task.num_train_samples < _MIN_TRAIN_SAMPLES or task.num_test_samples < 1:
        raise EmptySamplesError(
            f"too few time steps to train and score a forecast {lead} steps ahead",
            given=f"{num_steps} steps along {time_dim!r}",
            allowed=f">= {_least_steps(lead)} steps",
            remedy="pass a smaller --lead, or name another dimension with --time-dim",
        )
    return task


def stack_channels(dataset: xr.Dataset, task: ForecastTask) -> NDArray[np.floating]:
    """The task's variables as one array, the channels of each variable one after another.

    The order of the channels is that of `Samples.channels`.
    """
    parts = []
    for name in task.variables:
        variable = dataset[name].transpose(task.time_dim, ..., *task.space_dims)
        values = variable.values
        parts.append(values.reshape(values.shape[0], -1, *values.shape[-2:]))
    return np.concatenate(parts, axis=1)


def channel_variables(dataset: xr.Dataset, task: ForecastTask) -> tuple[str, ...]:
    """The variable of each channel. A variable with levels is named once for each level."""
    maps = {task.time_dim, *task.space_dims}
    names: list[str] = []
    for name in task.variables:
        sizes = dataset[name].sizes
        names += [name] * int(np.prod([sizes[dim] for dim in sizes if dim not in maps]))
    return tuple(names)


def _first_sentence(error: Exception) -> str:
    """The first sentence of a library's error, without the advice and URLs after it."""
    lines = str(error).splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else type(error).__name__


def _least_steps(lead: int) -> int:
    """The smallest number of time steps for which both parts have enough samples."""
    train_sizes = ((steps, int(steps * _TRAIN_SHARE)) for steps in itertools.count(1))
    return next(
        steps
        for steps, num_train in train_sizes
        if num_train - lead >= _MIN_TRAIN_SAMPLES and steps - num_train - lead >= 1
    )


def _named(dataset: xr.Dataset, variables: Sequence[str]) -> tuple[str, ...]:
    """The given names without repeats, once all are known to be variables."""
    for name in variables:
        if name not in dataset.data_vars:
            what = "the data do not have this variable"
            raise unknown(name, dataset.data_vars, "variable", what)
    return tuple(dict.fromkeys(variables))


def _mappable(dataset: xr.Dataset, time_dim: str) -> tuple[str, ...]:
    """Names of the float variables over time that have the first one's last two dims."""
    names = [
        str(name)
        for name, variable in dataset.data_vars.items()
        if variable.dtype.kind == "f" and time_dim in variable.dims[:-2]
    ]
    if not names:
        raise UnsupportedDataError(
            "no float variable is a map over time",
            given=", ".join(f"{name}{v.dims}" for name, v in dataset.data_vars.items()),
            allowed=f"dims ({time_dim!r}, ..., rows, columns)",
        )
    first = dataset[names[0]].dims[-2:]
    return tuple(name for name in names if dataset[name].dims[-2:] == first)


def _space_dims(dataset: xr.Dataset, names: tuple[str, ...], time_dim: str) -> tuple[str, str]:
    """The last two dims of the variables. Raise if they are not the same for all."""
    space_dims = tuple(str(dim) for dim in dataset[names[0]].dims[-2:])
    for name in names:
        dims = dataset[name].dims
        if time_dim not in dims[:-2] or dims[-2:] != space_dims:
            raise OptionError(
                f"variable {name!r} is not a map over time with the grid of the others",
                given=f"dims {dims}",
                remedy=f"with --variables, name those with dims ({time_dim!r}, ..., rows, columns)",
            )
    rows, columns = space_dims
    return rows, columns


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
