"""The resources that a process has used: time, pages, memory."""

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
    """The resources that this process has used up to a moment.

    Parameters
    ----------
    seconds : float
        Time on a clock whose zero is arbitrary.
    cpu_seconds : float
        CPU time of all threads, including the time that the system spends for them.
    num_faults : int
        Page faults that needed no disk read.
    """

    seconds: float
    cpu_seconds: float
    num_faults: int

    @classmethod
    def now(cls) -> Usage:
        """Return the usage up to now."""
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
    """A number of bytes and the time that they took.

    Parameters
    ----------
    nbytes : int
    seconds : float
    """

    nbytes: int
    seconds: float

    @property
    def gb_per_second(self) -> float:
        """Speed in units of 10^9 bytes per second."""
        return self.nbytes / self.seconds / 1e9


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Parameters
    ----------
    num_turns : int
        Number of turns that count; the best one is reported. One more turn before these warms up.
    seconds : float
        How long other libraries read in each turn.
    most_batch : int
        Largest batch of other libraries. They read sample by sample, so smaller batches cost as
        much per sample.
    """

    num_turns: int = 3
    seconds: float = 0.5
    most_batch: int = 64


class PeakMemory:
    """The peak of this process's memory since the start, minus the memory at the start.

    On Linux the kernel resets its record of the peak at the start. Elsewhere, or without the
    permission to do so, the peak before the start counts as well.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._begin = resident_nbytes()

    @property
    def nbytes(self) -> int:
        """The peak up to now in bytes."""
        return _peak_nbytes() - self._begin


def resident_nbytes() -> int:
    """Return this process's memory in bytes; where the system does not tell, the peak up to now."""
    return _read_status("VmRSS") if _STATUS.exists() else _peak_nbytes()


def _peak_nbytes() -> int:
    if _STATUS.exists():
        return _read_status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_status(name: str) -> int:
    (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
