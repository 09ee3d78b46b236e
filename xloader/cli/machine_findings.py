"""Python, system, cores, memory, shared memory, PyTorch and GPUs, as this process finds them."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from xloader.cli.findings import Finding
from xloader.core import cores
from xloader.core.machine_limits import CgroupLimits, memory_of
from xloader.core.messages import extra_remedy
from xloader.core.nbytes import parse_nbytes, show_nbytes
from xloader.core.options import LoaderOptions

_LEAST_SHM_NBYTES: Final = 1 << 30
"""Below this size, batches of a few DataLoader workers may not fit into shared memory."""

_MUCH_OF_MEMORY: Final = 0.5
"""Share of the memory from which on the default memory of a loader is named."""


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
    """The memory of the machine or of the control group, beside what a loader takes by default."""
    total, available = memory_of(meminfo)
    if total is None:
        return Finding("memory", "note", "the size is not known", "pass memory= to your loaders")
    text = show_nbytes(total)
    if available is not None:
        text += f", of which {show_nbytes(available)} are free"
    if limits.nbytes is not None and limits.nbytes < total:
        total = limits.nbytes
        text += f"; the control group allows {show_nbytes(total)}"
    default = LoaderOptions.memory
    if parse_nbytes(default) <= _MUCH_OF_MEMORY * total:
        return Finding("memory", "ok", text, value=total)
    return Finding(
        "memory",
        "note",
        f"{text}; a loader takes {default} by default",
        f'pass memory="{total // 4 >> 20}MiB" or less to your loaders',
        total,
    )


def find_shared_memory(folder: Path = Path("/dev/shm")) -> Finding | None:
    """The size of the folder through which workers of a PyTorch ``DataLoader`` pass batches."""
    if sys.platform != "linux":
        return None
    try:
        sizes = os.statvfs(folder)
    except OSError:
        return Finding(
            "shared memory",
            "problem",
            f"there is no {folder}, so workers of a DataLoader cannot pass batches",
            "start the container with --shm-size=8g; or use samples.loader(processes=...), which "
            "does not need it",
        )
    total, free = (blocks * sizes.f_frsize for blocks in (sizes.f_blocks, sizes.f_bavail))
    text = f"{folder} has {show_nbytes(total)}, of which {show_nbytes(free)} are free"
    if free >= _LEAST_SHM_NBYTES:
        return Finding("shared memory", "ok", text, value=total)
    return Finding(
        "shared memory",
        "note",
        f"{text}; workers of other datasets pass all batches there",
        "start the container with --shm-size=8g for those: datasets of xloader do with less",
        total,
    )


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
        names = []
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            names.append(f"{properties.name} ({show_nbytes(properties.total_memory)})")
        return Finding("GPU", "ok", f"CUDA {built}: {', '.join(names)}", value=len(names))
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return Finding("GPU", "ok", "Metal (mps)", value=1)
    if built:
        return Finding(
            "GPU",
            "note",
            f"PyTorch is built for CUDA {built}, but finds no GPU",
            "if there is one, check nvidia-smi and the driver's release",
            0,
        )
    return Finding("GPU", "ok", "none: this PyTorch is built for the CPU alone", value=0)
