"""The interface of xbatcher 0.4 with xloader's reading, so that each chunk is read once.

A program changes its imports only: ``import xbatcher`` becomes ``from xloader import xbatcher``,
and ``import xbatcher.loaders.torch`` becomes ``import xloader.xbatcher.loaders.torch``. Signatures
are those of xbatcher 0.4; `BatchGenerator` has ``memory`` and ``threads`` besides.
"""

from __future__ import annotations

from typing import Any

from xloader.xbatcher.generator import BatchGenerator, register

__all__ = ["BatchGenerator", "IterableDataset", "MapDataset", "to_tensor"]

_OF_TORCH = {
    "IterableDataset": "GeneratorIterableDataset",
    "MapDataset": "GeneratorMapDataset",
    "to_tensor": "to_tensor",
}
"""Names in xbatcher, and the names in `xloader.xbatcher.torch_datasets` of the same things."""

register()


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _OF_TORCH:
        # `import xloader` imports this module, and must not import PyTorch.
        from xloader.tensors.convert import require_torch

        allowed = "without PyTorch, xloader.xbatcher.BatchGenerator"
        require_torch(f"xloader.xbatcher.{name}", allowed)
        from xloader.xbatcher import torch_datasets

        return getattr(torch_datasets, _OF_TORCH[name])
    raise AttributeError(f"module 'xloader.xbatcher' has no attribute {name!r}")
