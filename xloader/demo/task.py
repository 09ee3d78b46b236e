"""The demo's forecast task: maps of moving waves, normalised, to be forecast some steps ahead.

A forecast of 0 is the mean of each place, and a forecast of its own input is that nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

import xloader
from xloader.samples.samples import Samples
from xloader.testing.waves import VARIABLE_ATTRS

LEAD = 6
"""Time steps from input to target."""


@dataclass(frozen=True, eq=False)
class ForecastTask:
    """The forecast of all variables from all variables.

    The early part of the data is for training, the late part is held out for scores::

        steps    0 ............. 80 % ............. 100 %
                 [   training   )[   held-out   )

    `weights`: of the rows in the loss, the cosine of the latitude; their mean is 1.
    """

    store: str
    training: Samples
    held_out: Samples
    mean: xr.Dataset
    spread: xr.Dataset
    weights: Tensor


def make_task(store: str) -> ForecastTask:
    """Split time, and normalise by statistics of the training part."""
    names = tuple(VARIABLE_ATTRS)
    opened = xloader.open(store, variables=names)
    num_train = opened.sizes["time"] * 4 // 5
    stats: Any = xloader.stats(opened.isel(time=slice(num_train)), dim="time", progress=False)
    mean, std = (stats.sel(stat=name, drop=True) for name in ("mean", "std"))
    spread = np.sqrt((std**2).mean(("lat", "lon")))

    def samples(steps: slice) -> Samples:
        """Samples of one part of time. No window spans both parts."""
        windows = opened.isel(time=steps).window(time=LEAD + 1, stride={"time": 1})
        fields = windows.inputs(*names, time=0).targets(*names, time=LEAD)
        return fields.normalize(mean=mean, std=spread)

    weights = torch.cos(torch.deg2rad(torch.tensor(opened.coords["lat"].values))).float()
    return ForecastTask(
        store,
        samples(slice(num_train)),
        samples(slice(num_train, None)),
        mean,
        spread,
        (weights / weights.mean())[:, None],
    )


class PlainDataset(Dataset[Any]):
    """The training samples as most projects begin: each is read when PyTorch asks for it."""

    def __init__(self, task: ForecastTask) -> None:
        self.data = xr.open_zarr(task.store, chunks=None, consolidated=False)
        self.size = len(task.training)
        self.mean = np.stack([task.mean[name].values for name in VARIABLE_ATTRS])
        self.spread = np.stack([task.spread[name].values for name in VARIABLE_ATTRS])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # Both times in one read: mostly they lie in one chunk.
        pair = self.data.isel(time=[index, index + LEAD])
        values = np.stack([pair[name].values for name in VARIABLE_ATTRS], axis=1)
        scaled = ((values - self.mean) / self.spread[:, None, None]).astype(np.float32)
        return scaled[0], scaled[1]
