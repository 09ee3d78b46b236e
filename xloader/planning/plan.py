"""The plan: the numbers that fix the order, the reads and the memory of every epoch.

A plan stores its `Budget`, which divides the memory of a process::

    memory = batches   (prefetch + 2) of them: one in work, one held by the user
           + in flight 1/16 of memory, at least two of the largest chunks
           + indexes   of shards, kept once they are read
           + pool      per lane: chunks at work and kept, and chunks decoded ahead
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xloader.order.shuffle import Pace
from xloader.planning.budget import Budget


@dataclass(frozen=True)
class Plan:
    """The order of an epoch and the memory it uses. It depends on samples and options only."""

    pace: Pace
    depth: int
    budget: Budget
    global_batch: int
    max_amplification: float
    lane_pool_nbytes: int
    ahead_nbytes: int
    is_resident: bool
    workers: int = 1

    @property
    def lane_share(self) -> int:
        """Samples that each lane gives to a step."""
        return self.global_batch // self.pace.lanes

    def pool_nbytes(self, num_lanes: int) -> int:
        """Decoded bytes that a process with ``num_lanes`` lanes may hold."""
        if self.is_resident:
            # The lanes of one process need other chunks in later epochs, so it comes to hold the
            # whole selection.
            num_lanes = self.budget.num_lanes
        return num_lanes * (self.lane_pool_nbytes + self.ahead_nbytes)

    def num_steps(self, num_samples: int, *, drop_last: bool) -> int:
        """Steps that every rank takes in an epoch."""
        full, rest = divmod(num_samples, self.global_batch)
        return full + (rest > 0 and not drop_last)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, which a round trip through JSON does not change."""
        values = dataclasses.asdict(self)
        # JSON has no tuples.
        values["pace"]["tiling"] = list(self.pace.tiling)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` has written."""
        pace = {**values["pace"], "tiling": tuple(values["pace"]["tiling"])}
        return cls(**{**values, "pace": Pace(**pace), "budget": Budget(**values["budget"])})
