"""Plans shuffled training epochs over chunked n-d arrays that read each chunk once."""

from __future__ import annotations

# The accessor is registered by its import alone.
from xloader import accessor as accessor
from xloader import errors
from xloader.adopting import from_xbatcher
from xloader.batch import Batch
from xloader.combining import concat
from xloader.explain import Explanation
from xloader.loader import Loader
from xloader.recipe import Recipe
from xloader.report import Report
from xloader.rollout import Rollout
from xloader.samples import Samples, open
from xloader.world import World

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


def __getattr__(name: str) -> str:
    # Reading the installed metadata takes longer than all the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("xloader")
    raise AttributeError(f"module 'xloader' has no attribute {name!r}")
