"""The clocks of a worker: how long it was at work, on a core, and waiting for a core.

A thread at work that neither computes nor waits for a core waits for something else: for Python's
lock, for the store, or for whatever a function of the user waits for.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final, NamedTuple

_EVERY_SECONDS: Final = 0.01
"""Seconds between two readings. One takes about 2 us, and lets other threads take Python's lock."""

_STATISTICS: Final = "/proc/thread-self/schedstat"
"""On Linux: nanoseconds on a core, nanoseconds in which a core was waited for, and a count."""


class WorkTime(NamedTuple):
    """Seconds of threads at work.

    Parameters
    ----------
    seconds : float
        All seconds at work.
    cpu_seconds : float
        Seconds on a core.
    core_seconds : float
        Seconds of waiting for a core; 0 where the system does not count them. Those after a pause
        without work are included.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    core_seconds: float = 0.0

    @property
    def other_seconds(self) -> float:
        """Seconds of waiting for anything but a core."""
        return max(0.0, self.seconds - self.cpu_seconds - self.core_seconds)

    def plus(self, other: WorkTime) -> WorkTime:
        """The sum of both, figure by figure."""
        return WorkTime(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.core_seconds + other.core_seconds,
        )


class WorkClock:
    """The clocks of the thread that makes this object. No other thread may use it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            # Kept open, because opening takes ten times as long as reading.
            self._file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
        self._idle_seconds = 0.0
        self._last = self._now()

    def close(self) -> None:
        """Close the file of the system's statistics."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def skip(self, seconds: float) -> None:
        """Leave out seconds in which the thread had nothing to do."""
        self._idle_seconds += seconds

    def lap(self, *, is_due: bool = False) -> WorkTime | None:
        """The time at work since the last lap; None if that was a moment ago.

        Parameters
        ----------
        is_due : bool
            Whether to read the clocks in any case.
        """
        since = time.perf_counter() - self._last.seconds - self._idle_seconds
        if since < _EVERY_SECONDS and not is_due:
            return None
        now, last, idle_seconds = self._now(), self._last, self._idle_seconds
        self._last, self._idle_seconds = now, 0.0
        return WorkTime(
            now.seconds - last.seconds - idle_seconds,
            now.cpu_seconds - last.cpu_seconds,
            now.core_seconds - last.core_seconds,
        )

    def _now(self) -> WorkTime:
        return WorkTime(time.perf_counter(), time.thread_time(), self._core_seconds())

    def _core_seconds(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            # A sandbox may offer the file without the figures.
            self.close()
            return 0.0
