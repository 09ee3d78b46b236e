"""A small model under Lightning: ``python lightning_cases.py STORE FOLDER``, or under torchrun."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional

from tests.trainers.cases import Row, make_loader, note, row
from xloader.loader.batches.batch import Batch

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    """A model that records the batches of its training and validation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.rows: list[Row] = []
        self.validated: list[Row] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        self.rows.append(row(self.current_epoch, batch))
        loss = functional.mse_loss(self.linear(batch.inputs), batch.targets)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(row(self.current_epoch, batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def make_trainer(folder: Path | None = None, **options: Any) -> lightning.Trainer:
    """Make a quiet trainer. With a folder, it saves a checkpoint after each step."""
    callbacks = []
    if folder is not None:
        each = ModelCheckpoint(
            folder,
            filename="{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=1,
            save_top_k=-1,
        )
        callbacks.append(each)
    return lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 2, **options},
        callbacks=callbacks,
        enable_checkpointing=folder is not None,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )


def main(store: str, folder: Path) -> None:
    """Run one of two ranks and record the batches of two epochs."""
    # The loader is made before the process group, as in a script that passes it to fit().
    loader = make_loader(store, 2)
    net = Net()
    trainer = make_trainer(folder, devices=2, strategy="ddp")
    trainer.fit(net, loader)
    note(folder, trainer.global_rank, [net.rows, trainer.world_size])


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    main(sys.argv[1], Path(sys.argv[2]))
