"""The layouts that are measured: how stores are chunked, the samples, and the targets."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DIMS = ("time", "lat", "lon")
LATS, LONS = 180, 360
VARIABLES = ("t2m", "u10", "v10", "z500")
NUM_STEPS = 1440
QUICK_STEPS = 192

Sizes = tuple[int, int, int]
"""Numbers of elements along time, lat and lon."""


@dataclass(frozen=True)
class StoreSpec:
    """A Zarr v3 store: variables over time, lat and lon, compressed as xarray does by default.

    Parameters
    ----------
    name : str
        Names the store's folder, together with `num_steps`.
    chunks : tuple of int
        Shape of the smallest part that can be read.
    shards : tuple of int, optional
        Shape of the stored objects, if these hold many chunks each.
    num_steps : int
        Size along time.
    variables : tuple of str
    is_packed : bool
        Whether values are stored as 16-bit integers by the CF conventions.
    digits : int
        Decimal places kept. Data with more decimals compress less.
    is_consolidated : bool
        Whether one object holds all metadata, for stores that cannot be listed.
    lats, lons : int
        Sizes along lat and lon.
    has_labels : bool
        Whether the dimensions have coordinates: six-hourly times, and degrees.
    """

    name: str
    chunks: Sizes
    shards: Sizes | None = None
    num_steps: int = NUM_STEPS
    variables: tuple[str, ...] = VARIABLES
    is_packed: bool = False
    digits: int = 2
    is_consolidated: bool = False
    lats: int = LATS
    lons: int = LONS
    has_labels: bool = False

    @property
    def folder_name(self) -> str:
        """The name of the store's folder."""
        return f"{self.name}-{self.num_steps}.zarr"

    @property
    def shape(self) -> Sizes:
        """Shape of each variable."""
        return (self.num_steps, self.lats, self.lons)

    @property
    def num_chunks(self) -> int:
        """Number of chunks of all variables."""
        pairs = zip(self.shape, self.chunks, strict=True)
        return len(self.variables) * math.prod(-(-size // chunk) for size, chunk in pairs)

    @property
    def chunk_nbytes(self) -> int:
        """Decoded size of a chunk in bytes."""
        return math.prod(self.chunks) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one stored number."""
        return 2 if self.is_packed else 4

    @property
    def nbytes(self) -> int:
        """Decoded size of all variables in bytes."""
        return len(self.variables) * math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Target:
    """A lower bound for a measured figure.

    Parameters
    ----------
    figure : str
        Name of the figure in `results.Result.figures`.
    bound : float
        The smallest value allowed.
    """

    figure: str
    bound: float

    def is_held(self, value: float) -> bool:
        """Whether the figure reaches its bound."""
        return value >= self.bound


@dataclass(frozen=True)
class Layout:
    """A store and the samples taken from it.

    Parameters
    ----------
    name : str
        Name on the command line.
    title : str
        Name in the tables.
    store : StoreSpec
    window : dict of str to int
        Window sizes by dimension. Dimensions that are not named are taken whole.
    stride : dict of str to int
    batch_size : int
    memory_share : float
        The loader's memory as a share of the store's decoded bytes.
    targets : tuple of Target
    is_in_memory : bool
        Whether all data are in memory after one epoch, for the other libraries too.
    is_as_stored : bool
        Whether packed numbers are delivered as they are stored.
    """

    name: str
    title: str
    store: StoreSpec
    window: dict[str, int]
    stride: dict[str, int] = field(default_factory=dict)
    batch_size: int = 16
    memory_share: float = 1 / 3
    targets: tuple[Target, ...] = ()
    is_in_memory: bool = False
    is_as_stored: bool = False

    @property
    def open_options(self) -> dict[str, Any]:
        """What `xloader.open` is told besides the store."""
        return {"mask_and_scale": False} if self.is_as_stored else {}

    @property
    def dtype(self) -> str:
        """The dtype of batches."""
        return "int16" if self.is_as_stored else "float32"

    @property
    def memory_nbytes(self) -> int:
        """The loader's memory in bytes."""
        return int(self.memory_share * self.store.nbytes)

    @property
    def window_sizes(self) -> Sizes:
        """Elements of a sample along each dimension."""
        time, lat, lon = (
            self.window.get(dim, size) for dim, size in zip(DIMS, self.store.shape, strict=True)
        )
        return time, lat, lon

    @property
    def strides(self) -> Sizes:
        """Elements between neighbouring samples along each dimension."""
        time, lat, lon = (
            self.stride.get(dim, size) for dim, size in zip(DIMS, self.window_sizes, strict=True)
        )
        return time, lat, lon

    @property
    def counts(self) -> Sizes:
        """Samples along each dimension."""
        time, lat, lon = (
            (size - window) // stride + 1
            for size, window, stride in zip(
                self.store.shape, self.window_sizes, self.strides, strict=True
            )
        )
        return time, lat, lon

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample in a batch."""
        itemsize = np.dtype(self.dtype).itemsize
        return len(self.store.variables) * math.prod(self.window_sizes) * itemsize

    @property
    def delivered_nbytes(self) -> int:
        """Bytes that an epoch delivers."""
        return math.prod(self.counts) * self.sample_nbytes

    def shrink(self) -> Layout:
        """Return the layout with less data, to check that everything runs."""
        store = dataclasses.replace(self.store, num_steps=QUICK_STEPS)
        if store.chunks[0] > QUICK_STEPS:
            store = dataclasses.replace(store, chunks=(QUICK_STEPS, *store.chunks[1:]))
        small = dataclasses.replace(self, store=store)
        # Fields keep their full size, so smaller batches must leave room for chunks.
        most = max(small.memory_nbytes // 16 // self.sample_nbytes, 1)
        return dataclasses.replace(small, batch_size=min(self.batch_size, most))


BESIDE_ALL = (Target("xbatcher", 25.0),)
"""Not for layouts whose chunks are single samples: any shuffle reads each chunk once there. Nor for
integers as stored, which xbatcher is not asked for."""


def _targets(reference: float, sequential: float) -> tuple[Target, ...]:
    """Shares of the machine's limit, and of the fastest sequential reader."""
    return Target("reference", reference), Target("sequential", sequential)


STEPS = StoreSpec("steps", (16, LATS, LONS))
TILES = StoreSpec("tiles", (24, 90, 90))
ONE_STEP = StoreSpec("one-step", (1, LATS, LONS))
SHARDS = StoreSpec("shards", (4, 90, 90), shards=(48, LATS, LONS))
PIXELS = StoreSpec("pixels", (NUM_STEPS, 10, 10), variables=VARIABLES[:1])
PACKED = StoreSpec("packed", (16, LATS, LONS), is_packed=True)

LAYOUTS = (
    Layout(
        "steps1",
        "time-chunked, window 1",
        STEPS,
        {"time": 1},
        targets=(*_targets(0.90, 1.0), *BESIDE_ALL),
    ),
    Layout(
        "steps3",
        "time-chunked, window 3",
        STEPS,
        {"time": 3},
        stride={"time": 1},
        targets=(*_targets(0.90, 0.7), *BESIDE_ALL),
    ),
    Layout(
        "aligned",
        "tiled, aligned patches 90 x 90",
        TILES,
        {"time": 1, "lat": 90, "lon": 90},
        targets=(*_targets(0.80, 0.9), *BESIDE_ALL),
    ),
    Layout(
        "small",
        "tiled, small patches 30 x 30, batches of 64",
        TILES,
        {"time": 1, "lat": 30, "lon": 30},
        batch_size=64,
        targets=(*_targets(0.65, 0.7), *BESIDE_ALL),
    ),
    Layout(
        "straddling",
        "tiled, straddling patches 60 x 60",
        TILES,
        {"time": 1, "lat": 60, "lon": 60},
        targets=(*_targets(0.80, 0.7), *BESIDE_ALL),
    ),
    Layout(
        "one-step",
        "one step a chunk, window 1",
        ONE_STEP,
        {"time": 1},
        targets=_targets(0.90, 0.9),
    ),
    Layout(
        "shard-patches",
        "shards, patches 60 x 60",
        SHARDS,
        {"time": 1, "lat": 60, "lon": 60},
        targets=(*_targets(0.75, 0.7), *BESIDE_ALL),
    ),
    Layout(
        "shard-fields",
        "shards, whole fields of 4 steps",
        SHARDS,
        {"time": 4},
        targets=_targets(0.85, 0.7),
    ),
    Layout(
        "pixels",
        "pixel series 24 x 1 x 1, in memory",
        PIXELS,
        {"time": 24, "lat": 1, "lon": 1},
        batch_size=4096,
        memory_share=2.0,
        targets=(Target("samples/s", 5e6), *BESIDE_ALL),
        is_in_memory=True,
    ),
    Layout(
        "packed",
        "time-chunked, int16 packed, window 1",
        PACKED,
        {"time": 1},
        targets=(*_targets(0.85, 0.9), *BESIDE_ALL),
    ),
    Layout(
        "as-stored",
        "time-chunked, int16 as stored, window 1",
        PACKED,
        {"time": 1},
        targets=_targets(0.85, 0.9),
        is_as_stored=True,
    ),
)
"""Layouts on the local disk. `latency.LAYOUT` is behind a server."""
