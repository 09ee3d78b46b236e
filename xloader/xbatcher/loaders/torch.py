"""xbatcher's datasets for PyTorch, by the names they have there."""

from __future__ import annotations

from xloader.torch.xbatcher import IterableDataset, MapDataset, to_tensor

__all__ = ["IterableDataset", "MapDataset", "to_tensor"]
