"""The memory of this machine, and the limits that control groups of Linux set for a process.

Containers and cluster jobs set these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_UNLIMITED_NBYTES: Final = 1 << 60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class CgroupLimits:
    """Processor time a second in cores, and bytes of memory; None where there is no limit."""

    cores: float | None
    nbytes: int | None


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the smallest limits of the groups of this process and of all groups above them."""
    cores, nbytes = [], []
    for folder in _folders(root):
        shares = _cores_v2(folder), _cores_v1(folder)
        cores += [share for share in shares if share is not None]
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(folder / name))
            if limit is not None and 0 < limit < _UNLIMITED_NBYTES:
                nbytes.append(limit)
    return CgroupLimits(min(cores, default=None), min(nbytes, default=None))


def memory_of(meminfo: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Total and available bytes of memory; None where they are not known."""
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
    sizes = memory_of()[0], read_cgroup_limits().nbytes
    return min((size for size in sizes if size is not None), default=None)


def _folders(root: Path) -> Iterator[Path]:
    """The folders of the groups of this process and of all groups above them."""
    mount = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        # Version 2 has one tree without a name. Version 1 has one tree for each kind of resource.
        tops = [mount] if not kinds else [mount / kinds, *(mount / k for k in kinds.split(","))]
        place = PurePosixPath(path.strip()).relative_to("/") if path.startswith("/") else "."
        for top in tops:
            folder = top / place
            # In a container, the path may be that on the host, which is not there.
            while folder != top:
                yield folder
                folder = folder.parent
            yield top


def _cores_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    return _share(_number(quota), _number(period))


def _cores_v1(folder: Path) -> float | None:
    return _share(
        _number(_text(folder / "cpu.cfs_quota_us")), _number(_text(folder / "cpu.cfs_period_us"))
    )


def _share(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota is not None and quota > 0 and period else None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
