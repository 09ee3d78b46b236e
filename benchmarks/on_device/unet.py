"""A U-Net that forecasts the next step of all variables, and a step of its training.

With 64 channels in its first layer it has 31 million parameters, with 32 it has 8 million::

    maps -> 64 ------------------------------> 64 -> maps
             -> 128 ----------------> 128 ->
                 -> 256 --------> 256 ->
                      -> 512 > 512 ->
                        -> 1024 ->
"""

from __future__ import annotations

import itertools
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from xloader import Batch

DEPTH: Final = 4
_NUM_GROUPS = 8


class UNet(nn.Module):
    """The network.

    Parameters
    ----------
    num_channels : int
        Channels of the maps, which come out again.
    width : int
        Channels of the first layer, a multiple of 8. Each level below has twice as many.
    """

    def __init__(self, num_channels: int, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(DEPTH + 1)]
        self.stem = _block(num_channels, width)
        self.down = nn.ModuleList(_block(a, b) for a, b in itertools.pairwise(widths))
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(_block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, num_channels, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Forecast maps of shape (batch, channel, row, column); rows and columns divide by 16."""
        levels = [self.stem(maps)]
        for block in self.down:
            levels.append(block(functional.max_pool2d(levels[-1], 2)))
        hidden: Tensor = levels.pop()
        for widen, block in zip(reversed(self.widen), reversed(self.up), strict=True):
            hidden = block(torch.cat([levels.pop(), widen(hidden)], dim=1))
        change: Tensor = self.head(hidden)
        return maps + change


class Training:
    """A model on a device, its loss and its optimizer.

    Parameters
    ----------
    num_channels, width : int
        As for `UNet`.
    device : torch.device
        The device.
    """

    def __init__(self, num_channels: int, width: int, device: torch.device) -> None:
        self._device = device
        self._model = UNet(num_channels, width).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)

    def step(self, batch: Batch) -> None:
        """Train on a batch of ``inputs`` and ``targets``. Nothing waits for the device."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16, self._device.type == "cuda"):
            forecast = self._model(batch["inputs"])
        loss = functional.mse_loss(forecast.float(), batch["targets"])
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def num_parameters(num_channels: int, width: int) -> int:
    """Return the number of parameters of a `UNet`, without making them."""
    with torch.device("meta"):
        return sum(own.numel() for own in UNet(num_channels, width).parameters())


def _block(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, 3, padding=1, bias=False),
        nn.GroupNorm(_NUM_GROUPS, num_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
        nn.GroupNorm(_NUM_GROUPS, num_out),
        nn.ReLU(inplace=True),
    )
