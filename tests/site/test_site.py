"""The built site: its words, its search, its links and its screens."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("bs4")

from tests.site.words import (
    BUDGETS,
    BUILT,
    count_words,
    is_of_a_name,
    page,
    pages,
)

if not (BUILT / "index.html").is_file():
    pytest.skip("the site is not built: make docs", allow_module_level=True)

HERE = Path(__file__).parent
MOST_WORDS = 30_000
MOST_WORDS_OF_NAMES = 15_000
WRITTEN = [name for name in pages() if not is_of_a_name(name)]
ALLOWED = BUDGETS["users"] | BUDGETS["about"]


def test_every_page_has_a_budget_and_every_budget_a_page():
    assert sorted(ALLOWED) == WRITTEN


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_keeps_its_budget_of_words(name):
    assert count_words(name) <= ALLOWED[name]


def test_users_read_at_most_thirty_thousand_words_and_look_up_fifteen():
    assert sum(count_words(name) for name in BUDGETS["users"]) <= MOST_WORDS
    names = [name for name in pages() if is_of_a_name(name)]
    assert len(names) >= 50
    assert sum(map(count_words, names)) <= MOST_WORDS_OF_NAMES


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_describes_itself(name):
    told = page(name).find("meta", attrs={"name": "description"})
    assert told is not None
    assert 40 <= len(told["content"]) <= 180


INSIDE = ("cohort", "pace", "tile", "tiles", "stream", "streams", "spread", "tray")


@pytest.mark.parametrize("name", [n for n in BUDGETS["users"] if n.startswith(("start", "guides"))])
def test_a_guide_uses_no_words_of_the_inside(name):
    article = page(name).find("article")
    for code in article.find_all(["pre", "code"]):
        code.extract()
    words = {word.strip(".,:;()?!").lower() for word in article.get_text(" ").split()}
    assert words & {*INSIDE} == set()


@pytest.mark.parametrize("name", BUDGETS["users"])
def test_lines_of_code_fit_a_page(name):
    if name.startswith("notebooks/"):
        pytest.skip("code of notebooks scrolls")
    lines = [
        line
        for block in page(name).select("div.highlight-python pre, div.highlight-py pre")
        for line in block.get_text().splitlines()
    ]
    assert [line for line in lines if len(line) > 76] == []


def broken_links(name: str) -> list[str]:
    """Return the links and pictures of a page that lead nowhere within the site."""
    soup = page(name)
    targets = [tag["href"] for tag in soup.select("a[href], link[href]")]
    targets += [tag["src"] for tag in soup.select("img[src], script[src]")]
    broken = []
    for target in targets:
        place, anchor = urldefrag(target)
        if "://" in target or target.startswith(("mailto:", "data:", "#")) or place == "":
            continue
        path = (BUILT / name).parent / unquote(place.partition("?")[0])
        if not path.exists() or (
            anchor and path.suffix == ".html" and f'id="{anchor}"' not in path.read_text("utf-8")
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("name", WRITTEN)
def test_no_link_is_broken(name):
    assert broken_links(name) == []


def test_pictures_are_described():
    bare = [
        (name, tag["src"])
        for name in WRITTEN
        for tag in page(name).select("article img")
        if not name.startswith("notebooks/") and len(tag.get("alt", "")) < 20
    ]
    assert bare == []


def test_assistants_find_every_page_and_ten_tasks():
    listed = (BUILT / "llms.txt").read_text("utf-8")
    assert [name for name in BUDGETS["users"] if f"/{name}.html" not in listed] == [
        "index",
        *(name for name in BUDGETS["users"] if name.startswith("notebooks/")),
    ]
    tasks = (BUILT / "llms-tasks.md").read_text("utf-8")
    assert tasks.count("\n## ") == 10


SEARCHES = tomllib.loads((HERE / "searches.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def found():
    node = shutil.which("node")
    if node is None:
        pytest.skip("the search of the site runs in node, which is not installed")
    answer = subprocess.run(
        [node, HERE / "search.js", BUILT],
        input=json.dumps([*SEARCHES]),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


@pytest.mark.parametrize("query", SEARCHES)
def test_a_search_finds_its_page_among_the_first_three(found, query):
    assert SEARCHES[query] in found[query][:3]


def test_forty_searches_are_tried():
    assert len(SEARCHES) >= 40


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with playwright.sync_playwright() as engines:
        try:
            opened = engines.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_screens_are_whole(browser, width, theme):
    """No page scrolls sideways, fails in its scripts, or shows pictures of the other theme."""
    screen = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    shown = screen.new_page()
    faults: list[object] = []
    shown.on("pageerror", lambda error: faults.append(error))
    for name in WRITTEN:
        shown.goto((BUILT / f"{name}.html").as_uri())
        wide = shown.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            faults.append((name, wide))
        of_other = "light" if theme == "dark" else "dark"
        if any(tag.is_visible() for tag in shown.query_selector_all(f"img.only-{of_other}")):
            faults.append((name, f"pictures for {of_other}"))
        blank = shown.evaluate(
            "[...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)"
        )
        faults += [(name, src) for src in blank]
    screen.close()
    assert faults == []


def test_code_can_be_copied_and_the_search_answers_as_one_types(browser):
    shown = browser.new_page(viewport={"width": 1280, "height": 900})
    shown.goto((BUILT / "guides/missing.html").as_uri())
    assert len(shown.query_selector_all("button.copybtn")) >= 2
    assert shown.evaluate("DOCUMENTATION_OPTIONS.search_as_you_type")
    shown.close()
