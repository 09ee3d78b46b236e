"""The network of the benchmark, which forecasts maps from maps."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from benchmarks.learning.forecast import ForecastTask, is_periodic

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
