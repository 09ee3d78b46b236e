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

from xloader.errors import MemoryBudgetError
from xloader.order.shuffle import Pace


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

    @property
    def typical_epoch(self) -> int:
        """Number of an epoch that is like most: the first may begin with few chunks."""
        return int(self.pace.is_growing)

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


_CHUNKS_AHEAD = 64


@dataclass(frozen=True)
class Budget:
    """The division of the memory of one process.

    The process is a rank, or one worker of a rank. All sizes are in bytes.
    """

    memory_nbytes: int
    batch_nbytes: int
    num_batches: int
    max_chunk_nbytes: int
    num_lanes: int
    index_nbytes: int = 0

    @property
    def batches_nbytes(self) -> int:
        """Bytes of all batches in memory."""
        return self.num_batches * self.batch_nbytes

    @property
    def in_flight_nbytes(self) -> int:
        """Bytes reserved for reads in flight."""
        return max(self.memory_nbytes // 16, self._least_in_flight)

    @property
    def fixed_nbytes(self) -> int:
        """Bytes of everything but decoded chunks."""
        return self.batches_nbytes + self.in_flight_nbytes + self.index_nbytes

    def needed_nbytes(
        self, num_steps: int, batch_nbytes: int, read_nbytes: int, num_more: int = 0
    ) -> int:
        """Bytes of everything but decoded chunks, as far as a process can use them."""
        batches = min(self.num_batches + num_more, num_steps) * batch_nbytes
        return batches + min(self.in_flight_nbytes, read_nbytes) + self.index_nbytes

    @property
    def ahead_nbytes(self) -> int:
        """Decoded bytes that are worth holding ahead of need: enough to keep many readers busy."""
        return min(self.in_flight_nbytes, _CHUNKS_AHEAD * self.max_chunk_nbytes)

    @property
    def lane_nbytes(self) -> int:
        """Bytes of each lane for decoded chunks; negative if the rest needs more than there is."""
        return (self.memory_nbytes - self.fixed_nbytes) // self.num_lanes

    def minimum_nbytes(self, lane_nbytes: int) -> int:
        """The least memory that leaves each lane ``lane_nbytes`` for decoded chunks."""
        needed = self.batches_nbytes + self.index_nbytes + self.num_lanes * lane_nbytes
        return max(needed + self._least_in_flight, needed + max(needed - 1, 0) // 15)

    def has_room_for_all(self, selection_nbytes: int) -> bool:
        """Whether the whole selection may stay in memory."""
        return selection_nbytes <= self.lane_nbytes * self.num_lanes

    def enough_nbytes(self, selection_nbytes: int) -> int:
        """The least memory in which the whole selection may stay."""
        return self.minimum_nbytes(-(-selection_nbytes // self.num_lanes))

    @property
    def _least_in_flight(self) -> int:
        return 2 * self.max_chunk_nbytes

    def check(self, lane_nbytes: int) -> None:
        """Refuse a budget that leaves each lane less than ``lane_nbytes`` for decoded chunks."""
        if self.lane_nbytes < lane_nbytes:
            raise MemoryBudgetError(
                f"the memory is too small for {self.num_batches} batches of "
                f"{self.batch_nbytes} bytes, two chunks being read and the chunks of one tile",
                given=f"memory={self.memory_nbytes} bytes",
                minimum_nbytes=self.minimum_nbytes(lane_nbytes),
                # Where chunks take most of the memory, smaller batches hardly help.
                remedy="use a smaller batch"
                if lane_nbytes <= self.batches_nbytes
                else "use chunks that samples.advise() finds",
            )
