"""The plain torch dataset that the demo compares xloader with.

It reads each sample from the store by itself, so a chunk is read again for every sample in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from xloader.demo.task import ForecastTask, stack_channels


class PlainDataset(Dataset[tuple[Tensor, Tensor]]):
    """Map-style dataset that reads the two time steps of one sample by ``dataset.isel``."""

    def __init__(self, dataset: xr.Dataset, task: ForecastTask) -> None:
        self._dataset = dataset[list(task.variables)]
        self._task = task

    def __len__(self) -> int:
        return self._task.num_train_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        steps = [index, index + self._task.lead]
        pair = stack_channels(self._dataset.isel({self._task.time_dim: steps}), self._task)
        inputs, targets = torch.from_numpy(pair.astype(np.float32, copy=False))
        return inputs, targets


@dataclass(frozen=True)
class Speed:
    """Number and size of the batches that a loader delivered, and the time they took."""

    num_batches: int
    delivered_nbytes: int
    seconds: float
    is_whole_epoch: bool

    @property
    def gb_per_second(self) -> float:
        """Delivered bytes per second, in units of 10^9 bytes."""
        return self.delivered_nbytes / self.seconds / 1e9


def measure_plain(
    dataset: xr.Dataset, task: ForecastTask, *, batch_size: int, seed: int, seconds: float
) -> Speed:
    """Time torch's own ``DataLoader(shuffle=True)`` over a `PlainDataset`, without a model."""
    loader = DataLoader(
        PlainDataset(dataset, task),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    return measure_speed(loader, seconds=seconds)


def measure_speed(loader: object, *, seconds: float) -> Speed:
    """Time the batches of one epoch of a loader, without a model."""
    begin = time.perf_counter()
    num_batches = num_bytes = 0
    elapsed = 0.0
    is_whole = True
    for inputs, targets in loader:  # type: ignore[attr-defined]
        num_batches += 1
        num_bytes += inputs.nbytes + targets.nbytes
        elapsed = time.perf_counter() - begin
        if elapsed > seconds:
            is_whole = False
            break
    return Speed(num_batches, num_bytes, max(elapsed, 1e-9), is_whole)
