"""Plans shuffled training epochs over chunked n-d arrays that read each chunk once."""

from __future__ import annotations

# The accessor is registered by its import alone.
from xloader import accessor as accessor
from xloader import errors
from xloader.batch import Batch
from xloader.recipe import Recipe
from xloader.samples import Samples, open
from xloader.world import World

__all__ = ["Batch", "Recipe", "Samples", "World", "__version__", "errors", "open"]


def __getattr__(name: str) -> str:
    # Reading the installed metadata takes longer than all the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("xloader")
    raise AttributeError(f"module 'xloader' has no attribute {name!r}")
