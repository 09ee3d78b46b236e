"""The names that the reference should have, and those that its pages do have."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
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

DIRECTIVE = re.compile(r"^\.\. (\w+):: ?(\S*)\n((?: +[^\n]*\n|\n)*)", re.MULTILINE)
FIELD = re.compile(r"^ +:([\w-]+):((?:[^\n]*\n)(?:      [^\n]*\n)*)", re.MULTILINE)


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


def directives(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the directives of a page with their arguments and contents."""
    for match in DIRECTIVE.finditer(text):
        yield match[1], match[2], match[3]


def table_rows(text: str) -> list[str]:
    """Return the full names in the summary tables of a page."""
    module, rows = "", []
    for kind, argument, content in directives(text):
        if kind == "currentmodule":
            module = argument
        elif kind == "autosummary":
            # After a tilde, only the last part of a name is shown.
            lines = [line.strip().removeprefix("~") for line in content.splitlines()]
            rows += [f"{module}.{line}" for line in lines if line and not line.startswith(":")]
    return rows


def entries(text: str) -> set[str]:
    """Return the full names that a page describes, and to which a row can be linked."""
    found = set()
    for kind, name, content in directives(text):
        fields = {key: value.replace(",", " ").split() for key, value in FIELD.findall(content)}
        if kind in ("autofunction", "autoclass", "attribute", "class", "function"):
            found.add(name)
        if kind == "attribute":
            found |= set(re.findall(r"^ +([\w.]+)$", content.partition("\n\n")[0], re.MULTILINE))
        if kind == "automodule":
            module = importlib.import_module(name)
            for key in fields["members"] or module.__all__:
                found |= {f"{name}.{key}", *_members(f"{name}.{key}", {"members": []})}
        if kind == "autoclass":
            found |= _members(name, fields)
    return found


def _members(name: str, fields: dict[str, list[str]]) -> set[str]:
    value = resolve(name)
    if not isinstance(value, type) or "members" not in fields:
        return set()
    names = fields["members"] or [
        key
        for key in (dir(value) if "inherited-members" in fields else vars(value))
        if not key.startswith("_")
    ]
    shown = {*names, *fields.get("special-members", ())} - {*fields.get("exclude-members", ())}
    return {f"{name}.{key}" for key in shown}


def resolve(name: str) -> Any:
    """Return what a full name stands for.

    Raises
    ------
    AttributeError
        If there is nothing of that name.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AttributeError(name)
