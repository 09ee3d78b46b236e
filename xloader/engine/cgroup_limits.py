"""The limits that containers and cluster jobs set for a process by control groups of Linux."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_UNLIMITED_NBYTES: Final = 1 << 60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class CgroupLimits:
    """Limits of the control groups of a process; None where there is none.

    Parameters
    ----------
    cores : float or None
        Processor time a second, in cores. It may be a part of a core.
    nbytes : int or None
        Memory in bytes.
    """

    cores: float | None
    nbytes: int | None


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits of this process. Those of all groups above its own count, too.

    Parameters
    ----------
    root : pathlib.Path
        The folder with ``proc`` and ``sys``; another one in tests.

    Returns
    -------
    CgroupLimits
        The smallest limits; without any where there are no control groups.
    """
    cores, nbytes = [], []
    for folder in _folders(root):
        cores += [own for own in (_cores_v2(folder), _cores_v1(folder)) if own is not None]
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(folder / name))
            if limit is not None and 0 < limit < _UNLIMITED_NBYTES:
                nbytes.append(limit)
    return CgroupLimits(min(cores, default=None), min(nbytes, default=None))


def _folders(root: Path) -> Iterator[Path]:
    """The folders of the groups of this process and of all groups above them."""
    mount = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        # Version 2 has one tree without a name. Version 1 has one tree for each kind of resource.
        tops = [mount] if not kinds else [mount / kinds, *(mount / k for k in kinds.split(","))]
        own = PurePosixPath(path.strip()).relative_to("/") if path.startswith("/") else "."
        for top in tops:
            folder = top / own
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
