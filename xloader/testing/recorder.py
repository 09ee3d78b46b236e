"""SourceRecorder: a source that records which chunks are read from it."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from xloader.sources.base import Fetched, Outcome, Read, Source, View
from xloader.testing.counters import KeyCounter, SharedTally


class SourceRecorder(View):
    """A source that records which chunks are read, and how many bytes at a time.

    Chunks that are computed, as for forcings, are no reads.

    Parameters
    ----------
    source : Source
        The source to read from.
    log : str or os.PathLike, optional
        A file in which all processes that use the source count together. Without it, a copy in
        another process counts separately.

    Attributes
    ----------
    peak_in_flight_nbytes : int
        Peak size in bytes of the arrays that chunks were being decoded into.
    peak_held_nbytes : int
        Peak size in bytes of fetched chunks that were not yet decoded or dropped.
    """

    def __init__(self, source: Source, log: str | os.PathLike[str] | None = None) -> None:
        self._source = source
        self.name, self.fingerprint = source.name, source.fingerprint
        self._variables = dict(source.variables)
        self._tally = KeyCounter() if log is None else SharedTally(os.fspath(log))
        self._lock = threading.Lock()
        self._in_flight_nbytes = 0
        self._held: weakref.WeakSet[_Weighed] = weakref.WeakSet()
        self.peak_in_flight_nbytes = 0
        self.peak_held_nbytes = 0

    @property
    def reads(self) -> Counter[tuple[str, tuple[int, ...]]]:
        """Number of reads of each (variable, chunk)."""
        return self._tally.snapshot()

    @property
    def num_reads(self) -> int:
        """Number of reads of chunks."""
        return self.reads.total()

    def reset(self) -> None:
        """Set all counts and peaks to zero."""
        self._tally.reset()
        self.peak_in_flight_nbytes = 0
        self.peak_held_nbytes = 0

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch chunks and record them; see `Source.fetch`."""
        for read in reads:
            if not self._source.variables[read.variable].is_computed:
                self._tally.add((read.variable, read.chunk))
        weighed = _Weighed(self._source.fetch(reads), self)
        with self._lock:
            self._held.add(weighed)
            held_nbytes = sum(held.nbytes for held in self._held)
            self.peak_held_nbytes = max(self.peak_held_nbytes, held_nbytes)
        return weighed

    def files_of(self, variable: str) -> None:
        """None: what native threads read would not be recorded."""

    def _reader_of(self, variable: str) -> tuple[Source, str]:
        """The source that is recorded. What its watches read is not."""
        return self._source, variable

    def weigh(self, nbytes: int) -> None:
        """Record a change in the size of the arrays that chunks are being decoded into.

        Parameters
        ----------
        nbytes : int
            The change in bytes. Negative after decoding.
        """
        with self._lock:
            self._in_flight_nbytes += nbytes
            self.peak_in_flight_nbytes = max(self.peak_in_flight_nbytes, self._in_flight_nbytes)

    def let_go(self, weighed: _Weighed) -> None:
        """Record that fetched chunks are no longer held."""
        with self._lock:
            self._held.discard(weighed)

    def __getstate__(self) -> dict[str, Any]:
        # Chunks that are held cannot be sent to another process.
        return {**self.__dict__, "_lock": None, "_held": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _held=weakref.WeakSet())

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """Coordinates of the source."""
        return self._source.coordinates(is_indexed=is_indexed)


class _Weighed:
    """Fetched chunks whose memory is recorded, as is that of the arrays they are decoded into."""

    stored = None

    def __init__(self, fetched: Fetched, recorder: SourceRecorder) -> None:
        self._fetched = fetched
        self._recorder = recorder
        self.nbytes = fetched.nbytes

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks and record the memory; see `Fetched.decode`."""
        nbytes = sum(out.nbytes for out in outs)
        self._recorder.weigh(nbytes)
        try:
            return self._fetched.decode(outs)
        finally:
            self._recorder.weigh(-nbytes)
            self._recorder.let_go(self)
