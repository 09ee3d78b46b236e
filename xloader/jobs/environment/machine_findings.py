"""Cores, memory and shared memory that this process may use."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

from xloader.core.findings import Finding
from xloader.core.nbytes import parse_nbytes, show_nbytes
from xloader.core.options import LoaderOptions, usable_cores
from xloader.engine.machine_limits import CgroupLimits, memory_of

_LEAST_SHM_NBYTES: Final = 1 << 30
"""Below this size, batches of a few DataLoader workers may not fit into shared memory."""

_MUCH_OF_MEMORY: Final = 0.5
"""Share of the memory from which on the default memory of a loader is named."""


def find_system() -> Finding:
    """The version of Python and the operating system."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform == "win32":
        return Finding("system", "note", found, "xloader is tested on Linux and macOS", found)
    return Finding("system", "ok", found, value=found)


def find_cores(limits: CgroupLimits) -> Finding:
    """The cores that this process may use, by its affinity and by its control group."""
    usable, there = usable_cores(), os.cpu_count() or 1
    found = f"{usable} of {there} usable"
    if limits.cores is None or limits.cores >= usable:
        return Finding("cores", "ok", found, value=usable)
    whole = max(1, round(limits.cores))
    return Finding(
        "cores",
        "note",
        f"{found}, but the control group allows the time of {limits.cores:g}",
        f"pass threads={whole}: the default is {usable}, and more threads than cores wait",
        limits.cores,
    )


def find_memory(limits: CgroupLimits, meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """The memory of the machine or of the control group, beside what a loader takes by default."""
    total, available = memory_of(meminfo)
    if total is None:
        return Finding("memory", "note", "the size is not known", "pass memory= to your loaders")
    found = show_nbytes(total)
    if available is not None:
        found += f", of which {show_nbytes(available)} are free"
    if limits.nbytes is not None and limits.nbytes < total:
        total = limits.nbytes
        found += f"; the control group allows {show_nbytes(total)}"
    default = LoaderOptions.memory
    if parse_nbytes(default) <= _MUCH_OF_MEMORY * total:
        return Finding("memory", "ok", found, value=total)
    return Finding(
        "memory",
        "note",
        f"{found}; a loader takes {default} by default",
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
    found = f"{folder} has {show_nbytes(total)}, of which {show_nbytes(free)} are free"
    if free >= _LEAST_SHM_NBYTES:
        return Finding("shared memory", "ok", found, value=total)
    return Finding(
        "shared memory",
        "note",
        f"{found}; workers of other datasets pass all batches there",
        "start the container with --shm-size=8g for those: datasets of xloader do with less",
        total,
    )
