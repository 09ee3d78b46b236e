"""Training for a number of steps, and root mean squared errors on the held-out part."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from xloader.core.messages import show_count
from xloader.demo.model import ForecastNet
from xloader.demo.task import ForecastTask, is_periodic
from xloader.errors import UnsupportedDataError
from xloader.show.cards import align_columns

if TYPE_CHECKING:
    from xloader.loader.loader import Loader
    from xloader.loader.reports.report import Report
    from xloader.planning.explain import Explanation

_PEAK_RATE = 2e-3
_WARMUP_SHARE = 0.05


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
