"""How a plan divides the memory that it is given."""

from __future__ import annotations

from dataclasses import dataclass

from xloader.errors import MemoryBudgetError

_CHUNKS_AHEAD = 64


@dataclass(frozen=True)
class Budget:
    """How the memory of one rank is divided.

    Parameters
    ----------
    memory_nbytes : int
        All of it.
    batch_nbytes : int
        One batch, as one process may have to hold it.
    num_batches : int
        Batches in memory at a time.
    max_chunk_nbytes : int
        The largest chunk, decoded.
    num_lanes : int
        Lanes that one process may have to carry.
    index_nbytes : int
        Indexes of shards.
    """

    memory_nbytes: int
    batch_nbytes: int
    num_batches: int
    max_chunk_nbytes: int
    num_lanes: int
    index_nbytes: int = 0

    @property
    def batches_nbytes(self) -> int:
        """What the batches take."""
        return self.num_batches * self.batch_nbytes

    @property
    def in_flight_nbytes(self) -> int:
        """What reads under way take."""
        return max(self.memory_nbytes // 16, 2 * self.max_chunk_nbytes)

    @property
    def fixed_nbytes(self) -> int:
        """All that is not for decoded chunks."""
        return self.batches_nbytes + self.in_flight_nbytes + self.index_nbytes

    def needed_nbytes(self, num_steps: int, batch_nbytes: int, read_nbytes: int) -> int:
        """All that is not for decoded chunks, as far as a process has a use for it.

        Parameters
        ----------
        num_steps : int
            Batches that it makes: no more of them can be in memory.
        batch_nbytes : int
            One of them.
        read_nbytes : int
            Decoded bytes of all chunks that it reads: no more can be in flight.
        """
        batches = min(self.num_batches, num_steps) * batch_nbytes
        return batches + min(self.in_flight_nbytes, read_nbytes) + self.index_nbytes

    @property
    def ahead_nbytes(self) -> int:
        """What may be decoded ahead of need, beyond a tile: enough to keep many readers busy."""
        return min(self.in_flight_nbytes, _CHUNKS_AHEAD * self.max_chunk_nbytes)

    @property
    def lane_nbytes(self) -> int:
        """What each lane has for decoded chunks; negative where the rest takes it all."""
        return (self.memory_nbytes - self.fixed_nbytes) // self.num_lanes

    def minimum_nbytes(self, lane_nbytes: int) -> int:
        """The least memory that leaves each lane ``lane_nbytes``."""
        needed = self.batches_nbytes + self.index_nbytes + self.num_lanes * lane_nbytes
        return max(needed + 2 * self.max_chunk_nbytes, needed + max(needed - 1, 0) // 15)

    def check(self, lane_nbytes: int) -> None:
        """Refuse a budget that leaves each lane less than ``lane_nbytes``.

        Raises
        ------
        MemoryBudgetError
            With the minimum that would do.
        """
        if self.lane_nbytes < lane_nbytes:
            raise MemoryBudgetError(
                f"the memory is too small for {self.num_batches} batches of "
                f"{self.batch_nbytes} bytes, two chunks in flight and the chunks of one tile",
                given=f"memory={self.memory_nbytes} bytes",
                minimum_nbytes=self.minimum_nbytes(lane_nbytes),
            )
