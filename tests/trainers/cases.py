"""Data, loaders and helpers for the tests of trainers, in this process and in ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import xloader
from xloader import Samples
from xloader.loader.loader import Loader
from xloader.testing import write_store

GLOBAL_BATCH = 8
NUM_SAMPLES = 45
"""Not a multiple of the batch size, so that ranks have padding at the end of an epoch."""
OPTIONS: dict[str, Any] = {"plan": xloader.PlanRules(lanes=4), "memory": "2KiB", "seed": 3}

Row = tuple[int, list[int]]
"""An epoch, and the ids of a batch without its padding."""


def make_store(path: Path) -> Path:
    """Make a store of single steps whose chunks do not fit into the loader's memory."""
    values = np.random.default_rng(0).normal(size=(NUM_SAMPLES + 1, 4)).astype(np.float32)
    write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (4, 4)}, path)
    return path


def open_samples(store: Any) -> Samples:
    """Return samples that are pairs of a step and the next one."""
    opened = xloader.open(store).window(time=2, stride=1)
    return opened.inputs("t", time=0).targets("t", time=1)


def make_loader(store: Any, world_size: int = 1, **options: Any) -> Loader:
    """Make a loader whose global batches are the same on any number of ranks."""
    batch_size = GLOBAL_BATCH // world_size
    return open_samples(store).loader(batch_size=batch_size, **{**OPTIONS, **options})


def row(epoch: int, batch: Any) -> Row:
    """Return a batch as a rank records it."""
    return epoch, [int(i) for i in batch.ids[~batch.is_padding]]


def all_rows(store: Any, num_epochs: int) -> list[Row]:
    """Return the global batches of a single process."""
    found = []
    with make_loader(store) as loader:
        for epoch in range(num_epochs):
            found += [row(epoch, batch) for batch in loader]
    return found


def inputs_of(store: Any, dtype: Any, num_epochs: int = 1) -> list[Any]:
    """Return the inputs of all batches of a single process, as a trainer casts them."""
    loader = make_loader(store)
    return [batch.inputs.to(dtype) for _ in range(num_epochs) for batch in loader]


def note(folder: Path, rank: int, found: Any) -> None:
    """Write a rank's results to the file that `read_ranks` reads."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def read_ranks(folder: Path, world_size: int) -> list[Any]:
    """Return the results of all ranks."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def together(ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """Join the ranks' batches into global batches; all ranks must be in the same epoch."""
    found = []
    for rows in zip(*ranks, strict=True):
        (epoch,) = {epoch for epoch, _ in rows}
        found.append((epoch, [i for _, ids in rows for i in ids]))
    return found
