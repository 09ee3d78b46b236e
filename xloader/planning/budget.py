"""The division of the memory of a process between batches, reads in flight and decoded chunks."""

from __future__ import annotations

from dataclasses import dataclass

from xloader.errors import MemoryBudgetError

_CHUNKS_AHEAD = 64


@dataclass(frozen=True)
class Budget:
    """The division of the memory of one process.

    The process is a rank, or one worker of a rank. All sizes are in bytes.

    Parameters
    ----------
    memory_nbytes : int
        The whole memory.
    batch_nbytes : int
        The largest batch that one process may have to hold.
    num_batches : int
        Number of batches in memory at a time.
    max_chunk_nbytes : int
        The largest chunk, decoded.
    num_lanes : int
        Number of lanes that one process may have to carry.
    index_nbytes : int
        The indexes of shards.
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
        return max(self.memory_nbytes // 16, 2 * self.max_chunk_nbytes)

    @property
    def fixed_nbytes(self) -> int:
        """Bytes of everything but decoded chunks."""
        return self.batches_nbytes + self.in_flight_nbytes + self.index_nbytes

    def needed_nbytes(self, num_steps: int, batch_nbytes: int, read_nbytes: int) -> int:
        """Bytes of everything but decoded chunks, as far as a process can use them.

        Parameters
        ----------
        num_steps : int
            Batches that the process makes. No more of them can be in memory.
        batch_nbytes : int
            Bytes of one of these batches.
        read_nbytes : int
            Decoded bytes of all chunks that the process reads. No more can be in flight.
        """
        batches = min(self.num_batches, num_steps) * batch_nbytes
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
        return max(needed + 2 * self.max_chunk_nbytes, needed + max(needed - 1, 0) // 15)

    def check(self, lane_nbytes: int) -> None:
        """Refuse a budget that leaves each lane less than ``lane_nbytes`` for decoded chunks.

        Raises
        ------
        MemoryBudgetError
            If it does. The error says the minimum that is enough.
        """
        if self.lane_nbytes < lane_nbytes:
            raise MemoryBudgetError(
                f"the memory is too small for {self.num_batches} batches of "
                f"{self.batch_nbytes} bytes, two chunks being read and the chunks of one tile",
                given=f"memory={self.memory_nbytes} bytes",
                minimum_nbytes=self.minimum_nbytes(lane_nbytes),
            )
