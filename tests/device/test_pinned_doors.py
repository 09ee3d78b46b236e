"""PyTorch's own way to a GPU through every door: pinned by its `DataLoader`, moved by `Batch.to`.

There may be no GPU here. So PyTorch is told that there is one, and its pinning of one tensor is
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from xloader import Batch, Samples
from xloader.testing import write_store
from xloader.torch import ChunkSampler, IterableDataset, MapDataset, collate, data_loader

MEMORY = "16MiB"
NUM = 24


def make_samples() -> Samples:
    ids = np.arange(NUM)[:, None].repeat(4, 1)
    dataset = xr.Dataset(
        {"t": (("time", "x"), ids.astype("f4")), "k": (("time", "x"), ids.astype("i4"))}
    )
    store = write_store(dataset, {"t": (4, 4), "k": (4, 4)})
    return xloader.open(store).window(time=1).inputs("t").targets("k")


PINNED: dict[str, Any] = {"batch_size": 6, "collate_fn": collate, "pin_memory": True}
DOORS: dict[str, Callable[[Samples], Iterable[Batch]]] = {
    "data_loader": lambda samples: data_loader(samples, 6, memory=MEMORY, pin_memory=True),
    "MapDataset": lambda samples: DataLoader(
        MapDataset(samples, memory=MEMORY),
        sampler=ChunkSampler(samples, batch_size=6, memory=MEMORY),
        **PINNED,
    ),
    "single samples": lambda samples: DataLoader(MapDataset(samples, memory=MEMORY), **PINNED),
    "IterableDataset": lambda samples: DataLoader(
        IterableDataset(samples, 6, memory=MEMORY), batch_size=None, pin_memory=True
    ),
}


@pytest.mark.filterwarnings("ignore::xloader.errors.WorkersWarning")
@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.parametrize("door", DOORS)
def test_batches_are_pinned_and_moved(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    moves: list[tuple[object, bool]] = []
    move = torch.Tensor.to

    def to(tensor: torch.Tensor, device: object, non_blocking: bool = False) -> torch.Tensor:
        moves.append((device, non_blocking))
        return move(tensor, device, non_blocking=non_blocking)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda", 0)
    )
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batches = list(DOORS[door](make_samples()))
    assert len(batches) == 4
    assert len(pinned) == 8
    for batch in batches:
        assert isinstance(batch, Batch)
        assert any(batch.inputs is tensor for tensor in pinned)
        assert any(batch.targets is tensor for tensor in pinned)
        assert batch.names == ("inputs", "targets")
        moves.clear()
        moved = batch.to("cpu", non_blocking=True)
        assert moves == [("cpu", True)] * 2
        assert moved.ids.tolist() == batch.ids.tolist()
        assert (moved.inputs[:, 0, 0, 0].numpy() == batch.ids).all()
        assert (moved.targets[:, 0, 0, 0].numpy() == batch.ids).all()
    assert sorted(int(i) for batch in batches for i in batch.ids) == list(range(NUM))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("door", ["data_loader", "MapDataset", "IterableDataset"])
def test_a_gpu_gets_the_same(door: str) -> None:
    for batch in DOORS[door](make_samples()):
        assert batch.inputs.is_pinned()
        moved = batch.to("cuda", non_blocking=True)
        assert (moved.inputs[:, 0, 0, 0].cpu().numpy() == batch.ids).all()
    with make_samples().loader(batch_size=5, device="cuda") as loader:
        for batch in loader:
            assert batch.inputs.is_cuda
            assert (batch.inputs[:, 0, 0, 0].cpu().numpy() == batch.ids).all()
