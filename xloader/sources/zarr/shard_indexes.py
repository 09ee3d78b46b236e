"""A cache of shard indexes: each is read once, and kept as long as there is room."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import MOST_INDEX_NBYTES
from xloader.sources.retries import Attempts, current

Index: TypeAlias = NDArray[np.uint64]
"""Offset and size of each chunk of a shard in bytes, of shape ``(*chunks_per_shard, 2)``."""

Name: TypeAlias = Hashable
"""Identifies a shard among those of all stores."""


class IndexCache:
    """Cache of shard indexes that drops the least recently used ones when it is full.

    If several threads need the same absent index, one reads it and the others wait for it.
    """

    def __init__(self, most_nbytes: int = MOST_INDEX_NBYTES) -> None:
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self._kept: OrderedDict[Name, Index] = OrderedDict()
        self._coming: dict[Name, tuple[Future[Index | None], Attempts]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_process(cls) -> IndexCache:
        """The cache of this process, which all sources share."""
        # A forked child gets a new cache: a lock held at the fork is never released there.
        return _CACHES.setdefault(os.getpid(), cls())

    @property
    def nbytes(self) -> int:
        """Size of the indexes that are kept, in bytes."""
        return self._nbytes

    def __contains__(self, name: Name) -> bool:
        return name in self._kept

    def get(self, name: Name, read: Callable[[], Index | None]) -> tuple[Index | None, int]:
        """Find an index, or read it.

        The absence of an index is not remembered: it is read again at the next call. If the
        reading thread fails, all threads that wait for the index get the same error.
        """
        attempts = current()
        while True:
            try:
                return self._get(name, read, attempts)
            except _ReaderStoppedError:
                # Only the reading thread was to stop. This one reads the index itself.
                continue

    def _get(
        self, name: Name, read: Callable[[], Index | None], attempts: Attempts
    ) -> tuple[Index | None, int]:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name], 0
            coming, reader = self._coming.get(name, (None, attempts))
            if coming is None or reader.is_given_up:
                mine: Future[Index | None] = Future()
                coming, self._coming[name] = None, (mine, attempts)
                attempts.on_given_up = partial(_stop, mine)
        if coming is not None:
            return attempts.wait_for(reader.key, coming.result), 0
        try:
            index = read()
            self._arrive(name, mine, index)
            if not mine.done():
                mine.set_result(index)
        except BaseException as error:
            self._arrive(name, mine, None)
            if not isinstance(error, Exception):
                _stop(mine)
            elif not mine.done():
                mine.set_exception(error)
            raise
        finally:
            attempts.on_given_up = None
        return index, 1

    def put(self, name: Name, index: Index) -> None:
        """Keep an index that was read together with its whole shard."""
        with self._lock:
            self._keep(name, index)

    def forget(self, name: Name) -> None:
        """Drop an index, so that it is read again when it is next needed."""
        with self._lock:
            dropped = self._kept.pop(name, None)
            self._nbytes -= 0 if dropped is None else dropped.nbytes

    def _arrive(self, name: Name, mine: Future[Index | None], index: Index | None) -> None:
        with self._lock:
            if self._coming.get(name, (None,))[0] is mine:
                del self._coming[name]
            if index is not None:
                self._keep(name, index)

    def _keep(self, name: Name, index: Index) -> None:
        if index.nbytes > self._most_nbytes or name in self._kept:
            return
        self._kept[name] = index
        self._nbytes += index.nbytes
        while self._nbytes > self._most_nbytes:
            self._nbytes -= self._kept.popitem(last=False)[1].nbytes


class _ReaderStoppedError(Exception):
    """Raised in waiting threads if the thread that read an index was stopped or given up."""


def _stop(coming: Future[Index | None]) -> None:
    # The index may arrive at the same moment.
    with suppress(InvalidStateError):
        coming.set_exception(_ReaderStoppedError())


_CACHES: Final[dict[int, IndexCache]] = {}
"""The cache of each process, by process id."""
