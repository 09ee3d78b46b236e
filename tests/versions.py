"""Print the installed releases of the dependencies: ``python -m tests.versions``."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def project() -> dict[str, Any]:
    """Return the contents of pyproject.toml."""
    return tomllib.loads(PYPROJECT.read_text("utf-8"))


def bounds(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and lower bound of each requirement that has one."""
    for line in lines:
        found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(?:; .+)?", line)
        if found:
            yield found[1], found[2]


def lower_bounds() -> dict[str, str]:
    """Return the oldest allowed release of every dependency, those of extras included."""
    table = project()["project"]
    extras = [line for lines in table["optional-dependencies"].values() for line in lines]
    return dict(bounds([*table["dependencies"], *extras]))


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    releases = (f"{name} {installed(name) or '(not installed)'}" for name in lower_bounds())
    print(f"Python {platform.python_version()}:", ", ".join(releases))
