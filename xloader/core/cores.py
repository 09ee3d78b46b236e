"""The cores and the memory that this process may use: affinity, control groups and local ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Final

from xloader.core.messages import show_count
from xloader.core.nbytes import MemoryShare, show_nbytes

_SLURM: Final = "SLURM_STEP_TASKS_PER_NODE"
_NAMES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", _SLURM)
"""Variables in which launchers tell how many ranks a machine has. The innermost comes first."""


@dataclass(frozen=True)
class CoreShare:
    """The cores that a process may use, and the ranks of its machine that share them."""

    num_usable: int
    num_ranks: int = 1

    @property
    def num_cores(self) -> int:
        """Cores for one rank, 1 at least."""
        return max(self.num_usable // self.num_ranks, 1)

    def __str__(self) -> str:
        if self.num_ranks == 1:
            return str(self.num_cores)
        return f"{self.num_cores} = {self.num_usable} cores / {self.num_ranks} ranks"


def usable_cores() -> int:
    """Number of cores for this process: its share, if ranks beside it use the same ones."""
    return find_cores().num_cores


def find_cores(environ: Mapping[str, str] | None = None) -> CoreShare:
    """Find the cores of this process, and how many ranks of its machine share them.

    A rank that its launcher ties to cores of its own shares only what its control group allows.
    """
    environ = os.environ if environ is None else environ
    tied, quota = _affinity(0), read_cgroup_limits().cores
    name = _launcher(environ)
    num_ranks = _num_ranks(name, environ) if name else 1
    is_divided = num_ranks > 1 and _is_divided(tied, num_ranks, name, environ)
    shares = [CoreShare(len(tied), 1 if is_divided else num_ranks)]
    if quota is not None:
        shares.append(CoreShare(max(round(quota), 1), num_ranks))
    return min(shares, key=lambda share: share.num_cores)


def _launcher(environ: Mapping[str, str]) -> str:
    """The variable that says how many ranks this machine has; empty if there is none."""
    return next((name for name in _NAMES if name in environ), "")


def _num_ranks(name: str, environ: Mapping[str, str]) -> int:
    """Ranks on this machine; 1 if the variable says nothing that can be understood."""
    nums = list(_expand(environ[name])) or [1]
    # Slurm lists the tasks of each node, such as "8(x2),4".
    node = environ.get("SLURM_NODEID", "") if name == _SLURM else ""
    place = int(node) if node.isdecimal() else 0
    return max(nums[min(place, len(nums) - 1)], 1)


def _expand(text: str) -> Iterator[int]:
    for num, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(num)] * int(times or 1)


def _is_divided(tied: set[int], num_ranks: int, name: str, environ: Mapping[str, str]) -> bool:
    """Whether the cores to which this process is tied are its own among the local ranks."""
    if name == _SLURM:
        num_cores = environ.get("SLURM_CPUS_ON_NODE", "")
        return num_cores.isdecimal() and num_ranks * len(tied) <= int(num_cores)
    # The launcher is the first process above that was not started as a rank.
    pid = os.getppid()
    while f"\0{name}=".encode() in b"\0" + _read(pid, "environ"):
        above = _read(pid, "stat").rpartition(b")")[2].split()
        # It may have ended meanwhile.
        pid = int(above[1]) if above else 0
    return tied != _affinity(pid)


def _affinity(pid: int) -> set[int]:
    """Cores to which a process is tied; those of this one if they are not known."""
    # macOS has no call to ask for them.
    if not hasattr(os, "sched_getaffinity"):
        return set(range(os.cpu_count() or 1))
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return os.sched_getaffinity(0)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


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


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that the ranks of a machine share. It does not depend on what is free.

    `is_common`: whether it is known to be that of all ranks which make one plan.
    """

    nbytes: int
    num_ranks: int
    source: str = field(default="", compare=False)
    is_common: bool = field(default=True, compare=False)

    @property
    def part_nbytes(self) -> int:
        """Bytes of one rank."""
        return self.nbytes // self.num_ranks

    def taken_by(self, share: MemoryShare) -> int:
        """Bytes of a rank's loader."""
        return share.nbytes_of(self.nbytes, self.num_ranks)

    def in_words(self, share: MemoryShare) -> str:
        """How `taken_by` comes to its number."""
        nbytes = self.taken_by(share)
        if share.endswith("node"):
            return f"{show_nbytes(nbytes)}: {share} for {show_count(self.num_ranks, 'rank')}"
        part = f"{show_nbytes(self.nbytes)} {self.source}"
        if self.num_ranks > 1:
            rank = f"{show_nbytes(self.part_nbytes)}, this rank's part of {part}"
            part = f"{rank} for {self.num_ranks} ranks"
        is_rounded = share.is_by_itself and nbytes != self.part_nbytes * Fraction(share)
        words = "half" if share == "1/2" else share
        return f"{show_nbytes(nbytes)}: {words} of {part}" + ", rounded down" * is_rounded


def find_memory_limit(
    num_processes: int = 1, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> MemoryLimit:
    """The memory that the ranks of this machine share, and how many they are.

    `num_processes`: all ranks; where the launcher does not say how many of them are here, all are.
    """
    environ = os.environ if environ is None else environ
    limits = [(size, name) for size, name in _limits(environ, root) if size]
    nbytes, source = min(limits, default=(4 << 30, "assumed, as the machine does not tell"))
    name = _launcher(environ)
    num_ranks = _num_ranks(name, environ) if name else num_processes
    return MemoryLimit(nbytes, num_ranks, source, num_processes <= (num_ranks if name else 1))


def _limits(environ: Mapping[str, str], root: Path) -> Iterator[tuple[int, str]]:
    """Bytes, and what allows no more than them; 0 where there is no limit."""
    total = memory_of(root / "proc" / "meminfo")[0] or 0
    # The system keeps a little for itself, and not the same on equal machines: 62.7 GiB are 64.
    step = 1 << max(total.bit_length() - 4, 0)
    yield -(-total // step) * step, "physical memory"
    yield read_cgroup_limits(root).nbytes or 0, "allowed by the control group"
    for name, times in (("NODE", ""), ("CPU", "SLURM_CPUS_ON_NODE"), ("GPU", "SLURM_GPUS_ON_NODE")):
        size = _number(environ.get(f"SLURM_MEM_PER_{name}", "")) or 0
        yield (size << 20) * (_number(environ.get(times, "1")) or 0), "allowed by Slurm"


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
