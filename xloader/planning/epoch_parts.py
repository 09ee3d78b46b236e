"""Epochs that take only a part of the samples: successive parts of one shuffled pass.

With 22 samples of which an epoch takes 9, in steps of 2::

    pass      0 0 0 0 0 0 0 0 0 . 0 0 0 0 0 0 0 0 0 . . . | 1 1 1 1 1
    epoch     0 0 0 0 0 0 0 0 0   1 1 1 1 1 1 1 1 1       | 2 2 2 2 2

So a sample comes at most once in an epoch, and not again before the next pass. An epoch reads the
chunks of its own samples only, and not those of the whole pass. Each part begins with a whole
step. What is left at the end of a pass is in no epoch of that pass; the next pass has another
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xloader.planning.plan import Plan


class EpochPart(NamedTuple):
    """The part of a pass over all samples that is one epoch."""

    epoch: int
    whole: int
    first_step: int
    end_step: int
    end: int


@dataclass(frozen=True)
class EpochParts:
    """The division of passes over all samples into epochs."""

    num_samples: int
    num_taken: int
    lanes: int
    share: int
    is_shuffled: bool

    @classmethod
    def of(cls, plan: Plan, num_samples: int, num_taken: int) -> EpochParts:
        """The division of the passes of a plan."""
        pace = plan.pace
        return cls(num_samples, num_taken, pace.lanes, plan.lane_share, pace.is_shuffled)

    @property
    def num_steps(self) -> int:
        """Number of steps of an epoch."""
        return -(-self._lane_size // self.share)

    @property
    def num_parts(self) -> int:
        """Number of epochs of a pass."""
        if not self.is_shuffled:
            return 1
        left = self.num_samples // self.lanes - self._lane_size
        return 1 + left // (self.num_steps * self.share)

    @property
    def _lane_size(self) -> int:
        return self.num_taken // self.lanes

    def part(self, epoch: int) -> EpochPart:
        """The part of a pass that is an epoch."""
        whole, place = divmod(epoch, self.num_parts)
        # Without a shuffle, the number of a pass changes only how often samples are drawn.
        first = place * self.num_steps
        end = first * self.share + self._lane_size
        return EpochPart(epoch, whole, first, first + self.num_steps, end)
