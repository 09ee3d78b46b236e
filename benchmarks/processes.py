"""What worker processes are worth where Python is kept busy: `python -m benchmarks.processes`.

Two cases, each with threads and with processes in turns, in one run:

- a training loop that spins in Python for half of each step and sleeps for the other half. Its step
  takes as long as a loader on threads needs for a batch. What comes is compared with what the same
  loader delivers to a loop that sleeps all the time;
- a transform that holds Python's lock for 20 ms a batch, and a loop that does nothing. The batches
  have 4 samples, so that the transform takes most of the time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import xarray as xr

import xloader
from benchmarks.layouts import LAYOUTS
from benchmarks.stores import ensure_stores

NUM_TURNS: Final = 3
HELD_SECONDS: Final = 0.02


def spin(seconds: float) -> None:
    """Keep Python's lock and a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def hold_lock(ds: xr.Dataset) -> xr.Dataset:
    """A transform that loops in Python, whatever the batch."""
    if ds.sizes["sample"] > 1:
        end = time.thread_time() + HELD_SECONDS
        while time.thread_time() < end:
            pass
    return ds


def rate(loader: xloader.Loader, step: Callable[[], None] | None = None) -> float:
    """Batches a second of an epoch, after its first four batches."""
    num, begin = 0, 0.0
    for number, _ in enumerate(loader):
        if number == 4:
            begin = time.perf_counter()
        num += number > 4
        if step is not None:
            step()
    return num / (time.perf_counter() - begin)


def best(loaders: dict[str, xloader.Loader], step: Any = None) -> dict[str, float]:
    """The best rate of each loader, taken in turns."""
    found = dict.fromkeys(loaders, 0.0)
    for _ in range(NUM_TURNS):
        for name, loader in loaders.items():
            found[name] = max(found[name], rate(loader, step))
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    parser.add_argument("--only", default="steps1", help="name of a layout")
    chosen = parser.parse_args()
    (layout,) = [one for one in LAYOUTS if one.name == chosen.only]
    path = ensure_stores(chosen.folder, [layout.store])[layout.store]
    samples = xloader.open(path).window(layout.window, stride=layout.stride)
    options: dict[str, Any] = {
        "batch_size": layout.batch_size,
        "output": "numpy",
        "memory": layout.memory_nbytes,
        "on_nan": "ignore",
    }
    kinds = {"threads": {}, "processes=1": {"processes": 1}, "processes=2": {"processes": 2}}
    loaders = {name: samples.loader(**options, **more) for name, more in kinds.items()}
    seconds = 1 / max(rate(loaders["threads"]) for _ in range(2))
    print(f"a step of {1e3 * seconds:.1f} ms, as long as threads need for a batch of {layout.name}")
    free = best(loaders)
    asleep = best(loaders, lambda: time.sleep(seconds))
    busy = best(loaders, lambda: (spin(seconds / 2), time.sleep(seconds / 2)))
    print("| | no loop, batches/s | a loop that sleeps | half spins | half spins / sleeps |")
    print("| --- | --- | --- | --- | --- |")
    for name in loaders:
        cells = (free[name], asleep[name], busy[name], busy[name] / asleep[name])
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    for loader in loaders.values():
        loader.close()
    options["batch_size"] = 4
    slow = {name: samples.map(hold_lock).loader(**options, **more) for name, more in kinds.items()}
    held = best(slow)
    print("\n| a transform that holds the lock for 20 ms | batches/s | of threads |")
    print("| --- | --- | --- |")
    for name in slow:
        print(f"| {name} | {held[name]:.2f} | {held[name] / held['threads']:.2f} |")
        slow[name].close()


if __name__ == "__main__":
    main()
