"""The names that are public, and those that have a page in the reference."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from xloader.sources.base import Source
from xloader.transforms.xarray_methods import REFUSED

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
MODULES = (
    "xloader",
    "xloader.dask",
    "xloader.forcings",
    "xloader.testing",
    "xloader.torch",
    "xloader.xbatcher",
    "xloader.xbatcher.loaders.torch",
)
"""The modules whose ``__all__`` is public. Errors have a page, and a test, of their own."""

NOT_FOR_USERS = {
    "Batch": ("require_ids",),
    "Loader": ("collate_fn",),
    # The plan of the next epoch, as for the loader of one set.
    "Rollout": ("plan",),
    "Samples": REFUSED,
    "SourceRecorder": (*(name for name in dir(Source) if name[0] != "_"), "let_go", "weigh"),
    # Stores of other releases of zarr have it.
    "CountingStore": ("get_ranges",),
    "FaultyStore": ("get_ranges",),
    "LatencyStore": ("get_ranges",),
}
"""Public members of public classes that other rooms call, or that only raise an error."""

NOT_ON_THE_SITE = {
    # Results, which their makers describe.
    *(f"xloader.{name}" for name in ("BatchVariance", "ClassSamples", "Coverage", "Interleaved")),
    *(f"xloader.{name}" for name in ("PlanComparison", "SampleMask", "Split")),
    "xloader.dask.Checkpoint",
    # A guide says how to come from xbatcher, with the names of xbatcher.
    "xloader.from_xbatcher",
    *(f"xloader.xbatcher.{name}" for name in ("BatchGenerator", "to_tensor")),
    *(f"xloader.xbatcher.{name}" for name in ("IterableDataset", "MapDataset")),
    *(f"xloader.xbatcher.loaders.torch.{name}" for name in ("IterableDataset", "MapDataset")),
    "xloader.xbatcher.loaders.torch.to_tensor",
    # What few need beside a DataLoader, and what only tests do.
    *(f"xloader.torch.{name}" for name in ("PadCollate", "Rows", "batch_of", "collate")),
    *(f"xloader.testing.{name}" for name in ("CountingStore", "FaultyStore", "LatencyStore")),
    *(f"xloader.testing.{name}" for name in ("SourceRecorder", "datasets", "garble", "truncate")),
    *(f"xloader.testing.{name}" for name in ("is_chunk_key", "pretend_codec", "pretend_disk")),
    "xloader.testing.write_store",
}
"""Public names without a page: ``help(name)`` describes them."""


@cache
def public_names() -> dict[str, Any]:
    """Return what is public, by the name under which users import it."""
    found = {}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value) and name != "__version__":
                found[f"{module}.{name}"] = value
    return found


def public_members(cls: type) -> list[str]:
    """Return the methods and properties that a public class adds to its public bases."""
    inherited = set()
    for base in cls.__mro__[1:]:
        if not base.__module__.startswith("xloader."):
            inherited |= {*vars(base)}
        elif base in public_names().values():
            inherited |= {*dir(base)}
    hidden = NOT_FOR_USERS.get(cls.__name__, ())
    return [
        name
        for name in dir(cls)
        if not name.startswith("_")
        and name not in inherited
        and name not in hidden
        and _is_described(inspect.getattr_static(cls, name))
    ]


def _is_described(member: Any) -> bool:
    # Fields of dataclasses are described among the parameters of their class.
    kinds = (classmethod, staticmethod, property)
    return inspect.isroutine(member) or isinstance(member, kinds) or hasattr(member, "attrname")


def extension(name: str) -> ModuleType:
    """Return one of the extensions by which the site is built."""
    folder = str(REFERENCE.parent / "_extensions")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def table_rows(text: str) -> list[list[str]]:
    """Return the rows of the tables of a page, as cells, without those of headings."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in re.findall(r"^\|.+\|$", text, re.MULTILINE)
    ]
    heads = {number - 1 for number, row in enumerate(rows) if set(row[0]) <= {*"-|"}}
    return [row for n, row in enumerate(rows) if n not in heads and n - 1 not in heads]
