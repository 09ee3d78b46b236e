"""A short series of a loader's counters over time, with a point every so many batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.engine.tally import Tally

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
        tally.fetch_seconds,
        tally.decode_seconds,
        tally.gather_seconds + tally.walk_seconds,
        tally.finish_seconds,
    )
