"""A source that records what is read of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.sources.base import Cut, Outcome, Read, Source, Variable
from xloader.testing.tally import Tally


class SourceRecorder:
    """A source that records what is read of it, and how much at a time.

    Parameters
    ----------
    source : Source
        The source to read.

    Attributes
    ----------
    peak_in_flight_nbytes : int
        The most bytes that concurrent reads were writing to at any moment.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tally = Tally()
        self._in_flight_nbytes = 0
        self.peak_in_flight_nbytes = 0

    @property
    def reads(self) -> Counter[tuple[str, tuple[int, ...]]]:
        """How often each (variable, chunk) was read."""
        return self._tally.snapshot()

    @property
    def num_reads(self) -> int:
        """Number of reads of chunks."""
        return self.reads.total()

    def reset(self) -> None:
        """Start counting from zero."""
        self._tally.reset()
        self.peak_in_flight_nbytes = 0

    def read(
        self, variable: str, chunk: tuple[int, ...], cut: Cut, out: NDArray[np.generic]
    ) -> bool:
        """Read a chunk, and record it; see `Source.read`."""
        self._tally.add((variable, chunk))
        self._weigh(out.nbytes)
        try:
            return self._source.read(variable, chunk, cut, out)
        finally:
            self._weigh(-out.nbytes)

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the source; see `Source.bundle_of`."""
        return self._source.bundle_of(variable, chunk)

    def read_together(self, reads: Sequence[Read]) -> Outcome:
        """Read chunks, and record them; see `Source.read_together`."""
        for read in reads:
            self._tally.add((read.variable, read.chunk))
        nbytes = sum(read.out.nbytes for read in reads)
        self._weigh(nbytes)
        try:
            return self._source.read_together(reads)
        finally:
            self._weigh(-nbytes)

    def _weigh(self, nbytes: int) -> None:
        with self._tally.lock:
            self._in_flight_nbytes += nbytes
            self.peak_in_flight_nbytes = max(self.peak_in_flight_nbytes, self._in_flight_nbytes)

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._source.name

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Variables of the source."""
        return self._source.variables

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the source."""
        return self._source.fingerprint

    def coordinates(self) -> xr.Dataset:
        """Coordinates of the source."""
        return self._source.coordinates()

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        return self._source.path_of(variable)
