"""Counts of one run: what was read, the time it took, and the memory in use.

Among them are the clocks of workers: how long each was at work, on a core, and waiting for a core.
A thread at work that neither computes nor waits for a core waits for something else: for Python's
lock, for the store, or for whatever a function of the user waits for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

_EVERY_SECONDS: Final = 0.01
"""Seconds at work after which the clocks are read once a task ends."""

_PAUSE_SECONDS = 0.09
"""Seconds between two spells in which the clocks are read. To read them takes about 10 us, and lets
other threads take Python's lock, so a tenth of the time stands for all of it."""

_STATISTICS: Final = "/proc/thread-self/schedstat"
"""On Linux: nanoseconds on a core, nanoseconds in which a core was waited for, and a count."""


Kind = Literal["own", "load", "finish", "native"]
"""A kind of task: those that wait for nothing but a core and Python's lock, such as copying rows;
those that may wait for a store; those that call functions of the user; those that never need the
lock."""


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

    def times(self, factor: float) -> WorkTime:
        """Each figure times a factor."""
        return WorkTime(*(factor * figure for figure in self))


def no_work() -> dict[Kind, WorkTime]:
    """No time at work, for every kind of task."""
    return {kind: WorkTime() for kind in get_args(Kind)}


class WorkClock:
    """The clocks of the thread that makes this object. No other thread may use it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            # Kept open, because opening takes ten times as long as reading.
            self._file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
        self._kind: Kind = "own"
        self._is_reading = True
        self._idle_seconds = 0.0
        self._unread_seconds = 0.0
        self._spell: dict[Kind, WorkTime] = {}
        self._laps: dict[Kind, WorkTime] = {}
        self._last = self._now()
        self._spell_seconds = self._until = 0.0

    def close(self) -> None:
        """Close the file of the system's statistics."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def begin(self, kind: Kind) -> None:
        """Note that a task begins. The clocks are read if the one before was of another kind."""
        if kind != self._kind:
            if self._is_reading:
                self._lap()
            self._kind = kind

    def end(self) -> None:
        """Note that a task has ended. The clocks are read if they were not read for a while."""
        seconds = time.perf_counter()
        if not self._is_reading:
            if seconds >= self._until:
                self._resume()
            return
        seconds -= self._last.seconds + self._idle_seconds
        if self._spell_seconds + seconds >= _EVERY_SECONDS:
            self._lap()
            self._pause()

    def skip(self, seconds: float) -> None:
        """Leave out seconds in which the thread had nothing to do."""
        self._idle_seconds += seconds

    def take(self) -> dict[Kind, WorkTime]:
        """The time at work since the last call, by kind of task, as far as it was read."""
        laps, self._laps = self._laps, {}
        return laps

    def _lap(self) -> None:
        now, last = self._now(), self._last
        lap = WorkTime(
            now.seconds - last.seconds - self._idle_seconds,
            now.cpu_seconds - last.cpu_seconds,
            now.core_seconds - last.core_seconds,
        )
        self._spell_seconds += lap.seconds
        self._spell[self._kind] = self._spell.get(self._kind, WorkTime()).plus(lap)
        self._last, self._idle_seconds = now, 0.0

    def _pause(self) -> None:
        """Hand out what was read in this spell, which stands for the time since the one before."""
        seconds = self._spell_seconds
        factor = 1.0 + self._unread_seconds / seconds if seconds else 1.0
        for kind, lap in self._spell.items():
            self._laps[kind] = self._laps.get(kind, WorkTime()).plus(lap.times(factor))
        self._spell.clear()
        self._spell_seconds = self._unread_seconds = 0.0
        self._until = self._last.seconds + _PAUSE_SECONDS
        self._is_reading = not _PAUSE_SECONDS

    def _resume(self) -> None:
        now = self._now()
        self._unread_seconds += now.seconds - self._last.seconds - self._idle_seconds
        self._last, self._idle_seconds = now, 0.0
        self._is_reading = True

    def _now(self) -> WorkTime:
        return WorkTime(time.perf_counter(), time.thread_time(), self.core_seconds())

    def core_seconds(self) -> float:
        """Seconds in which this thread has waited for a core so far; 0 if they are not counted."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            # A sandbox may offer the file without the figures.
            self.close()
            return 0.0


@dataclass
class Gauge:
    """Number of threads at work on something, and the seconds they spent, summed over them.

    `awaited_seconds`: while the consumer waited for a batch; `unasked_seconds`: while it did not.
    """

    num: int = 0
    peak: int = 0
    awaited_seconds: float = 0.0
    unasked_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All seconds of work, summed over the threads."""
        return self.awaited_seconds + self.unasked_seconds

    def pass_time(self, seconds: float, *, is_awaited: bool) -> None:
        """Add the time that has passed to the seconds of all threads at work."""
        if is_awaited:
            self.awaited_seconds += self.num * seconds
        else:
            self.unasked_seconds += self.num * seconds

    def change(self, num: int) -> None:
        """Add to the number at work; a negative number takes some away."""
        self.num += num
        self.peak = max(self.peak, self.num)


def no_refresh() -> None:
    """Do nothing: the counts are up to date."""


@dataclass
class Tally:
    """Counters of a run so far. The run's lock guards them.

    `num_reads`: (variable, chunk) pairs that were read, absent and failed ones too, but none that
    are computed. `read_nbytes`: decoded bytes of the chunks of all loaded blocks, not cut down to
    the selection. `num_missing`: absent chunks, read as the fill value. `skipped`: an ordered set.

    `fetch_seconds` to `walk_seconds`: summed over threads; they get chunks that were not fetched
    ahead, decode them, copy rows, finish batches, and find which blocks rows need. `work`: how
    threads spent their time at work. `num_ahead`, `ahead_nbytes`, `ahead_seconds`: bundles that
    were fetched ahead, which `fetch_seconds` leaves out.

    `num_ready`: batches that were ready when the last one was delivered, without it; `is_recorded`:
    whether a series counts them. `flight_nbytes`: bytes of chunks being read now. `refresh`: brings
    the counts up to date, as native threads count for themselves.
    """

    num_reads: int = 0
    read_nbytes: int = 0
    variable_reads: Counter[str] = field(default_factory=Counter)
    group_nbytes: Counter[int] = field(default_factory=Counter)
    num_missing: int = 0
    num_requests: int = 0
    num_retries: int = 0
    skipped: dict[tuple[str, tuple[int, ...]], None] = field(default_factory=dict)
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    gather_seconds: float = 0.0
    finish_seconds: float = 0.0
    walk_seconds: float = 0.0
    work: dict[Kind, WorkTime] = field(default_factory=no_work)
    wait_seconds: float = 0.0
    num_ahead: int = 0
    ahead_nbytes: int = 0
    ahead_seconds: float = 0.0
    num_ready: int = 0
    is_recorded: bool = True
    flight_nbytes: int = 0
    num_threads: int = 0
    peak_nbytes: int = 0
    workers: Gauge = field(default_factory=Gauge)
    fetches: Gauge = field(default_factory=Gauge)
    is_awaited: bool = False
    since: float = field(default_factory=time.perf_counter)
    refresh: Callable[[], None] = field(default=no_refresh, repr=False)

    def mark(self, *, fetches: int = 0, is_awaited: bool | None = None) -> None:
        """Note a change of the fetches under way, or that the consumer begins or stops waiting."""
        now = time.perf_counter()
        self.fetches.pass_time(now - self.since, is_awaited=self.is_awaited)
        self.fetches.change(fetches)
        self.since = now
        if is_awaited is not None:
            self.is_awaited = is_awaited

    def add_work(self, laps: Mapping[Kind, WorkTime]) -> None:
        """Add the time that a thread was at work, by kind of task."""
        for kind, lap in laps.items():
            self.work[kind] = self.work[kind].plus(lap)
