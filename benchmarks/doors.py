"""PyTorch's datasets and loaders over xloader and over xbatcher, in one run on one store.

python -m benchmarks.doors                  # makes its store in the temporary folder
python -m benchmarks.doors --folder DIR     # finds or makes its store in DIR
python -m benchmarks.doors --rounds 3       # takes turns, where other programs disturb the figures

Each way runs in a process of its own. It warms up for one epoch, or for some seconds of one. Then
the best of three epochs counts. *Copies* means that PyTorch copies the batches of the workers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import xarray as xr

import xloader
from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.rivals.shuffled import open_dataset
from benchmarks.stores import ensure_stores

SECONDS = 6.0
"""An epoch that takes longer is stopped. Its rate is computed from the batches that came."""

NUM_TURNS = 3

InitFn = Callable[[int], None]

Epochs = Callable[[], Iterator[int]]
"""Starts an epoch and yields the number of bytes of each batch."""


def main() -> None:
    """Run each way in turn and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "xbench")
    parser.add_argument("--layout", default="steps1", choices=[own.name for own in LAYOUTS])
    parser.add_argument("--way", choices=[*WAYS])
    parser.add_argument("--only", nargs="+", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many counts")
    options = parser.parse_args()
    layout = next(own for own in LAYOUTS if own.name == options.layout)
    if options.way:
        print(json.dumps(measure(options.way, layout, options.folder)))
        return
    ensure_stores(options.folder, [layout.store])
    print(f"{layout.title}, memory {layout.memory_nbytes >> 20} MiB")
    print(f"| door | GB/s | of {options.only[0]} | CPU seconds per GB | first batch, s |")
    print("| --- | --- | --- | --- | --- |")
    best: dict[str, Figures] = {}
    for _ in range(options.rounds):
        for way in options.only:
            best[way] = _run(way, options).best_of(best.get(way))
    for way, own in best.items():
        share = own.rate / best[options.only[0]].rate
        print(f"| {way} | {own.rate:.3f} | {share:.3f} | {own.cpu:.2f} | {own.first:.1f} |")


class Figures(NamedTuple):
    """GB/s, CPU seconds per GB of all processes, and seconds to the very first batch."""

    rate: float
    cpu: float
    first: float

    def best_of(self, other: Figures | None) -> Figures:
        """The best of each figure."""
        if other is None:
            return self
        return Figures(
            max(self.rate, other.rate), min(self.cpu, other.cpu), min(self.first, other.first)
        )


def measure(way: str, layout: Layout, folder: Path) -> Figures:
    """Return the best of three epochs."""
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    epochs = WAYS[way](layout, folder / layout.store.folder_name)
    first = 0.0
    found: Figures | None = None
    for turn in range(1 + NUM_TURNS):
        nbytes, start, cpu = 0, time.perf_counter(), _cpu_seconds()
        for batch_nbytes in epochs():
            first = first or time.perf_counter() - begin
            nbytes += batch_nbytes
            if time.perf_counter() - start > SECONDS:
                break
        gigabytes = nbytes / 1e9
        rate = gigabytes / (time.perf_counter() - start)
        if turn:
            own = Figures(rate, (_cpu_seconds() - cpu) / gigabytes, first)
            found = own.best_of(found)
    assert found is not None
    return found


def _cpu_seconds() -> float:
    """CPU seconds of this process and of all that it has started, which must still be there."""
    seconds = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def _samples(layout: Layout, path: Path) -> Any:
    sizes = dict(zip(("time", "lat", "lon"), layout.window_sizes, strict=True))
    strides = dict(zip(("time", "lat", "lon"), layout.strides, strict=True))
    return xloader.open(path, **layout.open_options).window(sizes, stride=strides)


def _nbytes(batches: Iterator[Any]) -> Iterator[int]:
    return (sum(field.nbytes for field in batch) for batch in batches)


def _loader(layout: Layout, path: Path) -> Epochs:
    loader = _samples(layout, path).loader(
        batch_size=layout.batch_size, memory=layout.memory_nbytes
    )
    return lambda: _nbytes(iter(loader))


def _data_loader(
    layout: Layout,
    path: Path,
    num_workers: int,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Epochs:
    from xloader.torch import data_loader

    loader = data_loader(
        _samples(layout, path),
        layout.batch_size,
        num_workers=num_workers,
        memory=layout.memory_nbytes,
        worker_init_fn=worker_init_fn,
    )
    return lambda: _nbytes(iter(loader))


def lend_nothing(number: int) -> None:
    """Let PyTorch copy the batches of this worker into new shared memory, as it does by itself.

    Parameters
    ----------
    number : int
        Number of the worker.
    """
    from xloader.torch import iterable_dataset, worker_reader

    for module in (iterable_dataset, worker_reader):
        vars(module)["memory_to_lend"] = lambda rank_plan: None


def _iterable(
    layout: Layout,
    path: Path,
    num_workers: int,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Epochs:
    from torch.utils.data import DataLoader

    from xloader.torch import IterableDataset, collate

    dataset = IterableDataset(
        _samples(layout, path), layout.batch_size, memory=layout.memory_nbytes
    )
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        collate_fn=collate,
        persistent_workers=True,
        multiprocessing_context="forkserver",
        worker_init_fn=worker_init_fn,
    )
    epochs = itertools.count()

    def epoch() -> Iterator[int]:
        dataset.set_epoch(next(epochs))
        return _nbytes(iter(loader))

    return epoch


def _random(layout: Layout, path: Path, num_workers: int) -> Epochs:
    from torch.utils.data import DataLoader

    from xloader.torch import MapDataset, collate

    loader: DataLoader[Any] = DataLoader(
        MapDataset(_samples(layout, path), memory=layout.memory_nbytes),
        layout.batch_size,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=collate,
        persistent_workers=True,
        multiprocessing_context="forkserver",
    )
    return lambda: _nbytes(iter(loader))


class ToTensor:
    """A Dataset of one window as one tensor. xbatcher's own conversion takes one variable only."""

    def __call__(self, sample: xr.Dataset) -> Any:
        import torch

        return torch.from_numpy(sample.to_array().values)


def _xbatcher(layout: Layout, path: Path, num_workers: int) -> Epochs:
    import xbatcher
    import xbatcher.loaders.torch
    from torch.utils.data import DataLoader

    sizes = dict(zip(("time", "lat", "lon"), layout.window_sizes, strict=True))
    windows = xbatcher.BatchGenerator(
        open_dataset(str(path), layout, with_dask=False), input_dims=sizes
    )
    loader: DataLoader[Any] = DataLoader(
        xbatcher.loaders.torch.MapDataset(windows, transform=ToTensor()),
        layout.batch_size,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=True,
        multiprocessing_context="forkserver",
    )
    return lambda: (batch.nbytes for batch in loader)


WAYS: dict[str, Callable[[Layout, Path], Epochs]] = {
    "samples.loader()": _loader,
    **{f"data_loader, {n} workers": partial(_data_loader, num_workers=n) for n in (0, 1, 2, 4)},
    "data_loader, 2 workers, copies": partial(
        _data_loader, num_workers=2, worker_init_fn=lend_nothing
    ),
    "IterableDataset, 2 workers": partial(_iterable, num_workers=2),
    "IterableDataset, 2 workers, copies": partial(
        _iterable, num_workers=2, worker_init_fn=lend_nothing
    ),
    "MapDataset, shuffle=True, 2 workers": partial(_random, num_workers=2),
    "xbatcher's MapDataset, shuffle=True, 2 workers": partial(_xbatcher, num_workers=2),
}


def _run(way: str, options: argparse.Namespace) -> Figures:
    command = [sys.executable, "-m", "benchmarks.doors", "--way", way]
    where = ["--folder", str(options.folder), "--layout", options.layout]
    done = subprocess.run([*command, *where], check=True, capture_output=True, text=True)
    return Figures(*json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
