"""Counts of one run of the engine: what was read, the time it took, and the memory in use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import attrgetter
from typing import Final

from xloader.engine.buffers import BlockPool
from xloader.engine.work_clock import Kind, WorkTime, no_work
from xloader.sources.base import Read

_VARIABLE_OF: Final = attrgetter("variable")


@dataclass
class Gauge:
    """Number of threads at work on something, and the seconds they spent.

    Parameters
    ----------
    num, peak : int
        Threads at work now, and the most at any time.
    awaited_seconds : float
        Seconds of work while the consumer waited for a batch, summed over the threads.
    unasked_seconds : float
        Seconds of work while it did not wait, summed over the threads.
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
        """Add the time that has passed to the seconds of all threads at work.

        Parameters
        ----------
        seconds : float
            Time since the last call.
        is_awaited : bool
            Whether the consumer waited for a batch during that time.
        """
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

    The memory in use at a time is ``batches_nbytes`` and ``flight_nbytes``, and the decoded chunks
    in the pool.

    Parameters
    ----------
    num_reads : int
        (variable, chunk) pairs that were read, including absent and failed ones. Chunks that are
        computed do not count.
    read_nbytes : int
        Decoded bytes of the chunks of all loaded blocks, not cut down to the selection.
    variable_reads : Counter of str
        ``num_reads`` by variable.
    group_nbytes : Counter of int
        ``read_nbytes`` by the index of the group of variables.
    num_missing : int
        Absent chunks, read as the fill value.
    num_requests, num_retries : int
        Requests made of the store, and attempts made because one had failed.
    skipped : dict of (str, tuple of int) to None
        The (variable, chunk) pairs that could not be read and were skipped, as an ordered set.
    fetch_seconds : float
        Seconds that workers spent on getting chunks which were not fetched ahead. This and the
        next four are summed over the threads.
    decode_seconds, gather_seconds : float
        Seconds that workers spent on decoding chunks and on copying rows into batches.
    finish_seconds : float
        Seconds that workers spent on filling up, transforming and checking gathered batches.
    walk_seconds : float
        Seconds that workers spent on finding which blocks each row needs.
    work : dict of str to WorkTime
        How the workers spent their time at work, by kind of task. The time until the next task is
        found is included.
    wait_seconds : float
        Seconds that the consumer waited for batches.
    num_ahead, ahead_nbytes : int
        Bundles that were fetched ahead, and their decoded bytes.
    ahead_seconds : float
        Seconds of these fetches, summed over them. They are not part of ``fetch_seconds``.
    num_ready : int
        Batches that were ready one after the other when the last one was delivered, without it.
    is_recorded : bool
        Whether to count them for the next batch. They are counted for the points of a series only.
    batches_nbytes : int
        Memory of the batches under way and of the one delivered last.
    flight_nbytes : int
        Bytes of chunks that are being read now.
    num_threads : int
        Number of workers, the most at any time.
    num_helpers : int
        Number of native threads that help them.
    peak_nbytes : int
        The most memory in use at any time.
    workers, fetches : Gauge
        Workers at work, and fetches ahead under way.
    is_awaited : bool
        Whether the consumer waits for a batch now.
    since : float
        Time of the last call of `mark`, by `time.perf_counter`.
    refresh : callable
        Brings the counts up to date, where native threads count.
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
    batches_nbytes: int = 0
    flight_nbytes: int = 0
    num_threads: int = 0
    num_helpers: int = 0
    peak_nbytes: int = 0
    workers: Gauge = field(default_factory=Gauge)
    fetches: Gauge = field(default_factory=Gauge)
    is_awaited: bool = False
    since: float = field(default_factory=time.perf_counter)
    refresh: Callable[[], None] = field(default=no_refresh, repr=False)

    def weigh(self, pool: BlockPool) -> None:
        """Update ``peak_nbytes`` from the memory in use now.

        Parameters
        ----------
        pool : BlockPool
            The pool of the decoded chunks.
        """
        held = self.batches_nbytes + self.flight_nbytes + pool.used_nbytes
        self.peak_nbytes = max(self.peak_nbytes, held)

    def mark(self, *, workers: int = 0, fetches: int = 0, is_awaited: bool | None = None) -> None:
        """Note that the number at work changes, or that the consumer begins or stops waiting.

        Parameters
        ----------
        workers, fetches : int
            Change of the number of workers at work, and of fetches under way.
        is_awaited : bool, optional
            Whether the consumer waits for a batch from now on. By default, that does not change.
        """
        now = time.perf_counter()
        for gauge, num in ((self.workers, workers), (self.fetches, fetches)):
            gauge.pass_time(now - self.since, is_awaited=self.is_awaited)
            gauge.change(num)
        self.since = now
        if is_awaited is not None:
            self.is_awaited = is_awaited

    def add_reads(self, reads: Sequence[Read]) -> None:
        """Count chunks that were read, in all and by variable."""
        if reads:
            self.num_reads += len(reads)
            self.variable_reads.update(map(_VARIABLE_OF, reads))

    def add_nbytes(self, group: int, nbytes: int) -> None:
        """Count the decoded bytes of the chunks of a loaded block, given the index of its group."""
        self.read_nbytes += nbytes
        self.group_nbytes[group] += nbytes

    def add_work(self, laps: Mapping[Kind, WorkTime]) -> None:
        """Add the time that a worker was at work.

        Parameters
        ----------
        laps : mapping of str to WorkTime
            By kind of task.
        """
        for kind, lap in laps.items():
            self.work[kind] = self.work[kind].plus(lap)

    def add_up(self, parts: Iterable[Tally], awaited_share: float, batches_nbytes: int) -> None:
        """Set the counts to the sums of those of worker processes. The consumer's wait is kept.

        Parameters
        ----------
        parts : iterable of Tally
            The counts of each process. Its peak memory is without batches.
        awaited_share : float
            Share of the time in which the consumer waited. Worker processes do not know it.
        batches_nbytes : int
            Memory of the batches, which the processes share.
        """
        tallies = list(parts)
        for name in _SUMS:
            setattr(self, name, sum(getattr(tally, name) for tally in tallies))
        self.batches_nbytes = batches_nbytes
        self.peak_nbytes = batches_nbytes + sum(tally.peak_nbytes for tally in tallies)
        self.variable_reads = sum((tally.variable_reads for tally in tallies), Counter())
        self.group_nbytes = sum((tally.group_nbytes for tally in tallies), Counter())
        self.skipped = {key: None for tally in tallies for key in tally.skipped}
        for kind in self.work:
            self.work[kind] = reduce(WorkTime.plus, (t.work[kind] for t in tallies), WorkTime())
        for gauge, own in (
            (self.workers, [tally.workers for tally in tallies]),
            (self.fetches, [tally.fetches for tally in tallies]),
        ):
            seconds = sum(one.seconds for one in own)
            gauge.peak = sum(one.peak for one in own)
            gauge.awaited_seconds = awaited_share * seconds
            gauge.unasked_seconds = seconds - gauge.awaited_seconds


_SUMS: Final = (
    *("num_reads", "read_nbytes", "num_missing", "num_requests", "num_retries"),
    *("fetch_seconds", "decode_seconds", "gather_seconds", "finish_seconds", "walk_seconds"),
    *("num_ahead", "ahead_nbytes", "ahead_seconds", "flight_nbytes", "num_helpers"),
)
"""Names of the counts that are summed over processes."""
