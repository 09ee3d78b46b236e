"""The notebooks are stored as a reader should see them: run as a whole, with clean outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_NBYTES = 600_000
# Folders that differ from machine to machine.
MACHINE_PATH = re.compile(r"/(?:tmp|home|root|Users|private|var/folders|work|build)/[\w.]")

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    return json.loads(path.read_text("utf-8"))


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def should_print(code: str) -> bool:
    """Whether a cell prints, or ends with a value that Jupyter shows."""
    if code.startswith("%%"):
        return True
    body = ast.parse(code).body
    # Functions print when they are called.
    top = [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = {getattr(node.func, "id", "") for one in top for node in ast.walk(one) if is_call(node)}
    last = body[-1] if body else None
    is_value = isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call)
    return "print" in names or (is_value and not code.rstrip().endswith(";"))


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)


def faults(notebook: Notebook) -> list[str]:
    """Everything about a stored notebook that a reader should not see."""
    found = []
    cells = code_cells(notebook)
    kernel = notebook["metadata"].get("kernelspec", {}).get("name")
    if kernel != "python3":
        found.append(f"the kernel is {kernel}")
    counts = [cell["execution_count"] for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        found.append(f"execution counts are {counts}")
    for number, cell in enumerate(cells, start=1):
        outputs = cell["outputs"]
        if should_print(source(cell)) and not outputs:
            found.append(f"cell {number} has no output")
        if any(output["output_type"] == "error" for output in outputs):
            found.append(f"cell {number} has failed")
        if any(output.get("name") == "stderr" for output in outputs):
            found.append(f"cell {number} warns")
        # Pictures are text that may look like a path.
        texts = [{k: v for k, v in o.get("data", o).items() if "image" not in k} for o in outputs]
        place = MACHINE_PATH.search(json.dumps(texts))
        if place:
            found.append(f"cell {number} shows the path {place[0]}")
    return found


def test_there_are_three_notebooks():
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["archive_to_forecast", "dask_cluster", "satellite_patches"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_clean(path):
    assert faults(read(path)) == []
    assert path.stat().st_size < MOST_NBYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_says_how_long_it_takes(path):
    first = read(path)["cells"][0]
    assert first["cell_type"] == "markdown"
    text = " ".join(source(first).split())
    assert text.startswith("# ")
    assert re.search(r"takes (?:about|less than) .*(?:seconds|minute)", text)


def test_the_site_lists_every_notebook():
    listed = (ROOT / "docs/guides/open.md").read_text("utf-8")
    for path in NOTEBOOKS:
        assert f"\n../notebooks/{path.stem}\n" in listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_fits_the_page(path):
    lines = [line for cell in code_cells(read(path)) for line in source(cell).splitlines()]
    assert [line for line in lines if len(line) > 76] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_picture_is_described(path):
    for cell in code_cells(read(path)):
        if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            assert len(cell["metadata"]["mystnb"]["image"]["alt"]) > 30


def stored(code: str, *outputs: dict[str, Any], count: int | None = 1) -> Notebook:
    cell = {"cell_type": "code", "source": code, "execution_count": count, "outputs": [*outputs]}
    return {"metadata": {"kernelspec": {"name": "python3"}}, "cells": [cell]}


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": [text]}


@pytest.mark.parametrize(
    ("notebook", "fault"),
    [
        (stored("for i in range(3):\n    print(i)"), "no output"),
        (stored("x = 1\nx"), "no output"),
        (stored("print(1)", stream("1"), count=4), "execution counts"),
        (stored("f()", stream("no", "stderr")), "warns"),
        (stored("f()", {"output_type": "error", "ename": "ValueError"}), "failed"),
        (stored("x", {"output_type": "display_data", "data": {"text/html": ["/root/x"]}}), "path"),
        (stored("print(1)", stream("1")) | {"metadata": {}}, "kernel"),
    ],
)
def test_each_fault_is_found(notebook, fault):
    found = faults(notebook)
    assert len(found) == 1
    assert fault in found[0]


def test_a_clean_notebook_has_no_faults():
    picture = {"output_type": "display_data", "data": {"image/png": "a/tmp/b"}}
    assert faults(stored("def f():\n    print(1)\n\n\naxis.plot();", picture)) == []
