"""Memory that is used again: fresh pages cost as much as decoding into them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.recipe.layout import FieldLayout

Buffer = NDArray[np.uint8]

_ALIGNMENT = 64
"""Bytes; a cache line, and what vector instructions like."""


def allocate(nbytes: int) -> Buffer:
    """Uninitialised bytes that begin at a multiple of 64."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    shift = -raw.ctypes.data % _ALIGNMENT
    return raw[shift : shift + nbytes]


class BlockPool:
    """Buffers of decoded chunks, never more than a capacity in use.

    Not safe for threads by itself: its user holds a lock.

    Parameters
    ----------
    capacity : int
        Bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used_nbytes = 0
        self.peak_nbytes = 0
        self.is_spoilt = False
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._free_nbytes = 0

    def has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes may be taken."""
        return self.used_nbytes + nbytes <= self.capacity

    def take(self, nbytes: int) -> Buffer:
        """A buffer of exactly so many bytes, an old one where there is one."""
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)
        if self._free[nbytes]:
            self._free_nbytes -= nbytes
            return self._free[nbytes].pop()
        self._shrink()
        return allocate(nbytes)

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer that nobody looks at any more."""
        self.used_nbytes -= buffer.nbytes
        self._free[buffer.nbytes].append(buffer)
        self._free_nbytes += buffer.nbytes

    def spoil(self) -> None:
        """Note that some thread may still write to buffers: a later run needs another pool."""
        self.is_spoilt = True

    def clear(self) -> None:
        """Let go of all free buffers."""
        self._free.clear()
        self._free_nbytes = 0

    def _shrink(self) -> None:
        """Let go of free buffers of other sizes until all of them are within the capacity."""
        for buffers in self._free.values():
            while buffers and self.used_nbytes + self._free_nbytes > self.capacity:
                self._free_nbytes -= buffers.pop().nbytes


class BatchPool:
    """Buffers of batches. Each comes back when the last reference to its array is gone.

    A user who keeps batches gets more of them: nothing waits for a buffer.

    Parameters
    ----------
    most_free : mapping of int to int
        Per size in bytes, how many buffers are kept for later; others are not.
    """

    def __init__(self, most_free: Mapping[int, int]) -> None:
        self._most_free = most_free
        # No lock: a lease may end in a garbage collection, in the middle of what would hold it.
        self._free: dict[int, deque[Buffer]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        """An uninitialised array."""
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free[nbytes].pop()
        except (KeyError, IndexError):
            buffer = allocate(nbytes)
        lease = _Lease(buffer, self)
        return np.asarray(lease).view(dtype).reshape(shape)

    def give_back(self, buffer: Buffer) -> None:
        """Keep a buffer for later."""
        most = self._most_free.get(buffer.nbytes, 0)
        self._free.setdefault(buffer.nbytes, deque(maxlen=most)).append(buffer)


class _Lease:
    """What an array's memory belongs to: NumPy and torch hold it for as long as they look."""

    def __init__(self, buffer: Buffer, pool: BatchPool) -> None:
        self._buffer = buffer
        self._pool = pool
        self.__array_interface__ = buffer.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)


Arrays = dict[str, NDArray[Any]]


class Fields:
    """Allocates the fields of batches.

    Parameters
    ----------
    layouts : sequence of FieldLayout
    batch_size : int
        Rows of a full batch.
    num_batches : int
        Batches that are in memory at a time, whose memory is used again.

    Attributes
    ----------
    batch_nbytes : int
        The memory of one batch: that of a full one, for short ones too.
    """

    def __init__(self, layouts: Sequence[FieldLayout], batch_size: int, num_batches: int) -> None:
        self._batch_size = batch_size
        self._names = [layout.name for layout in layouts]
        self._alike: dict[tuple[object, ...], list[FieldLayout]] = {}
        for layout in layouts:
            self._alike.setdefault((layout.shape, layout.dtype), []).append(layout)
        most: dict[int, int] = {}
        for alike in self._alike.values():
            nbytes = batch_size * sum(layout.sample_nbytes for layout in alike)
            most[nbytes] = most.get(nbytes, 0) + num_batches
        self._pool = BatchPool(most)
        self.batch_nbytes = batch_size * sum(layout.sample_nbytes for layout in layouts)

    def take(self, num_rows: int) -> Arrays:
        """Uninitialised arrays of so many rows, by field, C-contiguous."""
        arrays: Arrays = {}
        for alike in self._alike.values():
            shape = (len(alike), self._batch_size, *alike[0].shape)
            # A short batch is a part of a full one's buffer, which then serves again.
            joint = self._pool.take(shape, alike[0].dtype)
            arrays.update({own.name: joint[at, :num_rows] for at, own in enumerate(alike)})
        return {name: arrays[name] for name in self._names}
