"""Every guide can be found from the list of guides, says whom it is for, and where to go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDES = sorted(page for page in (DOCS / "guides").glob("*.md") if page.name != "index.md")
LINK = re.compile(r"\]\(([^)#]+)")


def toctree_entries(page: Path) -> list[str]:
    """The pages that a page's toctrees name, hidden ones too."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]


def test_the_list_and_the_navigation_have_every_guide():
    listed = LINK.findall((DOCS / "guides" / "index.md").read_text("utf-8"))
    names = {page.name for page in GUIDES}
    assert names <= set(listed)
    assert names <= {f"{entry}.md" for entry in toctree_entries(DOCS / "guides" / "index.md")}


def test_the_landing_page_links_to_every_guide():
    linked = set(LINK.findall((DOCS / "index.md").read_text("utf-8")))
    # The page about NaN leads there.
    elsewhere = {"guides/valid.md"}
    assert {f"guides/{page.name}" for page in GUIDES} - elsewhere <= linked


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_begins_with_words_and_ends_with_where_to_go(page):
    text = page.read_text("utf-8")
    title, first = text.split("\n\n", 2)[:2]
    assert title.startswith("# ")
    assert first[0].isalpha() or first.startswith("`")
    assert text.index("\n## See also\n") == text.rindex("\n## ")
