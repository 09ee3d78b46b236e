"""What worker processes are worth where Python is kept busy.

python -m benchmarks.processes

Two cases, with threads and with processes in turns, in one run:

- a training loop that spins in Python for half of each step and sleeps for the other half. Its step
  takes as long as a loader on threads needs for a batch. What comes is compared with what the same
  loader delivers to a loop that sleeps all the time;
- a transform that holds Python's lock for 20 ms a batch, and a loop that does nothing. The batches
  have few or small samples, so that the transform takes most of the time. Reading a batch takes
  CPU time as well, which two processes cannot do beside the transform on two cores: the table says
  how many times as fast as threads they could be at most.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import xarray as xr

import xloader
from benchmarks.layouts import LAYOUTS
from benchmarks.ours import samples_of
from benchmarks.reference import count_cores
from benchmarks.stores import ensure_stores

NUM_TURNS: Final = 3
HELD_SECONDS: Final = 0.02
TRANSFORMED: Final = (
    *(("steps1", 2, 2), ("steps1", 2, 6), ("steps1", 4, 2), ("steps1", 4, 6)),
    *(("straddling", 16, 2), ("straddling", 16, 6)),
)
"""Layout, samples in a batch and batches ahead, where a transform holds the lock. A batch of 16
patches takes far less of the CPU to decode than one of whole fields."""
NUM_TRANSFORMED: Final = 400
"""Batches of an epoch with a transform that holds the lock, at most."""

NUM_WARM: Final = 4
"""Batches of an epoch that are not counted."""

WAYS: Final = {"threads": 0, "processes=1": 1, "processes=2": 2}


def spin(seconds: float) -> None:
    """Keep Python's lock and a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def hold_lock(ds: xr.Dataset) -> xr.Dataset:
    """Loop in Python, whatever the batch."""
    if ds.sizes["sample"] > 1:
        end = time.thread_time() + HELD_SECONDS
        while time.thread_time() < end:
            pass
    return ds


def rate(loader: xloader.Loader, step: Callable[[], object] | None = None) -> float:
    """Batches a second of an epoch, after its first ones."""
    num, begin = 0, time.perf_counter()
    for number, _ in enumerate(loader):
        if number == NUM_WARM:
            begin = time.perf_counter()
        num += number > NUM_WARM
        if step is not None:
            step()
    return num / (time.perf_counter() - begin)


def best(
    loaders: dict[str, xloader.Loader], step: Callable[[], object] | None = None
) -> dict[str, float]:
    """The best rate of each loader, taken in turns."""
    found = dict.fromkeys(loaders, 0.0)
    for _ in range(NUM_TURNS):
        for name, loader in loaders.items():
            found[name] = max(found[name], rate(loader, step))
    return found


def compare_loops(samples: xloader.Samples, options: dict[str, Any]) -> list[str]:
    """Measure a loop that spins beside one that sleeps. Returns the lines of a table."""
    with ExitStack() as opened:
        loaders = {
            name: opened.enter_context(samples.loader(**options, processes=num))
            for name, num in WAYS.items()
        }
        seconds = 1 / max(rate(loaders["threads"]) for _ in range(2))
        free = best(loaders)
        asleep = best(loaders, lambda: time.sleep(seconds))

        def step() -> None:
            spin(seconds / 2)
            time.sleep(seconds / 2)

        busy = best(loaders, step)
    return [
        f"| batches/s, a step of {1e3 * seconds:.1f} ms | no loop | sleeps | half spins | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {free[name]:.2f} | {asleep[name]:.2f} | {busy[name]:.2f} "
            f"| {busy[name] / asleep[name]:.2f} |"
            for name in WAYS
        ),
    ]


def compare_transforms(samples: xloader.Samples, options: dict[str, Any]) -> list[str]:
    """Measure a transform that holds the lock. Returns the lines of a table."""
    slow = samples.map(hold_lock)
    with ExitStack() as opened:
        loaders = {
            name: opened.enter_context(slow.loader(**options, processes=num))
            for name, num in WAYS.items()
        }
        held = best(loaders)
        cpu_seconds = cpu_of_batch(loaders["threads"])
    most = count_cores() / (held["threads"] * cpu_seconds)
    case = (
        f"lock held, batches of {options['batch_size']}, prefetch={options['prefetch']}, "
        f"{1e3 * cpu_seconds:.1f} ms of CPU each"
    )
    return [
        f"| {case} | batches/s | of threads (at most {most:.2f}) |",
        "|---|---|---|",
        *(f"| {name} | {held[name]:.2f} | {held[name] / held['threads']:.2f} |" for name in WAYS),
    ]


def cpu_of_batch(loader: xloader.Loader) -> float:
    """CPU seconds of this process for a batch, over all of its threads."""
    begin = time.process_time()
    num = sum(1 for _ in loader)
    return (time.process_time() - begin) / num


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    folder = Path(tempfile.gettempdir()) / "xloader-bench"
    parser.add_argument("--folder", type=Path, default=folder, help="where the stores lie")
    parser.add_argument("--only", default="steps1", help="name of a layout")
    chosen = parser.parse_args()
    samples, options = layout_samples(chosen.only, chosen.folder)
    print("\n".join(compare_loops(samples, options)), "\n")
    for name, batch_size, prefetch in TRANSFORMED:
        samples, options = layout_samples(name, chosen.folder)
        ids = range(min(len(samples), NUM_TRANSFORMED * batch_size))
        own = {**options, "batch_size": batch_size, "prefetch": prefetch}
        print("\n".join([name, *compare_transforms(samples.select(ids), own)]), "\n")


def layout_samples(name: str, folder: Path) -> tuple[xloader.Samples, dict[str, Any]]:
    """The samples of a layout, whose store is made if it is not there, and options of loaders."""
    (layout,) = [one for one in LAYOUTS if one.name == name]
    path = ensure_stores(folder, [layout.store])[layout.store]
    return samples_of(layout, str(path)), {
        "batch_size": layout.batch_size,
        "output": "numpy",
        "memory": layout.memory_nbytes,
        "on_nan": "ignore",
    }


if __name__ == "__main__":
    main()
