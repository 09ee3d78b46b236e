"""Checks of a machine and its libraries, and the findings of all of them."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numcodecs.registry
import numpy as np
from packaging.requirements import Requirement
from packaging.version import Version

from xloader.cli.findings import Finding, problems_among, show_findings
from xloader.compiled.library import load_library
from xloader.core import cores
from xloader.core.cores import CgroupLimits, memory_of, read_cgroup_limits
from xloader.core.messages import extra_remedy
from xloader.core.nbytes import show_nbytes
from xloader.sources.zarr.codec_chain import ZLIB
from xloader.sources.zarr.compiled_decoding import decoder

_LEAST_SHM_NBYTES: Final = 1 << 30
"""Below this size, batches of a few DataLoader workers may not fit into shared memory."""

_MORE_SHM: Final = "start the container with --shm-size=8g"


def find_system() -> Finding:
    """The version of Python and the operating system."""
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform == "win32":
        return Finding("system", "note", system, "xloader is tested on Linux and macOS", system)
    return Finding("system", "ok", system, value=system)


def find_cores(limits: CgroupLimits) -> Finding:
    """The cores that this process may use, and the ranks of this machine that share them."""
    share, there = cores.find_cores(), os.cpu_count() or 1
    text = f"{share.num_usable} of {there} usable"
    if limits.cores is not None and limits.cores < there:
        text += f"; the control group allows the time of {limits.cores:g}"
    if share.num_ranks > 1:
        text += f"; each of {share.num_ranks} ranks takes {share.num_cores}"
    return Finding("cores", "ok", text, value=share.num_cores)


def find_memory(limits: CgroupLimits, meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """The memory of the machine or of the control group."""
    total, available = memory_of(meminfo)
    if total is None:
        return Finding("memory", "note", "the size is not known", "pass memory= to your loaders")
    text = show_nbytes(total)
    if available is not None:
        text += f", of which {show_nbytes(available)} are free"
    if limits.nbytes is not None and limits.nbytes < total:
        total = limits.nbytes
        text += f"; the control group allows {show_nbytes(total)}"
    return Finding("memory", "ok", text, value=total)


def find_shared_memory(folder: Path = Path("/dev/shm")) -> Finding | None:
    """The size of the folder through which workers of a PyTorch ``DataLoader`` pass batches."""
    if sys.platform != "linux":
        return None
    try:
        sizes = shutil.disk_usage(folder)
    except OSError:
        text = f"there is no {folder}, so workers of a DataLoader cannot pass batches"
        remedy = f"{_MORE_SHM}; or use samples.loader(processes=...), which does not need it"
        return Finding("shared memory", "problem", text, remedy)
    text = f"{folder} has {show_nbytes(sizes.total)}, of which {show_nbytes(sizes.free)} are free"
    if sizes.free >= _LEAST_SHM_NBYTES:
        return Finding("shared memory", "ok", text, value=sizes.total)
    text = f"{text}; workers of other datasets pass all batches there"
    remedy = f"{_MORE_SHM} for those: datasets of xloader do with less"
    return Finding("shared memory", "note", text, remedy, sizes.total)


def find_torch(name: str = "torch") -> list[Finding]:
    """PyTorch's release and what it can compute on. It is imported if it is installed."""
    if find_spec(name) is None:
        remedy = f'pass output="numpy" to your loaders, or {extra_remedy("torch")}'
        return [Finding("PyTorch", "note", "not installed", remedy)]
    try:
        torch = importlib.import_module(name)
    # A library of CUDA that is absent or of another release raises errors of any kind.
    except Exception as error:
        fault = f"installed, but importing it fails ({type(error).__name__}: {error})"
        return [Finding("PyTorch", "problem", fault, "install torch again: see pytorch.org")]
    release = str(torch.__version__)
    return [Finding("PyTorch", "ok", release, value=release), find_devices(torch)]


def find_devices(torch: Any) -> Finding:
    """The GPUs that PyTorch can compute on."""
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if torch.cuda.is_available():
        devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        names = [f"{device.name} ({show_nbytes(device.total_memory)})" for device in devices]
        return Finding("GPU", "ok", f"CUDA {built}: {', '.join(names)}", value=len(names))
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return Finding("GPU", "ok", "Metal (mps)", value=1)
    if built:
        remedy = "if there is one, check nvidia-smi and the driver's release"
        text = f"PyTorch is built for CUDA {built}, but finds no GPU"
        return Finding("GPU", "note", text, remedy, 0)
    return Finding("GPU", "ok", "none: this PyTorch is built for the CPU alone", value=0)


NEWEST_TESTED: Final[Mapping[str, str]] = {
    "numpy": "2.5.5",
    "xarray": "2026.9.0",
    "zarr": "3.4.2",
    "numcodecs": "0.17.1",
    "dask": "2026.8.0",
    "cloudpickle": "3.1.3",
    "click": "8.5.1",
    "packaging": "26.4",
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
"""The newest release of each library that xloader was used or tested with, without a fault."""

_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def requirements_in(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The lower bound and the extra of each requirement that has a bound."""
    bounds: dict[str, tuple[str, str]] = {}
    for requirement in map(Requirement, lines):
        extra = _EXTRA.search(str(requirement.marker))
        for limit in requirement.specifier:
            # The extra "all" repeats what the others bring, and says less about what it is for.
            is_new = bounds.get(requirement.name.lower(), ("", "all"))[1] == "all"
            if limit.operator == ">=" and is_new:
                bounds[requirement.name.lower()] = limit.version, extra[1] if extra else ""
    return bounds


def installed_release(name: str) -> str | None:
    """The installed release of a library; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_CODECS: Final = ("blosc", "zstd", "lz4", "gzip", "zlib")
"""Codecs of nearly all stores."""

_UNFORKABLE: Final = ("obstore", "icechunk", "s3fs", "gcsfs", "adlfs")
"""Libraries whose threads or connections do not survive a fork."""


def find_xloader(release: str | None) -> Finding:
    """The release of xloader itself."""
    if release is not None:
        return Finding("xloader", "ok", release, value=release)
    text = "used from a folder: it is not installed, so its requirements are not known"
    return Finding("xloader", "note", text, "run pip install . in a clone of xloader")


def find_releases(package: str = "xloader") -> list[Finding]:
    """The releases of the libraries that xloader needs or can use, beside those tested."""
    try:
        bounds = requirements_in(requires(package) or ())
    except PackageNotFoundError:
        return []
    findings, absent = [], {}
    for name, (oldest, extra) in bounds.items():
        installed = installed_release(name)
        if installed is None and extra:
            absent[name] = extra
        else:
            findings.append(find_release(name, oldest, NEWEST_TESTED.get(name), installed))
    if absent:
        names = ", ".join(f"{name} ({extra})" for name, extra in absent.items())
        remedy = extra_remedy(",".join(dict.fromkeys(absent.values())))
        findings.append(Finding("not installed", "ok", names, f"if you need one, {remedy}"))
    return findings


def find_release(name: str, oldest: str, newest: str | None, installed: str | None) -> Finding:
    """The installed release of a library, beside the oldest and the newest that were tested."""
    tested = f"{oldest} to {newest}" if newest else f"{oldest} or newer"
    if installed is None or Version(installed) < Version(oldest):
        text = "not installed" if installed is None else f"{installed} is too old"
        remedy = f'pip install --upgrade "{name}>={oldest}"'
        return Finding(name, "problem", f"{text}; xloader needs {tested}", remedy, installed)
    # Releases that differ in later numbers only mend faults.
    if newest and Version(installed).release[:2] > Version(newest).release[:2]:
        text = f"{installed} is newer than the releases tested, {tested}"
        remedy = f'if something fails, try pip install "{name}<={newest}"'
        return Finding(name, "note", text, remedy, installed)
    return Finding(name, "ok", f"{installed} (tested: {tested})", value=installed)


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
    if not broken:
        return Finding("codecs", "ok", f"{', '.join(works)} work", value=len(works))
    remedy = "pip install --force-reinstall numcodecs"
    return Finding("codecs", "problem", f"{', '.join(broken)} do not work", remedy)


def find_gzip() -> Finding:
    """The library that decodes gzip and zlib."""
    if ZLIB.__name__.startswith("isal"):
        return Finding("gzip and zlib", "ok", "decoded by isal", value="isal")
    text = "decoded by Python's own zlib, which takes twice as long as isal"
    remedy = f"if your stores are compressed with gzip or zlib, {extra_remedy('fast')}"
    return Finding("gzip and zlib", "note", text, remedy, "zlib")


def find_compiled() -> Finding:
    """Whether compiled threads read, decode and copy, with which codecs, or why not."""
    library, reason = load_library()
    if library is None:
        text = f"not in use, so that NumPy copies under Python's lock: {reason}"
        remedy = (
            "install xloader again by pip, which has it for Linux and macOS on x86-64 and ARM; "
            "elsewhere, install a C compiler such as gcc first"
        )
        return Finding("compiled library", "note", text, remedy, "numpy")
    made = decoder()
    missing = [name for name in ("zstd", "blosc") if made is None or name not in made.codecs]
    if missing:
        text = f"in use, but numcodecs offers it no {' and no '.join(missing)}: Python decodes them"
        remedy = "install a numcodecs from PyPI or conda-forge"
        return Finding("compiled library", "note", text, remedy, "compiled")
    text = "in use: threads without Python's lock read, decode zstd and blosc, and copy"
    return Finding("compiled library", "ok", text, value="compiled")


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
    text = "processes start by fork, which directories and zip files given by path survive"
    if not installed:
        return Finding("forks", "ok", text, value=default)
    text += f"; stores of {', '.join(installed)} do not, and raise a ForkError in a child"
    remedy = (
        'pass multiprocessing_context="forkserver" to a DataLoader over such stores, and guard '
        'the script with if __name__ == "__main__":'
    )
    return Finding("forks", "note", text, remedy, default)


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks of a machine and its libraries.

    Parameters
    ----------
    findings : tuple of Finding
        The findings, in the order in which they are shown.
    """

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that say that something is broken."""
        return tuple(problems_among(self.findings))

    def to_dict(self) -> dict[str, Any]:
        """The findings, and the number of problems and notes, in types that JSON can hold."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "num_problems": len(self.problems),
            "num_notes": sum(finding.level == "note" for finding in self.findings),
        }

    def __str__(self) -> str:
        return show_findings(self.findings)


def diagnose() -> Diagnosis:
    """Check this machine and the libraries of this Python. PyTorch is imported if installed.

    Returns
    -------
    Diagnosis
        One finding for each check.
    """
    limits = read_cgroup_limits()
    findings = (
        find_xloader(installed_release("xloader")),
        find_system(),
        find_cores(limits),
        find_memory(limits),
        find_shared_memory(),
        find_compiled(),
        find_codecs(),
        find_gzip(),
        find_fork_safety(),
        *find_torch(),
        *find_releases(),
    )
    return Diagnosis(tuple(finding for finding in findings if finding is not None))
