"""The rows of an epoch in which several sets of samples take turns, step by step.

The rows of an epoch are dealt to the sets by a `QuotaPattern`, once for each *dealer*. A dealer is
a rank or, if lanes were asked for, a lane of the global batch::

    step             0            1            2
    rows of a dealer 0 0 1 0      0 1 0 0      1 0 0 1      weights 2/3 and 1/3
    set 0            a a   a      a   a a        a a        three rows, three rows, two
    set 1                b          b          b     b

All dealers follow the same pattern, so all ranks take the same number of steps, and each rank has
the exact proportions. If lanes were asked for, the rows of a step do not depend on the number of
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xloader.order.quota_pattern import QuotaPattern


@dataclass(frozen=True)
class Interleaving:
    """How many rows of which set are in which step of an epoch."""

    pattern: QuotaPattern
    sizes: tuple[int, ...]
    world_size: int
    lanes: int
    dealers: int
    batch_size: int
    drop_last: bool = False
    num_samples: int | None = None

    @property
    def dealer_lanes(self) -> int:
        """Number of lanes of a dealer."""
        return self.lanes // self.dealers

    @property
    def rank_dealers(self) -> int:
        """Number of dealers of a rank."""
        return self.dealers // self.world_size

    @property
    def step_rows(self) -> int:
        """Number of rows of a dealer in a full step."""
        return self.batch_size // self.rank_dealers

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of an epoch of one dealer."""
        if self.num_samples is not None:
            found = self.num_samples // self.dealers
        else:
            # The lanes of a set have equally many samples, give or take one.
            most = [self.dealer_lanes * (size // self.lanes) for size in self.sizes]
            found = self.pattern.num_rows(most)
        return found - found % self.step_rows if self.drop_last else found

    @property
    def num_steps(self) -> int:
        """Number of steps that every rank takes in an epoch."""
        return -(-self.num_rows // self.step_rows)

    def rows_before(self, step: int) -> int:
        """Number of rows of a dealer before a step."""
        return min(step * self.step_rows, self.num_rows)

    def counts(self, step: int) -> tuple[int, ...]:
        """How many rows of a dealer each set gives before a step."""
        return self.pattern.counts(self.rows_before(step))

    def done(self, given: int, lane: int) -> int:
        """How many rows a lane has given of those that a set has given to the lane's dealer."""
        place = lane % self.dealer_lanes
        return (given - place + self.dealer_lanes - 1) // self.dealer_lanes

    @cached_property
    def lane_rows(self) -> tuple[int, ...]:
        """How many rows of an epoch each set makes in each of its lanes."""
        return tuple(self.done(given, 0) for given in self.counts(self.num_steps))

    @property
    def taken(self) -> tuple[int, ...]:
        """How many rows of an epoch each set gives, on all ranks."""
        return tuple(self.dealers * given for given in self.counts(self.num_steps))

    @property
    def left_out(self) -> tuple[int, ...]:
        """How many samples of each set an epoch leaves out; 0 where samples come twice."""
        return tuple(
            max(size - taken, 0) for size, taken in zip(self.sizes, self.taken, strict=True)
        )

    def share(self, index: int) -> int:
        """Number of rows of each lane in a batch of a set's own loader.

        It is about what a step needs of the set, so that no more is made ahead for one set than
        for another.
        """
        rows = self.step_rows * self.pattern.weights[index]
        return -(-rows // (self.pattern.period * self.dealer_lanes))

    def begin(self, index: int, step: int) -> int | None:
        """The batch of a set's own loader in which its first row from a step on lies.

        Number of the batch; None if the set has given all its rows.
        """
        given = self.counts(step)[index]
        if given == self.counts(self.num_steps)[index]:
            return None
        # The lane that comes last in its turn has given the fewest rows.
        return given // self.dealer_lanes // self.share(index)
