"""The demo's samples and its network, made for one store.

Both `xloader.demo.run` and `xloader.demo.ranked` train with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

import xloader
from xloader.demo.climate import Climate
from xloader.demo.maps import is_periodic
from xloader.demo.model import ForecastNet
from xloader.demo.task import ForecastTask

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


def split_samples(path: str, task: ForecastTask, climate: Climate) -> tuple[Samples, Samples]:
    """Samples of the training part and of the held-out part. No window spans both parts."""
    dim = task.time_dim
    stats = {name: (climate.mean[name], climate.std[name]) for name in task.variables}
    opened = xloader.open(path, variables=list(task.variables))

    def samples(part: slice) -> Samples:
        """Samples of one part of the dimension, with targets ``lead`` steps after the inputs."""
        return (
            opened.isel({dim: part})
            .window({dim: task.lead + 1}, stride={dim: 1})
            .inputs(*task.variables, **{dim: 0})
            .targets(*task.variables, **{dim: task.lead})
            .normalize(stats)
            .fillna(0.0)
        )

    return samples(slice(0, task.num_train)), samples(slice(task.num_train, task.num_steps))


def make_net(
    dataset: xr.Dataset, task: ForecastTask, climate: Climate, seed: int
) -> tuple[ForecastNet, NDArray[np.float64]]:
    """The untrained network, and the standard deviation of each channel in its units.

    The network takes and returns normalised values. It is on the GPU where there is one.
    """
    scale = climate.channel_std
    climatology = (climate.cycle - climate.channel_mean) / scale
    spread = climate.spread / scale[:, 0, 0]
    # The seed must not change what the caller draws from torch's own generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ForecastNet(
            climatology.astype(np.float32),
            spread.astype(np.float32),
            climate.mask,
            is_periodic=is_periodic(dataset, task.space_dims[1]),
        )
    return net.to("cuda" if torch.cuda.is_available() else "cpu"), spread
