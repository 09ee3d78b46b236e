"""The releases of libraries that xloader was tested with: the oldest allowed, and the newest.

The oldest releases are the requirements of the installed package. The newest ones stand in a table
here, which is brought up to date for each release of xloader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from types import MappingProxyType
from typing import Final

NEWEST_TESTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "numpy": "2.5.5",
        "xarray": "2026.9.0",
        "zarr": "3.4.2",
        "numcodecs": "0.17.1",
        "dask": "2026.8.0",
        "cloudpickle": "3.1.3",
        "click": "8.5.1",
        "torch": "2.13.0",
        "tqdm": "4.70.1",
        "jax": "0.10.2",
        "xbatcher": "0.4.0",
        "aiohttp": "3.14.5",
        "fsspec": "2026.9.0",
        "icechunk": "1.1.21",
        "obstore": "0.12.1",
        "s3fs": "2026.9.0",
        "h5netcdf": "1.8.2",
        "h5py": "3.16.0",
        "netcdf4": "1.7.5.1",
        "crick": "0.0.8",
        "matplotlib": "3.11.2",
        "distributed": "2026.8.0",
        "isal": "1.9.1",
    }
)
"""The newest release of each library that xloader was used or tested with, without a fault."""

_BOUND: Final = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?>=\s*(?P<bound>[\w.]+)\)?\s*(?:;\s*(?P<marker>.*))?"
)
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class TestedLibrary:
    """A library that xloader uses, and the releases of it that were tested.

    `newest`: the newest tested release; None if no release was tested in particular.
    """

    # It is no test, though its name begins like one.
    __test__ = False

    name: str
    oldest: str
    newest: str | None
    extra: str
    installed: str | None

    @property
    def is_too_old(self) -> bool:
        """Whether the installed release is older than the oldest allowed."""
        return self.installed is not None and release(self.installed) < release(self.oldest)

    @property
    def is_newer(self) -> bool:
        """Whether the installed release is newer than the newest tested, by its first two numbers.

        Releases that differ in later numbers only mend faults.
        """
        if self.installed is None or self.newest is None:
            return False
        installed, newest = ((*release(text), 0)[:2] for text in (self.installed, self.newest))
        return installed > newest


def find_libraries(package: str = "xloader") -> list[TestedLibrary] | None:
    """Find the libraries that the installed package requires, those of its extras included.

    None if the package is not installed, so that its requirements are not known.
    """
    try:
        lines = requires(package) or []
    except PackageNotFoundError:
        return None
    return [
        TestedLibrary(name, oldest, NEWEST_TESTED.get(name), extra, installed_release(name))
        for name, (oldest, extra) in requirements_in(lines).items()
    ]


def requirements_in(lines: list[str]) -> dict[str, tuple[str, str]]:
    """The lower bound and the extra of each requirement that has a bound."""
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        parts = _BOUND.fullmatch(line.strip())
        if parts:
            extra = _EXTRA.search(parts["marker"] or "")
            name, own = parts["name"].lower(), extra[1] if extra else ""
            # The extra "all" repeats what the others bring, and says less about what it is for.
            if name not in found or found[name][1] == "all":
                found[name] = parts["bound"], own
    return found


def installed_release(name: str) -> str | None:
    """The installed release of a library; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def release(text: str) -> tuple[int, ...]:
    """The numbers of a release, to compare it with others.

    Zeros at the end do not count, nor does what follows the numbers, such as a build.
    """
    leading = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
