"""What a process has used: time, pages, memory."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
PAGE_NBYTES = resource.getpagesize()
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Usage:
    """What this process has used up to a moment.

    Parameters
    ----------
    seconds : float
        On a clock of no particular beginning.
    cpu_seconds : float
        Of all threads, the system's on their behalf included.
    num_faults : int
        Pages that it had to be given, without reading a disk.
    """

    seconds: float
    cpu_seconds: float
    num_faults: int

    @classmethod
    def now(cls) -> Usage:
        """Up to now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_minflt)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.seconds - earlier.seconds,
            self.cpu_seconds - earlier.cpu_seconds,
            self.num_faults - earlier.num_faults,
        )


@dataclass(frozen=True)
class Speed:
    """How much came in how long.

    Parameters
    ----------
    nbytes : int
    seconds : float
    """

    nbytes: int
    seconds: float

    @property
    def gb_per_second(self) -> float:
        """In units of 10^9 bytes."""
        return self.nbytes / self.seconds / 1e9


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Parameters
    ----------
    num_turns : int
        Turns that count; the best of them does. One more goes before, to warm up.
    seconds : float
        For how long others read in each turn.
    most_batch : int
        Samples of a batch that others make: theirs cost the same sample by sample.
    """

    num_turns: int = 3
    seconds: float = 0.5
    most_batch: int = 64


class PeakMemory:
    """The most bytes that this process has in memory, over those at the start.

    Linux is asked to forget the peak so far. Elsewhere, and where it may not be asked, what was
    used before counts as well.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._begin = _read_status("VmRSS") if _STATUS.exists() else _peak_nbytes()

    @property
    def nbytes(self) -> int:
        """The peak up to now."""
        return _peak_nbytes() - self._begin


def _peak_nbytes() -> int:
    if _STATUS.exists():
        return _read_status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_status(name: str) -> int:
    (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
