"""The memory that blocks may take: that of the pool, and unused memory for bytes in flight.

Where nothing is fetched ahead, most of the memory for bytes in flight is not in use. Up to half of
it then holds small blocks that the pool has no room for yet, so that more threads have something
to decode. Together they never take more than the plan gives to both.
"""

from __future__ import annotations

from xloader.engine.block_reader import MOST_SMALL_NBYTES, Bundle
from xloader.engine.buffers import BlockPool
from xloader.engine.read_room import ReadRoom
from xloader.engine.tally import Tally


class BlockMemory:
    """The memory of a run's blocks. The run's lock guards it.

    Parameters
    ----------
    pool : BlockPool
        Memory of the decoded chunks.
    tally : Tally
        Counts the bytes in flight.
    read_room : ReadRoom
        The bytes in flight, and how many a read takes.
    """

    def __init__(self, pool: BlockPool, tally: Tally, read_room: ReadRoom) -> None:
        self._pool = pool
        self._tally = tally
        self._room = read_room
        self._in_flight_nbytes = read_room.in_flight_nbytes

    def has_room(self, nbytes: int) -> bool:
        """Whether the blocks of one load may take so many bytes."""
        if not nbytes or self._pool.has_room(nbytes):
            return True
        # Large loads give several threads something to do as it is.
        if nbytes > MOST_SMALL_NBYTES or not self._room.is_shared:
            return False
        lent, unused = self._num_lent(nbytes), self._in_flight_nbytes - self._tally.flight_nbytes
        return lent <= min(self._in_flight_nbytes // 2, unused)

    def may_read(self, bundle: Bundle) -> bool:
        """Whether a bundle may be read now, beside those that are being read.

        Half of the memory is never lent, and one thread needs less. So one can always read.
        """
        lent, in_flight = max(self._num_lent(0), 0), self._tally.flight_nbytes
        is_free = not (self._room.is_shared and in_flight)
        return is_free or (
            lent + in_flight + self._room.nbytes_of(bundle) <= self._in_flight_nbytes
        )

    def _num_lent(self, nbytes: int) -> int:
        """Bytes for bytes in flight that blocks hold, with some more; below 0 if they hold none."""
        return self._pool.used_nbytes + nbytes - self._pool.capacity
