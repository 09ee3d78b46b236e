"""Count the words that a reader sees on the built pages: ``python -m tests.site.words``."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "docs/_build/html"
BUDGETS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
NAMES = "reference/names"
"""The folder of the pages that are made of docstrings."""


def pages() -> list[str]:
    """Return every page that was written or made of docstrings, by its name on the site."""
    found = (path.relative_to(BUILT).with_suffix("").as_posix() for path in BUILT.rglob("*.html"))
    made = ("search", "genindex", "py-modindex")
    return sorted(name for name in found if name not in made and name[0] != "_")


def page(name: str) -> BeautifulSoup:
    return BeautifulSoup((BUILT / f"{name}.html").read_text("utf-8"), "html.parser")


def count_words(name: str) -> int:
    """Count the words of a page's article, code included and drawings left out."""
    article = page(name).find("article")
    assert article is not None
    for part in article.find_all(["svg", "script", "style", "noscript"]) + article.select(
        ".headerlink, .prev-next-area"
    ):
        part.extract()
    return len(article.get_text().split())


def is_of_a_name(name: str) -> bool:
    return name.startswith(f"{NAMES}/")


if __name__ == "__main__":
    budgets = BUDGETS["users"] | BUDGETS["about"]
    asked = sys.argv[1:] or [name for name in pages() if not is_of_a_name(name)]
    for name in asked:
        sys.stdout.write(f"{count_words(name):6} of {budgets.get(name, 0):5}  {name}\n")
