"""The tower holds: files import downwards only, and importing them is cheap."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import xloader
from tests import floors
from tests.floors import Module

PACKAGE = Path(xloader.__file__).parent
MODULES = floors.read_package(PACKAGE)


def test_the_package_was_found():
    assert {"xloader", "xloader.errors", "xloader.core.axis", "xloader.sources.base"} <= set(
        MODULES
    )
    assert "xloader.errors" in floors.edges_between(MODULES)["xloader.core.axis"]


def test_imports_inside_functions_find_their_modules():
    for name, module in MODULES.items():
        ours = (other for other in floors.imports_of(module) if other.startswith("xloader."))
        lost = [o for o in ours if o not in MODULES and o.rpartition(".")[0] not in MODULES]
        assert not lost, f"{name} imports {lost}"


def test_no_ring_of_imports():
    ring = floors.find_cycle(floors.edges_between(MODULES))
    assert not ring, " -> ".join(ring)


def test_no_ring_of_folders():
    ring = floors.find_cycle(floors.edges_between_folders(MODULES))
    assert not ring, " -> ".join(ring)


def test_rooms_import_downwards():
    assert floors.upward_imports(MODULES) == []


def test_the_kernel_never_imports_the_annex():
    assert floors.imports_of_annex(MODULES) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_each_file_keeps_the_rules(name):
    module = MODULES[name]
    assert floors.impure_imports(module) == []
    assert floors.misplaced_imports(module) == []
    assert floors.stray_warnings(module) == []
    assert floors.starred_tuples(module) == []
    assert floors.riddles_of(module) == []
    assert module.short_name != "utils"


def test_import_loads_no_heavy_library():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import xloader"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "xloader" in loaded
    assert loaded.isdisjoint({"torch", "dask", "matplotlib", "click", "tqdm", "hypothesis"})


MOMENTS = {
    "import": "import xloader",
    "first batch": """
import numpy as np, xarray as xr, xloader
ds = xr.Dataset({"a": (("time", "x"), np.ones((40, 3), "f4"))})
ds.to_zarr("a.zarr", encoding={"a": {"chunks": (4, 3)}})
next(iter(xloader.open("a.zarr").window(time=2).inputs("a").loader(batch_size=4)))
""",
    # For each sample the worker tells what is loaded there by then.
    "worker": """
import numpy as np, xarray as xr, xloader
def tell(sample):
    path.write_text(json.dumps(loaded()))
    return sample
if __name__ == "__main__":
    ds = xr.Dataset({"a": (("time", "x"), np.ones((40, 3), "f4"))})
    ds.to_zarr("a.zarr", encoding={"a": {"chunks": (4, 3)}})
    samples = xloader.open("a.zarr").window(time=2).inputs("a")
    list(xloader.torch.data_loader(samples, batch_size=4, num_workers=1, transform=tell))
""",
}
TOLD = """
import json, sys
from pathlib import Path
path = Path("loaded.json")
def loaded():
    return [name for name in sys.modules if name.partition(".")[0] == "xloader"]
{}
if __name__ == "__main__" and not path.exists():
    path.write_text(json.dumps(loaded()))
"""


@pytest.mark.parametrize(
    ("moment", "most"), [("import", 180), ("first batch", 330), ("worker", 250)]
)
def test_only_what_is_used_is_loaded(moment: str, most: int, tmp_path: Path):
    if moment == "worker" and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    (tmp_path / "script.py").write_text(TOLD.format(MOMENTS[moment]))
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True)
    names = json.loads((tmp_path / "loaded.json").read_text())
    assert {"xloader", "xloader.errors"} <= set(names)
    assert len(names) <= most, sorted(names)


def test_public_names_are_what_type_checkers_see():
    tree = MODULES["xloader"].tree
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {**xloader._HOMES, "forcings": "xloader"}
    assert set(seen) | {"__version__", "errors"} == set(xloader.__all__) == set(dir(xloader))
    starred: dict[str, object] = {}
    exec("from xloader import *", starred)
    for name, home in xloader._HOMES.items():
        assert starred[name] is getattr(importlib.import_module(home), name)


def package(**texts: str) -> dict[str, Module]:
    return {
        name: Module.parse(name, text)
        for name, text in ((key.replace("__", "."), text) for key, text in texts.items())
    }


@pytest.mark.parametrize(
    "hidden",
    [
        "import p.b",
        "from p import b",
        "from p.b import name",
        "from .b import name",
        "from . import b",
        "def f():\n    from p.b import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import name",
    ],
)
def test_a_ring_is_found_however_it_is_written(hidden):
    ring = package(p__a=hidden, p__b="import p.c", p__c="from p.a import name")
    assert floors.find_cycle(floors.edges_between(ring)) == ["p.a", "p.b", "p.c", "p.a"]
    tree = package(p__a=hidden, p__b="import p.c", p__c="import numpy")
    assert floors.find_cycle(floors.edges_between(tree)) == []


def test_a_ring_through_a_package_is_found():
    modules = {
        "p": Module.parse("p", "from .a import name", is_package=True),
        "p.a": Module.parse("p.a", "import p"),
    }
    assert floors.find_cycle(floors.edges_between(modules)) == ["p", "p.a", "p"]


def test_a_stray_warning_is_found():
    module = Module.parse("xloader.core.axis", "warnings.warn('a', ChunkWarning)")
    assert len(floors.stray_warnings(module)) == 1
    for kind, count in (("XloaderWarning", 1), ("ChunkWarning", 0)):
        module = Module.parse("xloader.core.axis", f"warn_caller('a', {kind})")
        assert len(floors.stray_warnings(module)) == count


def test_an_import_upwards_is_found():
    modules = {
        name: Module.parse(name, text)
        for name, text in {
            "xloader.order.listed": "from xloader.loader.batch import Batch",
            "xloader.loader.batch": "from xloader.core.axis import Axis",
            "xloader.core.axis": "",
            "xloader.sources.base": "def f():\n    from xloader.order.listed import Listed",
            "xloader.sources.retries": "from xloader.sources.base import Source",
            "xloader.attic": "",
        }.items()
    }
    assert floors.upward_imports(modules) == [
        "xloader.attic is in no room",
        "xloader.order.listed imports xloader.loader.batch",
        "xloader.sources.base imports xloader.order.listed",
    ]


def test_a_ring_of_folders_is_found_at_any_depth():
    texts = {
        "xloader.sources.zarr.a": "import xloader.sources.stores.b",
        "xloader.sources.stores.b": "import xloader.sources.base",
        "xloader.sources.stores.c": "",
        "xloader.sources.base": "",
    }
    modules = {name: Module.parse(name, text) for name, text in texts.items()}
    assert floors.find_cycle(floors.edges_between_folders(modules)) == []
    # The files form no circle, but their folders do.
    for text, name in (
        ("import xloader.sources.zarr.a", "xloader.sources.stores.c"),
        ("import xloader.sources.stores.c", "xloader.sources.other"),
    ):
        ringed = {**modules, name: Module.parse(name, text)}
        assert floors.find_cycle(floors.edges_between(ringed)) == []
        assert floors.find_cycle(floors.edges_between_folders(ringed)) != []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("xloader.order.listed", "import time", ["xloader.order.listed imports time"]),
        (
            "xloader.planning.plan",
            "def f():\n    from os import path",
            ["xloader.planning.plan imports os"],
        ),
        ("xloader.core.ranks", "import os", []),
        ("xloader.core.ranks", "import threading", ["xloader.core.ranks imports threading"]),
        (
            "xloader.planning.plan",
            "from xloader.order.listed import Listed\nfrom xloader.loader.report import Report",
            ["xloader.planning.plan imports xloader.loader.report.Report"],
        ),
        ("xloader.planning.plan", "from xloader.sources.base import Source", []),
        (
            "xloader.planning.plan",
            "from xloader.sources.open.open_source import open_source",
            ["xloader.planning.plan imports xloader.sources.open.open_source.open_source"],
        ),
        ("xloader.loader.report", "import time", []),
        ("xloader.torch.order", "import time", []),
    ],
)
def test_an_impure_import_is_found(name, text, expected):
    assert floors.impure_imports(Module.parse(name, text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "xloader.loader.loader",
            "import torch.utils.data",
            ["xloader.loader.loader imports torch"],
        ),
        ("xloader.torchlike", "import torch", ["xloader.torchlike imports torch"]),
        ("xloader.torch.misuse", "import torch", []),
        ("xloader.torch", "import torch", []),
        ("xloader.tensors.convert", "import torch", []),
        ("xloader.xbatcher.torch_datasets", "import torch", []),
        ("xloader.xbatcher.reading", "import torch", ["xloader.xbatcher.reading imports torch"]),
        (
            "xloader.samples.samples",
            "from zarr import open_group",
            ["xloader.samples.samples imports zarr"],
        ),
        ("xloader.samples.samples", "from xloader.torch import tensors", []),
        ("xloader.sources.open.open_source", "import zarr", []),
        (
            "xloader.loader.report",
            "import matplotlib",
            ["xloader.loader.report imports matplotlib"],
        ),
    ],
)
def test_a_misplaced_import_is_found(name, text, expected):
    assert floors.misplaced_imports(Module.parse(name, text)) == expected


def test_a_docstring_that_begins_with_what_is_found():
    text = '"""One."""\nA = 1\n"""What it is."""\ndef f():\n    """What it does."""\n'
    found = floors.riddles_of(Module.parse("p.a", text))
    assert sorted(set(found)) == ["p.a: What it does.", "p.a: What it is."]


def test_an_import_of_the_annex_is_found():
    texts = {
        "xloader.loader.epoch": "def f():\n    from xloader.jobs.scores import Scores",
        "xloader.samples.samples": "import xloader.jobs.scores",
        "xloader.dask.ranks": "import xloader.jobs.scores",
        "xloader.jobs.scores": "import xloader.loader.epoch",
    }
    modules = {name: Module.parse(name, text) for name, text in texts.items()}
    assert floors.imports_of_annex(modules) == ["xloader.loader.epoch imports xloader.jobs.scores"]
    assert {*floors.ANNEX, *floors.ABOVE_ANNEX} < {room for row in floors.TOWER for room in row}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(*(a, b), c)", ["p.a, line 1: *(a, b)"]),
        ("x = g(a,\n  *[b, c])", ["p.a, line 1: *[b, c]"]),
        ("f(*rest, (a, b))\nx = (*(a, b), c)", []),
    ],
)
def test_arguments_packed_in_stars_are_found(text, expected):
    assert floors.starred_tuples(Module.parse("p.a", text)) == expected
