"""The datasets for PyTorch, under the names that they have in ``xbatcher.loaders.torch``."""

from __future__ import annotations

from xloader.xbatcher.torch_datasets import GeneratorIterableDataset as IterableDataset
from xloader.xbatcher.torch_datasets import GeneratorMapDataset as MapDataset
from xloader.xbatcher.torch_datasets import to_tensor

__all__ = ["IterableDataset", "MapDataset", "to_tensor"]
