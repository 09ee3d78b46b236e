"""Decoding gzip and zlib: Intel's library (the extra "fast") against Python's own, in one run.

python -m benchmarks.inflate

Chunks of smooth float32 fields, rounded to 0.01, go through the same function that decodes the
chunks of a store, on one thread and on two. The output gives speeds and their ratios.
"""

from __future__ import annotations

import threading
import time
import zlib

import numpy as np
from isal import isal_zlib

from xloader.sources.zarr import codec_chain

NUM_CHUNKS = 12
NUM_TURNS = 5
SHAPE = (16, 181, 360)
"""Time steps, latitudes and longitudes of a chunk; it has 4 MB when decoded."""


def make_chunk() -> np.ndarray:
    """Return a chunk like weather data: smooth in space, with noise, rounded to two decimals."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=SHAPE).cumsum(axis=1).cumsum(axis=2) / 100
    return np.asarray((280 + noise).round(2), "f4")


def seconds_of(library: object, data: np.ndarray, nbytes: int, num_threads: int) -> float:
    """Return the shortest time in which the threads decode their shares of the chunks."""
    codec_chain.ZLIB = library  # type: ignore[misc]  # the one place that says which is used

    def decode() -> None:
        into = np.empty(nbytes, np.uint8)
        for _ in range(NUM_CHUNKS // num_threads):
            codec_chain.unzlib(data, into)

    best = np.inf
    for _ in range(NUM_TURNS):
        threads = [threading.Thread(target=decode) for _ in range(num_threads)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    chunk = make_chunk()
    for level in (1, 5, 9):
        data = np.frombuffer(zlib.compress(chunk.tobytes(), level), np.uint8)
        for num_threads in (1, 2):
            python, isal = (
                seconds_of(library, data, chunk.nbytes, num_threads)
                for library in (zlib, isal_zlib)
            )
            speeds = [NUM_CHUNKS * chunk.nbytes / seconds / 1e9 for seconds in (python, isal)]
            print(
                f"level {level}, {num_threads} thread(s): isal {python / isal:.2f} x zlib "
                f"({speeds[1]:.2f} and {speeds[0]:.2f} GB/s)"
            )


if __name__ == "__main__":
    main()
