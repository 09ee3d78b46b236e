"""One rank without a trainer: ``torchrun ranked.py STORE FOLDER``.

It notes the batches of two epochs, running statistics, and what it sees as a part of a group.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import xarray as xr
from torch.distributed.device_mesh import init_device_mesh

import xloader
from tests.trainers.cases import GLOBAL_BATCH, OPTIONS, make_loader, note, row
from xloader import RunningStats, Samples
from xloader.loader.loader import Loader

NUM_LATS = 5
STATE_STEP = 2

Seen = tuple[list[int], list[bool], list[Any]]
"""The ids of a batch, its padding flags, and the values of its field."""


def epochs(loader: Loader) -> list[Any]:
    """The batches of two epochs, the state in the middle of the second, and statistics."""
    rows, state, running = [], {}, RunningStats()
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            rows.append(row(epoch, batch))
            if epoch == 0:
                running.update(batch)
            if len(rows) == len(loader) + 2:
                state = loader.state_dict()
    parts: list[RunningStats] = [running] * dist.get_world_size()
    dist.all_gather_object(parts, running)
    together = reduce(RunningStats.merge, parts)
    numbers = {str(name): own.values.tolist() for name, own in together.to_dataset().items()}
    return [rows, state, running.state_dict(), [together.state_dict(), numbers]]


def open_levels(store: Any) -> Samples:
    """Open samples normalised by numbers that vary along the dimension that is cut into slabs."""
    mean = xr.DataArray(np.arange(NUM_LATS, dtype=np.float64), dims="lat")
    return xloader.open(store).window(time=1).inputs("t").normalize({"t": (mean, mean + 1.0)})


def make_data_loader(samples: Samples, rank: int, world_size: int) -> Loader:
    """Make a loader of the samples, or of a slab of them."""
    size = GLOBAL_BATCH // world_size
    return samples.loader(batch_size=size, world=xloader.World(rank, world_size), **OPTIONS)


def seen(batch: Any) -> Seen:
    """Return a batch as a rank records it."""
    values = np.asarray(batch.inputs, np.float64).tolist()
    return batch.ids.tolist(), batch.is_padding.tolist(), values


def in_a_group(store: str) -> list[Any]:
    """An epoch of a slab and its middle state, then the rest after loading another rank's state."""
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "domain"))
    samples = open_levels(store).slab("lat", mesh.get_local_rank("domain"), mesh.size(1))
    data_rank = (mesh.get_local_rank("data"), mesh.size(0))
    batches, state = [], {}
    with make_data_loader(samples, *data_rank) as loader:
        for batch in loader:
            batches.append(seen(batch))
            if len(batches) == STATE_STEP:
                state = loader.state_dict()
    saved = [state]
    dist.broadcast_object_list(saved, src=dist.get_world_size() - 1)
    with make_data_loader(samples, *data_rank) as loader:
        loader.load_state_dict(saved[0])
        rest = [seen(batch) for batch in loader]
    return [batches, state, rest]


def main(store: str, folder: Path) -> None:
    """Note all of it."""
    # The loader is made before the process group.
    loader = make_loader(store, int(sys.argv[3]))
    dist.init_process_group("gloo")
    found = [epochs(loader), in_a_group(f"{store}-levels")]
    note(folder, dist.get_rank(), found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
