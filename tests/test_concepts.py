"""Drawings of the site are what their script makes today, and all are shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.testing import write_store

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [
    *DOCS.glob("concepts/*.md"),
    *DOCS.glob("guides/*.md"),
    DOCS / "benchmarks.md",
    DOCS / "shuffle.md",
]
PICTURES = [*(DOCS / "_static").glob("*/*-*.*g")]
KEPT = [path for path in PICTURES if path.suffix == ".svg"]
"""Pictures that are no drawings come from other scripts."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder with the drawings of today's library."""
    folder = tmp_path_factory.mktemp("drawings")
    subprocess.run([sys.executable, DOCS / "drawings", folder], cwd=DOCS.parent, check=True)
    return folder


def test_the_script_makes_the_drawings_that_are_kept(made):
    kept = {path.name: path.read_text("utf-8") for path in KEPT}
    told = "the library plans other epochs than those drawn: run `python docs/drawings`"
    assert {path.name: path.read_text("utf-8") for path in made.rglob("*.svg")} == kept, told


def test_drawings_of_both_themes_differ_in_colours_alone(made):
    for light in made.rglob("*-light.svg"):
        dark = light.with_name(light.name.replace("-light", "-dark"))
        texts = [re.sub(r"#[0-9a-fA-F]{6}", "#", path.read_text("utf-8")) for path in (light, dark)]
        assert texts[0] == texts[1]
        assert light.read_text("utf-8") != dark.read_text("utf-8")


def test_drawings_are_whole_and_lie_within_their_page(made):
    for path in made.rglob("*.svg"):
        root = ET.fromstring(path.read_text("utf-8"))
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for part in root.iter():
            for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(part.attrib.get(name, 0)) <= most, (path.name, part.attrib)
        assert "{" not in path.read_text("utf-8")


def test_every_drawing_is_shown_in_both_themes_and_described():
    shown = {}
    for page in PAGES:
        pattern = r"```\{image\} (\S+)\n:class: only-(light|dark)\n:alt: (.+)\n```"
        for name, theme, words in re.findall(pattern, page.read_text("utf-8")):
            assert (page.parent / name).is_file()
            assert Path(name).stem.endswith(f"-{theme}")
            shown[Path(name).name] = words
    assert shown.keys() == {path.name for path in PICTURES}
    assert all(len(words) > 20 for words in shown.values())


def test_the_readme_shows_drawings_that_are_kept():
    text = (DOCS.parent / "README.md").read_text("utf-8")
    named = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(named) == 3
    assert [name for name in named if not (DOCS.parent / name).is_file()] == []


def test_numbers_in_the_text_are_those_of_the_library():
    # Reads of the page about ranks, with four lanes and without.
    values = np.zeros((16 * 360, 64, 128), "f4")
    store = write_store(xr.Dataset({"t": (("time", "y", "x"), values)}), {"t": (16, 64, 128)})
    samples = xloader.open(store).window(time=3, stride=1)
    samples = samples.inputs("t", time=0).targets("t", time=2)
    one = samples.explain(batch_size=16, memory="16MiB")
    four = samples.explain(batch_size=16, memory="48MiB", plan=xloader.PlanRules(lanes=4))
    assert (one.num_reads, four.num_reads) == (369, 380)
