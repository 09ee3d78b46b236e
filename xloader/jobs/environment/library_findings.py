"""Libraries that xloader uses: their releases, what they can do here, and what forks do to them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numcodecs.registry
import numpy as np

from xloader.compiled.library import load_library
from xloader.core.findings import Finding
from xloader.core.messages import extra_remedy
from xloader.jobs.environment.tested_releases import (
    TestedLibrary,
    find_libraries,
    installed_release,
)
from xloader.sources import zarr_adapter
from xloader.sources.zarr.compressors import ZLIB

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
    found = [_of_release(own) for own in libraries if own.installed is not None or not own.extra]
    absent = [own for own in libraries if own.installed is None and own.extra]
    if absent:
        names = ", ".join(f"{own.name} ({own.extra})" for own in absent)
        extras = ",".join(dict.fromkeys(own.extra for own in absent))
        found.append(
            Finding("not installed", "ok", names, f"if you need one, {extra_remedy(extras)}")
        )
    return found


def _of_release(own: TestedLibrary) -> Finding:
    tested = f"{own.oldest} to {own.newest}" if own.newest else f"{own.oldest} or newer"
    if own.installed is None:
        return Finding(
            own.name, "problem", f"not installed; xloader needs {tested}", _pip(own, upgrade=False)
        )
    if own.is_too_old:
        return Finding(
            own.name,
            "problem",
            f"{own.installed} is too old; xloader needs {tested}",
            _pip(own, upgrade=True),
            own.installed,
        )
    if own.is_newer:
        return Finding(
            own.name,
            "note",
            f"{own.installed} is newer than the releases tested, {tested}",
            f'if something fails, try pip install "{own.name}<={own.newest}"',
            own.installed,
        )
    return Finding(own.name, "ok", f"{own.installed} (tested: {tested})", value=own.installed)


def _pip(own: TestedLibrary, *, upgrade: bool) -> str:
    return f'pip install {"--upgrade " * upgrade}"{own.name}>={own.oldest}"'


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
    """Whether rows are gathered by compiled code, or why not."""
    library, reason = load_library()
    if library is not None:
        return Finding("gather", "ok", "compiled, without Python's lock", value="compiled")
    return Finding(
        "gather",
        "note",
        f"by NumPy, which holds Python's lock: {reason}",
        "install a C compiler such as gcc, then install xloader again; without one, "
        "samples.loader(processes=...) keeps the lock free for training",
        "numpy",
    )


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
