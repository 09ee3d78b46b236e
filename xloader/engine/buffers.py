"""Pools of reusable memory for batches, and for what is known of their rows.

Memory is reused because touching fresh pages for the first time takes as long as decoding into
them. Where batches go to a device, another `BatchMemory` than this file's pool holds them: memory
that the device reads by itself.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class ArrayKind(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


class BatchMemory(Protocol):
    """Memory for the arrays of batches."""

    def has_room(self) -> bool:
        """Whether to open another batch now. If not, memory is about to come back."""
        ...

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """Uninitialised, C-contiguous arrays for one batch, of these kinds. It never waits."""
        ...

    def nbytes_of(self, num_batches: int) -> int:
        """The memory that is used while so many batches are under way or delivered."""
        ...

    def deliver(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays of a batch for its user; copies, where the run needs their memory soon."""
        return arrays


MakeMemory = Callable[[Sequence[ArrayKind], int], BatchMemory]
"""Makes the memory for a number of batches under way at a time, from the kinds of their arrays."""


class LeasedPool:
    """A pool of arrays whose buffers come back by themselves, when nothing refers to them any more.

    There is no limit on the buffers in use, and nothing waits for a buffer. It is thread-safe.

    Parameters
    ----------
    num_free : int
        How many free buffers of one size are kept. Others are released.
    """

    def __init__(self, num_free: int) -> None:
        # No lock: a garbage collection may end a lease while this thread already holds the lock.
        self._free: defaultdict[int, deque[Lease]] = defaultdict(lambda: deque(maxlen=num_free))

    def take(self, kind: ArrayKind) -> NDArray[Any]:
        """An uninitialised, C-contiguous array, in a free buffer of its size if there is one."""
        free = self._free[kind.nbytes]
        try:
            buffer = free.pop().buffer
        except IndexError:
            buffer = allocate(kind.nbytes)
        return leased(buffer, free).view(kind.dtype).reshape(kind.shape)


class BatchPool(BatchMemory):
    """A pool of buffers for batches.

    A user who keeps batches gets newly allocated ones.

    Parameters
    ----------
    kinds : sequence of ArrayKind
        The arrays of a batch.
    num_batches : int
        Of how many batches free buffers are kept. Others are released.
    """

    def __init__(self, kinds: Sequence[ArrayKind], num_batches: int) -> None:
        self._batch_nbytes = sum(kind.nbytes for kind in kinds)
        alike = Counter(kind.nbytes for kind in kinds)
        self._pools = {
            nbytes: LeasedPool(num_arrays * num_batches) for nbytes, num_arrays in alike.items()
        }

    def has_room(self) -> bool:
        """Always true: nothing waits for a buffer."""
        return True

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """Uninitialised, C-contiguous arrays of these kinds, each with a buffer of its own."""
        # A user may keep one field of each batch: its buffer must not hold the others too.
        return [self._pools[kind.nbytes].take(kind) for kind in kinds]

    def nbytes_of(self, num_batches: int) -> int:
        """The memory of so many batches."""
        return num_batches * self._batch_nbytes


class Lease(weakref.ref[Any]):
    """Memory that is in use until the owner that this refers to is gone.

    Attributes
    ----------
    buffer : numpy.ndarray
        The memory, or what stands for it.
    """

    __slots__ = ("buffer",)
    buffer: Buffer


class _Owner:
    """The owner of an array's memory. NumPy and torch refer to it while they use the memory."""

    __slots__ = ("__array_interface__", "__weakref__", "lease")
    __array_interface__: dict[str, Any]
    lease: Lease


def leased(buffer: Buffer, free: deque[Lease], token: Buffer | None = None) -> Buffer:
    """The same memory as an array. When nothing refers to it any more, its lease is free.

    This happens on any thread, also in a garbage collection. No code in Python runs then: Ctrl-C
    within it would be lost, and the memory with it.

    Parameters
    ----------
    buffer : numpy.ndarray
        The memory.
    free : deque of Lease
        Gets the lease.
    token : numpy.ndarray, optional
        Stands for the memory in the lease, and keeps it from being released; by default the memory
        itself.
    """
    owner = _Owner()
    owner.__array_interface__ = buffer.__array_interface__
    owner.lease = Lease(owner, free.append)
    owner.lease.buffer = buffer if token is None else token
    return np.asarray(owner)


Arrays = dict[str, NDArray[Any]]
"""The arrays of a batch, by field name."""


class Fields:
    """Allocator of the field arrays of batches.

    `num_batches`: how many are in memory at a time, whose memory is reused. `room_nbytes`: bytes of
    each slot for what lies beside the fields.
    """

    def __init__(
        self,
        layouts: Sequence[FieldLayout],
        batch_size: int,
        num_batches: int,
        make_memory: MakeMemory = BatchPool,
        room_nbytes: int = 0,
    ) -> None:
        self.batch_size, self.num_batches = batch_size, num_batches
        self._names = [layout.name for layout in layouts]
        self._alike: dict[tuple[object, ...], list[FieldLayout]] = {}
        for layout in layouts:
            self._alike.setdefault((layout.shape, layout.dtype), []).append(layout)
        # Fields of one shape and dtype share an array.
        self.kinds = [
            ArrayKind((len(alike), batch_size, *alike[0].shape), alike[0].dtype)
            for alike in self._alike.values()
        ]
        if room_nbytes:
            self.kinds.append(ArrayKind((room_nbytes,), np.dtype(np.uint8)))
        self.memory = make_memory(self.kinds, num_batches)

    def example(self) -> Arrays:
        """The arrays of a full batch, in memory that is not touched: they show how fields lie."""
        return self.named([np.empty(*kind) for kind in self.kinds], self.batch_size)

    def take_joints(self) -> list[NDArray[Any]]:
        """Uninitialised arrays of these `kinds`."""
        return self.memory.take(self.kinds)

    def named(self, joints: Sequence[NDArray[Any]], num_rows: int) -> Arrays:
        """The first `num_rows` rows of arrays of these `kinds`, by field name."""
        arrays: Arrays = {}
        for joint, alike in zip(joints, self._alike.values(), strict=False):
            # A short batch is a view of a full one's buffer, so that the buffer can be reused.
            arrays.update({own.name: joint[at, :num_rows] for at, own in enumerate(alike)})
        return {name: arrays[name] for name in self._names}

    def room(self, joints: Sequence[NDArray[Any]]) -> Buffer | None:
        """The room beside the fields, among arrays of these `kinds`."""
        return joints[-1] if len(joints) > len(self._alike) else None
