"""An epoch of shuffled windows, beside a plain PyTorch DataLoader on the same store.

python benchmarks/shuffled_windows.py                      # time windows, chunks of 16 steps
python benchmarks/shuffled_windows.py --case patches       # windows that straddle in 2-d
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from zarr.storage import LocalStore

import xloader
from xloader.testing import CountingStore

SHAPE = {"time": 1440, "lat": 180, "lon": 360}
VARIABLES = ("t2m", "u10", "v10", "z500")
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A store's chunks, and the windows taken of it."""

    chunks: tuple[int, int, int]
    window: dict[str, int]
    stride: dict[str, int]
    memory: str


CASES = {
    "steps": Case((16, 180, 360), {"time": 3}, {"time": 1}, "512MiB"),
    "patches": Case((24, 90, 90), {"time": 1, "lat": 60, "lon": 60}, {}, "256MiB"),
}


def make_store(path: Path, chunks: tuple[int, int, int]) -> None:
    """Smooth noise, rounded as packed data are, so that it compresses about as weather does."""
    rng = np.random.default_rng(0)
    shape = tuple(SHAPE.values())
    for index, name in enumerate(VARIABLES):
        steps = rng.standard_normal(shape, dtype=np.float32) * 0.01
        values = np.cumsum(steps, axis=0).round(2)
        ds = xr.Dataset({name: (tuple(SHAPE), values)})
        ds.to_zarr(
            path,
            mode="a" if index else "w",
            zarr_format=3,
            consolidated=False,
            encoding={name: {"chunks": chunks}},
        )


def resident_nbytes() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most bytes in memory meanwhile, over those at the start, in a list of one."""
    begin, peak, is_over = resident_nbytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            peak[0] = max(peak[0], resident_nbytes() - begin)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


class PlainDataset(torch.utils.data.Dataset):
    """What a user writes today: one ``isel`` for each sample."""

    def __init__(self, path: Path, samples: xloader.Samples, case: Case) -> None:
        self.ds = xr.open_zarr(path, consolidated=False, chunks=None)
        self.windows = samples.recipe.require_windows()
        self.window = case.window

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        position = self.windows.positions_of(np.array([index]))[0]
        where = {
            dim: slice(int(place) * stride, int(place) * stride + self.window[dim])
            for dim, place, stride in zip(
                self.windows.dims, position, self.windows.strides, strict=True
            )
        }
        sample = self.ds.isel(where)
        return tuple(torch.from_numpy(sample[name].values) for name in VARIABLES)


def time_plain(dataset: PlainDataset, num_batches: int, num_workers: int) -> float:
    """GB/s of a shuffled DataLoader, over its first batches, after one to warm up."""
    batches = iter(
        torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=num_workers)
    )
    next(batches)
    begin, nbytes = time.perf_counter(), 0
    for _ in range(num_batches):
        nbytes += sum(field.nbytes for field in next(batches))
    return nbytes / (time.perf_counter() - begin) / 1e9


def run(name: str, folder: Path, num_epochs: int, num_batches: int) -> None:
    """Measure one case and print what came of it."""
    case = CASES[name]
    path = folder / f"{name}.zarr"
    if not path.exists():
        make_store(path, case.chunks)
    store = CountingStore(LocalStore(path, read_only=True))
    samples = xloader.open(store).window(case.window, stride=case.stride)
    loader = samples.loader(batch_size=16, memory=case.memory)
    print(f"\n{name}: {len(samples):,} samples, chunks {case.chunks}, memory {case.memory}")
    print(loader.explain())
    speeds = []
    for _ in range(num_epochs):
        expected = loader.explain().num_reads
        store.reset()
        with peak_memory() as peak:
            for _batch in loader:
                pass
        report = loader.report()
        speeds.append(report.delivered_nbytes / report.seconds / 1e9)
        print(
            f"  epoch: {speeds[-1]:.2f} GB/s, {store.num_reads} reads counted, {expected} "
            f"predicted, amplification {report.read_amplification:.3f}, "
            f"peak memory {peak[0] / MIB:.0f} MiB, waited for {report.bottleneck}"
        )
    loader.close()
    dataset = PlainDataset(path, samples, case)
    plain = {workers: time_plain(dataset, num_batches, workers) for workers in (0, 2)}
    for workers, speed in plain.items():
        ratio = max(speeds) / speed
        print(f"  plain DataLoader, {workers} workers: {speed:.3f} GB/s; xloader {ratio:.1f} x")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--epochs", type=int, default=4, help="the best of so many counts")
    parser.add_argument("--batches", type=int, default=6, help="batches of the plain DataLoader")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    options = parser.parse_args()
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores"
    print(f"{machine}, Python {platform.python_version()}, PyTorch {torch.__version__}")
    for name in CASES if options.case == "all" else [options.case]:
        run(name, options.folder, options.epochs, options.batches)


if __name__ == "__main__":
    main()
