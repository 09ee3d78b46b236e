"""How a training begins: the first batch, and the first epoch beside a training step.

python -m benchmarks.training_start               # both tables
python -m benchmarks.training_start --only first-epoch --threads 1

*First batch*: seconds from a new loader to its first batch, with memory for all data and for a
third of them, in turns. *First epoch*: steps of 20 ms, which keep a core busy or sleep, each with a
batch of 16 fields of four variables, by a loader without a setting but its threads; the store is in
the page cache, or on the disk. Beside it stands the same loop over one batch that is in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from benchmarks.layouts import LATS, LAYOUTS, LONS, Layout, StoreSpec
from benchmarks.ours import samples_of
from benchmarks.reference import count_cores
from benchmarks.stores import ensure_stores

STEP_SECONDS: Final = 0.02
NUM_STEPS: Final = 300
BATCH_SIZE: Final = 16
TRAINED: Final = Layout(
    "steps1",
    "time-chunked, window 1",
    StoreSpec(
        "small-steps",
        (16, LATS // 2, LONS // 2),
        num_steps=NUM_STEPS * BATCH_SIZE,
        lats=LATS // 2,
        lons=LONS // 2,
    ),
    {"time": 1},
)


def spin(seconds: float) -> None:
    """Keep a core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def epoch_seconds(batches: Iterable[Any], step: Callable[[float], None]) -> float:
    """Seconds of a loop with a step for each batch."""
    begin = time.perf_counter()
    for _ in batches:
        step(STEP_SECONDS)
    return time.perf_counter() - begin


def settle(place: Path, *, is_cached: bool) -> None:
    """Have the system keep the files of a store in memory, or none of them."""
    for path in place.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            if is_cached:
                file.read()
            else:
                # What is not written yet would stay.
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_batch_seconds(layout: Layout, place: str, memory: int, threads: int) -> float:
    """Seconds until a new loader gives its first batch."""
    samples = samples_of(layout, place)
    begin = time.perf_counter()
    with samples.loader(
        batch_size=layout.batch_size, memory=memory, threads=threads, output="numpy"
    ) as loader:
        next(iter(loader))
        return time.perf_counter() - begin


def first_batches(places: dict[StoreSpec, Path], threads: int, num_turns: int) -> None:
    """Print the table of first batches: medians, and the medians of the ratios."""
    print("| layout | memory for all, ms | for a third, ms | ratio |\n|---|---|---|---|")
    for layout in LAYOUTS:
        place, sizes = str(places[layout.store]), (2 * layout.store.nbytes, layout.memory_nbytes)
        if layout.is_in_memory:
            sizes = sizes[0], layout.store.nbytes // 3
        pairs = [
            [first_batch_seconds(layout, place, size, threads) for size in sizes]
            for _ in range(num_turns + 1)
        ][1:]
        whole, third = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        print(f"| {layout.title} | {whole:.0f} | {third:.0f} | {ratio:.2f} |", flush=True)


def first_epochs(place: Path, threads: int, num_turns: int) -> None:
    """Print the table of first epochs: the ideal over the loader's, medians and all turns."""
    print("| step | store | ideal, s | first epoch, s | ideal / epoch |\n|---|---|---|---|---|")
    for name, step in (("keeps a core busy", spin), ("sleeps", time.sleep)):
        rows: dict[str, list[tuple[float, float]]] = {"page cache": [], "disk": []}
        for _ in range(num_turns):
            ideal = epoch_seconds(repeat(None, NUM_STEPS), step)
            for where, pairs in rows.items():
                settle(place, is_cached=where == "page cache")
                samples = samples_of(TRAINED, str(place))
                with samples.loader(
                    batch_size=BATCH_SIZE, threads=threads, output="numpy"
                ) as loader:
                    assert len(loader) == NUM_STEPS
                    pairs.append((ideal, epoch_seconds(loader, step)))
        for where, pairs in rows.items():
            ideal, epoch = (statistics.median(column) for column in zip(*pairs, strict=True))
            shares = sorted(ideal / taken for ideal, taken in pairs)
            told = f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})"
            print(f"| {name} | {where} | {ideal:.2f} | {epoch:.2f} | {told} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_start")
    parser.add_argument("--only", choices=("first-batch", "first-epoch"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    options = parser.parse_args()
    if options.only != "first-epoch":
        threads = options.threads or count_cores()
        places = ensure_stores(options.folder, [layout.store for layout in LAYOUTS])
        print(f"first batch, {threads} threads, {options.turns} turns\n")
        first_batches(places, threads, options.turns)
    if options.only != "first-batch":
        threads = options.threads or max(count_cores() - 1, 1)
        place = ensure_stores(options.folder, [TRAINED.store])[TRAINED.store]
        print(f"\nfirst epoch, {threads} threads, {options.turns} turns\n")
        first_epochs(place, threads, options.turns)


if __name__ == "__main__":
    main()
