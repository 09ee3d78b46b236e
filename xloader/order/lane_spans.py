"""Division of an epoch's ordered samples into lanes, and of lanes into sub-lanes.

The samples of an epoch form a line, the lanes one after the other. A *place* is an index into
that line::

    line       0 1 2 3 4 5 6 7 8 9 | 0 1 2 3 4 5 6 7 8 9     two lanes of ten samples
    steps      0 0 0 2 2 2 1 1 1 3   0 0 0 2 2 2 1 1 1 3     each takes 3 samples of each lane
    worker     w w w w w w v v v v   w w w w w w v v v v     worker w has steps 0 and 2, v 1 and 3

A lane is cut at whole batches into one sub-lane for each DataLoader worker of its rank. Worker
``k % workers`` makes batch ``k``, and all rows of that batch come from its own sub-lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SubLanes:
    """Lanes of equal size, each cut into one sub-lane for each worker.

    Sub-lanes are numbered lane by lane, and within a lane by worker.
    """

    num_samples: int
    lanes: int
    workers: int = 1
    share: int = 1
    num_steps: int = 0
    first_step: int = 0
    made_again: frozenset[int] = frozenset()
    end: int | None = None

    @property
    def num(self) -> int:
        """Number of sub-lanes of all lanes together."""
        return self.lanes * self.workers

    def of_worker(self, worker: int) -> range:
        """Numbers of one worker's sub-lanes, one in each lane of all ranks."""
        return range(worker, self.num, self.workers)

    @property
    def of_one_batch(self) -> range:
        """Numbers of the sub-lanes that the first batch comes from."""
        # Without any step, all samples belong to the last worker, which leaves them out.
        return self.of_worker(0 if self.num_steps else self.workers - 1)

    def num_steps_of(self, number: int) -> int:
        """Number of steps that the worker of a sub-lane makes, with one that is made again."""
        return self._num_steps_before(number, self.num_steps) - self.num_done_of(number)

    def num_again_of(self, number: int) -> int:
        """Number of steps that the worker of a sub-lane makes again: 0 or 1. They come first."""
        return int(number in self.made_again)

    def num_done_of(self, number: int) -> int:
        """Number of steps before those of `num_steps_of`."""
        return self._num_steps_before(number, self.first_step) - self.num_again_of(number)

    def most_samples(self, number: int) -> int:
        """Largest number of samples of a sub-lane in the steps of `num_steps_of`.

        Samples beyond that are left out of the epoch.
        """
        most = self.num_steps_of(number) * self.share
        if self.end is None:
            return most
        return min(most, max(self.end - self.num_done_of(number) * self.share, 0))

    def has_padding_only(self, numbers: Sequence[int]) -> bool:
        """Whether a process has steps left, but none of its samples."""
        num_done = self.num_done_of(numbers[0])
        if not num_done or not self.num_steps_of(numbers[0]):
            return False
        spans = (self.span(number) for number in numbers)
        return all(end - begin <= num_done * self.share for begin, end in spans)

    def span(self, number: int) -> tuple[int, int]:
        """Places of a sub-lane in the line of samples, as a half-open range ``(begin, end)``."""
        lane, worker = divmod(number, self.workers)
        first = lane * self.num_samples // self.lanes
        last = (lane + 1) * self.num_samples // self.lanes
        if self.workers == 1:
            return first, last
        begin = first + self._num_before(worker, last - first)
        if worker + 1 == self.workers:
            # The last sub-lane also holds the samples that fit into no step.
            return begin, last
        return begin, first + self._num_before(worker + 1, last - first)

    def _num_before(self, worker: int, size: int) -> int:
        """Number of samples of a lane of ``size`` samples that belong to earlier workers."""
        every = (self._num_steps_before(earlier, self.num_steps) for earlier in range(worker))
        steps = sum(every)
        is_short_before = self.num_steps > 0 and (self.num_steps - 1) % self.workers < worker
        missing = max(self.num_steps * self.share - size, 0)
        return min(steps * self.share - is_short_before * missing, size)

    def _num_steps_before(self, number: int, step: int) -> int:
        return len(range(number % self.workers, step, self.workers))
