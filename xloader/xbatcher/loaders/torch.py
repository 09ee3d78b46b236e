"""The datasets for PyTorch, under the names that they have in ``xbatcher.loaders.torch``."""

from __future__ import annotations

from xloader.xbatcher import IterableDataset, MapDataset, to_tensor

__all__ = ["IterableDataset", "MapDataset", "to_tensor"]
