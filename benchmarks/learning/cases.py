"""The data sets: the tutorial's moving waves, and a store of maps over time that the user names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

import xloader
from benchmarks.learning.forecast import ForecastTask, make_task
from benchmarks.learning.network import ForecastNet, make_net
from benchmarks.learning.orders import Tiled
from benchmarks.learning.training import Maps
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store, store_path

WAVES: Final = WaveSpec(num_steps=1792, num_lats=19, num_lons=36, chunk_steps=16)
_CHUNK_STEPS: Final = 12
_LEAST_TILES: Final = 50
_MOST_BLOCKS: Final = 12


@dataclass(frozen=True)
class Case:
    """A forecast task: samples, their values in memory, and an untrained network for each seed.

    Parameters
    ----------
    name : str
        Name by which results are kept.
    description : str
        What is forecast from what, in words.
    tiled : Tiled
        The training samples.
    training, validation : Maps
        Values of the training samples, by id, and of those held out.
    make_net : callable
        Makes an untrained network from a seed.
    """

    name: str
    description: str
    tiled: Tiled
    training: Maps
    validation: Maps
    make_net: Callable[[int], nn.Module]


def make_waves(folder: Path, spec: WaveSpec = WAVES) -> Case:
    """Moving waves on a coarse grid. Windows reach into the next tile."""
    path = str(store_path(folder, spec))
    ensure_store(Path(path), spec)
    task = make_task(path, variables=tuple(VARIABLE_ATTRS))
    training, validation = task.training, task.held_out
    weights = torch.from_numpy(task.weights)

    def untrained(seed: int) -> nn.Module:
        """The untrained network of a seed."""
        return make_net(task, seed).cpu()

    chunk_nbytes = 4 * spec.chunk_steps * spec.num_lats * spec.num_lons
    maps = [_in_memory(part, weights) for part in (training, validation)]
    tiled = Tiled(
        training,
        np.arange(len(training)) // spec.chunk_steps,
        len(VARIABLE_ATTRS) * chunk_nbytes,
        chunk_nbytes,
        maps[0].inputs[0].nbytes + maps[0].targets[0].nbytes,
    )
    description = (
        f"moving waves: {len(VARIABLE_ATTRS)} variables of {spec.num_lats} x {spec.num_lons} "
        f"points, {task.lead} steps ahead"
    )
    return Case("waves", description, tiled, maps[0], maps[1], untrained)


def make_blocks(
    path: str,
    folder: Path,
    *,
    variables: tuple[str, ...] = (),
    time_dim: str = "time",
    lead: int = 1,
    coarsen: int = 1,
) -> Case:
    """Anomalies of a user's store, forecast in blocks of the map.

    The map is cut into so many blocks that the training part has at least 50 tiles of 12 steps.
    Rows and columns that are left over are not used. All values are held in memory.

    Parameters
    ----------
    path : str
        The store or file.
    folder : pathlib.Path
        Where a Zarr store of the anomalies is written.
    variables : tuple of str, optional
        Variables to forecast; by default every map over time.
    time_dim : str, optional
        The dimension of time.
    lead : int, optional
        Steps from input to target.
    coarsen : int, optional
        Rows and columns of points whose mean becomes one point.
    """
    options: dict[str, Any] = {"variables": variables, "time_dim": time_dim, "lead": lead}
    task = make_task(path, **options)
    with xr.open_dataset(path, chunks=None) as opened:
        dataset = opened[list(task.variables)]
        if coarsen > 1:
            cells = dict.fromkeys(task.grid, coarsen)
            dataset = dataset.coarsen(cells, boundary="trim").mean()
            task = make_task(dataset, **options)
        anomalies = _anomalies(dataset, task)
    num_train = task.training.sizes[time_dim]
    shape = _block_shape(anomalies.shape, num_train)
    counts = tuple(size // own for size, own in zip(anomalies.shape[2:], shape, strict=True))
    anomalies = anomalies[:, :, : counts[0] * shape[0], : counts[1] * shape[1]]
    store = folder / "anomalies.zarr"
    dims = ("time", "channel", "row", "column")
    chunks = (_CHUNK_STEPS, anomalies.shape[1], *shape)
    xr.Dataset({"anomaly": (dims, anomalies)}).to_zarr(
        store, mode="w", zarr_format=3, consolidated=False, encoding={"anomaly": {"chunks": chunks}}
    )
    windows: dict[str, int] = {"time": lead + 1, "row": shape[0], "column": shape[1]}
    strides = {**windows, "time": 1}

    def samples(part: slice) -> xloader.Samples:
        """Windows of one block, from input to target."""
        opened = xloader.open(str(store)).isel(time=part)
        cut = opened.window(windows, stride=strides)
        return cut.inputs("anomaly", time=0).targets("anomaly", time=lead)

    parts = samples(slice(0, num_train)), samples(slice(num_train, None))
    maps = [_in_memory(part) for part in parts]
    num_channels, num_blocks = anomalies.shape[1], counts[0] * counts[1]
    place = np.arange(len(parts[0]))
    tile_nbytes = 4 * int(np.prod(chunks))
    tiled = Tiled(
        parts[0],
        place // num_blocks // _CHUNK_STEPS * num_blocks + place % num_blocks,
        tile_nbytes,
        tile_nbytes,
        2 * maps[0].inputs[0].nbytes,
    )
    description = (
        f"{', '.join(task.variables)} of {Path(path).name}: anomalies in {num_blocks} blocks of "
        f"{shape[0]} x {shape[1]} points, {lead} steps ahead"
    )
    return Case("store", description, tiled, maps[0], maps[1], _BlockNets(num_channels, shape))


@dataclass(frozen=True)
class _BlockNets:
    """Makes untrained networks for blocks of anomalies."""

    num_channels: int
    shape: tuple[int, int]

    def __call__(self, seed: int) -> nn.Module:
        """The untrained network of a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ForecastNet((self.num_channels, *self.shape), is_periodic=False)


def _anomalies(dataset: xr.Dataset, task: ForecastTask) -> NDArray[np.float32]:
    """Departures from the climatology of the training part, in units of their deviation.

    Shape (step, channel, row, column).
    """
    is_monthly = "month" in task.mean.dims
    steps = dataset.groupby(f"{task.time_dim}.month") if is_monthly else dataset
    scaled = (steps - task.mean) / task.spread
    stacked = [
        field.transpose(task.time_dim, ..., *task.grid).values.reshape(
            len(field[task.time_dim]), -1, *(field.sizes[dim] for dim in task.grid)
        )
        for field in scaled.values()
    ]
    return np.concatenate(stacked, axis=1, dtype=np.float32)


def _block_shape(shape: tuple[int, ...], num_train: int) -> tuple[int, int]:
    """Rows and columns of a block: as few blocks as give enough tiles, as square as possible."""
    num_steps = -(-num_train // _CHUNK_STEPS)
    rows, columns = shape[2:]
    cuts = [
        (down, across)
        for down in range(1, _MOST_BLOCKS)
        for across in range(1, _MOST_BLOCKS)
        if down * across * num_steps >= _LEAST_TILES
    ]

    def cost(cut: tuple[int, int]) -> float:
        """Tiles, and how far a block is from a square."""
        shape = rows / cut[0] * cut[1] / columns
        # Rounded, so that it does not depend on the last digit which of two alike is taken.
        return round(cut[0] * cut[1] * max(shape, 1 / shape), 6)

    down, across = min(cuts, key=cost)
    return rows // down, columns // across


def _in_memory(samples: xloader.Samples, scale: Tensor | None = None) -> Maps:
    """All values of samples, by id, with NaN in inputs set to 0."""
    options: dict[str, Any] = {"batch_size": 64, "output": "torch", "on_nan": "ignore"}
    with samples.loader(shuffle=False, **options) as loader:
        pairs = [(batch[0].clone(), batch[1].clone()) for batch in loader]
    inputs, targets = (torch.cat(part).float() for part in zip(*pairs, strict=True))
    return Maps(inputs.nan_to_num(), targets, torch.ones(1) if scale is None else scale)
