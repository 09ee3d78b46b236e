"""Epochs over blocks that dask computes, beside dask alone and beside the same values stored.

python -m benchmarks.derived                     # in about two minutes on two cores
python -m benchmarks.derived --quick             # small data, to check that everything runs

The wind speed of two stored variables, block by block:

- on 1 and on 2 threads: dask computes all blocks and keeps none; a shuffled epoch of the loader;
  an epoch over the same values, stored;
- on a cluster of two workers: dask computes all blocks and keeps none; dask computes them and this
  process fetches each; a shuffled epoch of the loader.

All take turns in one run, and the best turn of each counts. For Linux and macOS.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import dask
import numpy as np
import xarray as xr

import xloader

MEMORY: Final = "128MB"
"""Less than all blocks, so that an epoch computes each of them."""


def make_stores(folder: Path, num_steps: int) -> tuple[xr.Dataset, Path]:
    """The wind speed, not computed yet, and the path of a store of it. Blocks have 1.0 MB."""
    path, stored = folder / f"wind-{num_steps}.zarr", folder / f"speed-{num_steps}.zarr"
    options: dict[str, Any] = {"zarr_format": 3, "consolidated": False}
    if not path.exists():
        rng = np.random.default_rng(0)
        shape = num_steps, 180, 360
        ds = xr.Dataset(
            {
                name: (("time", "lat", "lon"), np.round(rng.normal(size=shape), 2).astype("f4"))
                for name in "uv"
            }
        )
        ds.to_zarr(path, encoding={v: {"chunks": (4, 180, 360)} for v in ds}, **options)
    ds = xr.open_zarr(path, chunks={}, consolidated=False)
    speed = xr.Dataset({"speed": np.sqrt(ds["u"] ** 2 + ds["v"] ** 2)})
    if not stored.exists():
        speed.to_zarr(stored, **options)
    return speed, stored


def forget(block: np.ndarray) -> np.ndarray:
    """Something small in place of a block."""
    return np.zeros((1,) * block.ndim)


def compute_all(speed: xr.Dataset) -> None:
    """Have dask compute all blocks and keep none."""
    array = speed["speed"].data
    chunks = tuple((1,) * number for number in array.numblocks)
    array.map_blocks(forget, dtype="f8", chunks=chunks, meta=np.ones((1, 1, 1))).compute()


def fetch_all(client: Any, speed: xr.Dataset) -> None:
    """Have a cluster compute all blocks, and fetch each to this process."""
    from distributed import as_completed

    futures = client.compute(list(speed["speed"].data.to_delayed().ravel()))
    found: Any = as_completed(futures, with_results=True)  # type: ignore[no-untyped-call]
    del futures
    for future, _ in found:
        future.release()


def best_seconds(num_turns: int, **jobs: Callable[[], object]) -> dict[str, float]:
    """The seconds of the best turn of each job. One more turn before these warms up."""
    best = dict.fromkeys(jobs, np.inf)
    for turn in range(num_turns + 1):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            if turn:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def play(loader: Any) -> None:
    """Take all batches of an epoch."""
    deque(loader, maxlen=0)


def make_loader(data: Any, num_threads: int) -> Any:
    """A loader of shuffled single steps."""
    samples = xloader.open(data).window(time=1)
    return samples.loader(batch_size=32, threads=num_threads, memory=MEMORY, output="numpy")


def on_threads(speed: xr.Dataset, stored: Path, num_threads: int, num_turns: int) -> str:
    """Compare on threads of this process, and return a line of the table."""
    with (
        dask.config.set(scheduler="threads", num_workers=num_threads),
        make_loader(speed, num_threads) as derived,
        make_loader(stored, num_threads) as plain,
    ):
        best = best_seconds(
            num_turns,
            dask=lambda: compute_all(speed),
            derived=lambda: play(derived),
            stored=lambda: play(plain),
        )
    return (
        f"{num_threads} thread(s)     dask {best['dask']:6.2f} s   loader {best['derived']:6.2f} s "
        f"({best['dask'] / best['derived']:.2f} of dask's speed)   stored {best['stored']:6.2f} s"
    )


def on_cluster(speed: xr.Dataset, num_turns: int) -> str:
    """Compare on a cluster of two worker processes, and return a line of the table."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
        make_loader(speed, 2) as derived,
    ):
        best = best_seconds(
            num_turns,
            dask=lambda: compute_all(speed),
            fetched=lambda: fetch_all(client, speed),
            derived=lambda: play(derived),
        )
    return (
        f"2 workers       dask {best['dask']:6.2f} s, fetched too {best['fetched']:6.2f} s   "
        f"loader {best['derived']:6.2f} s ({best['dask'] / best['derived']:.2f} of dask's speed, "
        f"{best['fetched'] / best['derived']:.2f} with fetching)"
    )


def main() -> None:
    """Parse the command line, run, and print a line for each comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small data, one turn each")
    folder = Path(tempfile.gettempdir()) / "xloader-bench"
    parser.add_argument("--folder", type=Path, default=folder, help="where stores are made")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    speed, stored = make_stores(options.folder, 64 if options.quick else 1024)
    num_turns = 1 if options.quick else 3
    for num_threads in (1, 2):
        print(on_threads(speed, stored, num_threads, num_turns), flush=True)
    print(on_cluster(speed, num_turns), flush=True)


if __name__ == "__main__":
    main()
