"""The memory that a thread takes to read chunks, and for how many threads there is enough.

Before the first reads, a thread is taken to need as much as the largest chunk decoded. Most chunks
are compressed, and are decompressed straight into their block. So once some chunks of every
variable were read, the most that a read took counts, with some more, and there may be room for more
threads. If a later read takes more, there are fewer again.
"""

from __future__ import annotations

from xloader.engine.assembly import EngineParts
from xloader.engine.block_reader import Bundle
from xloader.sources.base import Outcome

_FEWEST_READS = 16
"""Reads from which the memory of later ones is foretold."""


class ReadRoom:
    """The memory for reads of one run, and the number of its threads. The run's lock guards it.

    Parameters
    ----------
    parts : EngineParts
        The parts that read, with the bytes in flight and the numbers of threads.

    Attributes
    ----------
    in_flight_nbytes : int
        Most bytes in flight.
    num_threads : int
        Number of threads for which there is room.
    is_shared : bool
        Whether several threads read, and nothing is fetched ahead.
    """

    def __init__(self, parts: EngineParts) -> None:
        self.in_flight_nbytes = parts.in_flight_nbytes
        self.num_threads = self._fewest_threads = parts.num_threads
        self._most_threads = parts.most_threads
        self.is_shared = parts.num_threads > 1 and not parts.reader.is_waiting
        # What is fetched ahead takes the bytes in flight. And reads of one thread never wait.
        if not self.is_shared:
            self._most_threads = parts.num_threads
        self._is_fixed = self._most_threads == parts.num_threads
        self._max_chunk_nbytes = parts.footprint.max_chunk_nbytes
        self._unread = set(parts.footprint.variables)
        self._num_reads = 0
        self._most_nbytes = 0

    @property
    def _is_known(self) -> bool:
        return not self._unread and self._num_reads >= _FEWEST_READS

    @property
    def _needed_nbytes(self) -> int:
        """Bytes that a thread is taken to need: later chunks may be stored in a quarter more."""
        return max(self._most_nbytes * 5 // 4, 1)

    def nbytes_of(self, bundle: Bundle) -> int:
        """Bytes that a thread may need to read a bundle."""
        return (
            min(bundle.room_nbytes, self._needed_nbytes) if self._is_known else bundle.room_nbytes
        )

    def limit_threads(self, most: int) -> None:
        """Count on no more threads than this."""
        self.num_threads = self._most_threads = most
        self._fewest_threads = min(self._fewest_threads, most)

    def learn(self, bundle: Bundle, outcome: Outcome) -> None:
        """Note what the read of a bundle took.

        Parameters
        ----------
        bundle : Bundle
            The bundle. It was read without an error.
        outcome : Outcome
            The outcome of its read.
        """
        # Absent chunks take nothing, and tell nothing of others.
        if self._is_fixed or outcome.num_missing:
            return
        took = outcome.scratch_nbytes
        self._most_nbytes = max(self._most_nbytes, self._max_chunk_nbytes if took is None else took)
        self._num_reads += 1
        self._unread.difference_update(read.variable for read in bundle.reads)
        if self._is_known:
            fitting = self.in_flight_nbytes // self._needed_nbytes
            self.num_threads = min(max(fitting, self._fewest_threads), self._most_threads)
