"""One rank of a mesh whose groups share samples: ``torchrun meshed.py STORE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import xarray as xr
from torch.distributed.device_mesh import init_device_mesh

import xloader
from tests.trainers.cases import GLOBAL_BATCH, OPTIONS, note
from xloader import Samples
from xloader.loader.loader import Loader

SHAPE = (2, 2)
NUM_LATS = 5
STATE_STEP = 2

Seen = tuple[list[int], list[bool], list[Any]]
"""The ids of a batch, its padding flags, and the values of its field."""


def open_samples(store: Any) -> Samples:
    """Open samples normalised by numbers that vary along the dimension that is cut into slabs."""
    mean = xr.DataArray(np.arange(NUM_LATS, dtype=np.float64), dims="lat")
    return xloader.open(store).window(time=1).inputs("t").normalize({"t": (mean, mean + 1.0)})


def make_loader(samples: Samples, rank: int, world_size: int) -> Loader:
    """Make a loader of the samples, or of a slab of them."""
    size = GLOBAL_BATCH // world_size
    return samples.loader(batch_size=size, world=xloader.World(rank, world_size), **OPTIONS)


def seen(batch: Any) -> Seen:
    """Return a batch as a rank records it."""
    values = np.asarray(batch.inputs, np.float64).tolist()
    return batch.ids.tolist(), batch.is_padding.tolist(), values


def main(store: str, folder: Path) -> None:
    """Record an epoch and its middle state, then the rest after loading the last rank's state."""
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=("data", "domain"))
    samples = open_samples(store).slab("lat", mesh.get_local_rank("domain"), mesh.size(1))
    data_rank = (mesh.get_local_rank("data"), mesh.size(0))
    batches, state = [], {}
    with make_loader(samples, *data_rank) as loader:
        for batch in loader:
            batches.append(seen(batch))
            if len(batches) == STATE_STEP:
                state = loader.state_dict()
    saved = [state]
    dist.broadcast_object_list(saved, src=dist.get_world_size() - 1)
    with make_loader(samples, *data_rank) as loader:
        loader.load_state_dict(saved[0])
        rest = [seen(batch) for batch in loader]
    note(folder, dist.get_rank(), [batches, state, rest])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
