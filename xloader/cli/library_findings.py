"""Libraries that xloader uses: their releases, what they can do here, and what forks do to them."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from types import MappingProxyType
from typing import Any, Final

import numcodecs.registry
import numpy as np

from xloader.cli.findings import Finding
from xloader.compiled.library import load_library
from xloader.core.messages import extra_remedy
from xloader.sources import zarr_adapter
from xloader.sources.zarr.compiled_decoding import decoder
from xloader.sources.zarr.compressors import ZLIB

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
    bounds: dict[str, tuple[str, str]] = {}
    for line in lines:
        parts = _BOUND.fullmatch(line.strip())
        if parts:
            extra = _EXTRA.search(parts["marker"] or "")
            name, extra_name = parts["name"].lower(), extra[1] if extra else ""
            # The extra "all" repeats what the others bring, and says less about what it is for.
            if name not in bounds or bounds[name][1] == "all":
                bounds[name] = parts["bound"], extra_name
    return bounds


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


_CODECS: Final = ("blosc", "zstd", "lz4", "gzip", "zlib")
"""Codecs of nearly all stores."""

_UNFORKABLE: Final = ("obstore", "icechunk", "s3fs", "gcsfs", "adlfs")
"""Libraries whose threads or connections do not survive a fork."""


def find_xloader(release: str | None) -> Finding:
    """The release of xloader itself."""
    if release is None:
        return Finding(
            "xloader",
            "note",
            "used from a folder: it is not installed, so its requirements are not known",
            "run pip install . in a clone of xloader",
        )
    return Finding("xloader", "ok", release, value=release)


def find_releases(libraries: Sequence[TestedLibrary] | None = None) -> list[Finding]:
    """The releases of the libraries that xloader needs or can use, beside those tested."""
    if libraries is None:
        libraries = find_libraries() or ()
    findings = [
        _of_release(library)
        for library in libraries
        if library.installed is not None or not library.extra
    ]
    absent = [library for library in libraries if library.installed is None and library.extra]
    if absent:
        names = ", ".join(f"{library.name} ({library.extra})" for library in absent)
        extras = ",".join(dict.fromkeys(library.extra for library in absent))
        findings.append(
            Finding("not installed", "ok", names, f"if you need one, {extra_remedy(extras)}")
        )
    return findings


def _of_release(library: TestedLibrary) -> Finding:
    tested = (
        f"{library.oldest} to {library.newest}" if library.newest else f"{library.oldest} or newer"
    )
    if library.installed is None:
        return Finding(
            library.name,
            "problem",
            f"not installed; xloader needs {tested}",
            _pip(library, upgrade=False),
        )
    if library.is_too_old:
        return Finding(
            library.name,
            "problem",
            f"{library.installed} is too old; xloader needs {tested}",
            _pip(library, upgrade=True),
            library.installed,
        )
    if library.is_newer:
        return Finding(
            library.name,
            "note",
            f"{library.installed} is newer than the releases tested, {tested}",
            f'if something fails, try pip install "{library.name}<={library.newest}"',
            library.installed,
        )
    return Finding(
        library.name, "ok", f"{library.installed} (tested: {tested})", value=library.installed
    )


def _pip(library: TestedLibrary, *, upgrade: bool) -> str:
    return f'pip install {"--upgrade " * upgrade}"{library.name}>={library.oldest}"'


def find_codecs(names: Iterable[str] = _CODECS) -> Finding:
    """Whether the usual codecs work: a few numbers are packed and unpacked with each."""
    numbers = np.arange(1000, dtype=np.float32)
    works: list[str] = []
    broken: list[str] = []
    for name in names:
        try:
            codec: Any = numcodecs.registry.get_codec({"id": name})
            values = np.frombuffer(codec.decode(codec.encode(numbers)), np.float32)
            (works if np.array_equal(values, numbers) else broken).append(name)
        # A library that does not load raises errors of any kind.
        except Exception as error:
            broken.append(f"{name} ({type(error).__name__}: {error})")
    if broken:
        return Finding(
            "codecs",
            "problem",
            f"{', '.join(broken)} do not work",
            "pip install --force-reinstall numcodecs",
        )
    return Finding("codecs", "ok", f"{', '.join(works)} work", value=len(works))


def find_gzip() -> Finding:
    """The library that decodes gzip and zlib."""
    if ZLIB.__name__.startswith("isal"):
        return Finding("gzip and zlib", "ok", "decoded by isal", value="isal")
    return Finding(
        "gzip and zlib",
        "note",
        "decoded by Python's own zlib, which takes twice as long as isal",
        f"if your stores are compressed with gzip or zlib, {extra_remedy('fast')}",
        "zlib",
    )


def find_compiled() -> Finding:
    """Whether compiled threads read, decode and copy, with which codecs, or why not."""
    library, reason = load_library()
    if library is None:
        return Finding(
            "compiled library",
            "note",
            f"not in use, so that NumPy copies under Python's lock: {reason}",
            "install xloader again by pip, which has it for Linux and macOS on x86-64 and ARM; "
            "elsewhere, install a C compiler such as gcc first",
            "numpy",
        )
    made = decoder()
    missing = [name for name in ("zstd", "blosc") if made is None or name not in made.codecs]
    if missing:
        return Finding(
            "compiled library",
            "note",
            f"in use, but numcodecs does not offer it {' and '.join(missing)}: Python decodes them",
            "install a numcodecs from PyPI or conda-forge",
            "compiled",
        )
    text = "in use: threads without Python's lock read, decode zstd and blosc, and copy"
    return Finding("compiled library", "ok", text, value="compiled")


def find_direct_reads() -> Finding:
    """Whether this release of zarr has the parts with which xloader decodes chunks itself."""
    if zarr_adapter.is_known():
        return Finding("direct reads", "ok", "of Zarr chunks, on xloader's own threads")
    return Finding(
        "direct reads",
        "note",
        "not with this release of zarr: arrays are read through zarr's own indexing, and absent "
        "chunks are not noticed",
        "install an older zarr, or a newer xloader",
    )


def find_fork_safety(
    start_methods: Sequence[str] | None = None, installed: Sequence[str] | None = None
) -> Finding:
    """Which stores cannot be used in forked processes, such as workers of a ``DataLoader``."""
    methods = multiprocessing.get_all_start_methods() if start_methods is None else start_methods
    if installed is None:
        installed = [name for name in _UNFORKABLE if installed_release(name) is not None]
    default = methods[0]
    if default != "fork":
        return Finding("forks", "ok", f"processes start by {default}", value=default)
    safe = "processes start by fork, which directories and zip files given by path survive"
    if not installed:
        return Finding("forks", "ok", safe, value=default)
    return Finding(
        "forks",
        "note",
        f"{safe}; stores of {', '.join(installed)} do not, and raise a ForkError in a child",
        'pass multiprocessing_context="forkserver" to a DataLoader over such stores, and guard '
        'the script with if __name__ == "__main__":',
        default,
    )
