"""The page of results: one table between two markers, and files with all tables beside it."""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import table
from benchmarks.growth import Growth
from benchmarks.reference import count_cores
from benchmarks.results import Result

BEGIN = "<!-- made by `python -m benchmarks`: begin -->"
END = "<!-- made by `python -m benchmarks`: end -->"
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
TABLES = ROOT / "docs" / "_static" / "benchmarks"
_SHOWN = {
    "layout": "layout",
    "reference": "of the limit",
    "fastest sequential": "fastest sequential",
    "xbatcher": "xbatcher",
    "isel, 0 workers": "DataLoader, 0 workers",
    "isel, 2 workers": "DataLoader, 2 workers",
    "dask": "dask",
}
"""The columns of the table on the page, and what they are called there."""
_LIBRARIES = (
    "numpy",
    "xarray",
    "zarr",
    "numcodecs",
    "dask",
    "torch",
    "xbatcher",
    "zarrs",
    "tensorstore",
    "obstore",
)


def write_between(text: str, made: str) -> str:
    """Return the page with the text between its markers replaced by ``made``.

    Raises
    ------
    ValueError
        If the page does not hold each marker exactly once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ValueError(f"the page must have {BEGIN} and then {END}, each once")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def make_tables(results: Sequence[Result], grown: Sequence[Growth]) -> dict[str, str]:
    """Return the tables of a run by name."""
    tables = {
        "speeds": table.show_ratios(results),
        "figures": table.show_figures(results),
        "sequential": table.show_sequential(results),
    }
    return {**tables, "growth": table.show_growth(grown)} if grown else tables


def write_tables(tables: dict[str, str], folder: Path = TABLES) -> None:
    """Write each table as a file of comma-separated values."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(to_csv(text), "utf-8")


def make_page(about: str, speeds: str) -> str:
    """Return the text between the markers: ``about``, and the columns that the page shows."""
    rows = csv.DictReader(io.StringIO(to_csv(speeds)))
    # A number and its "x" stay on one line.
    cells = [[row[name].replace(" x", "\xa0x") for name in _SHOWN] for row in rows]
    return f"{about}\n\n{table.make_table(list(_SHOWN.values()), cells)}"


def to_csv(text: str) -> str:
    """Return a Markdown table as comma-separated values."""
    head, _, *rows = text.splitlines()
    file = io.StringIO()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    csv.writer(file, lineterminator="\n").writerows(cells)
    return file.getvalue()


def describe_run(command: str, seconds: float) -> str:
    """Describe the run: command, date, commit, duration, machine and versions."""
    nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = f"{count_cores()} cores of {_processor()}, {nbytes / 1e9:.0f} GB of memory"
    libraries = ", ".join(f"{name} {_version_of(name)}" for name in _LIBRARIES)
    today = dt.date.today()
    call = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(call, capture_output=True, text=True).stdout.strip() or "unknown"
    duration = f"{seconds / 60:.1f} minutes"
    return (
        f"`{command}` on {today:%-d %B %Y}, commit {commit}, {duration}. The machine: {machine}, "
        f"{platform.system()}, Python {platform.python_version()}; {libraries}."
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
