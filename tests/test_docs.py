"""The pages are correct: their examples run, and their links and commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "docs/guides", "docs/concepts", "docs/reference")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md"))),
]
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[int, str]]:
    """Return each Python example and the line on which it begins."""
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in FENCE.finditer(text)
        if match[1] == "python"
    ]


def run_blocks(page: str, text: str) -> dict[str, Any]:
    """Run a page's examples in order, as a reader would type them; return their names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, block in python_blocks(text):
        # Blank lines above make a traceback point at the line of the page.
        code = compile("\n" * (line - 1) + block, page, "exec")
        try:
            exec(code, names)
        except ModuleNotFoundError as error:
            # The extras install none of these.
            if error.name not in ("tensorboard", "mlflow", "prometheus_client"):
                raise
    return names


PAGES_WITH_EXAMPLES = [
    page
    for page in PAGES
    # These pages need trainers and JAX, so their examples run with the tests of these.
    if page.name not in ("training.md", "jax.md") and python_blocks(page.read_text("utf-8"))
]


# Two ranks of the page about clusters may end at the same moment; then one of them merges.
@pytest.mark.filterwarnings("ignore:all samples of .* another process is merging")
@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run_blocks(str(page), page.read_text("utf-8"))


def test_the_readme_and_the_quickstart_have_examples():
    assert {"README.md", "quickstart.md"} <= {page.name for page in PAGES_WITH_EXAMPLES}


def test_a_broken_example_is_found_at_its_line():
    text = "Text.\n\n```python\nx = 1\n```\n\n```\nnot python\n```\n\n```python\nx.nothing\n```\n"
    assert [line for line, _ in python_blocks(text)] == [4, 12]
    with pytest.raises(AttributeError, match="nothing") as caught:
        run_blocks("page.md", text)
    # Entries of a traceback count lines from 0.
    assert caught.traceback[-1].lineno + 1 == 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", FENCE.sub("", page.read_text("utf-8")))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    command = r"(?:^|`)(?:\w+=\S+ )*make (?:\w+=\S+ )*([a-z]+)"
    named = set(re.findall(command, page.read_text("utf-8"), re.MULTILINE))
    assert named <= targets
