"""One training: from initial weights, over given orders, to the error on the validation set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.learning.orders import Ids

Schedule = Literal["cosine", "constant"]
_WARMUP_SHARE = 0.05
_EVALUATED = 64


@dataclass(frozen=True)
class Settings:
    """How long and how fast a network is trained.

    Parameters
    ----------
    num_epochs, batch_size : int
        Epochs, and samples of a batch. The last batch of an epoch may have fewer.
    peak_rate : float
        Learning rate of AdamW at its highest.
    schedule : {"cosine", "constant"}
        Whether the rate falls to zero by the last step. Both begin with a linear warm-up.
    """

    num_epochs: int
    batch_size: int
    peak_rate: float
    schedule: Schedule = "cosine"

    def rate(self, share: float) -> float:
        """The learning rate after a share of all steps, 0 to 1."""
        fall = 0.5 + 0.5 * math.cos(math.pi * share) if self.schedule == "cosine" else 1.0
        return self.peak_rate * min(1.0, (share + 0.005) / _WARMUP_SHARE) * fall


@dataclass(frozen=True)
class Maps:
    """Input and target maps of many samples, in memory.

    Parameters
    ----------
    inputs, targets : torch.Tensor
        float32, shape (sample, channel, row, column). Inputs are finite. Targets may be NaN, and
        are left out there.
    scale : torch.Tensor
        Factor of each squared error, float32, which can be multiplied with maps.
    """

    inputs: Tensor
    targets: Tensor
    scale: Tensor

    def loss(self, net: nn.Module, ids: Tensor) -> Tensor:
        """Mean squared error of a network for some samples."""
        targets = self.targets[ids]
        valid = torch.isfinite(targets)
        error = torch.where(valid, net(self.inputs[ids]) - targets, 0.0)
        return (error.square() * self.scale).sum() / valid.sum()


def train(net: nn.Module, maps: Maps, epochs: list[Ids], settings: Settings) -> None:
    """Train a network in place on samples in the given orders, one order for each epoch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.peak_rate, weight_decay=1e-2)
    batches = [part for ids in epochs for part in _cut(torch.from_numpy(ids), settings.batch_size)]
    net.train()
    for step, ids in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step / len(batches))
        loss = maps.loss(net, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def evaluate(net: nn.Module, maps: Maps) -> float:
    """Mean squared error over all samples."""
    net.eval()
    total = 0.0
    with torch.inference_mode():
        for ids in _cut(torch.arange(len(maps.inputs)), _EVALUATED):
            num_valid = int(torch.isfinite(maps.targets[ids]).sum())
            total += float(maps.loss(net, ids)) * num_valid
    return total / int(torch.isfinite(maps.targets).sum())


def _cut(ids: Tensor, size: int) -> list[Tensor]:
    """Batches of ids, of which the last may have fewer."""
    return [ids[first : first + size] for first in range(0, len(ids), size)]
