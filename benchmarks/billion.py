"""Plan, explain and start an epoch of 10^9 samples in 10^6 chunks: seconds and memory.

python -m benchmarks.billion                                     # all samples
python -m benchmarks.billion --samples 100000000 --share 0.01    # a random mask of 1 % of 10^8
python -m benchmarks.billion --resume 1000000                    # continue from that step

The store holds metadata only, so this measures the planning alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import zarr
from zarr.storage import MemoryStore

import xloader
from xloader.loader.loader import Loader
from xloader.loader.ranks.state import sign


def peak_nbytes() -> int:
    """Return the largest number of bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resume(stopped: Loader, loader: Loader, step: int) -> None:
    """Resume from a step at which a loader might have stopped."""
    state = json.dumps(sign({**stopped.state_dict(), "step": step}))
    begin = time.perf_counter()
    loader.load_state_dict(json.loads(state))
    loaded = time.perf_counter()
    ids = next(iter(loader)).ids
    seconds = time.perf_counter() - loaded
    print(f"a state of {len(state)} bytes, loaded in {(loaded - begin) * 1e3:.1f} ms")
    print(f"first ids {ids[:4].tolist()} after {seconds:.2f} s")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--resume", type=int, metavar="STEP", help="go on from a step")
    parser.add_argument("--share", type=float, help="select so many of them at random")
    options = parser.parse_args()
    store = MemoryStore()
    group = zarr.create_group(store)
    group.create_array(
        "a", shape=(options.samples,), chunks=(1000,), dtype="float32", dimension_names=("time",)
    )
    samples = xloader.open(store, on_missing="fill").window(time=options.window, stride=1)
    if options.resume is not None:
        first, second = (
            samples.loader(batch_size=options.batch_size, output="numpy") for _ in range(2)
        )
        resume(first, second, options.resume)
        return
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
