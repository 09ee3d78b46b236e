"""The plan: the numbers that fix what an epoch reads, holds and delivers.

Memory is divided here, and nowhere else::

    memory = batches   (prefetch + 2) of them: one in work, one held by the user
           + in flight 1/16 of memory, at least two of the largest chunks
           + indexes   of shards, kept once they are read
           + pool      per lane: what is at work and kept, and what is decoded ahead
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
    """How an epoch is ordered, and what it holds. A function of samples and options only.

    Parameters
    ----------
    pace : Pace
        Tile, run, streams, spread and lanes.
    depth : int
        Without a shuffle: how many leading dimensions go position by position.
    budget : Budget
    global_batch : int
        Samples of a step, over all ranks.
    max_amplification : float
        Where tiles are few, lines of runs are drawn until one reads no more than this.
    lane_pool_nbytes : int
        Decoded bytes that a lane may have at work and kept.
    ahead_nbytes : int
        Decoded bytes that a lane may have ahead of need.
    is_resident : bool
        Whether the pool holds the whole selection, so that later epochs read nothing.
    workers : int
        Processes of a rank that make batches in turn, each with a budget like this one.
    """

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
        """Decoded bytes that a process with so many lanes may hold."""
        if self.is_resident:
            # Whatever the lanes of this epoch, later ones bring the rest of the selection.
            num_lanes = self.budget.num_lanes
        return num_lanes * (self.lane_pool_nbytes + self.ahead_nbytes)

    def num_steps(self, num_samples: int, *, drop_last: bool) -> int:
        """Steps that every rank takes in an epoch of so many samples."""
        full, rest = divmod(num_samples, self.global_batch)
        return full + (rest > 0 and not drop_last)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, which are the same after a file of JSON."""
        values = dataclasses.asdict(self)
        # JSON has no tuples.
        values["pace"]["tiling"] = list(self.pace.tiling)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` wrote."""
        pace = {**values["pace"], "tiling": tuple(values["pace"]["tiling"])}
        return cls(**{**values, "pace": Pace(**pace), "budget": Budget(**values["budget"])})
