"""A small network that forecasts maps from maps, and its training for some seconds.

It is so small that a step takes some milliseconds, as a larger one takes on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from tqdm import tqdm

_PEAK_RATE = 4e-3
_WARMUP_SHARE = 0.05
# Scores of the held-out samples along a training.
_NUM_SCORES = 50

_DILATIONS = (2, 4)
_NUM_ROW_FEATURES = 8


class ForecastNet(nn.Module):
    """Network that forecasts how normalised maps change.

    ::

        maps -> 2x2 points to channels -> convolutions -> channels to points -> change
                 + learned features of each row

    Waves move at different speeds at different latitudes. A convolution cannot tell the latitude
    from the map, so the network learns features and gains of each row. The last layer starts at
    zero, so training starts at "nothing changes". `shape` is that of a sample: (channel, row,
    column), with even numbers of rows and columns.
    """

    def __init__(self, shape: tuple[int, int, int], num_hidden: int = 16) -> None:
        super().__init__()
        num_channels, num_rows, _ = shape
        rows = num_rows // 2
        self.row_features = nn.Parameter(0.1 * torch.randn(_NUM_ROW_FEATURES, rows, 1))
        self.row_gains = nn.Parameter(torch.ones(len(_DILATIONS), num_hidden, rows, 1))
        self.first = nn.Conv2d(4 * num_channels + _NUM_ROW_FEATURES, num_hidden, 3)
        self.blocks = nn.ModuleList(
            nn.Conv2d(num_hidden, num_hidden, 3, dilation=dilation) for dilation in _DILATIONS
        )
        self.last = nn.Conv2d(num_hidden, 4 * num_channels, 3)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, maps: Tensor) -> Tensor:
        """Forecast maps, float32, of the shape of the input maps."""
        coarse = functional.pixel_unshuffle(maps, 2)
        rows = self.row_features.expand(len(coarse), -1, -1, coarse.shape[-1])
        hidden: Tensor = self.first(_with_edges(torch.cat([coarse, rows], 1), 1))
        for block, gain, edge in zip(self.blocks, self.row_gains, _DILATIONS, strict=True):
            hidden = hidden + gain * block(_with_edges(functional.gelu(hidden), edge))
        return maps + functional.pixel_shuffle(self.last(_with_edges(hidden, 1)), 2)


def _with_edges(maps: Tensor, edge: int) -> Tensor:
    """Pad maps with their other side on the left and right, and with zeros beyond the poles."""
    around = functional.pad(maps, (edge, edge, 0, 0), mode="circular")
    return functional.pad(around, (0, 0, edge, edge))


def make_net(shape: Any, seed: int = 0) -> ForecastNet:
    """The untrained network. The seed does not change what the caller draws from torch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ForecastNet(shape)


@dataclass
class Course:
    """The losses on held-out samples along a training, and after how many seconds."""

    num_batches: int = 0
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def seconds_to(self, loss: float) -> float:
        """The seconds after which the loss was reached; infinite if it was not."""
        pairs = zip(self.seconds, self.losses, strict=True)
        return next((second for second, reached in pairs if reached <= loss), math.inf)


def train(
    name: str,
    batches: Iterable[tuple[Tensor, Tensor]],
    held_out: tuple[Tensor, Tensor],
    weights: Tensor,
    seconds: float,
) -> Course:
    """Train an untrained network for some seconds, not counting the scores and the first batch."""
    net = make_net(held_out[0].shape[1:])
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    course, spent, endless = Course(), 0.0, _endless(batches)
    inputs, targets = next(endless)
    # None: no bar where standard error is a file, which would keep each state of it.
    with tqdm(total=1.0, desc=name, bar_format="{l_bar}{bar}", disable=None) as bar:
        while True:
            if spent >= len(course.losses) * seconds / _NUM_SCORES:
                with torch.inference_mode():
                    course.losses.append(_loss(net, *held_out, weights).item())
                course.seconds.append(spent)
                bar.update(min(spent / seconds, 1.0) - bar.n)
            if spent >= seconds:
                return course
            begin = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = rate_at(spent / seconds)
            optimizer.zero_grad(set_to_none=True)
            _loss(net, inputs, targets, weights).backward()
            optimizer.step()
            course.num_batches += 1
            inputs, targets = next(endless)
            spent += time.perf_counter() - begin


def _endless(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch after another."""
    while True:
        yield from batches


def _loss(net: nn.Module, inputs: Tensor, targets: Tensor, weights: Tensor) -> Any:
    """The mean squared error of normalised forecasts, each row by its weight."""
    return ((net(inputs) - targets).square() * weights).mean()


def rate_at(share: float) -> float:
    """The learning rate after a share of a training: a short warm-up, then a cosine down to 0."""
    fall = 0.5 + 0.5 * math.cos(math.pi * share)
    return _PEAK_RATE * min(1.0, (share + 0.005) / _WARMUP_SHARE) * fall
