"""How fast a loader could go if its consumer took no time, and what holds an epoch up.

A run notes how many of its threads, and how many fetches ahead, are at work at any time, apart
for the time in which the consumer waits: then it goes as fast as it can. What was done while the
consumer was busy would take, at that pace,

::

    least = seconds waited + work done meanwhile / number at work while waited for

for the threads and for the fetches, whichever takes longer, and never longer than was seen. Where
there was little waiting to tell the pace by, all threads are taken to have been at work, and of
fetches the most that there ever were at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from xloader.engine.tally import Gauge, Tally
from xloader.planning.budget import Budget

STAGES = ("fetch", "decode", "gather", "transform")
"""What threads are busy with."""

_PRIOR_SHARE = 0.1
"""Of the time: so much waiting at full pace is supposed beside what was seen."""

_LITTLE_WAITING = 0.1
"""Of the time: who waits for less of it is not held up."""

_BUSY_SHARE = 0.75
"""Of the time waited: threads that are busy for less of it wait for what is fetched ahead."""


@dataclass(frozen=True)
class EpochEffort:
    """What an epoch took, and what it was given.

    Parameters
    ----------
    tally : Tally
        What the run counted.
    budget : Budget
        How its memory was divided.
    num_threads, num_asked : int
        Threads that it had, and that were asked for: large chunks in little memory mean fewer.
    seconds : float
        From the first request for a batch to the last batch.
    num_samples, delivered_nbytes : int
        What was delivered.
    read_amplification : float
    is_direct : bool
        Whether xloader decoded the chunks itself, and xarray did not.
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

    @property
    def busy_seconds(self) -> dict[str, float]:
        """By stage, seconds of the threads. To find a batch's rows is a part of gathering."""
        tally = self.tally
        gather = tally.gather_seconds + tally.walk_seconds
        each = (tally.fetch_seconds, tally.decode_seconds, gather, tally.finish_seconds)
        return dict(zip(STAGES, each, strict=True))

    @property
    def wait_share(self) -> float:
        """Share of the time for which the consumer waited."""
        return min(1.0, self.tally.wait_seconds / self.seconds) if self.seconds else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """By stage, the share of the threads' time that it took."""
        busy = self.busy_seconds
        # What was made ahead for batches to come is counted as well, its time is not yet.
        whole = max(self.num_threads * self.seconds, sum(busy.values()), 1e-9)
        return {stage: seconds / whole for stage, seconds in busy.items()}

    @property
    def least_seconds(self) -> float:
        """How long it would have taken, had the consumer taken no time."""
        threads = self._least_seconds(self.tally.workers, self.num_threads)
        fetches = self._least_seconds(self.tally.fetches, self.tally.fetches.peak)
        return min(self.seconds, max(threads, fetches))

    @property
    def headroom(self) -> float:
        """How many times as fast as seen the loader could be."""
        return self.seconds / self.least_seconds if self.least_seconds else 1.0

    @property
    def bottleneck(self) -> str:
        """``"consumer"``, or the stage that holds it up."""
        is_waited_for = self.seconds * (1 - self.wait_share) <= self.least_seconds
        if not self.seconds or self.wait_share < _LITTLE_WAITING or not is_waited_for:
            return "consumer"
        if self.is_ahead and self._awaited_threads < _BUSY_SHARE * self.num_threads:
            return "fetch"
        busy = self.busy_seconds
        return max(busy, key=lambda stage: busy[stage])

    @property
    def is_ahead(self) -> bool:
        """Whether chunks were fetched ahead, beside the threads."""
        return self.tally.num_ahead > 0

    @property
    def num_fetching(self) -> float:
        """Fetches at a time on average, while the consumer waited."""
        return self.tally.fetches.awaited_seconds / max(self.tally.wait_seconds, 1e-9)

    @property
    def _awaited_threads(self) -> float:
        """Threads at work on average, while they were waited for."""
        return self.tally.workers.awaited_seconds / max(self.tally.wait_seconds, 1e-9)

    def _least_seconds(self, gauge: Gauge, most: int) -> float:
        if not most:
            return 0.0
        waited = self.wait_share * self.seconds
        supposed = _PRIOR_SHARE * self.seconds
        pace = (gauge.awaited_seconds + most * supposed) / max(waited + supposed, 1e-9)
        return waited + gauge.unasked_seconds / max(pace, 1e-9)
