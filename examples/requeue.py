"""A training on SLURM that is stopped by a signal, saves, and goes on in the next job.

SLURM sends the signal before the time limit, or when a more important job wants the machines. The
batch under way is finished and counts, all ranks stop at the same step, and rank 0 saves. The next
job goes on with the next batch, also on another number of GPUs that divides the lanes::

    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=4
    #SBATCH --gpus-per-node=4
    #SBATCH --cpus-per-task=8
    #SBATCH --time=12:00:00
    #SBATCH --signal=USR1@120
    #SBATCH --requeue
    #SBATCH --open-mode=append
    export MASTER_PORT=29500
    export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun --kill-on-bad-exit=0 python requeue.py
    code=$?
    if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
    exit "$code"

torchrun and the workers of a ``DataLoader`` do not survive these signals. With them, let the script
for sbatch alone hear the signal (``--signal=B:USR1@120``) and write a file, and look for that file
in `must_stop`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import torch
from torch import distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import xloader

NUM_EPOCHS: Final = 2
AGAIN: Final = 75
"""Exit code of a training that is not at its end yet."""
signals: list[int] = []
"""Those that this rank has heard."""


def must_stop() -> bool:
    """Whether any rank has heard a signal: all get the same answer."""
    num_signals = torch.tensor(len(signals))
    if dist.is_initialized():
        # Between CPUs: no GPU is waited for.
        dist.all_reduce(num_signals)
    return bool(num_signals)


def train(device: str) -> bool:
    """Train from the checkpoint, if there is one, and return whether it was stopped."""
    is_parallel = dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if is_parallel else (0, 1)
    samples = xloader.open("weather.zarr").window(time=3, stride=1)
    samples = samples.inputs("t2m", time=slice(0, 2)).targets("t2m", time=2)
    loader = samples.loader(
        batch_size=16 // world_size,
        plan=xloader.PlanRules(lanes=4),
        memory="64MiB",
        device=device,
    )
    torch.manual_seed(0)
    net = torch.nn.Conv2d(2, 1, 3, padding=1).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    # All ranks load it, so it lies on a disk that all see.
    if os.path.exists("checkpoint.pt"):
        saved = torch.load("checkpoint.pt", weights_only=True, map_location=device)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    trained = DistributedDataParallel(net) if is_parallel else net
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            optimizer.zero_grad()
            found = trained(batch.inputs[:, 0])
            error = functional.mse_loss(found, batch.targets, reduction="none")
            is_real = torch.from_numpy(~batch.is_padding).to(device)
            loss = (error.mean(dim=(1, 2, 3)) * is_real).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            is_stopped = must_stop()
            # This batch counts, those made ahead do not.
            state = loader.state_dict()
            if rank == 0 and (is_stopped or state["step"] % 100 == 0):
                parts = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**parts, "loader": state}, "checkpoint.tmp")
                # A kill before this leaves the old file whole.
                os.replace("checkpoint.tmp", "checkpoint.pt")
            if is_stopped:
                loader.close()
                return True
    return False


def main() -> None:
    """Train as a rank of srun, or alone, until the end or a signal."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        # Only noted here: a batch may be half trained on.
        signal.signal(number, lambda number, _frame: signals.append(number))
    device = f"cuda:{os.environ.get('SLURM_LOCALID', 0)}" if torch.cuda.is_available() else "cpu"
    if "SLURM_PROCID" in os.environ:
        rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
        if torch.cuda.is_available():
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=world_size)
    is_stopped = train(device)
    if dist.is_initialized():
        # No rank ends before rank 0 has written.
        dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()
    sys.exit(AGAIN if is_stopped else 0)


if __name__ == "__main__":
    main()
