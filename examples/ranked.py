"""One rank of a training that can be stopped at any step and restarted with fewer or more ranks.

It shows how a loader's state belongs in a checkpoint. torchrun starts it. The second command
continues from the last checkpoint of the first::

    torchrun --nproc-per-node 2 -m examples.ranked STORE FOLDER
    torchrun --nproc-per-node 1 -m examples.ranked STORE FOLDER

The number of ranks must divide `LANES`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import xloader
from xloader.demo.task import make_task
from xloader.demo.training import make_net

if TYPE_CHECKING:
    from xloader.loader.batches.batch import Batch
    from xloader.samples.samples import Samples

GLOBAL_BATCH: Final = 16
"""Samples of a step, over all ranks."""

LANES: Final = 4
"""Lanes over all ranks; the number of ranks must divide it.

It does not depend on the number of ranks, so the global batches do not either.
"""

MEMORY: Final = "12MiB"
"""Memory of each rank's loader."""

STEPS_LOG: Final = "steps.jsonl"
"""Name of the file in which rank 0 logs the steps, within the folder of the training."""

_CHECKPOINT: Final = "checkpoint.pt"


@dataclass(frozen=True)
class RankedTraining:
    """Samples, network and loss weights that a rank trains with."""

    samples: Samples
    net: nn.Module
    weights: Tensor


def make_training(store: str) -> RankedTraining:
    """Samples, network and loss weights for a store of the demo."""
    task = make_task(store)
    net = make_net(task.training.shapes["inputs"])
    return RankedTraining(task.training, net, task.weights)


def train(store: str, folder: Path, epochs: int, every: int, kill_at: int | None) -> None:
    """Train one rank, from the folder's checkpoint if there is one.

    Rank 0 logs each step and writes the checkpoints.
    """
    training = make_training(store)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = training.samples.loader(
        batch_size=GLOBAL_BATCH // world_size, plan=xloader.PlanRules(lanes=LANES), memory=MEMORY
    )
    net = DistributedDataParallel(training.net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    if (folder / _CHECKPOINT).exists():
        saved = torch.load(folder / _CHECKPOINT, weights_only=True)
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    while loader.epoch < epochs:
        epoch, first_step = loader.epoch, loader.state_dict()["step"]
        for step, batch in enumerate(loader, start=first_step):
            number = epoch * len(loader) + step
            if number == kill_at and rank == world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = _step(net, optimizer, batch, training)
            ids = _all_ids(batch)
            if rank == 0:
                _log(folder, {"epoch": epoch, "step": step, "ids": ids, "loss": loss})
                if (number + 1) % every == 0:
                    parts = {"net": net.module, "optimizer": optimizer, "loader": loader}
                    _save(folder, {name: part.state_dict() for name, part in parts.items()})
    loader.close()


def _step(
    net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, training: RankedTraining
) -> float:
    """Take one step of the optimizer, and return the loss of the global batch before it."""
    error = net(batch[0]) - batch[1]
    # The mean is over real samples only. Ranks may differ in the number of padding rows.
    is_real = torch.from_numpy(~batch.is_padding)
    total = (error.square() * training.weights).mean(dim=(1, 2, 3))[is_real].sum()
    sums = torch.stack([total.detach(), is_real.sum()])
    dist.all_reduce(sums)
    optimizer.zero_grad()
    # DistributedDataParallel averages the gradients of the ranks. The loss needs their sum.
    (total / sums[1] * dist.get_world_size()).backward()
    optimizer.step()
    return float(sums[0] / sums[1])


def _all_ids(batch: Batch) -> str:
    """A short hash of the ids of the global batch, in order of rank."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, batch.ids[~batch.is_padding].tolist())
    ids = [sample for part in parts for sample in part]
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:12]


def _log(folder: Path, row: dict[str, Any]) -> None:
    """Append a row to the log, with the number of ranks."""
    with open(folder / STEPS_LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "ranks": dist.get_world_size()}) + "\n")


def _save(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint and rename it into place, so that a kill never leaves half of one."""
    partial = folder / f"{_CHECKPOINT}.partial"
    torch.save(checkpoint, partial)
    partial.replace(folder / _CHECKPOINT)


@click.command()
@click.argument("store")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--epochs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--every", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--kill-at", type=click.IntRange(min=0))
def main(store: str, folder: Path, epochs: int, every: int, kill_at: int | None) -> None:
    """Train one rank on STORE, with its checkpoint and its log in FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    try:
        train(store, folder, epochs, every, kill_at)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
