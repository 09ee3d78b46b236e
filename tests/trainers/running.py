"""One rank that takes running statistics: ``torchrun running.py STORE FOLDER``."""

from __future__ import annotations

import os
import sys
from functools import reduce
from pathlib import Path

import torch.distributed as dist

from tests.trainers.cases import make_loader, note
from xloader import RunningStats


def main(store: str, folder: Path) -> None:
    """Record this rank's statistics, and those of all ranks together."""
    world_size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    running = RunningStats()
    with make_loader(store, world_size) as loader:
        for batch in loader:
            running.update(batch)
    parts: list[RunningStats] = [running] * world_size
    dist.all_gather_object(parts, running)
    together = reduce(RunningStats.merge, parts)
    dataset = together.to_dataset()
    found = {str(name): values.values.tolist() for name, values in dataset.items()}
    note(folder, dist.get_rank(), [running.state_dict(), together.state_dict(), found])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
