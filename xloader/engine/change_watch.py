"""Checks whether a store changed: when an epoch begins, and before batches are delivered."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from xloader.core.retry_policy import RetryPolicy
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.errors import ReadTimeoutError, SourceAccessError
from xloader.sources import store_watch
from xloader.sources.base import Source
from xloader.sources.retries import Attempts
from xloader.sources.store_watch import Watch

_MOST_REQUESTS: Final = 16
"""Most watches that look at the same time, if each look needs a request."""


class ChangeWatch:
    """A check that raises an error before anything is delivered from a store that changed.

    Parameters
    ----------
    source : Source
        The source that is read.
    variables : iterable of str
        Names of the variables that are read.
    retry_policy : RetryPolicy, optional
        How long looks are waited for.

    Examples
    --------
    >>> import xarray as xr
    >>> from xloader.sources.open.open_source import open_source
    >>> source = open_source(xr.Dataset({"t": ("x", [1.0, 2.0])}))
    >>> watch = ChangeWatch(source, ["t"])
    >>> watch.begin()
    >>> watch.check(is_last=True)
    """

    def __init__(
        self, source: Source, variables: Iterable[str], retry_policy: RetryPolicy | None = None
    ) -> None:
        self._retry_policy = retry_policy or RetryPolicy()
        self._source = source
        self._variables = tuple(variables)
        self._pid = 0
        self._near: Sequence[Watch] = ()
        self._far: Sequence[Watch] = ()
        self._looked_at = -float("inf")
        self._seen: object = None

    def begin(self) -> None:
        """Look at all watches, except distant ones that looked a few seconds ago.

        Raises
        ------
        StoreChangedError
            If the store changed.
        SourceAccessError, ReadTimeoutError
            If the store does not answer.
        """
        self._find()
        for watch in self._near:
            watch.look()
        self._look_at([watch for watch in self._far if watch.is_old])

    def check(self, *, is_last: bool = False) -> None:
        """Look at the watches of the arrays that were read since their last look.

        Call it after the last read of a batch. If looks need requests, at least ``LOOK_SECONDS`` of
        `xloader.sources.store_watch` pass between them, so that they cost next to nothing.

        Parameters
        ----------
        is_last : bool, default False
            Whether this is the last batch, so that no later look will follow.

        Raises
        ------
        StoreChangedError
            If the store changed.
        SourceAccessError, ReadTimeoutError
            If the store does not answer and this is the last batch.
        """
        self._find()
        seen = store_watch.latest_read()
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
        if now - self._looked_at < store_watch.LOOK_SECONDS:
            return
        self._looked_at = now
        due = [watch for watch in self._far if watch.is_unchecked and watch.is_old]
        # If the store does not answer now, the next look asks again.
        with suppress(SourceAccessError, ReadTimeoutError):
            self._look_at(sorted(due, key=lambda watch: watch.looked_at)[:_MOST_REQUESTS])

    def _find(self) -> None:
        """Get the watches of this process, once: a forked child has its own."""
        if self._pid == os.getpid():
            return
        found = {id(watch): watch for watch in self._source.watches(self._variables)}
        self._near = [watch for watch in found.values() if watch.is_near]
        self._far = [watch for watch in found.values() if not watch.is_near]
        self._pid = os.getpid()

    def _look_at(self, watches: Sequence[Watch]) -> None:
        """Look at some watches at the same time. Each look waits for an answer of the store."""
        if not watches:
            return
        # On threads that can be given up if the store does not answer.
        with TaskThreads(self._retry_policy, self._source.name) as threads:
            threads.do([ThreadTask((), partial(_look, watch)) for watch in watches], _MOST_REQUESTS)


def _look(watch: Watch, _: Attempts) -> None:
    watch.look()
