"""How fast a loader could be if its consumer took no time, and what limits an epoch's speed.

A run records how many of its threads are at work, and how many fetches ahead are under way. It
does so separately for the time in which the consumer waits, because the run then works as fast as
it can. At that pace, the epoch would take at least::

    least = seconds waited + work done while the consumer was busy / number at work while it waited

This is computed for the threads and for the fetches. The longer of the two counts, but never more
than the seconds measured. Where the consumer waited too little to measure the pace, all threads
are assumed to be at work, and as many fetches as the highest number at a time.

Threads at work may also wait for each other: only one at a time runs Python code, the one that
holds Python's lock. How long they wait for it is not measured but inferred. The system counts the
time that a thread is on a core, and that it waits for one::

    own code             waits for nothing else: all the rest is waiting for the lock
    loading, transforms  may wait for anything, and are supposed to wait for the lock as long, for
                         each second on a core, as own code does, but no longer than they waited
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.engine.tally import Gauge, Tally
from xloader.planning.plan import Budget

STAGES = ("fetch", "decode", "gather", "transform")
"""Stages of the work of the threads."""

SHORT_SECONDS = 1.0
"""In a shorter epoch, the start and whatever else the machine does weigh too much."""

_IDLE_SHARE = 0.6
"""Share of the threads. If fewer work while the consumer waits, it waits for something else than
their work, and more cores would not help."""

_PRIOR_SHARE = 0.1
"""Share of the epoch's time. So much waiting at full pace is added to the waiting measured."""

_LITTLE_WAITING = 0.1
"""Share of the epoch's time. A consumer that waits for less is itself the bottleneck."""

_BUSY_SHARE = 0.75
"""Share of the threads. If fewer work while the consumer waits, fetches hold them up."""

_LOCK_SHARE = 0.3
"""Share of the threads' time at work. If they wait for Python's lock for as long as that, it is
held 89 % of the time or more, for any number of threads (a closed queue with one server)."""

_RIVALS = 1.5
"""Average number of threads at work while the consumer waits. Fewer do not wait for each other."""

_HOLDER_CORES = 0.5
"""Cores that the process uses. If it uses fewer, there is no thread that computes with the lock
most of the time: something else is waited for, such as memory that was swapped out."""

_COMPUTING_SHARE = 0.75
"""Share of their time at work for which threads compute, or wait for a core to do so."""

_TAKEN_SHARE = 0.3
"""Share of their time at work for which threads wait for a core that others take."""

_FEW_CORES = 0.9
"""Share of the cores. A process that uses more has none left for more threads, and may wait for
cores where the system does not count that, or on other threads than those counted here."""


def stage_seconds(tally: Tally) -> tuple[float, ...]:
    """Seconds of the threads in each stage."""
    gather = tally.gather_seconds + tally.walk_seconds
    return tally.fetch_seconds, tally.decode_seconds, gather, tally.finish_seconds


@dataclass(frozen=True)
class EpochEffort:
    """The work of an epoch as measured, and the memory and threads that it had.

    `seconds`: seconds from the first request for a batch to the last batch. `cpu_seconds`: seconds
    that all threads of this process were on a core, summed over the threads.
    """

    tally: Tally
    budget: Budget
    num_threads: int
    num_asked: int
    seconds: float
    num_samples: int
    delivered_nbytes: int
    read_amplification: float = 1.0
    is_direct: bool = True
    cpu_seconds: float = 0.0
    num_cores: int = 1
    has_lock: bool = True
    why_numpy: str = ""

    @property
    def busy_seconds(self) -> dict[str, float]:
        """Seconds of the threads by stage. Finding the rows of a batch counts as ``gather``."""
        return dict(zip(STAGES, stage_seconds(self.tally), strict=True))

    @property
    def wait_share(self) -> float:
        """Share of the epoch's time in which the consumer waited for a batch."""
        return min(1.0, self.tally.wait_seconds / self.seconds) if self.seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the threads' time by stage."""
        busy = self.busy_seconds
        # `busy` includes work for later batches, so it may exceed the time of those delivered.
        whole = max(self.num_threads * self.seconds, sum(busy.values()), 1e-9)
        return {stage: seconds / whole for stage, seconds in busy.items()}

    @property
    def lock_wait_seconds(self) -> float:
        """Estimated seconds of the threads at work in which they waited for Python's lock."""
        work = self.tally.work["own"]
        if not self.has_lock or not work.cpu_seconds:
            return 0.0
        ratio = work.other_seconds / work.cpu_seconds
        return sum(
            use.other_seconds if use is work else min(use.other_seconds, ratio * use.cpu_seconds)
            for use in self.tally.work.values()
        )

    @property
    def core_wait_seconds(self) -> float:
        """Seconds in which the threads waited for a core; 0 where the system does not count it."""
        return sum(time.core_seconds for time in self.tally.work.values())

    @property
    def lock_share(self) -> float:
        """Share of the threads' time at work in which they waited for Python's lock."""
        return self._share_of_work(self.lock_wait_seconds)

    @property
    def is_locked(self) -> bool:
        """Whether the threads wait so long for Python's lock that it limits them."""
        is_held = self._busy_cores >= _HOLDER_CORES and self.has_free_cores
        return is_held and self.lock_share >= _LOCK_SHARE

    @property
    def has_free_cores(self) -> bool:
        """Whether some cores had nothing to do, so that more threads could use them."""
        return self._busy_cores <= _FEW_CORES * self.num_cores

    @property
    def core_wait_share(self) -> float:
        """Share of the threads' time at work in which they waited for a core."""
        return self._share_of_work(self.core_wait_seconds)

    @property
    def is_disturbed(self) -> bool:
        """Whether threads that compute wait for cores that this process does not use: others do."""
        cpu_share = self._share_of_work(sum(t.cpu_seconds for t in self.tally.work.values()))
        # Threads that sleep may seem to wait for a core, as each wakes late.
        is_computing = cpu_share + self.core_wait_share >= _COMPUTING_SHARE
        return is_computing and self.has_free_cores and self.core_wait_share >= _TAKEN_SHARE

    def _share_of_work(self, seconds: float) -> float:
        return seconds / max(sum(time.seconds for time in self.tally.work.values()), 1e-9)

    @property
    def _busy_cores(self) -> float:
        return self.cpu_seconds / self.seconds if self.seconds else 0.0

    @property
    def least_seconds(self) -> float:
        """Estimated seconds of the epoch if the consumer took no time."""
        threads = self._least_seconds(self.tally.workers, self.num_threads)
        fetches = self._least_seconds(self.tally.fetches, self.tally.fetches.peak)
        return min(self.seconds, max(threads, fetches))

    @property
    def headroom(self) -> float:
        """How many times as fast as measured the loader could be: 1 or more."""
        return self.seconds / self.least_seconds if self.least_seconds else 1.0

    @property
    def bottleneck(self) -> str:
        """``"consumer"``, ``"lock"``, or the stage that limits the speed; else ``"unclear"``."""
        if 0 < self.seconds < SHORT_SECONDS:
            return "unclear"
        is_waited_for = self.seconds * (1 - self.wait_share) <= self.least_seconds
        if not self.seconds or self.wait_share < _LITTLE_WAITING or not is_waited_for:
            return "consumer"
        if self.is_ahead and self.awaited_threads < _BUSY_SHARE * self.num_threads:
            return "fetch"
        if self.is_locked and self.awaited_threads >= _RIVALS:
            return "lock"
        stage = self.busiest_stage
        is_idle = self.awaited_threads < _IDLE_SHARE * self.num_threads
        return "unclear" if self.is_disturbed or (is_idle and stage != "fetch") else stage

    @property
    def busiest_stage(self) -> str:
        """The stage on which the threads spend most time."""
        busy = self.busy_seconds
        return max(busy, key=busy.__getitem__)

    @property
    def is_ahead(self) -> bool:
        """Whether chunks were fetched ahead, on other threads than those counted here."""
        return self.tally.num_ahead > 0

    @property
    def num_fetching(self) -> float:
        """Average number of fetches at a time while the consumer waited."""
        return self.tally.fetches.awaited_seconds / max(self.tally.wait_seconds, 1e-9)

    @property
    def awaited_threads(self) -> float:
        """Average number of threads at work while the consumer waited."""
        return self.tally.workers.awaited_seconds / max(self.tally.wait_seconds, 1e-9)

    def _least_seconds(self, gauge: Gauge, most: int) -> float:
        if not most:
            return 0.0
        waited = self.wait_share * self.seconds
        supposed = _PRIOR_SHARE * self.seconds
        pace = (gauge.awaited_seconds + most * supposed) / max(waited + supposed, 1e-9)
        return waited + gauge.unasked_seconds / max(pace, 1e-9)


MOST_POINTS: Final = 2048
"""The most points that are kept. Of more, every second one is dropped."""


@dataclass(frozen=True, eq=False)
class EpochSeries:
    """Counters of an epoch over time.

    `seconds`: seconds from the first request for a batch, ascending. `wait_seconds`: seconds that
    the consumer had waited by then. `busy_seconds` has shape (n, 4).
    """

    seconds: NDArray[np.float64]
    num_ready: NDArray[np.float64]
    wait_seconds: NDArray[np.float64]
    read_nbytes: NDArray[np.float64]
    delivered_nbytes: NDArray[np.float64]
    busy_seconds: NDArray[np.float64]


@dataclass
class SeriesRecorder:
    """Keeps a point of the series every so many batches.

    It costs about a microsecond a batch at first, and less the longer the epoch is.
    """

    every: int = 1
    points: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, num_steps: int, seconds: float, delivered_nbytes: int, tally: Tally) -> None:
        """Note the counters after a batch.

        `seconds`: seconds from the first request for a batch.
        """
        tally.is_recorded = not (num_steps + 1) % self.every
        if num_steps % self.every:
            return
        points = self.points
        points.append(_point(seconds, delivered_nbytes, tally))
        if len(points) >= MOST_POINTS:
            # Those that are left are every so many batches again.
            del points[::2]
            self.every *= 2

    def series(self, seconds: float, delivered_nbytes: int, tally: Tally) -> EpochSeries:
        """The series from the first request to the latest batch."""
        points = list(self.points)
        last = _point(seconds, delivered_nbytes, tally)
        if not points or points[-1][0] < seconds:
            points.append(last)
        columns = np.array([(0.0,) * len(last), *points], np.float64)
        at, ready, waited, read, delivered = columns[:, :5].T
        return EpochSeries(at, ready, waited, read, delivered, columns[:, 5:])


def _point(seconds: float, delivered_nbytes: int, tally: Tally) -> tuple[float, ...]:
    return (
        seconds,
        tally.num_ready,
        tally.wait_seconds,
        tally.read_nbytes,
        delivered_nbytes,
        *stage_seconds(tally),
    )
