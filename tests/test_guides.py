"""Every guide is in the navigation and among the recipes, and ends with where to go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
LINK = re.compile(r"\]\(([^)#]+)")
ENTRY_PAGE = DOCS / "guides" / "open.md"
"""The first guide has the toctrees of all."""


def toctree_entries(page: Path) -> list[str]:
    """The pages that a page's toctrees name, hidden ones too."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]


def test_the_navigation_has_every_guide():
    entries = toctree_entries(ENTRY_PAGE)
    assert {page.stem for page in GUIDES} - {ENTRY_PAGE.stem} <= set(entries)


def test_the_recipes_link_to_every_guide():
    linked = set(LINK.findall((DOCS / "start" / "recipes.md").read_text("utf-8")))
    assert {f"../guides/{page.name}" for page in GUIDES} <= linked


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_begins_with_words_and_ends_with_where_to_go(page):
    text = page.read_text("utf-8").split("\n---\n", 1)[1]
    title, first = text.strip().split("\n\n", 2)[:2]
    assert title.startswith("# ")
    assert first[0].isalpha() or first.startswith("`")
    assert text.index("\n## See also\n") == text.rindex("\n## ")
    links = text[text.index("\n## See also\n") :].count("\n- ")
    assert 1 <= links <= 3


def test_the_lines_of_the_recipes_are_python():
    rows = re.findall(r"^\| \[.+\) \| (.+) \|$", (DOCS / "start/recipes.md").read_text(), re.M)
    assert len(rows) >= 40
    for line in (line for row in rows for line in re.findall(r"`([^`$]+)`", row)):
        assert compile(line, line, "exec")
