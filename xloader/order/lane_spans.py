"""Who delivers which places of an epoch's line of samples: lanes, and sub-lanes.

::

    line       0 1 2 3 4 5 6 7 8 9 | 0 1 2 3 4 5 6 7 8 9     two lanes of ten samples
    steps      0 0 0 1 1 1 2 2 2 3   0 0 0 1 1 1 2 2 2 3     three of each lane to a step
    worker     w w w w w w v v v v   w w w w w w v v v v     worker w has steps 0 and 2, v 1 and 3

A lane is cut into a sub-lane for each worker of its rank, at whole batches: worker ``k % workers``
makes batch k, and finds all its rows in sub-lanes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SubLanes:
    """Equal lanes, each cut into a sub-lane for each worker.

    Parameters
    ----------
    num_samples : int
        Samples of the epoch.
    lanes : int
        Lanes that ranks divide among them.
    workers : int
        Sub-lanes of a lane.
    share : int
        Samples that a lane gives to a step. With one worker it does not matter.
    num_steps : int
        Steps that every rank takes in the whole epoch.
    first_step : int
        Where what is asked for begins.

    Examples
    --------
    >>> sublanes = SubLanes(num_samples=20, lanes=2, workers=2, share=3, num_steps=4)
    >>> [sublanes.span(number) for number in range(sublanes.num)]
    [(0, 6), (6, 10), (10, 16), (16, 20)]
    >>> sublanes.num_steps_of(0), list(sublanes.of_worker(1))
    (2, [1, 3])
    """

    num_samples: int
    lanes: int
    workers: int = 1
    share: int = 1
    num_steps: int = 0
    first_step: int = 0

    @property
    def num(self) -> int:
        """Sub-lanes of all lanes, numbered lane by lane."""
        return self.lanes * self.workers

    def of_worker(self, worker: int) -> range:
        """Numbers of one worker's sub-lanes of all lanes."""
        return range(worker, self.num, self.workers)

    @property
    def of_one_batch(self) -> range:
        """Numbers of the sub-lanes that the first batch comes from."""
        # Where no step is full, all samples are left out with the last worker.
        return self.of_worker(0 if self.num_steps else self.workers - 1)

    def num_steps_of(self, number: int) -> int:
        """Steps that the worker of a sub-lane makes."""
        return self._num_steps_before(number, self.num_steps) - self.num_done_of(number)

    def num_done_of(self, number: int) -> int:
        """Steps that it made before the first one that is asked for."""
        return self._num_steps_before(number, self.first_step)

    def most_samples(self, number: int) -> int:
        """What the steps of a sub-lane have room for; samples beyond are left out."""
        return self.num_steps_of(number) * self.share

    def span(self, number: int) -> tuple[int, int]:
        """The places of a sub-lane: the first, and the one behind the last."""
        lane, worker = divmod(number, self.workers)
        first = lane * self.num_samples // self.lanes
        last = (lane + 1) * self.num_samples // self.lanes
        if self.workers == 1:
            return first, last
        begin = first + self._num_before(worker, last - first)
        if worker + 1 == self.workers:
            # With what no step has room for.
            return begin, last
        return begin, first + self._num_before(worker + 1, last - first)

    def _num_before(self, worker: int, size: int) -> int:
        """Samples of a lane of `size` that go to earlier workers."""
        every = (self._num_steps_before(earlier, self.num_steps) for earlier in range(worker))
        steps = sum(every)
        is_short_before = self.num_steps > 0 and (self.num_steps - 1) % self.workers < worker
        missing = max(self.num_steps * self.share - size, 0)
        return min(steps * self.share - is_short_before * missing, size)

    def _num_steps_before(self, number: int, step: int) -> int:
        return len(range(number % self.workers, step, self.workers))
