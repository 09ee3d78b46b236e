"""Plan samples around 10^6 random points in 10^5 chunks: seconds, and reads against a plain count.

python -m benchmarks.points                    # windows of one element
python -m benchmarks.points --window 3 16 16   # windows that straddle chunks
python -m benchmarks.points --balance          # each class of a column drawn equally often

The store holds metadata and labels only, so this measures the look-up and the planning alone.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import xloader

SHAPE = (10_000, 1000, 1000)
CHUNKS = (10, 100, 100)
DIMS = ("time", "lat", "lon")


def make_store() -> MemoryStore:
    """Make a store of labels, and of an array without chunks."""
    labels = xr.Dataset(
        coords={
            "time": pd.date_range("2000-01-01", periods=SHAPE[0], freq="h"),
            "lat": np.linspace(90, -90, SHAPE[1]),
            "lon": np.arange(SHAPE[2]) * 0.36,
        }
    )
    store = MemoryStore()
    labels.to_zarr(store, zarr_format=3, consolidated=False)
    group = zarr.open_group(store, mode="r+")
    group.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype="float32", dimension_names=DIMS)
    return store


def make_table(num: int) -> pd.DataFrame:
    """Make a table of random points, whose windows of up to 64 elements lie in the array."""
    rng = np.random.default_rng(0)
    hours = rng.integers(32, SHAPE[0] - 32, num)
    return pd.DataFrame(
        {
            "time": pd.Timestamp("2000-01-01") + pd.to_timedelta(hours, "h"),
            "lat": rng.uniform(-84, 84, num),
            "lon": rng.uniform(12, 347, num),
            "depth": rng.random(num),
            "sky": rng.choice(["clear", "cloudy", "storm"], num, p=[0.8, 0.19, 0.01]),
        }
    )


def count_needed(samples: xloader.Samples, window: tuple[int, ...]) -> int:
    """Count the distinct chunks that the windows touch, by plain arithmetic."""
    begun = samples.positions(np.arange(len(samples)))
    first = np.stack([begun[dim].values for dim in DIMS], axis=-1)
    # No window is longer than a chunk, so its corners touch all of its chunks.
    corners = itertools.product(*((0, size - 1) for size in window))
    grid = [-(-size // chunk) for size, chunk in zip(SHAPE, CHUNKS, strict=True)]
    touched = [
        np.ravel_multi_index(tuple(((first + corner) // CHUNKS).T), grid) for corner in corners
    ]
    return len(np.unique(np.concatenate(touched)))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=10**6)
    parser.add_argument("--window", type=int, nargs=3, default=[1, 1, 1], metavar="SIZE")
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--balance", action="store_true", help="draw each class equally often")
    options = parser.parse_args()
    window = tuple(options.window)
    opened = xloader.open(make_store(), on_missing="fill").window(
        dict(zip(DIMS, window, strict=True))
    )
    table = make_table(options.points)
    begin, cpu = time.perf_counter(), time.process_time()
    samples = opened.at_points(table, method={"lat": "nearest", "lon": "nearest"})
    placed = time.perf_counter()
    if options.balance:
        samples = samples.weighted(balance="sky")
    expected = samples.loader(output="numpy", memory=options.memory).explain()
    end, used = time.perf_counter(), time.process_time() - cpu
    print(expected)
    print(f"points placed in {placed - begin:.2f} s, planned and explained in {end - placed:.2f} s")
    print(f"together {end - begin:.2f} s, {used:.2f} s of one core")
    if not options.balance:
        print(f"chunks that the points need, counted plainly: {count_needed(samples, window):,}")


if __name__ == "__main__":
    main()
