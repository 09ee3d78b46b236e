"""Compute a mask of 10^8 overlapping windows with gaps, and plan an epoch over it.

python -m benchmarks.masks                       # windows of 6 x 32 x 32 at stride 1
python -m benchmarks.masks --steps 200           # fewer windows

The plan is made in a process of its own, which finds the mask in the cache, so that its memory can
be told apart from that of the computation. For Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr

import xloader

WINDOW = {"time": 6, "lat": 32, "lon": 32}
SHAPE, CHUNKS = (180, 360), (24, 90, 90)


def start_peak() -> None:
    """Have Linux forget the most memory that this process has had. It inherits its parent's."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_nbytes() -> int:
    """Return the largest number of bytes that this process has had in memory since then."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (own,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(own) * 1024


def write(path: Path, num_steps: int) -> None:
    """Write a store of float32 in which a part of the map, and single values, are NaN."""
    group = zarr.open_group(path, mode="w")
    array = group.create_array(
        "sst",
        shape=(num_steps, *SHAPE),
        chunks=CHUNKS,
        dtype="float32",
        dimension_names=("time", "lat", "lon"),
        fill_value=np.nan,
    )
    rng = np.random.default_rng(0)
    for begin in range(0, num_steps, CHUNKS[0]):
        values = np.round(rng.normal(size=(CHUNKS[0], *SHAPE)), 1).astype(np.float32)
        values[:, :60, :120] = np.nan
        values[rng.random(values.shape) < 0.05] = np.nan
        array[begin : begin + CHUNKS[0]] = values[: num_steps - begin]


def compute(store: Path, cache: Path) -> None:
    """Compute the mask, and print how long it takes."""
    mask = xloader.open(store).window(WINDOW, stride=1).is_valid("sst", at_least=0.9, cache=cache)
    print(f"{mask!r}\n{mask.num_reads} chunks read in {mask.seconds:.2f} s")


def plan(store: Path, cache: Path) -> None:
    """Plan over the mask in the cache, and print seconds and memory."""
    samples = xloader.open(store).window(WINDOW, stride=1)
    # What a first plan imports does not count.
    samples.select(range(64)).loader(batch_size=32, output="numpy").explain()
    start_peak()
    before, begin = peak_nbytes(), time.perf_counter()
    mask = samples.is_valid("sst", at_least=0.9, cache=cache)
    found = time.perf_counter()
    with samples.select(mask).loader(batch_size=32, output="numpy", on_nan="ignore") as loader:
        explained = loader.explain()
        seconds = time.perf_counter() - found
        print(explained)
    print(
        f"found in {found - begin:.2f} s with {mask.num_reads} reads, planned and explained in "
        f"{seconds:.2f} s, with {(peak_nbytes() - before) / 1e6:.0f} MB more"
    )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2112, help="time steps of the store")
    parser.add_argument("--plan", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        plan(*options.plan)
        return
    with tempfile.TemporaryDirectory() as folder:
        store, cache = Path(folder) / "store.zarr", Path(folder) / "masks"
        write(store, options.steps)
        compute(store, cache)
        command = [sys.executable, "-m", "benchmarks.masks", "--plan", str(store), str(cache)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
