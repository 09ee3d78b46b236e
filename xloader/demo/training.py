"""A small network that forecasts maps from maps, its training, and its errors on the held-out part.

It is small, so that the demo can train it in a few minutes.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from tqdm import tqdm

from xloader.core.messages import show_count
from xloader.demo.task import ForecastTask, is_periodic
from xloader.errors import UnsupportedDataError
from xloader.show.cards import align_columns

if TYPE_CHECKING:
    from xloader.loader.loader import Loader
    from xloader.loader.reports.report import Report
    from xloader.planning.explain import Explanation

_PEAK_RATE = 2e-3
_WARMUP_SHARE = 0.05

_DILATIONS = (1, 2, 4, 1)
_NUM_ROW_FEATURES = 8
_NUM_POINT_FEATURES = 4


class MapConv(nn.Module):
    """A 3x3 convolution that keeps the size of the map."""

    def __init__(self, num_in: int, num_out: int, dilation: int, *, is_periodic: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, 3, dilation=dilation)
        self.dilation = dilation
        self.is_periodic = is_periodic

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps."""
        edge = self.dilation
        maps = pad_columns(maps, edge, edge, is_periodic=self.is_periodic)
        padded: Tensor = self.conv(functional.pad(maps, (0, 0, edge, edge)))
        return padded


def pad_columns(maps: Tensor, left: int, right: int, *, is_periodic: bool) -> Tensor:
    """Pad maps with columns on the left and on the right."""
    size = maps.shape[-1]
    # Torch wraps round once at most, and a coarse map may be narrower than the dilation.
    if is_periodic and max(left, right) <= size:
        return functional.pad(maps, (left, right, 0, 0), mode="circular")
    return functional.pad(maps, (left, right, 0, 0), mode="replicate")


class ForecastNet(nn.Module):
    """Network that forecasts how normalised maps change.

    ::

        maps -> 2x2 points to channels -> stem -> blocks -> head -> points -> change
                 + learned features of each row and point

    Waves move at different speeds at different latitudes. A convolution cannot tell the latitude
    from the map, so the network learns features of each row. The last layer starts at zero, so
    training starts at persistence. `shape` is that of a sample: (channel, row, column).
    """

    def __init__(
        self, shape: tuple[int, int, int], *, is_periodic: bool, num_hidden: int = 48
    ) -> None:
        super().__init__()
        num_channels, num_rows, num_columns = shape
        self.is_periodic = is_periodic
        rows, columns = -(-num_rows // 2), -(-num_columns // 2)
        self.row_features = nn.Parameter(0.1 * torch.randn(_NUM_ROW_FEATURES, rows, 1))
        self.point_features = nn.Parameter(0.1 * torch.randn(_NUM_POINT_FEATURES, rows, columns))
        num_in = 4 * num_channels + _NUM_ROW_FEATURES + _NUM_POINT_FEATURES
        self.stem = MapConv(num_in, num_hidden, 1, is_periodic=is_periodic)
        self.blocks = nn.ModuleList(
            MapConv(num_hidden, num_hidden, dilation, is_periodic=is_periodic)
            for dilation in _DILATIONS
        )
        # A gain for each row lets speeds differ by latitude at little cost.
        self.row_gains = nn.Parameter(torch.ones(len(_DILATIONS), num_hidden, rows, 1))
        self.head = MapConv(num_hidden, 4 * num_channels, 1, is_periodic=is_periodic)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, maps: Tensor) -> Tensor:
        """Forecast maps, float32, of the shape of the input maps."""
        num_rows, num_columns = maps.shape[-2:]
        even = pad_columns(maps, 0, num_columns % 2, is_periodic=self.is_periodic)
        coarse = functional.pixel_unshuffle(functional.pad(even, (0, 0, 0, num_rows % 2)), 2)
        where = torch.cat([self.row_features.expand(-1, -1, coarse.shape[-1]), self.point_features])
        hidden: Tensor = self.stem(torch.cat([coarse, where.expand(len(coarse), -1, -1, -1)], 1))
        for block, gain in zip(self.blocks, self.row_gains, strict=True):
            hidden = hidden + gain * block(functional.gelu(hidden))
        change = functional.pixel_shuffle(self.head(hidden), 2)[..., :num_rows, :num_columns]
        return maps + change


def make_net(task: ForecastTask, seed: int) -> ForecastNet:
    """The untrained network, on the GPU where there is one."""
    shape: Any = task.training.shapes["inputs"]
    # The seed must not change what the caller draws from torch's own generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ForecastNet(shape, is_periodic=is_periodic(task.mean.coords, task.grid[1]))
    return net.to("cuda" if torch.cuda.is_available() else "cpu")


def rate_at(share: float) -> float:
    """The learning rate after a share of a training: a short warm-up, then a cosine down to 0."""
    fall = 0.5 + 0.5 * math.cos(math.pi * share)
    return _PEAK_RATE * min(1.0, (share + 0.005) / _WARMUP_SHARE) * fall


@dataclass(frozen=True)
class TrainingResult:
    """Length and time of a training, with prediction and report of its last whole epoch.

    If there is no whole one, they are those of the epoch that was cut off.
    """

    num_steps: int
    epoch_size: int
    seconds: float
    explanation: Explanation
    report: Report

    def describe(self) -> str:
        """The length of the training, and its reads as predicted and measured."""
        num_epochs, num_cut = divmod(self.num_steps, self.epoch_size)
        epochs = show_count(num_epochs, "whole epoch")
        if num_cut:
            epochs += f", and {num_cut} of the {self.epoch_size} batches of an unfinished one"
        whole = "" if num_epochs else " for the whole epoch"
        predicted, report = self.explanation, self.report
        return (
            f"Trained {show_count(self.num_steps, 'step')} in {self.seconds:.0f} s: {epochs}\n\n"
            f"The {'last whole' if num_epochs else 'unfinished'} epoch, as measured\n{report}\n"
            f"Predicted {predicted.num_reads} reads{whole}, amplification "
            f"{predicted.read_amplification:.3f}; measured {report.num_reads} reads, "
            f"{report.read_amplification:.3f}"
        )


def train(
    net: nn.Module, loader: Loader, weights: Tensor, num_steps: int, seconds: float
) -> TrainingResult:
    """Train for some steps, or until the time is up, with a progress bar."""
    device = next(net.parameters()).device
    optimizer = torch.optim.AdamW(net.parameters(), lr=_PEAK_RATE, weight_decay=1e-2)
    scale, begin, step, share = weights.to(device), time.perf_counter(), 0, 0.0
    kept: tuple[Explanation, Report] | None = None
    with tqdm(total=num_steps, desc="Training", unit=" steps") as bar:
        while share < 1:
            explanation = loader.explain()
            for inputs, targets in loader:
                for group in optimizer.param_groups:
                    group["lr"] = rate_at(share)
                maps = inputs.to(device, torch.float32)
                error = net(maps) - targets.to(device, torch.float32)
                loss = (error.square() * scale).mean()
                if not math.isfinite(loss.item()):
                    raise UnsupportedDataError(
                        "the loss is not finite",
                        given=loss.item(),
                        remedy="look for infinite values in the data, or for a very short record",
                    )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                bar.set_postfix(loss=f"{loss.item() ** 0.5:.3f}", refresh=False)
                bar.update()
                share = max(step / num_steps, (time.perf_counter() - begin) / seconds)
                if share >= 1:
                    break
            if kept is None or step % len(loader) == 0:
                kept = explanation, loader.report()
    assert kept is not None, "a training has a step at least"
    return TrainingResult(step, len(loader), time.perf_counter() - begin, *kept)


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


def score(
    net: nn.Module, loader: Loader, task: ForecastTask, seconds: float
) -> tuple[int, tuple[Score, ...]]:
    """The number of samples scored until the time is up, and the errors of three forecasts."""
    begin, device = time.perf_counter(), next(net.parameters()).device
    weights = torch.from_numpy(task.weights).double()
    sums, num_samples = torch.zeros(3, len(weights), dtype=torch.float64), 0
    net.eval()
    with torch.inference_mode():
        for inputs, targets in loader:
            forecast = net(inputs.to(device, torch.float32)).cpu()
            # Samples are departures from the climatology, so that is a forecast of 0.
            for row, guess in enumerate((forecast, inputs, torch.zeros_like(inputs))):
                sums[row] += ((guess - targets).square() * weights).sum(dim=(0, 2, 3))
            num_samples += len(targets)
            if time.perf_counter() - begin > seconds:
                break
    squares = (sums / num_samples / weights.sum(dim=(1, 2))).numpy()
    scores, first = [], 0
    for name in task.variables:
        spread = task.spread[name]
        # One variable has as many channels as levels.
        part = squares[:, first : first + spread.size] * np.square(np.ravel(spread))
        units = str(task.mean[name].attrs.get("units", ""))
        scores.append(Score(name, units, *np.sqrt(part.mean(axis=1)).tolist()))
        first += spread.size
    scores.append(Score("all, normalised", "", *np.sqrt(squares.mean(axis=1)).tolist()))
    return num_samples, tuple(scores)


def format_scores(scores: tuple[Score, ...]) -> str:
    """The scores as a table of text."""
    head = ("variable", "units", "forecast", "persistence", "climatology", "gain on persistence")
    rows = []
    for line in scores:
        errors = (f"{e:.3g}" for e in (line.forecast, line.persistence, line.climatology))
        rows.append((line.name, line.units, *errors, f"{100 * line.gain:.0f} %"))
    return align_columns((head, *rows), num_left=2)
