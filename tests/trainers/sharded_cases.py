"""FSDP in its two forms, which casts its inputs: one rank, ``sharded_cases.py STORE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)

from tests.trainers.cases import make_loader, note


class Net(torch.nn.Module):
    """A model that takes a whole batch and records its values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.seen: list[Any] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append([str(batch.inputs.dtype), batch.inputs[:, 0, 0].tolist()])
        return (self.linear(batch.inputs) - batch.targets).square().mean()


def main(store: str, folder: Path) -> None:
    """Train an epoch with each form, and note the values that each has seen."""
    dist.init_process_group("gloo")
    first, second = Net(), Net()
    half = MixedPrecision(param_dtype=torch.bfloat16, cast_forward_inputs=True)
    wrapped = FullyShardedDataParallel(first, device_id=torch.device("cpu"), mixed_precision=half)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(second, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    for net in (wrapped, second):
        for batch in make_loader(store):
            net(batch).backward()
    note(folder, 0, [first.seen, second.seen])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
