"""One rank of a training loop without a trainer: ``torchrun alone.py STORE FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist

from tests.trainers.cases import make_loader, note, row


def main(store: str, folder: Path) -> None:
    """Record the batches of two epochs, and the state in the middle of the second."""
    world_size = int(os.environ["WORLD_SIZE"])
    loader = make_loader(store, world_size)
    dist.init_process_group("gloo")
    rows, state = [], {}
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            rows.append(row(epoch, batch))
            if len(rows) == len(loader) + 2:
                state = loader.state_dict()
    note(folder, dist.get_rank(), [rows, state])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
