"""Plan, explain and begin an epoch of 10^9 samples in 10^6 chunks: seconds and memory.

python -m benchmarks.billion                                     # all of them
python -m benchmarks.billion --samples 100000000 --share 0.01    # a random mask of 1 % of 10^8

The store has metadata only, so what is measured is the planning.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import zarr
from zarr.storage import MemoryStore

import xloader


def peak_nbytes() -> int:
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--share", type=float, help="select so many of them at random")
    options = parser.parse_args()
    store = MemoryStore()
    group = zarr.create_group(store)
    group.create_array(
        "a", shape=(options.samples,), chunks=(1000,), dtype="float32", dimension_names=("time",)
    )
    samples = xloader.open(store, on_missing="fill").window(time=options.window, stride=1)
    mask = None
    if options.share is not None:
        mask = np.random.default_rng(0).random(len(samples), np.float32) < options.share
    before, begin = peak_nbytes(), time.perf_counter()
    if mask is not None:
        samples = samples.select(mask)
    loader = samples.loader(batch_size=options.batch_size, output="numpy")
    print(loader.explain())
    ids = next(iter(loader)).ids
    seconds, used = time.perf_counter() - begin, peak_nbytes() - before
    print(f"first ids {ids[:4].tolist()} after {seconds:.2f} s, with {used / 1e6:.0f} MB more")


if __name__ == "__main__":
    main()
