"""Speed of a shuffled epoch over the same data, stored and opened in many ways, in one run.

python -m benchmarks.ways
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from zarr.storage import ZipStore

import xloader

SHAPE = {"time": 1440, "lat": 180, "lon": 360}
CHUNKS = (16, 180, 360)
MEMORY = "192MiB"
PACKED = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}


def lazily(path: Path) -> xr.Dataset:
    ds: xr.Dataset = xr.open_zarr(path, chunks=None, consolidated=False)
    return ds


def with_dask(path: Path) -> xr.Dataset:
    ds: xr.Dataset = xr.open_zarr(path, consolidated=False)
    return ds


@dataclass(frozen=True)
class Way:
    """One way to store and open the data."""

    zarr_format: int = 3
    encoding: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".zarr"
    opened: Callable[[Path], Any] = str


WAYS = {
    "v3": Way(),
    "v2, blosc": Way(zarr_format=2),
    "v3, shards of 6 chunks": Way(encoding={"shards": (96, 180, 360)}),
    "v3, zip": Way(suffix=".zip"),
    "v3, packed int16": Way(encoding=PACKED),
    "v3, opened lazily": Way(opened=lazily),
    "v3, opened with dask": Way(opened=with_dask),
    "v3, computed by dask": Way(opened=lambda path: -with_dask(path)),
    "netCDF-4, packed int16": Way(suffix=".nc", encoding={**PACKED, "zlib": True}),
}


def make_hundredths() -> np.ndarray:
    """Return smooth noise in hundredths, which packs into 16 bits without loss."""
    rng = np.random.default_rng(0)
    steps = rng.standard_normal(tuple(SHAPE.values()), dtype=np.float32)
    return np.cumsum(steps, axis=0, out=steps).round().clip(-32000, 32000)


def write(path: Path, values: np.ndarray, way: Way) -> None:
    ds = xr.Dataset({"t2m": (tuple(SHAPE), values)})
    if way.suffix == ".nc":
        ds.to_netcdf(path, encoding={"t2m": {"chunksizes": CHUNKS, **way.encoding}})
        return
    store = ZipStore(path, mode="w") if way.suffix == ".zip" else path
    encoding = {"t2m": {"chunks": CHUNKS, **way.encoding}}
    ds.to_zarr(store, zarr_format=way.zarr_format, consolidated=False, encoding=encoding)
    if isinstance(store, ZipStore):
        store.close()


def time_epochs(samples: xloader.Samples, num_epochs: int) -> tuple[list[float], Any]:
    """Return GB/s of each shuffled epoch, and the report of the last one."""
    speeds = []
    with samples.loader(batch_size=16, memory=MEMORY, output="numpy") as loader:
        for _ in range(num_epochs):
            begin, nbytes = time.perf_counter(), 0
            for batch in loader:
                nbytes += sum(array.nbytes for array in batch)
            speeds.append(nbytes / (time.perf_counter() - begin) / 1e9)
        return speeds, loader.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    num_epochs = parser.parse_args().epochs
    values = make_hundredths() / 100
    heads = f"{'first':>6} {'best':>6} {'reads':>6} {'amp.':>6} {'requests':>8}"
    print(f"{'kept as':<24} {heads}  how read")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, way) in enumerate(WAYS.items()):
            path = Path(folder) / f"{number}{way.suffix}"
            write(path, values, way)
            samples = xloader.open(way.opened(path)).window(time=3, stride=1)
            speeds, report = time_epochs(samples, num_epochs)
            print(
                f"{name:<24} {speeds[0]:>6.2f} {max(speeds):>6.2f} {report.num_reads:>6} "
                f"{report.read_amplification:>6.3f} {report.num_requests:>8}  "
                f"{samples.recipe.source.path_of('t2m')}",
                flush=True,
            )


if __name__ == "__main__":
    main()
