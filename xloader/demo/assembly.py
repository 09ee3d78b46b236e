"""The demo's samples and its network, put together for one store."""

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
    """Samples of the training and of the held-out part; no window crosses between them.

    Parameters
    ----------
    path : str
        The store.
    task : ForecastTask
        What is forecast from what.
    climate : Climate
        Scales the values.

    Returns
    -------
    tuple of (Samples, Samples)
    """
    dim = task.time_dim
    stats = {name: (climate.mean[name], climate.std[name]) for name in task.variables}
    opened = xloader.open(path, variables=list(task.variables))

    def samples(part: slice) -> Samples:
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
    """The network, which works on normalised values, and the spread of its channels there.

    Parameters
    ----------
    dataset : xarray.Dataset
        Says whether the map is round.
    task : ForecastTask
        What is forecast from what.
    climate : Climate
        What the network takes off.
    seed : int
        Of its first weights.

    Returns
    -------
    tuple of (ForecastNet, numpy.ndarray)
        The array has the shape (channel,).
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
