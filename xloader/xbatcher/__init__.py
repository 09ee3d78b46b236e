"""xbatcher's interface, with xloader reading: change the import, and each chunk is read once.

``import xbatcher`` becomes ``from xloader import xbatcher``, and ``import xbatcher.loaders.torch``
becomes ``import xloader.xbatcher.loaders.torch``. Signatures are those of xbatcher 0.4.
"""

from __future__ import annotations

from typing import Any

from xloader.xbatcher.accessor import register
from xloader.xbatcher.generator import BatchGenerator

__all__ = ["BatchGenerator", "IterableDataset", "MapDataset", "to_tensor"]

_OF_TORCH = {
    "IterableDataset": "GeneratorIterableDataset",
    "MapDataset": "GeneratorMapDataset",
    "to_tensor": "to_tensor",
}
"""Names of xbatcher's, and what stands behind them."""

register()


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _OF_TORCH:
        # `import xloader` comes by here, and must not bring PyTorch along.
        from xloader.xbatcher import torch_datasets

        return getattr(torch_datasets, _OF_TORCH[name])
    raise AttributeError(f"module 'xloader.xbatcher' has no attribute {name!r}")
