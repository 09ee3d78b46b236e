"""What the tests of trainers train on, here and in ranks of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import xloader
from xloader import Samples
from xloader.loader.loader import Loader
from xloader.testing import write_store

ROOT = Path(__file__).resolve().parents[2]
GLOBAL_BATCH = 8
NUM_SAMPLES = 45
"""Not a multiple of the batch, so that ranks have padding at the end of an epoch."""
OPTIONS: dict[str, Any] = {"lanes": 4, "memory": "2KiB", "seed": 3}

Row = tuple[int, list[int]]
"""An epoch, and the ids of a batch without its padding."""


def make_store(path: Path) -> Path:
    """A store of single steps whose chunks do not fit into the memory of a loader."""
    values = np.random.default_rng(0).normal(size=(NUM_SAMPLES + 1, 4)).astype(np.float32)
    write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (4, 4)}, path)
    return path


def open_samples(store: Any) -> Samples:
    """Pairs of a step and the next one."""
    opened = xloader.open(store).window(time=2, stride=1)
    return opened.inputs("t", time=0).targets("t", time=1)


def make_loader(store: Any, world_size: int = 1, **options: Any) -> Loader:
    """A loader whose global batches are the same on any number of ranks."""
    batch_size = GLOBAL_BATCH // world_size
    return open_samples(store).loader(batch_size=batch_size, **{**OPTIONS, **options})


def row(epoch: int, batch: Any) -> Row:
    """What a rank notes of a batch."""
    return epoch, [int(i) for i in batch.ids[~batch.is_padding]]


def all_rows(store: Any, num_epochs: int) -> list[Row]:
    """The global batches of one process alone."""
    found = []
    with make_loader(store) as loader:
        for epoch in range(num_epochs):
            found += [row(epoch, batch) for batch in loader]
    return found


def note(folder: Path, rank: int, found: Any) -> None:
    """Leave what a rank found where `read_ranks` looks for it."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def read_ranks(folder: Path, world_size: int) -> list[Any]:
    """What all ranks have found."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def together(ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """Global batches from those of the ranks, which must be of the same epochs."""
    found = []
    for rows in zip(*ranks, strict=True):
        (epoch,) = {epoch for epoch, _ in rows}
        found.append((epoch, [i for _, ids in rows for i in ids]))
    return found


def run_ranks(world_size: int, script: str, *arguments: object) -> None:
    """Run a script of this folder under torchrun."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    run_python(*launch, ROOT / "tests" / "trainers" / script, *arguments)


def run_python(*arguments: object, folder: Path | None = None) -> None:
    """Run an interpreter like this one, without what a trainer left in the environment."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    environ = {name: value for name, value in os.environ.items() if name not in launchers}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
