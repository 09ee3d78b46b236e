"""The pages are correct: their examples run, and their links and commands exist."""

from __future__ import annotations

import doctest
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from xloader.testing import tutorial_store

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if not page.relative_to(ROOT / "docs").parts[0].startswith("_")
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ON_SITE = ROOT / "docs/notebooks"
"""The site has the notebooks there."""
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(text: str) -> list[tuple[str, int, str]]:
    """Return each block with its language and the line on which it begins."""
    return [
        (match[1], text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in FENCE.finditer(text)
    ]


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Return each Python example and the line on which it begins."""
    return [(line, block) for kind, line, block in blocks_of(text) if kind == "python"]


def run_blocks(page: str, text: str) -> dict[str, Any]:
    """Run a page's examples in order, as a reader would type them; return their names.

    Blocks of ``pycon`` are sessions, whose results and errors must be those of the page.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for kind, line, block in blocks_of(text):
        if kind == "pycon":
            run_session(page, line, block, names)
        elif kind == "python":
            # Blank lines above make a traceback point at the line of the page.
            code = compile("\n" * (line - 1) + block, page, "exec")
            try:
                exec(code, names)
            except ModuleNotFoundError as error:
                # The extras install none of these.
                if error.name not in ("tensorboard", "mlflow", "prometheus_client"):
                    raise
    return names


def run_session(page: str, line: int, block: str, names: dict[str, Any]) -> None:
    examples = doctest.DocTestParser().get_examples(block, page)
    session = doctest.DocTest(examples, {}, Path(page).name, page, line - 1, block)
    session.globs = names
    found: list[str] = []
    runner = doctest.DocTestRunner(
        verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    runner.run(session, out=found.append, clear_globs=False)
    assert not found, "".join(found)


PAGES_WITH_EXAMPLES = [
    page
    for page in PAGES
    # These pages need trainers and JAX, so their examples run with the tests of these.
    if page.name not in ("several_gpus.md", "pytorch.md", "jax.md")
    and python_blocks(page.read_text("utf-8"))
]


@pytest.fixture(scope="session")
def weather(tmp_path_factory):
    """The store of all pages, which they make once more in an instant."""
    return tutorial_store(tmp_path_factory.mktemp("tutorial") / "weather.zarr")


# Two ranks of the page about clusters may end at the same moment; then one of them merges.
@pytest.mark.filterwarnings("ignore:all samples of .* another process is merging")
@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page, weather, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("weather.zarr").symlink_to(weather)
    run_blocks(str(page), page.read_text("utf-8"))


def test_the_readme_and_the_first_training_have_examples():
    assert {"README.md", "first_training.md"} <= {page.name for page in PAGES_WITH_EXAMPLES}


LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
INCLUDE = re.compile(r"^```\{include\} (\S+)\n.*?^```$", re.MULTILINE | re.DOTALL)


def prose_of(page: Path) -> str:
    """Return the text of a page or notebook without its blocks and outputs."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    included = INCLUDE.sub(lambda match: prose_of(page.parent / match[1]), text)
    return re.sub(r"^:::.*$", "", FENCE.sub("", included), flags=re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: its labels, and its headings as GitHub and MyST name them."""
    text = prose_of(page)
    # The site has anchors of three levels (`myst_heading_anchors`).
    most = 6 if page.parent == ROOT else 3
    found: list[str] = []
    for marks, heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        if len(marks) <= most:
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return {*found, *LABEL.findall(text)}


def broken_links(page: Path, labels: set[str]) -> list[str]:
    """Return the links of a page to files, headings and labels that do not exist."""
    # A link in code is text.
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "``", prose_of(page))
    broken = []
    for link in LINK.findall(text):
        place, _, anchor = link.partition("#")
        folder = ON_SITE if page in NOTEBOOKS else page.parent
        target = Path(os.path.normpath(folder / place)) if place else page
        if target.parent == ON_SITE and target.suffix == ".ipynb":
            target = ROOT / "notebooks" / target.name
        if "://" in link or link.startswith("mailto:"):
            continue
        if not target.exists() or (
            anchor
            and target.suffix in (".md", ".ipynb")
            and anchor not in anchors_of(target) | (set() if place else labels)
        ):
            broken.append(link)
    return broken


@pytest.fixture(scope="module")
def labels():
    return {label for page in DOCS for label in LABEL.findall(prose_of(page))}


# The links of a page that only includes a file are those of that file.
OF_THEIR_OWN = [page for page in PAGES if not INCLUDE.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", [*OF_THEIR_OWN, *NOTEBOOKS], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page, labels):
    assert broken_links(page, labels) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `code` heading\n\n#### Deep\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "(here)=\n# Page\n\n[a](other.md) [b](other.md#a-code-heading) [c](other.md#twice-1)\n"
        "[`d`](#here) [e](#page) `[text](nothing.md)` [f](#elsewhere) ![picture](nothing.png)\n"
        "[g](nothing.md) [h](other.md#nothing) [i](#nothing) [j](other.md#deep)\n"
    )
    broken = ["nothing.png", "nothing.md", "other.md#nothing", "#nothing", "other.md#deep"]
    assert broken_links(page, {"elsewhere"}) == broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    command = r"(?:^|`)(?:\w+=\S+ )*make (?:\w+=\S+ )*([a-z]+)"
    named = set(re.findall(command, page.read_text("utf-8"), re.MULTILINE))
    assert named <= targets


def test_the_pages_that_a_search_shows_first_and_last_exist():
    scorer = (ROOT / "docs/search_scorer.js").read_text("utf-8")
    listed = re.findall(r"_PAGES = (\[.*?\])", scorer)
    names = [name for names in listed for name in json.loads(names)]
    assert len(listed) == 2
    assert [name for name in names if not (ROOT / f"docs/{name}.md").exists()] == []
