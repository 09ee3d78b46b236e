"""One rank of a training loop under accelerate: ``torchrun accelerated.py STORE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional

from tests.trainers.cases import make_loader, note, row


def main(store: str, folder: Path) -> None:
    """Record the batches of two epochs, then load a checkpoint and record the rest again."""
    accelerator = Accelerator(cpu=True)
    given = make_loader(store, accelerator.num_processes)
    net = torch.nn.Linear(4, 4)
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), given)
    accelerator.register_for_checkpointing(loader)
    rows, again, saved = [], [], str(folder / "checkpoint")
    for epoch in range(2):
        for batch in loader:
            rows.append(row(epoch, batch))
            loss = functional.mse_loss(net(batch.inputs), batch.targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if len(rows) == len(loader) + 2:
                accelerator.save_state(saved)
    accelerator.load_state(saved)
    for batch in loader:
        again.append(row(1, batch))
    note(folder, accelerator.process_index, [rows, again, loader is given])
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
