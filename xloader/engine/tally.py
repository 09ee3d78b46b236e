"""Counts of one run: what was read, the time it took, and the memory in use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xloader.engine.work_clock import Kind, WorkTime, no_work


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
