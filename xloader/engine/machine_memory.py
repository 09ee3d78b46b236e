"""The memory of this machine, and the part of it that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from xloader.engine.cgroup_limits import read_cgroup_limits


def memory_of(meminfo: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Total and available bytes of memory; None where they are not known.

    Parameters
    ----------
    meminfo : pathlib.Path
        Linux's file of the machine's memory; another one in tests.
    """
    try:
        lines = [line.split() for line in meminfo.read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        lines = []
    sizes = {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if len(line) >= 2}
    total = sizes.get("MemTotal")
    names = getattr(os, "sysconf_names", {})
    if total is None and "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, sizes.get("MemAvailable")


def usable_nbytes() -> int | None:
    """Bytes that the machine has and the control group of this process allows, if known."""
    known = [own for own in (memory_of()[0], read_cgroup_limits().nbytes) if own is not None]
    return min(known, default=None)
