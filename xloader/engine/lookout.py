"""Looks at the watches of a source: as an epoch begins, and before batches are delivered."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from xloader.engine.readers import Readers, Task
from xloader.errors import SourceAccessError
from xloader.patience import Patience
from xloader.sources import watching
from xloader.sources.attempts import Attempts
from xloader.sources.base import Source
from xloader.sources.watching import Watch

_MOST_REQUESTS: Final = 16
"""Looks at a time, where each is a request."""


class Lookout:
    """Sees to it that nothing is delivered of a store that is no longer what was opened.

    Parameters
    ----------
    source : Source
        What is read.
    variables : iterable of str
        Those that are read.
    patience : Patience, optional
        How long looks are waited for.

    Examples
    --------
    >>> import xarray as xr
    >>> from xloader.sources.opening import open_source
    >>> source = open_source(xr.Dataset({"t": ("x", [1.0, 2.0])}))
    >>> lookout = Lookout(source, ["t"])
    >>> lookout.begin()
    >>> lookout.check(is_last=True)
    """

    def __init__(
        self, source: Source, variables: Iterable[str], patience: Patience | None = None
    ) -> None:
        self._patience = patience or Patience()
        self._source = source
        self._variables = tuple(variables)
        self._pid = 0
        self._near: Sequence[Watch] = ()
        self._far: Sequence[Watch] = ()
        self._looked_at = -float("inf")
        self._seen: object = None

    def begin(self) -> None:
        """Look at all watches, but those far away that were looked at just now.

        Raises
        ------
        StoreChangedError
            If the store is no longer what was opened.
        SourceAccessError
            If it does not answer.
        """
        self._find()
        for watch in self._near:
            watch.look()
        self._look_at([watch for watch in self._far if watch.is_old])

    def check(self, *, is_last: bool = False) -> None:
        """Look at the watches of what was read since the last look.

        Called after the last read of what is to be delivered. Far away, looks lie
        `watching.LOOK_SECONDS` apart, so that they cost next to nothing.

        Parameters
        ----------
        is_last : bool, default False
            Whether nothing is delivered after this: then nothing is left for a later look.

        Raises
        ------
        StoreChangedError
            If the store is no longer what was opened.
        SourceAccessError
            If it does not answer, and there is no later look.
        """
        self._find()
        seen = watching.latest_read()
        # There may be thousands of watches, and most batches need no read.
        if is_last or seen is not self._seen:
            for watch in self._near:
                if is_last or watch.is_unchecked:
                    watch.look()
            self._seen = seen
        if not self._far:
            return
        if is_last:
            self._look_at([watch for watch in self._far if watch.is_unchecked or watch.is_old])
            return
        now = time.monotonic()
        if now - self._looked_at < watching.LOOK_SECONDS:
            return
        self._looked_at = now
        due = [watch for watch in self._far if watch.is_unchecked and watch.is_old]
        # A store that does not answer now is asked again, and read in the meantime.
        with suppress(SourceAccessError):
            self._look_at(sorted(due, key=lambda watch: watch.looked_at)[:_MOST_REQUESTS])

    def _find(self) -> None:
        """Find the watches of this process, once. A forked child has its own."""
        if self._pid == os.getpid():
            return
        found = {id(watch): watch for watch in self._source.watches(self._variables)}
        self._near = [watch for watch in found.values() if watch.is_near]
        self._far = [watch for watch in found.values() if not watch.is_near]
        self._pid = os.getpid()

    def _look_at(self, watches: Sequence[Watch]) -> None:
        """Look at some watches at once, each of which waits for an answer."""
        if not watches:
            return
        # On threads that can be given up where the store does not answer.
        with Readers(self._patience, self._source.name) as readers:
            readers.do([Task((), partial(_look, watch)) for watch in watches], _MOST_REQUESTS)


def _look(watch: Watch, _: Attempts) -> None:
    watch.look()
