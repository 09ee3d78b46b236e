"""Counters of an epoch under way: what was read, how much memory it took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from xloader.engine.buffers import BlockPool


@dataclass
class Gauge:
    """How many are at work, and their seconds: summed while the consumer waits, and while not.

    Parameters
    ----------
    num, peak : int
        Now, and the most at a time.
    awaited_seconds, unasked_seconds : float
    """

    num: int = 0
    peak: int = 0
    awaited_seconds: float = 0.0
    unasked_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All seconds of work."""
        return self.awaited_seconds + self.unasked_seconds

    def pass_time(self, seconds: float, *, is_awaited: bool) -> None:
        """Let those at work work on."""
        if is_awaited:
            self.awaited_seconds += self.num * seconds
        else:
            self.unasked_seconds += self.num * seconds

    def change(self, num: int) -> None:
        """So many more are at work from now on."""
        self.num += num
        self.peak = max(self.peak, self.num)


@dataclass
class Tally:
    """What a run has done so far. Seconds are summed over its threads.

    What is fetched ahead, ``num_ahead`` bundles of ``ahead_nbytes`` decoded bytes, is counted
    apart from ``fetch_seconds``, which the workers spend. What is held at a time is the memory of
    the batches under way and of the one that was delivered last, ``flight_nbytes`` of chunks that
    are being read, and decoded chunks: ``peak_nbytes`` at most so far. The run's lock guards all
    of it.
    """

    num_reads: int = 0
    read_nbytes: int = 0
    num_missing: int = 0
    num_requests: int = 0
    num_retries: int = 0
    skipped: dict[tuple[str, tuple[int, ...]], None] = field(default_factory=dict)
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    gather_seconds: float = 0.0
    finish_seconds: float = 0.0
    walk_seconds: float = 0.0
    wait_seconds: float = 0.0
    num_ahead: int = 0
    ahead_nbytes: int = 0
    ahead_seconds: float = 0.0
    batches_nbytes: int = 0
    flight_nbytes: int = 0
    peak_nbytes: int = 0
    workers: Gauge = field(default_factory=Gauge)
    fetches: Gauge = field(default_factory=Gauge)
    is_awaited: bool = False
    since: float = field(default_factory=time.perf_counter)

    def weigh(self, pool: BlockPool) -> None:
        """Note what is held now, beside so much in the pool."""
        held = self.batches_nbytes + self.flight_nbytes + pool.used_nbytes
        self.peak_nbytes = max(self.peak_nbytes, held)

    def mark(self, *, workers: int = 0, fetches: int = 0, is_awaited: bool | None = None) -> None:
        """Note that more or fewer are at work, or that the consumer begins or ends to wait."""
        now = time.perf_counter()
        for gauge, num in ((self.workers, workers), (self.fetches, fetches)):
            gauge.pass_time(now - self.since, is_awaited=self.is_awaited)
            gauge.change(num)
        self.since = now
        if is_awaited is not None:
            self.is_awaited = is_awaited
