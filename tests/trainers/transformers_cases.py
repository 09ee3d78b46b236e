"""transformers.Trainer, stopped and resumed: ``python transformers_cases.py STORE FOLDER``.

It runs on its own or as a rank under torchrun.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

from tests.trainers.cases import GLOBAL_BATCH, OPTIONS, note, open_samples
from xloader.torch import data_loader

NUM_EPOCHS, STOP = 3, 9
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Trainer(transformers.Trainer):
    """A trainer that records the values that it is given, and the epoch."""

    def __init__(self, door: str, store: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.door, self.store = door, store
        self.seen: list[Any] = []

    def get_train_dataloader(self) -> Any:
        samples = open_samples(self.store)
        options = {**OPTIONS, "batch_size": GLOBAL_BATCH // WORLD_SIZE, "drop_last": True}
        return (
            samples.loader(**options) if self.door == "loader" else data_loader(samples, **options)
        )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
    ) -> torch.Tensor:
        self.seen.append((int(self.state.epoch or 0), inputs.inputs[:, 0, 0].tolist()))
        return functional.mse_loss(model(inputs.inputs), inputs.targets)


class Stop(transformers.TrainerCallback):
    """Ends a training after some steps, as a kill after a checkpoint does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == STOP


def train(door: str, store: str, folder: Path, *, is_stopped: bool, is_resumed: bool) -> list[Any]:
    """Return the epochs and first values of all batches that were trained on."""
    options = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=NUM_EPOCHS,
        per_device_train_batch_size=GLOBAL_BATCH // WORLD_SIZE,
        save_strategy="steps",
        save_steps=STOP,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if WORLD_SIZE > 1 else None,
        remove_unused_columns=False,
    )
    callbacks = [Stop()] if is_stopped else []
    trainer = Trainer(door, store, torch.nn.Linear(4, 4), options, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=is_resumed or None)
    return trainer.seen


def main(store: str, folder: Path) -> None:
    """Record an undisturbed training beside one in two parts, by both doors."""
    found = {}
    for door in ("loader", "data_loader"):
        place = folder / door
        whole = train(door, store, folder / f"{door}-whole", is_stopped=False, is_resumed=False)
        parts = [
            train(door, store, place, is_stopped=is_first, is_resumed=not is_first)
            for is_first in (True, False)
        ]
        found[door] = [whole, *parts]
    note(folder, int(os.environ.get("RANK", "0")), found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
