"""Reads a package's source and says where it breaks the rules of its house.

A file is given as its module name and its text, so that the rules can be tried on made-up files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

PURE = frozenset(
    {
        "errors",
        "telling",
        "grid",
        "world",
        "windows",
        "keyed",
        "packing",
        "subset",
        "footprint",
        "cohorts",
    }
    | {
        "schedule",
        "order",
        "listed",
        "pace",
        "sublanes",
        "remainder",
        "dealing",
        "ascend",
        "model",
        "trials",
        "search",
        "mixing",
        "plan",
    }
    | {"recipe", "layout", "lru", "capacity", "patience", "telling", "tile_needs"}
)
"""Files with no I/O, no torch and no clock. Those of them that are there are checked."""
PURE_PROTOCOLS = ("xloader.sources.base",)
"""What a pure file may name besides other pure files: a contract, and nothing that runs."""
IMPURE_IMPORTS = frozenset(
    {"xarray", "zarr", "dask", "torch", "time", "datetime", "os", "io", "pathlib", "random"}
    | {"threading", "asyncio", "multiprocessing", "subprocess"}
)
ALLOWED_IMPORTS = {
    # The one file that reads the environment of a launcher.
    "world": frozenset({"os"}),
}
ONLY_UNDER = {
    "torch": ("xloader.torch", "xloader.demo"),
    "zarr": ("xloader.sources", "xloader.testing", "xloader.demo"),
}
"""The libraries that only some parts of the house may import."""


@dataclass(frozen=True)
class Module:
    """One file of the package: its dotted name, its syntax tree and its number of lines."""

    name: str
    tree: ast.Module
    num_lines: int
    is_package: bool = False

    @classmethod
    def parse(cls, name: str, text: str, *, is_package: bool = False) -> Module:
        return cls(name, ast.parse(text), len(text.splitlines()), is_package)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


def read_package(folder: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module.parse(name, path.read_text("utf-8"), is_package=is_package)
    return modules


def imports_of(module: Module) -> Iterator[str]:
    """Every name that a file imports, wherever in it: ``a.b`` of ``from a import b``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name.split(".")
                # A package's own dots begin at itself, a file's at the folder it lies in.
                kept = len(package) - node.level + module.is_package
                base = ".".join([*package[:kept], *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def edges_between(modules: dict[str, Module]) -> dict[str, set[str]]:
    """For every file the files of the same package that it imports."""
    edges: dict[str, set[str]] = {}
    for name, module in modules.items():
        edges[name] = set()
        for imported in imports_of(module):
            owner = imported if imported in modules else imported.rpartition(".")[0]
            if owner in modules and owner != name:
                edges[name].add(owner)
    return edges


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Some ring of files that import each other, or an empty list."""
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


def impure_imports(module: Module) -> list[str]:
    """What a pure file imports although it must not: pure files know only pure files."""
    if module.short_name not in PURE or module.name.count(".") != 1:
        return []
    banned = IMPURE_IMPORTS - ALLOWED_IMPORTS.get(module.short_name, frozenset())
    found = {root for root in map(_root_of, imports_of(module)) if root in banned}
    for name in imports_of(module):
        is_ours = _root_of(name) == _root_of(module.name)
        if is_ours and name.split(".")[1] not in PURE and not name.startswith(PURE_PROTOCOLS):
            found.add(name)
    return sorted(f"{module.name} imports {name}" for name in found)


def misplaced_imports(module: Module) -> list[str]:
    """Imports of a library outside the parts of the house that may know it."""
    found = []
    for root in sorted({_root_of(name) for name in imports_of(module)}):
        homes = ONLY_UNDER.get(root, (module.name,))
        if not any(module.name == home or module.name.startswith(home + ".") for home in homes):
            found.append(f"{module.name} imports {root}")
    return found


def function_size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of lines of a function, its decorators and its docstring left out."""
    first, last = node.lineno, node.end_lineno or node.lineno
    size = last - first + 1
    if ast.get_docstring(node, clean=False) is not None:
        text = node.body[0]
        size -= (text.end_lineno or text.lineno) - text.lineno + 1
    return size


def oversized(module: Module) -> list[str]:
    """The file, if it is too long, and every function of it that is."""
    found = []
    if module.num_lines > MAX_FILE_LINES:
        found.append(f"{module.name} has {module.num_lines} lines")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = function_size(node)
            if size > MAX_FUNCTION_LINES:
                found.append(f"{module.name}.{node.name} has {size} lines")
    return found
