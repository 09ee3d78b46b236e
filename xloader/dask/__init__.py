"""Training and evaluation fanned out over the workers of a dask cluster.

dask is imported only when one of these names is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xloader.cluster.checkpoint_places import Checkpoint, checkpoint
    from xloader.dask.fanned_ranks import run

_HOMES = {
    "Checkpoint": "xloader.cluster.checkpoint_places",
    "checkpoint": "xloader.cluster.checkpoint_places",
    "run": "xloader.dask.fanned_ranks",
}

__all__ = ["Checkpoint", "checkpoint", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'xloader.dask' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
