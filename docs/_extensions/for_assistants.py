"""Files for assistants and editors, made of the pages: ``llms.txt`` and ``llms-tasks.md``.

The first lists every page with what it is about (https://llmstxt.org). The second holds the code of
the ten most common tasks, as the pages have it, where tests run it.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from sphinx.application import Sphinx

SITE = "https://xloader.github.io/xloader"
SUMMARY = (
    "xloader makes shuffled batches for PyTorch from Zarr, netCDF and whatever xarray opens. It "
    "plans an order that reads each chunk once, within a memory budget."
)
TASKS = {
    "start/first_training": 3,
    "guides/open": 1,
    "guides/windows": 1,
    "guides/patches": 1,
    "guides/missing": 1,
    "guides/normalize": 1,
    "guides/steps": 1,
    "guides/gpu": 1,
    "guides/resume": 1,
    "guides/predictions": 1,
}
"""How many of the first examples of a page show its task."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def read_page(docs: Path, name: str) -> tuple[str, str, str]:
    """Return the title, the description and the text of a page."""
    text = (docs / f"{name}.md").read_text("utf-8")
    _, front, rest = text.split("---\n", 2)
    title = TITLE.search(rest)
    assert title is not None, name
    return title[1], yaml.safe_load(front)["myst"]["html_meta"]["description"], rest


def list_pages(docs: Path, names: list[str]) -> str:
    """Return the text of ``llms.txt``."""
    lines = [f"# xloader\n\n> {SUMMARY}\n\n## Pages\n"]
    lines.append(f"- [Ten common tasks]({SITE}/llms-tasks.md): their code, to copy")
    for name in names:
        title, description, _ = read_page(docs, name)
        lines.append(f"- [{title}]({SITE}/{name}.html): {description}")
    return "\n".join(lines) + "\n"


def list_tasks(docs: Path) -> str:
    """Return the text of ``llms-tasks.md``."""
    parts = [f"# Ten common tasks with xloader\n\n{SUMMARY}\n"]
    for name, num_blocks in TASKS.items():
        title, description, text = read_page(docs, name)
        blocks = [match[1] for match in BLOCK.finditer(text)][:num_blocks]
        code = "".join(f"\n```python\n{block}```\n" for block in blocks)
        parts.append(f"## {title}\n\n{description} More: {SITE}/{name}.html\n{code}")
    return "\n".join(parts)


def write_files(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    docs, site = Path(app.srcdir), Path(app.outdir)
    written = [name for name in sorted(app.env.found_docs) if (docs / f"{name}.md").is_file()]
    described = [name for name in written if "/names/" not in name and name != "index"]
    (site / "llms.txt").write_text(list_pages(docs, described), "utf-8")
    (site / "llms-tasks.md").write_text(list_tasks(docs), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": True}
