"""The page of results: measurements and the machine, written between two markers."""

from __future__ import annotations

import datetime as dt
import os
import platform
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
CAPTION = "Planning, peak memory and speed against the size of the data; grey is what is allowed"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "_static" / "growth.png"
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


def make_page(about: str, results: Sequence[Result], grown: Sequence[Growth]) -> str:
    """Return the text between the markers: ``about``, then the tables."""
    parts = [
        about,
        table.show_ratios(results),
        "### Figures",
        table.show_figures(results),
        "### Reading in turn, GB/s decoded",
        table.show_sequential(results),
    ]
    if grown:
        parts += ["### Growth", table.show_growth(grown), f"![{CAPTION}](_static/{PICTURE.name})"]
    return "\n\n".join(parts)


def describe_run(command: str, seconds: float) -> str:
    """Describe the run: command, duration, date, machine and versions."""
    nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = f"{count_cores()} cores of {_processor()}, {nbytes / 1e9:.0f} GB of memory"
    libraries = ", ".join(f"{name} {_version_of(name)}" for name in _LIBRARIES)
    today = dt.date.today()
    return (
        f"`{command}` on {today:%-d %B %Y}, {seconds / 60:.1f} minutes. The machine: {machine}, "
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
