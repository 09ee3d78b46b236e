"""The files that a chunk passes from the loader to the batch, as the design lists them."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine.python_loads import PythonLoads
from xloader.engine.tables import is_there
from xloader.testing import write_store

PACKAGE = Path(xloader.__file__).parent
DESIGN = PACKAGE.parent / "docs" / "design.md"
MOST_FILES = 15


def listed_files() -> list[Path]:
    text = DESIGN.read_text().split("### One chunk's life")[1].split("\n### ")[0]
    return [PACKAGE / name for name in re.findall(r"^\d+\. `([\w/]+\.\w+)`", text, re.MULTILINE)]


def names_in(path: Path) -> set[str]:
    """What other files may name: the module itself, or the functions that a file in C defines."""
    if path.suffix == ".py":
        return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)}
    functions = re.findall(r"^\w[\w *]*?\b(\w+)\([^;]*?\)\s*\{", path.read_text(), re.MULTILINE)
    # Python leaves the beginning of exported names out.
    return {name.removeprefix("xloader_") for name in functions}


def test_each_file_leads_to_the_next_ones() -> None:
    files = listed_files()
    assert 10 <= len(files) <= MOST_FILES
    for number, path in enumerate(files[1:], 1):
        earlier = "\n".join(file.read_text() for file in files[:number])
        # The iterator is named by the loader, and the batch comes back to it.
        assert any(re.search(rf"\b(xloader_)?{re.escape(n)}\b", earlier) for n in names_in(path)), (
            path.name
        )


@pytest.mark.skipif(not is_there(), reason="the compiled library is not there")
def test_a_chunk_passes_them_and_no_other_way_of_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.arange(64, dtype="f4").reshape(16, 4))})
    write_store(ds, {"t": (4, 4)}, tmp_path / "store.zarr")
    samples = xloader.open(tmp_path / "store.zarr").window(time=2).map(lambda batch: batch + 1)
    passed: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        passed.add(frame.f_code.co_filename)

    monkeypatch.setattr(PythonLoads, "read", lambda *_: 1 / 0)
    with samples.loader(batch_size=4, output="numpy") as loader:
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            batches = {int(i): row for b in loader for i, row in zip(b.ids, b.t, strict=True)}
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        assert loader.report().num_reads == 4
    for number, row in batches.items():
        np.testing.assert_array_equal(row, ds.t.values[2 * number : 2 * number + 2] + 1)
    in_python = {str(path) for path in listed_files() if path.suffix == ".py"}
    assert in_python <= passed
