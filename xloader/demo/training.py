"""Training for a number of steps, bounded by time, and evaluation on held-out time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xloader.demo.climate import Climate
from xloader.demo.scores import ErrorSums
from xloader.errors import UnsupportedDataError

if TYPE_CHECKING:
    from xloader.loader.batch import Batch
    from xloader.loader.loader import Loader
    from xloader.loader.report import Report
    from xloader.planning.explain import Explanation

_PEAK_RATE = 2e-3
_WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Progress:
    """How far training has come.

    Parameters
    ----------
    share : float
        Of the steps or of the time, whichever is nearer to its end, 0 to 1.
    epoch, step : int
        Counted from 1.
    loss : float
        RMSE of the training batches, smoothed, in units of each channel's spread in time.
    """

    share: float
    epoch: int
    step: int
    loss: float


@dataclass(frozen=True)
class Calendar:
    """Phase of the climatology at each sample's input and target.

    Parameters
    ----------
    phases : torch.Tensor
        int64, one for each time step of the part of the data that the samples are of.
    lead : int
        Steps from input to target.
    """

    phases: Tensor
    lead: int

    def of_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Phases of the inputs and of the targets, int64 (batch,) each.

        The windows move by one step, so a sample's id is the step of its input.
        """
        ids = torch.from_numpy(np.array(batch.ids))
        return self.phases[ids], self.phases[ids + self.lead]


@dataclass(frozen=True)
class TrainingResult:
    """What training did.

    Parameters
    ----------
    num_steps, num_asked : int
        Batches trained on, and those that were to be.
    epoch_size : int
        Batches of an epoch.
    seconds : float
        Wall time.
    explanation, report : Explanation, Report
        Prediction and measurement of the last complete epoch, or of the only one begun.
    """

    num_steps: int
    num_asked: int
    epoch_size: int
    seconds: float
    explanation: Explanation
    report: Report

    @property
    def num_epochs(self) -> int:
        """Complete passes over the training part."""
        return self.num_steps // self.epoch_size

    @property
    def num_cut(self) -> int:
        """Batches of the last pass where it was cut off; else 0."""
        return self.num_steps % self.epoch_size

    @property
    def is_out_of_time(self) -> bool:
        """Whether time ran out before all steps were done."""
        return self.num_steps < self.num_asked

    def describe(self) -> str:
        """What was trained, in plain words: whether time ran out, and an epoch was cut off."""
        epochs = f"{self.num_epochs} whole epoch{'s' * (self.num_epochs != 1)}"
        if self.num_cut:
            epochs += (
                f", and {self.num_cut} of the {self.epoch_size} batches of one that was cut off"
            )
        text = (
            f"Trained {self.num_steps} of {self.num_asked} steps in {self.seconds:.0f} s: {epochs}"
        )
        if self.is_out_of_time:
            text += (
                "\nTime ran out: with all its steps the network would make smaller errors than "
                "those below. Pass more --seconds"
            )
        return text


def loss_weights(rows: NDArray[np.float64], climate: Climate) -> NDArray[np.float64]:
    """Weight of each grid point: its row's, and 0 where it has no value.

    Parameters
    ----------
    rows : numpy.ndarray
        Weight of each row, shape (row,).
    climate : Climate
        Holds the mask.

    Returns
    -------
    numpy.ndarray
        float64, shape (channel, row, column).
    """
    return np.asarray(climate.mask * rows[:, None])


def train(
    net: nn.Module,
    loader: Loader,
    *,
    calendar: Calendar,
    weights: NDArray[np.float64],
    spread: NDArray[np.float64],
    steps: int,
    seconds: float,
    on_progress: Callable[[Progress], None],
) -> TrainingResult:
    """Train for so many steps, or until time runs out: one step at least.

    The learning rate falls to 0 by the last step, or by the end of the time if that comes sooner.

    Parameters
    ----------
    net : torch.nn.Module
        Trained in place, on the device that it is on.
    loader : Loader
        Yields normalised (inputs, targets).
    calendar : Calendar
        Phases of the training part.
    weights : numpy.ndarray
        Weight of each grid point, shape (channel, row, column).
    spread : numpy.ndarray
        What an error of 1 is in each channel, in normalised units, shape (channel,).
    steps : int
        Batches to train on.
    seconds : float
        Wall time after which no further step begins.
    on_progress : callable
        Called after each step.

    Returns
    -------
    Training

    Raises
    ------
    UnsupportedDataError
        The loss is not finite.
    """
    device = next(net.parameters()).device
    scale = weights / weights.mean() / np.square(spread)[:, None, None]
    point_scale = torch.from_numpy(scale.astype(np.float32)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=_PEAK_RATE, weight_decay=1e-2)
    begin = time.perf_counter()
    smooth, step, share = 0.0, 0, 0.0
    kept: tuple[Explanation, Report] | None = None
    while kept is None or share < 1:
        predicted = loader.explain()
        for batch in loader:
            _set_rate(optimizer, share)
            loss = _step(net, optimizer, batch, calendar, point_scale)
            step += 1
            smooth += (loss - smooth) / min(step, 20)
            share = max((time.perf_counter() - begin) / seconds, step / steps)
            epoch = -(-step // len(loader))
            on_progress(Progress(min(share, 1.0), epoch, step, smooth**0.5))
            if share >= 1:
                break
        if kept is None or not step % len(loader):
            kept = predicted, loader.report()
    return TrainingResult(step, steps, len(loader), time.perf_counter() - begin, *kept)


def _set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Warm up, then fall to 0 along a cosine by the end of the budget."""
    fall = 0.5 + 0.5 * np.cos(np.pi * min(share, 1.0))
    rate = _PEAK_RATE * min(1.0, (share + 0.005) / _WARMUP_SHARE) * fall
    for group in optimizer.param_groups:
        group["lr"] = rate


def _step(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    calendar: Calendar,
    point_scale: Tensor,
) -> float:
    """One step of the optimizer; returns the loss before it."""
    error = _forecast(net, batch, calendar) - batch[1].to(point_scale.device).float()
    loss = (error.square() * point_scale).mean()
    value = float(loss.item())
    if not np.isfinite(value):
        raise UnsupportedDataError(
            "the loss is not finite",
            given=value,
            remedy="look for infinite values in the data, or for a very short record",
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return value


def _forecast(net: nn.Module, batch: Batch, calendar: Calendar) -> Tensor:
    """What the network makes of a batch, on the network's device."""
    device = next(net.parameters()).device
    now, then = calendar.of_batch(batch)
    maps: Tensor = net(batch[0].to(device).float(), now.to(device), then.to(device))
    return maps


@dataclass(frozen=True)
class Example:
    """One forecast, to be looked at.

    Parameters
    ----------
    index : int
        Which held-out sample it is.
    truth, forecast, persistence : numpy.ndarray
        Maps in the variables' units, shape (channel, row, column).
    """

    index: int
    truth: NDArray[np.float32]
    forecast: NDArray[np.float32]
    persistence: NDArray[np.float32]


def evaluate(
    net: nn.Module,
    loader: Iterable[Batch],
    *,
    calendar: Calendar,
    climate: Climate,
    weights: NDArray[np.float64],
    example_index: int,
    seconds: float,
) -> tuple[ErrorSums, Example]:
    """Forecast the held-out samples in order, for some seconds at most.

    Parameters
    ----------
    net : torch.nn.Module
        The trained network.
    loader : iterable
        Yields normalised (inputs, targets) in the order of time.
    calendar : Calendar
        Phases of the held-out part.
    climate : Climate
        Turns normalised values back into units, and gives the climatology.
    weights : numpy.ndarray
        Weight of each grid point, shape (channel, row, column).
    example_index : int
        The sample to keep; the first one if it is not reached.
    seconds : float
        Stop after the first batch that comes later than this.

    Returns
    -------
    tuple of (ErrorSums, Example)
    """
    sums = ErrorSums(weights)
    kept: Example | None = None
    begin = time.perf_counter()
    net.eval()
    for batch in loader:
        with torch.inference_mode():
            outputs = _forecast(net, batch, calendar)
        now, forecast, truth = (_to_units(maps, climate) for maps in (batch[0], outputs, batch[1]))
        first = sums.num_samples
        means = climate.cycle[calendar.of_batch(batch)[1].numpy()]
        sums.add(truth, forecast=forecast, persistence=now, climatology=means)
        row = example_index - first
        if kept is None or 0 <= row < len(truth):
            row = row if 0 <= row < len(truth) else 0
            kept = Example(first + row, truth[row], forecast[row], now[row])
        if time.perf_counter() - begin > seconds:
            break
    if kept is None:
        raise UnsupportedDataError("there is no held-out sample")
    return sums, kept


def _to_units(maps: Tensor, climate: Climate) -> NDArray[np.float32]:
    """Normalised maps in the variables' units; copied, as a batch may be reused."""
    values = maps.detach().cpu().float().numpy()
    return np.asarray(values * climate.channel_std + climate.channel_mean)
