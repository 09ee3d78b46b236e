"""Datasets, samplers and collate functions for PyTorch's own ``DataLoader``.

PyTorch is imported only when one of these names is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xloader.loader.batches.row_list import Rows as Rows
    from xloader.tensors.collate import PadCollate as PadCollate
    from xloader.tensors.collate import collate as collate
    from xloader.torch.chunk_sampler import ChunkSampler as ChunkSampler
    from xloader.torch.dataloader import batch_of as batch_of
    from xloader.torch.dataloader import data_loader as data_loader
    from xloader.torch.iterable_dataset import IterableDataset as IterableDataset
    from xloader.torch.map_dataset import MapDataset as MapDataset
    from xloader.torch.map_dataset import tensor_dataset as tensor_dataset

_HOMES = {
    "ChunkSampler": "xloader.torch.chunk_sampler",
    "IterableDataset": "xloader.torch.iterable_dataset",
    "MapDataset": "xloader.torch.map_dataset",
    "PadCollate": "xloader.tensors.collate",
    "Rows": "xloader.loader.batches.row_list",
    "batch_of": "xloader.torch.dataloader",
    "collate": "xloader.tensors.collate",
    "data_loader": "xloader.torch.dataloader",
    "tensor_dataset": "xloader.torch.map_dataset",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # `import xloader` imports this module, and must not import PyTorch.
    if name not in _HOMES:
        raise AttributeError(f"module 'xloader.torch' has no attribute {name!r}")
    from xloader.tensors.convert import require_torch

    require_torch(f"xloader.torch.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
