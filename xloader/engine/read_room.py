"""The memory that a thread takes to read chunks, and for how many threads there is enough.

Before the first reads, a thread is taken to need as much as the largest chunk decoded. Most chunks
are stored in less, and are decompressed straight into their block. Once chunks of every variable
were read, the most that a read took counts, with some more, and there may be room for more threads.
"""

from __future__ import annotations

from xloader.engine.assembly import EngineParts
from xloader.engine.block_reader import Bundle
from xloader.sources.base import Outcome


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
        Number of threads for which there is room. It does not fall as more is learnt.
    """

    def __init__(self, parts: EngineParts) -> None:
        self.num_threads = parts.num_threads
        self._most_threads = parts.most_threads
        self.in_flight_nbytes = parts.in_flight_nbytes
        self._unread = set(parts.footprint.variables)
        self._most_nbytes = 0

    @property
    def _needed_nbytes(self) -> int:
        """Bytes that a thread is taken to need: later chunks may be stored in a quarter more."""
        return self._most_nbytes * 5 // 4

    def nbytes_of(self, bundle: Bundle) -> int:
        """Bytes that a thread may need to read a bundle."""
        return bundle.room_nbytes if self._unread else min(bundle.room_nbytes, self._needed_nbytes)

    def limit_threads(self, most: int) -> None:
        """Count on no more threads than this."""
        self.num_threads = self._most_threads = most

    def learn(self, bundle: Bundle, outcome: Outcome) -> None:
        """Note what the read of a bundle took.

        Parameters
        ----------
        bundle : Bundle
            The bundle. It was read without an error.
        outcome : Outcome
            The outcome of its read.
        """
        if self.num_threads >= self._most_threads:
            return
        took = outcome.scratch_nbytes
        self._most_nbytes = max(self._most_nbytes, bundle.room_nbytes if took is None else took)
        self._unread.difference_update(read.variable for read in bundle.reads)
        if not self._unread:
            fitting = self.in_flight_nbytes // max(self._needed_nbytes, 1)
            self.num_threads = max(self.num_threads, min(fitting, self._most_threads))
