"""Training for a number of steps within a time limit, and evaluation on the held-out part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

import xloader
from xloader.core.messages import show_count
from xloader.demo.climate import Climate
from xloader.demo.model import ForecastNet
from xloader.demo.task import ForecastTask, is_periodic
from xloader.errors import UnsupportedDataError
from xloader.show.cards import align_columns

if TYPE_CHECKING:
    from xloader.loader.batches.batch import Batch
    from xloader.loader.loader import Loader
    from xloader.loader.reports.report import Report
    from xloader.planning.explain import Explanation
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


@dataclass(frozen=True)
class Score:
    """Root mean squared errors of one variable, or of all variables normalised."""

    name: str
    units: str
    forecast: float
    persistence: float
    climatology: float

    @property
    def gain(self) -> float:
        """Reduction of the RMSE against persistence, as a share: 0.3 is 30 %."""
        return 1 - self.forecast / self.persistence if self.persistence else 0.0


class ErrorSums:
    """Squared errors, summed over batches of maps."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._weights = weights
        self._sums: dict[str, NDArray[np.float64]] = {}
        self.num_samples = 0

    def add(self, truth: NDArray[np.float32], **guesses: NDArray[np.float32]) -> None:
        """Add the squared errors of a batch."""
        for name, guess in guesses.items():
            errors = np.square(guess - truth, dtype=np.float64).sum(axis=0)
            sums = (errors * self._weights).sum(axis=(1, 2))
            self._sums[name] = self._sums.get(name, 0.0) + sums
        self.num_samples += len(truth)

    def mean_squares(self) -> dict[str, NDArray[np.float64]]:
        """Weighted mean squared error of each channel, float64 (channel,), by method."""
        total = self.num_samples * self._weights.sum(axis=(1, 2))
        return {name: sums / total for name, sums in self._sums.items()}


def make_scores(sums: ErrorSums, climate: Climate, units: dict[str, str]) -> tuple[Score, ...]:
    """The scores of each variable, and of all variables together."""
    squares = sums.mean_squares()
    names = np.array(climate.channel_variables)
    scores = [
        Score(
            name,
            units[name],
            **{k: float(v[names == name].mean() ** 0.5) for k, v in squares.items()},
        )
        for name in climate.mean
    ]
    overall = {k: float(np.mean(v / climate.spread**2) ** 0.5) for k, v in squares.items()}
    return (*scores, Score("all, normalised", "", **overall))


def format_scores(scores: tuple[Score, ...]) -> str:
    """The scores as a table of text."""
    head = ("variable", "units", "forecast", "persistence", "climatology", "gain on persistence")
    rows = [
        (
            s.name,
            s.units,
            *(f"{value:.3g}" for value in (s.forecast, s.persistence, s.climatology)),
            f"{100 * s.gain:.0f} %",
        )
        for s in scores
    ]
    return align_columns((head, *rows), num_left=2)


_PEAK_RATE = 2e-3
_WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Progress:
    """The progress of a training."""

    share: float
    epoch: int
    step: int
    loss: float


@dataclass(frozen=True)
class Calendar:
    """Phase of the climatology at each sample's input and target."""

    phases: Tensor
    lead: int

    def of_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Phases of the inputs and of the targets of a batch.

        The stride of the windows is 1, so a sample's id is the time step of its input.
        """
        ids = torch.from_numpy(np.array(batch.ids))
        return self.phases[ids], self.phases[ids + self.lead]


@dataclass(frozen=True)
class TrainingResult:
    """Length and time of a training, with explanation and report of one epoch."""

    num_steps: int
    num_asked: int
    epoch_size: int
    seconds: float
    explanation: Explanation
    report: Report

    @property
    def num_epochs(self) -> int:
        """Number of complete epochs."""
        return self.num_steps // self.epoch_size

    @property
    def num_cut(self) -> int:
        """Number of batches of the last epoch if it was cut off, else 0."""
        return self.num_steps % self.epoch_size

    def describe(self) -> str:
        """Summary in one or two sentences: steps, time, epochs, and whether time ran out."""
        epochs = show_count(self.num_epochs, "whole epoch")
        if self.num_cut:
            epochs += f", and {self.num_cut} of the {self.epoch_size} batches of an unfinished one"
        steps = f"{self.num_steps} of {self.num_asked} steps"
        text = f"Trained {steps} in {self.seconds:.0f} s: {epochs}"
        if self.num_steps < self.num_asked:
            text += (
                "\nTime ran out. After all its steps, the network would make smaller errors than "
                "those below: pass more --seconds"
            )
        return text


def loss_weights(rows: NDArray[np.float64], climate: Climate) -> NDArray[np.float64]:
    """Weight of each grid point: the weight of its row, and 0 where it has no value.

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
    """Train for a number of steps, or until a time limit, and for one step at least.

    The learning rate falls to 0 by the last step, or by the time limit if that comes sooner.
    `seconds`: wall time in seconds after which no further step begins.
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
    """Set the learning rate: a short linear warm-up times a cosine that falls to 0 at share 1."""
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
    """Take one step of the optimizer, and return the loss before it."""
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
    """The network's forecast for the inputs of a batch, on the network's device."""
    device = next(net.parameters()).device
    now, then = calendar.of_batch(batch)
    maps: Tensor = net(batch[0].to(device).float(), now.to(device), then.to(device))
    return maps


@dataclass(frozen=True)
class Example:
    """The forecast of one sample, for the picture."""

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
    """Forecast the held-out samples in order until a time limit, and sum the errors.

    `seconds`: time limit in seconds.
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
        raise UnsupportedDataError("there are no held-out samples")
    return sums, kept


def _to_units(maps: Tensor, climate: Climate) -> NDArray[np.float32]:
    """A copy of normalised maps in the variables' units.

    A loader may reuse the memory of a batch, so the copy is needed.
    """
    values = maps.detach().cpu().float().numpy()
    return np.asarray(values * climate.channel_std + climate.channel_mean)
