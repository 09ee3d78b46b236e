"""Memory of PyTorch's workers over six epochs: xloader against a dataset with a list of samples.

python -m benchmarks.memory                 # every combination, each in a process of its own

The benchmark measures the memory that belongs to each worker alone (USS), after the first batch and
after each epoch. Resident memory would include what a worker shares with its parent.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import pickle
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch.utils.data import DataLoader, Dataset

import xloader
from xloader.torch import IterableDataset, MapDataset, collate, data_loader

NUM_SAMPLES = 150_000
NUM_WORKERS = 2
NUM_EPOCHS = 6
BATCH_SIZE = 512
MEMORY_NBYTES = 4 << 20
"""Less memory than the data take. With more, workers would keep chunks from epoch to epoch."""
MIB = 1 << 20
KINDS = ("data_loader", "IterableDataset", "list of samples")
CONTEXTS = ("fork", "forkserver", "spawn")


class ListDataset(Dataset[Any]):
    """The control: a dataset that keeps a dictionary for each sample, as xbatcher and others do."""

    def __init__(self, num_samples: int) -> None:
        self.items = [{"time": i, "name": f"sample {i}"} for i in range(num_samples)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> np.ndarray:
        item = self.items[index]
        return np.full(16, item["time"], np.float32)


@dataclass(frozen=True)
class Cell:
    """One combination of dataset, start method and number of samples, with its workers' memory."""

    kind: str
    context: str
    num_samples: int
    first_nbytes: int
    epoch_nbytes: list[int]
    pickled_nbytes: int

    @property
    def growth_nbytes(self) -> int:
        """Growth from the first batch to the end of the first epoch, summed over the workers."""
        return self.epoch_nbytes[0] - self.first_nbytes

    @property
    def slope_nbytes(self) -> float:
        """Growth per epoch after the first: the median slope of all pairs of epochs (Theil-Sen)."""
        pairs = itertools.combinations(enumerate(self.epoch_nbytes[1:]), 2)
        return float(np.median([(b - a) / (j - i) for (i, a), (j, b) in pairs]))


def main() -> None:
    """Measure every combination in a process of its own and check its limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", nargs=3, metavar=("KIND", "CONTEXT", "NUM_SAMPLES"))
    options = parser.parse_args()
    if options.cell:
        kind, context, num_samples = options.cell
        print(json.dumps(asdict(measure(kind, context, int(num_samples)))))
        return
    print("| dataset | start | samples | first batch | epoch 1 | epochs 2-6 | pickled | gates |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, context in itertools.product(KINDS, CONTEXTS):
        cells = [_run_cell(kind, context, n) for n in (NUM_SAMPLES, 2 * NUM_SAMPLES)]
        for cell in cells:
            print(_row(cell, missed(*cells)), flush=True)


def measure(kind: str, context: str, num_samples: int) -> Cell:
    """Run six epochs and measure the workers' memory after each."""
    with tempfile.TemporaryDirectory() as folder:
        loader, pickled_nbytes = _make(kind, context, num_samples, Path(folder))
        gc.collect()
        batches = iter(loader)
        next(batches)
        first_nbytes = _workers_nbytes(loader)
        for _ in batches:
            pass
        epoch_nbytes = [_workers_nbytes(loader)]
        for epoch in range(1, NUM_EPOCHS):
            if isinstance(loader.dataset, IterableDataset):
                loader.dataset.set_epoch(epoch)
            for _ in loader:
                pass
            epoch_nbytes.append(_workers_nbytes(loader))
    return Cell(kind, context, num_samples, first_nbytes, epoch_nbytes, pickled_nbytes)


def missed(once: Cell, twice: Cell) -> list[str]:
    """Return the limits that a dataset exceeds, from its cells with n and with 2 n samples."""
    found = []
    if max(once.growth_nbytes, twice.growth_nbytes) > MEMORY_NBYTES + NUM_WORKERS * 8 * MIB:
        found.append("growth in epoch 1")
    if twice.epoch_nbytes[0] - once.epoch_nbytes[0] > NUM_WORKERS * 4 * MIB:
        found.append("grows with samples")
    if max(once.slope_nbytes, twice.slope_nbytes) > NUM_WORKERS * MIB:
        found.append("grows with epochs")
    if twice.pickled_nbytes > 64 << 10:
        found.append("pickles large")
    return found


def _make(kind: str, context: str, num_samples: int, folder: Path) -> tuple[DataLoader[Any], int]:
    shared: dict[str, Any] = {"num_workers": NUM_WORKERS, "persistent_workers": True}
    shared["multiprocessing_context"] = context
    if kind == "list of samples":
        dataset = ListDataset(num_samples)
        loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, **shared)
        return loader, len(pickle.dumps(dataset))
    values = np.random.default_rng(0).random((num_samples, 16), np.float32)
    ds = xr.Dataset({"t": (("time", "x"), values)})
    path = folder / "samples.zarr"
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding={"t": {"chunks": (500, 16)}})
    samples = xloader.open(path).window(time=1)
    if kind == "IterableDataset":
        own = IterableDataset(samples, BATCH_SIZE, memory=MEMORY_NBYTES)
        nbytes = len(pickle.dumps(own))
        return DataLoader(own, batch_size=None, collate_fn=collate, **shared), nbytes
    nbytes = len(pickle.dumps(MapDataset(samples, MEMORY_NBYTES)))
    return data_loader(samples, BATCH_SIZE, memory=MEMORY_NBYTES, **shared), nbytes


def _workers_nbytes(loader: DataLoader[Any]) -> int:
    """Return the bytes that belong to the workers alone."""
    workers = loader._iterator._workers  # type: ignore[union-attr]
    return sum(_own_nbytes(worker.pid) for worker in workers)


def _own_nbytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    own = [line.split() for line in fields if line.startswith("Private_")]
    return sum(int(size) << 10 for _, size, *_ in own)


def _run_cell(kind: str, context: str, num_samples: int) -> Cell:
    command = [sys.executable, "-m", "benchmarks.memory", "--cell", kind, context]
    done = subprocess.run([*command, str(num_samples)], check=True, capture_output=True, text=True)
    return Cell(**json.loads(done.stdout.splitlines()[-1]))


def _row(cell: Cell, gates: list[str]) -> str:
    later = [n / MIB for n in cell.epoch_nbytes[1:]]
    columns = [
        cell.kind,
        cell.context,
        f"{cell.num_samples:,}",
        f"{cell.first_nbytes / MIB:.0f}",
        f"{cell.epoch_nbytes[0] / MIB:.0f}",
        f"{min(later):.0f} to {max(later):.0f}",
        f"{cell.pickled_nbytes / 1024:.0f} KiB",
        "; ".join(gates) or "held",
    ]
    return f"| {' | '.join(columns)} |"


if __name__ == "__main__":
    main()
