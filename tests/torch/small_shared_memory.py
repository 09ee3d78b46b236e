"""A program that reads a store through worker processes, and keeps all batches.

Its argument is the folder of the store. For each door it prints the ids that came, and how often
values were wrong.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from xloader import Samples, xbatcher
from xloader.torch import IterableDataset, MapDataset, collate, data_loader

NUM_SAMPLES: Final = 96
WIDTH: Final = 1 << 15
"""Values of a sample, float32. A batch of 4 takes 512 KiB."""

WORKERS: Final[dict[str, Any]] = {"num_workers": 2, "multiprocessing_context": "fork"}


def make_dataset() -> xr.Dataset:
    values = np.arange(NUM_SAMPLES, dtype="f4")[:, None] + np.linspace(0, 0.5, WIDTH, dtype="f4")
    return xr.Dataset({"t": (("time", "x"), values)})


def new_tensors(rows: Any) -> Any:
    """Tensors that lie in no slot, one of them a parameter."""
    batch = collate(rows)
    return torch.nn.Parameter(2 * batch.t), {"t": batch.t.clone(), "names": batch.names}


def made_anew(samples: Samples) -> Iterable[Any]:
    for parameter, rest in data_loader(samples, 4, collate_fn=new_tensors, **WORKERS):
        assert torch.equal(parameter.detach(), 2 * rest["t"])
        yield rest["t"]


def generated(samples: Samples) -> Iterable[Any]:
    generator = xbatcher.BatchGenerator(make_dataset().t, {"time": 4, "x": WIDTH})
    return DataLoader(xbatcher.MapDataset(generator), batch_size=None, **WORKERS)


DOORS: Final[dict[str, Callable[[Samples], Iterable[Any]]]] = {
    "data_loader": lambda samples: data_loader(samples, 4, **WORKERS),
    "collate_fn": made_anew,
    "MapDataset": lambda samples: DataLoader(MapDataset(samples), 4, **WORKERS),
    "tensors": lambda samples: DataLoader(
        MapDataset(samples, transform=torch.from_numpy), 4, **WORKERS
    ),
    "IterableDataset": lambda samples: DataLoader(IterableDataset(samples, 4), None, **WORKERS),
    "single samples": lambda samples: DataLoader(IterableDataset(samples, None), 4, **WORKERS),
    "xbatcher": generated,
    "processes": lambda samples: samples.loader(batch_size=4, processes=2),
}


def main(folder: str) -> None:
    warnings.simplefilter("ignore")
    samples = xloader.open(folder).window(time=1)
    expected = make_dataset().t.to_numpy()
    for door, batches_of in DOORS.items():
        kept = list(batches_of(samples))
        ids, num_wrong = [], 0
        for batch in kept:
            fields = batch if isinstance(batch, tuple | list) else [batch]
            values = np.asarray(fields[0].detach()).reshape(-1, WIDTH)
            own = values[:, 0].astype(int)
            num_wrong += not np.array_equal(values, expected[own])
            ids += own.tolist()
        left = [name for name in os.listdir("/dev/shm") if name.startswith("torch_")]
        sys.stdout.write(json.dumps([door, sorted(ids), num_wrong, left]) + "\n")
        sys.stdout.flush()
        del kept, batch, fields, values


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
