"""Count the package: figures that may only fall, held in a table with one line a room.

``python -m tests.ratchets`` writes the table anew where figures fell, where a room is new, and
where a budget such as ``{ room = "core", code = 20, reason = "..." }`` lets them rise. Budgets
that were used are kept as ``spent``.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import reference_pages
from xloader import errors

PACKAGE = Path(errors.__file__).parent
TABLE = Path(__file__).with_name("ratchets.toml")
WHOLE = "package"
"""The line of the table that holds sums over all rooms, and what no room has alone."""
Figures = dict[str, dict[str, int]]
"""The figures of each line of the table, by their names."""

NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
VAGUE_NAMES = frozenset({"own", "found", "told", "asked"})
COUNT_LOADED = "import sys, xloader; print(sum(m.split('.')[0] == 'xloader' for m in sys.modules))"


def docstrings_of(scope: Any, name: str) -> Iterator[tuple[str, ast.Expr]]:
    """Yield each bare string with the dotted name of what it describes: a scope or a constant."""
    described = name
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield described, node
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from docstrings_of(node, f"{name}.{node.name}")
            case _:
                yield from docstrings_of(node, name)
        match node:
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(target)):
                described = f"{name}.{target}"


def lines_of(node: ast.Expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def python_figures(text: str, name: str, public: frozenset[str]) -> Counter[str]:
    """Count a file: lines with code, docstring lines, and names that say nothing."""
    tree = ast.parse(text)
    docstrings = [(place, lines_of(node)) for place, node in docstrings_of(tree, name)]
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            code |= {*range(token.start[0], token.end[0] + 1)}
    return Counter(
        code=len(code.difference(*(lines for _, lines in docstrings))),
        files=1,
        docstrings=sum(len(lines) for _, lines in docstrings),
        private_docstrings=sum(len(lines) for place, lines in docstrings if place not in public),
        vague_names=sum(bound in VAGUE_NAMES for bound in bound_names(tree)),
    )


def c_figures(text: str) -> Counter[str]:
    """Count a file in C: lines that hold more than a comment."""
    bare = C_COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else "\n" * m[0].count("\n"), text)
    return Counter(c=sum(bool(line.strip()) for line in bare.splitlines()), files=1)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name as often as the file binds it."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.alias(asname=str() as name) | ast.alias(name=name):
                yield name
            case ast.ExceptHandler(name=str() as name):
                yield name


def public_places() -> frozenset[str]:
    """Return where public classes, functions and their public members are defined, dotted."""
    values = [*reference_pages.public_names().values()]
    values += [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    places = set()
    for value in values:
        if inspect.isclass(value) or inspect.isfunction(value):
            places.add(f"{value.__module__}.{value.__qualname__}")
        hidden = reference_pages.NOT_FOR_USERS.get(getattr(value, "__name__", ""), ())
        for kind in value.__mro__ if inspect.isclass(value) else ():
            members = {*vars(kind), *inspect.get_annotations(kind)}
            places |= {
                f"{kind.__module__}.{kind.__qualname__}.{member}"
                for member in members
                if member[0] != "_" and member not in hidden
            }
    return frozenset(places)


def public_figures() -> Counter[str]:
    """Count public names, members of classes, and parameters of all that can be called."""
    figures: Counter[str] = Counter()
    for value in reference_pages.public_names().values():
        callables = [value] if callable(value) else []
        if inspect.isclass(value):
            members = reference_pages.public_members(value)
            callables += [getattr(value, name) for name in members]
            figures["members"] += len(members)
        figures["names"] += 1
        for call in filter(callable, callables):
            figures["parameters"] += len({*inspect.signature(call).parameters} - {"self"})
    return figures


def count_package(folder: Path = PACKAGE) -> Figures:
    """Return the figures of the package and of each room; files at the top are one room each."""
    public = public_places()
    figures: dict[str, Counter[str]] = {WHOLE: public_figures()}
    figures[WHOLE]["loaded"] = int(
        subprocess.run(
            [sys.executable, "-c", COUNT_LOADED], capture_output=True, text=True, check=True
        ).stdout
    )
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        text = path.read_text("utf-8")
        name = ".".join(parts).removesuffix(".__init__")
        counted = python_figures(text, name, public) if path.suffix == ".py" else c_figures(text)
        for line in (WHOLE, parts[1]):
            figures.setdefault(line, Counter()).update(counted)
    return {line: dict(counter) for line, counter in figures.items()}


def allowed(table: dict[str, Any]) -> Figures:
    """Return the figures of a table, raised by its budgets."""
    figures = {line: dict(counted) for line, counted in table["figures"].items()}
    for budget in table["budgets"]:
        room = figures[budget["room"]]
        for figure in budget.keys() - {"room", "reason"}:
            room[figure] = room.get(figure, 0) + budget[figure]
    return figures


def rises(figures: Figures, table: dict[str, Any]) -> list[str]:
    """Return, in words, each figure above the table's."""
    limits = allowed(table)
    messages = [
        f"{line} has {number} {figure}, {limits[line].get(figure, 0)} are allowed: remove some, "
        f"or add a budget and its reason to {TABLE.name}"
        for line in figures.keys() & limits
        for figure, number in figures[line].items()
        if number > limits[line].get(figure, 0)
    ]
    new = figures.keys() - limits
    return sorted([*messages, *(f"{line} is new: run `python -m tests.ratchets`" for line in new)])


def lowered(figures: Figures, table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with today's figures where they are allowed, and its budgets as spent."""
    limits = allowed(table)
    lines = {
        line: {
            figure: min(number, limits[line].get(figure, 0)) if line in limits else number
            for figure, number in counted.items()
        }
        for line, counted in figures.items()
    }
    spent = [*table["spent"], *table["budgets"]]
    return {"start": table["start"], "budgets": [], "spent": spent, "figures": lines}


def table_text(table: dict[str, Any]) -> str:
    def inline(row: dict[str, Any]) -> str:
        return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) + " }"

    rows = [f"start = {inline(table['start'])}"]
    for key in ("budgets", "spent"):
        rows += [f"{key} = [", *(f"    {inline(row)}," for row in table[key]), "]"]
    rows += ["", "[figures]"]
    rows += [f"{line} = {inline(counted)}" for line, counted in table["figures"].items()]
    return "\n".join(rows) + "\n"


def read_table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text("utf-8"))


if __name__ == "__main__":
    counted_now = count_package()
    new_table = lowered(counted_now, read_table())
    TABLE.write_text(table_text(new_table), "utf-8")
    sys.exit("\n".join(rises(counted_now, new_table)) or 0)
