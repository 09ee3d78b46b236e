"""The tower holds: files import downwards only, and importing them is cheap."""

from __future__ import annotations

import subprocess
import sys
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
    module = Module.parse("xloader.core.axis", "warnings.warn('a', SlowReadWarning)")
    assert len(floors.stray_warnings(module)) == 1
    for kind, count in (("XloaderWarning", 1), ("SlowReadWarning", 0)):
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
