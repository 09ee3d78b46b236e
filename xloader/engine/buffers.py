"""Pools of reusable memory for decoded chunks and for batches.

Memory is reused because touching fresh pages for the first time takes as long as decoding into
them.
"""

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
"""Bytes. The size of a cache line, which also suits vector instructions."""


def allocate(nbytes: int) -> Buffer:
    """An uninitialised buffer of `nbytes` bytes whose address is a multiple of 64."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    shift = -raw.ctypes.data % _ALIGNMENT
    return raw[shift : shift + nbytes]


class BlockPool:
    """A pool of buffers for decoded chunks, with a limit on the bytes in use.

    `take` does not check the limit: call `has_room` first. The pool is not thread-safe, so its user
    holds a lock.

    Parameters
    ----------
    capacity : int
        The most bytes that may be in use.

    Attributes
    ----------
    used_nbytes, peak_nbytes : int
        Bytes in use now, and the most at any time.
    is_spoilt : bool
        Whether a thread of an ended run may still write to buffers.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used_nbytes = 0
        self.peak_nbytes = 0
        self.is_spoilt = False
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._free_nbytes = 0

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more bytes may be taken."""
        return self.used_nbytes + nbytes <= self.capacity

    def take(self, nbytes: int) -> Buffer:
        """A buffer of exactly `nbytes` bytes, a free one of that size if there is one."""
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)
        if self._free[nbytes]:
            self._free_nbytes -= nbytes
            return self._free[nbytes].pop()
        self._shrink()
        return allocate(nbytes)

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer that nothing refers to any more."""
        self.used_nbytes -= buffer.nbytes
        self._free[buffer.nbytes].append(buffer)
        self._free_nbytes += buffer.nbytes

    def spoil(self) -> None:
        """Note that a thread may still write to buffers, so that a later run needs another pool."""
        self.is_spoilt = True

    def clear(self) -> None:
        """Release all free buffers."""
        self._free.clear()
        self._free_nbytes = 0

    def _shrink(self) -> None:
        """Release free buffers until used and free bytes together are within the capacity."""
        for buffers in self._free.values():
            while buffers and self.used_nbytes + self._free_nbytes > self.capacity:
                self._free_nbytes -= buffers.pop().nbytes


class BatchPool:
    """A pool of buffers for batches. A buffer comes back when no array refers to it any more.

    There is no limit on the buffers in use. A user who keeps batches gets newly allocated ones, and
    nothing waits for a buffer.

    Parameters
    ----------
    most_free : mapping of int to int
        Per size in bytes, how many free buffers are kept. Others are released.
    """

    def __init__(self, most_free: Mapping[int, int]) -> None:
        self._most_free = most_free
        # No lock: a garbage collection may end a lease while this thread already holds the lock.
        self._free: dict[int, deque[Buffer]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        """An uninitialised, C-contiguous array.

        Parameters
        ----------
        shape : tuple of int
            Its shape.
        dtype : numpy.dtype
            Its dtype.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free[nbytes].pop()
        except (KeyError, IndexError):
            buffer = allocate(nbytes)
        lease = _Lease(buffer, self)
        return np.asarray(lease).view(dtype).reshape(shape)

    def give_back(self, buffer: Buffer) -> None:
        """Keep a buffer for later, up to the number of free buffers of its size."""
        most = self._most_free.get(buffer.nbytes, 0)
        self._free.setdefault(buffer.nbytes, deque(maxlen=most)).append(buffer)


class _Lease:
    """The owner of an array's memory. NumPy and torch refer to it while they use the memory."""

    def __init__(self, buffer: Buffer, pool: BatchPool) -> None:
        self._buffer = buffer
        self._pool = pool
        self.__array_interface__ = buffer.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)


Arrays = dict[str, NDArray[Any]]
"""The arrays of a batch, by field name."""


class Fields:
    """Allocator of the field arrays of batches.

    Parameters
    ----------
    layouts : sequence of FieldLayout
        The layout of each field.
    batch_size : int
        Rows of a full batch.
    num_batches : int
        Number of batches in memory at a time, whose memory is reused.

    Attributes
    ----------
    batch_size : int
        Rows of a full batch.
    batch_nbytes : int
        The memory of one batch. A short batch takes as much as a full one.
    """

    def __init__(self, layouts: Sequence[FieldLayout], batch_size: int, num_batches: int) -> None:
        self.batch_size = batch_size
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
        """Uninitialised arrays of `num_rows` rows, by field name, each C-contiguous."""
        arrays: Arrays = {}
        for alike in self._alike.values():
            shape = (len(alike), self.batch_size, *alike[0].shape)
            # A short batch is a view of a full batch's buffer, so that the buffer can be reused.
            joint = self._pool.take(shape, alike[0].dtype)
            arrays.update({own.name: joint[at, :num_rows] for at, own in enumerate(alike)})
        return {name: arrays[name] for name in self._names}
