"""How long the workers of a ``DataLoader`` take to the first batch, beside a plain one over zarr.

python -m benchmarks.worker_starts
python -m benchmarks.worker_starts --only forkserver --turns 9

Both read the same small store, for each start method, in turns: each turn is a program of its own,
which has opened the store and has imported what it needs. The time is that from making the
``DataLoader`` with two workers to its first batch. Then the same program does so again: a server
of forks is there already, which is asked once for each program. The figures are medians; the
ratio is that of two turns that followed each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

METHODS: Final = ("fork", "forkserver", "spawn")
BATCH_SIZE: Final = 16
NUM_WORKERS: Final = 2
NUM_STEPS: Final = 400
NUM_TURNS: Final = 5
MOST_TIMES: Final = 1.3

Make = Callable[[], Any]
"""Makes a ``DataLoader``."""


class Windows:
    """Dataset of windows of two steps, each of them read through xarray and zarr."""

    def __init__(self, path: Path) -> None:
        import xarray as xr

        self.values = xr.open_zarr(path, consolidated=False, chunks=None).t2m

    def __len__(self) -> int:
        return NUM_STEPS - 1

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(self.values.isel(time=slice(index, index + 2)).values)


def plain(path: Path, method: str) -> Make:
    """PyTorch's own ``DataLoader`` over `Windows`."""
    from torch.utils.data import DataLoader

    dataset: Any = Windows(path)
    return lambda: DataLoader(
        dataset, BATCH_SIZE, num_workers=NUM_WORKERS, multiprocessing_context=method
    )


def ours(path: Path, method: str) -> Make:
    """xloader's ``data_loader`` over the same windows."""
    import xloader
    from xloader.torch import data_loader

    samples = xloader.open(path).window(time=2, stride=1)
    return lambda: data_loader(
        samples,
        BATCH_SIZE,
        memory="16MiB",
        num_workers=NUM_WORKERS,
        multiprocessing_context=method,
    )


WAYS: Final = {"a plain DataLoader": plain, "data_loader": ours}


def first_batches(make: Make) -> tuple[float, float]:
    """Seconds to the first batch of a loader, and of a second one in the same program."""
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        batches = iter(make())
        next(batches)
        seconds.append(time.perf_counter() - begin)
        del batches
    return seconds[0], seconds[1]


def write_store(path: Path) -> None:
    """Write the store that both read."""
    import numpy as np
    import xarray as xr

    values = np.random.default_rng(0).normal(size=(NUM_STEPS, 30, 60)).astype("float32")
    chunks = {"t2m": {"chunks": (16, 30, 60)}}
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    ds.to_zarr(path, consolidated=False, encoding=chunks)


def compare(path: Path, method: str, num_turns: int) -> str:
    """A row of the table."""
    turns: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for way in [way for _ in range(num_turns) for way in WAYS]:
        line = [sys.executable, "-W", "ignore", "-m", "benchmarks.worker_starts"]
        line += ["--way", way, "--only", method, "--store", str(path)]
        turns[way].append(json.loads(subprocess.check_output(line, text=True)))
    row = [method]
    for number in range(2):
        theirs, mine = ([turn[number] for turn in turns[way]] for way in WAYS)
        ratios = [b / a for a, b in zip(theirs, mine, strict=True)]
        ratio = statistics.median(ratios)
        row += [f"{statistics.median(theirs):.2f}", f"{statistics.median(mine):.2f}"]
        row.append(f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        if not number:
            row.append("held" if ratio <= MOST_TIMES else "missed")
    return f"| {' | '.join(row)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_starts", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--turns", type=int, default=NUM_TURNS)
    parser.add_argument("--way", choices=[*WAYS], help="take one turn, and print its seconds")
    parser.add_argument("--store", type=Path, help="the store of that turn")
    options = parser.parse_args()
    if options.way:
        (method,) = options.only
        print(json.dumps(first_batches(WAYS[options.way](options.store, method))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.zarr"
        write_store(path)
        print(
            f"| seconds | {' | '.join(WAYS)} | ratio | at most {MOST_TIMES} | again, "
            f"{' | '.join(WAYS)} | ratio |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for method in options.only:
            print(compare(path, method, options.turns), flush=True)


if __name__ == "__main__":
    main()
