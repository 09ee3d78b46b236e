"""Indexes of shards: read once and kept, as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Index: TypeAlias = NDArray[np.uint64]
"""Offset and size of each chunk of a shard in bytes, of shape ``(*chunks_per_shard, 2)``."""

MOST_INDEX_NBYTES: Final = 16 * 2**20
"""Indexes that a source keeps in each process, in bytes."""


class IndexCache:
    """Indexes of shards by key: those used last, as many as there is room for.

    Threads that miss the same index wait for the one that reads it.

    Parameters
    ----------
    most_nbytes : int
        The room, in bytes.
    """

    def __init__(self, most_nbytes: int = MOST_INDEX_NBYTES) -> None:
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self._kept: OrderedDict[str, Index] = OrderedDict()
        self._coming: dict[str, Future[Index | None]] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size of the indexes that are kept, in bytes."""
        return self._nbytes

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def get(self, key: str, read: Callable[[], Index | None]) -> tuple[Index | None, int]:
        """Find an index, or read it: the index and the number of reads.

        An index that is not there is looked for again the next time.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key], 0
            coming = self._coming.get(key)
            if coming is None:
                mine = self._coming[key] = Future()
        if coming is not None:
            return coming.result(), 0
        try:
            index = read()
        except BaseException as error:
            self._arrive(key, None)
            mine.set_exception(error)
            raise
        self._arrive(key, index)
        mine.set_result(index)
        return index, 1

    def put(self, key: str, index: Index) -> None:
        """Keep an index that came by another way."""
        with self._lock:
            self._keep(key, index)

    def forget(self, key: str) -> None:
        """Drop an index, to be read anew."""
        with self._lock:
            dropped = self._kept.pop(key, None)
            self._nbytes -= 0 if dropped is None else dropped.nbytes

    def _arrive(self, key: str, index: Index | None) -> None:
        with self._lock:
            del self._coming[key]
            if index is not None:
                self._keep(key, index)

    def _keep(self, key: str, index: Index) -> None:
        if index.nbytes > self._most_nbytes or key in self._kept:
            return
        self._kept[key] = index
        self._nbytes += index.nbytes
        while self._nbytes > self._most_nbytes:
            self._nbytes -= self._kept.popitem(last=False)[1].nbytes
