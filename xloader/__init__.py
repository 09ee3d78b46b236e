"""Plans shuffled training epochs over chunked n-d arrays that read each chunk once."""

from __future__ import annotations

import importlib
from typing import Any

from xloader import errors
from xloader.core.world import World
from xloader.loader.batch import Batch
from xloader.loader.loader import Loader
from xloader.loader.report import Report
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe

# The accessor is registered by its import alone.
from xloader.samples import accessor as accessor
from xloader.samples.concat import concat
from xloader.samples.rollout import Rollout
from xloader.samples.samples import Samples, open
from xloader.xbatcher.adopt import from_xbatcher

__all__ = [
    "Batch",
    "Explanation",
    "Loader",
    "Recipe",
    "Report",
    "Rollout",
    "Samples",
    "World",
    "__version__",
    "concat",
    "errors",
    "from_xbatcher",
    "open",
]


def __dir__() -> list[str]:
    # Completion offers what a user is to use, not the files it lies in.
    return list(__all__)


def __getattr__(name: str) -> Any:
    # PyTorch's doors need no import of their own, and load PyTorch when one of them is used.
    if name == "torch":
        return importlib.import_module("xloader.torch")
    # Reading the installed metadata takes longer than all the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("xloader")
    raise AttributeError(f"module 'xloader' has no attribute {name!r}")
