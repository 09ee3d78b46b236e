"""Parse the package's source and report where it breaks the rules of the tower.

A file is given as module name and text, so that the rules can be tested on made-up files.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOWER = (
    ("__main__",),
    ("cli",),
    ("demo", "bench"),
    ("__init__",),
    ("dask",),
    ("xbatcher",),
    ("torch",),
    ("samples",),
    ("mosaic",),
    ("jobs",),
    ("cluster",),
    ("tensors", "device"),
    ("loader",),
    ("engine",),
    ("planning",),
    ("show",),
    ("transforms",),
    ("recipe",),
    ("testing",),
    ("order", "sources", "forcings"),
    ("core",),
    ("compiled",),
    ("errors",),
)
"""The rooms, floor by floor from the top.

A file imports only from its own room and lower floors.
"""
ANNEX = ("jobs", "mosaic", "cluster", "cli", "dask", "xbatcher", "demo", "bench")
ABOVE_ANNEX = ("samples", "__init__", "__main__")
"""All other rooms but these are the kernel, which works without the annex."""

PURE = ("errors", "core", "order", "planning")
"""Rooms with no I/O, no PyTorch and no clock."""
PURE_NEIGHBOURS = (
    *("xloader.recipe.", "xloader.sources.base.", "xloader.compiled.", "xloader.show."),
)
"""Modules outside the pure rooms that these may import: frozen data, a protocol, sums in C."""
IMPURE_IMPORTS = frozenset(
    {"xarray", "zarr", "dask", "torch", "time", "datetime", "os", "io", "pathlib", "random"}
    | {"threading", "asyncio", "multiprocessing", "subprocess"}
)
ALLOWED_IMPORTS = {
    # These read a launcher's environment, and Linux's files of this process.
    "xloader.core.ranks": frozenset({"os"}),
    "xloader.core.cores": frozenset({"os", "pathlib"}),
    # A page is written to the file that the user names.
    "xloader.show.pages": frozenset({"os"}),
    # A picture is written to memory as a PNG.
    "xloader.show.canvas": frozenset({"io"}),
}
ONLY_UNDER = {
    "torch": (
        "xloader.torch",
        "xloader.tensors",
        "xloader.device",
        "xloader.demo",
        "xloader.bench",
        "xloader.xbatcher.torch_datasets",
        # The doctor looks at the installed PyTorch.
        "xloader.cli.diagnosis",
    ),
    "jax": ("xloader.tensors",),
    "cupy": ("xloader.tensors",),
    # A mosaic writes a store.
    "zarr": (
        *("xloader.sources", "xloader.testing", "xloader.demo", "xloader.mosaic"),
        # These write stores.
        *("xloader.jobs.materialize.training_store", "xloader.jobs.materialize.section_writer"),
        "xloader.jobs.materialize.target_arrays",
    ),
    "matplotlib": ("xloader.show", "xloader.demo"),
}
"""Libraries that only some rooms may import, and these rooms."""


@dataclass(frozen=True)
class Module:
    """One file of the package: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @classmethod
    def parse(cls, name: str, text: str, *, is_package: bool = False) -> Module:
        return cls(name, ast.parse(text), is_package)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@functools.cache
def read_package(folder: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module.parse(name, path.read_text("utf-8"), is_package=is_package)
    return modules


def imports_of(module: Module) -> Iterator[str]:
    """Yield every name that a file imports, at any place; ``a.b`` for ``from a import b``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name.split(".")
                # Leading dots count from the package itself in an ``__init__``, and from its folder
                # elsewhere.
                kept = len(package) - node.level + module.is_package
                base = ".".join([*package[:kept], *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def edges_between(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return, for each file, the files of the same package that it imports."""
    edges: dict[str, set[str]] = {}
    for name, module in modules.items():
        edges[name] = set()
        for imported in imports_of(module):
            owner = imported if imported in modules else imported.rpartition(".")[0]
            if owner in modules and owner != name:
                edges[name].add(owner)
    return edges


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Return one circle of files that import each other, or an empty list."""
    done: set[str] = set()

    def walk(name: str, above: list[str]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in done:
            return []
        for below in sorted(edges[name]):
            if ring := walk(below, [*above, name]):
                return ring
        done.add(name)
        return []

    for start in sorted(edges):
        if ring := walk(start, []):
            return ring
    return []


def _root_of(name: str) -> str:
    return name.partition(".")[0]


def room_of(name: str) -> str:
    """Return the room of a file: the part of its dotted name after the package's."""
    return [*name.split("."), "__init__"][1]


def upward_imports(modules: dict[str, Module]) -> list[str]:
    """Return the imports of rooms that are not on a lower floor, and rooms that are on no floor."""
    floor_of = {room: floor for floor, rooms in enumerate(TOWER) for room in rooms}
    found = [f"{name} is in no room" for name in modules if room_of(name) not in floor_of]
    for name, imported in edges_between(modules).items():
        for other in imported:
            above, below = room_of(name), room_of(other)
            known = above in floor_of and below in floor_of
            if known and above != below and floor_of[above] >= floor_of[below]:
                found.append(f"{name} imports {other}")
    return sorted(found)


def imports_of_annex(modules: dict[str, Module]) -> list[str]:
    """Return the imports of the annex in the kernel."""
    return sorted(
        f"{name} imports {other}"
        for name, imported in edges_between(modules).items()
        for other in imported
        if room_of(name) not in (*ANNEX, *ABOVE_ANNEX) and room_of(other) in ANNEX
    )


def edges_between_folders(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return, for each folder at any depth, the folders whose files its own files import."""

    def folder_of(name: str) -> str:
        # Files at the top level count as rooms of their own.
        at_top = modules[name].is_package or name.count(".") < 2
        return name if at_top else name.rpartition(".")[0]

    edges: dict[str, set[str]] = {folder_of(name): set() for name in modules}
    for name, imported in edges_between(modules).items():
        edges[folder_of(name)] |= {folder_of(other) for other in imported} - {folder_of(name)}
    return edges


def impure_imports(module: Module) -> list[str]:
    """Return the imports of a file in a pure room that are not allowed there."""
    if room_of(module.name) not in PURE:
        return []
    banned = IMPURE_IMPORTS - ALLOWED_IMPORTS.get(module.name, frozenset())
    found = {root for root in map(_root_of, imports_of(module)) if root in banned}
    for name in imports_of(module):
        is_ours = _root_of(name) == _root_of(module.name)
        if is_ours and room_of(name) not in PURE and not name.startswith(PURE_NEIGHBOURS):
            found.add(name)
    return sorted(f"{module.name} imports {name}" for name in found)


def misplaced_imports(module: Module) -> list[str]:
    """Return the imports of a library outside the rooms that may import it."""
    found = []
    for root in sorted({_root_of(name) for name in imports_of(module)}):
        homes = ONLY_UNDER.get(root, (module.name,))
        if not any(module.name == home or module.name.startswith(home + ".") for home in homes):
            found.append(f"{module.name} imports {root}")
    return found


def stray_warnings(module: Module) -> list[str]:
    """Return the warnings that do not point at the user's line, or have no class of their own."""
    found = []
    for node in ast.walk(module.tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        is_bare = called == "warn_caller" and "XloaderWarning" in map(ast.unparse, node.args)
        is_told = called.startswith("warnings.warn") and module.name != "xloader.core.messages"
        if is_bare or is_told:
            found.append(f"{module.name}, line {node.lineno}: {called}")
    return found


def riddles_of(module: Module) -> list[str]:
    """Return the docstrings that begin with "What", because these name a thing indirectly."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(module.tree):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        # The docstring of a constant follows the constant.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value if isinstance(node.value.value, str) else None
        if text is not None and text.startswith("What "):
            found.append(f"{module.name}: {text.splitlines()[0]}")
    return found


def starred_tuples(module: Module) -> list[str]:
    """Return the calls that pack arguments in stars, which hides what the call hands over."""
    return [
        f"{module.name}, line {node.lineno}: {ast.unparse(argument)}"
        for node in ast.walk(module.tree)
        for argument in (node.args if isinstance(node, ast.Call) else ())
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
    ]
