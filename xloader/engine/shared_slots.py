"""Slots of memory that processes share, and what one leaves in them for another.

::

    slot    | the gathered fields | room for what transforms and collate_fn return |

The memory has no name: nothing is left of it when all processes have ended. It does not lie in
``/dev/shm``, which is small in containers.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.nbytes import show_nbytes
from xloader.engine.buffers import ArrayKind, BatchMemory, Buffer, Lease, leased
from xloader.engine.slot_layout import SlotLayout
from xloader.errors import WorkersError


class SharedMemory:
    """A block of memory, reserved at once. It can be pickled for a process that is being started.

    Parameters
    ----------
    nbytes : int
        Its size.

    Attributes
    ----------
    buffer : numpy.ndarray
        The memory, uint8, shape ``(nbytes,)``.

    Raises
    ------
    WorkersError
        If there is not so much memory.
    """

    def __init__(self, nbytes: int) -> None:
        file = _open_file()
        try:
            os.truncate(file, nbytes)
            # Otherwise a process would be killed at the first write for which there is no memory.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, nbytes)
            self._hold(file)
        except OSError as error:
            os.close(file)
            raise WorkersError(
                f"there is no room for the memory that worker processes share ({error.strerror})",
                given=f"{nbytes} bytes ({show_nbytes(nbytes)})",
                remedy="pass a smaller batch_size or prefetch, or fewer processes",
            ) from error

    @property
    def file(self) -> int:
        """The file descriptor; -1 once it is closed."""
        return self._file

    @classmethod
    def of_process(cls, pid: int, file: int) -> SharedMemory:
        """Open the memory that another process has. Linux only.

        Parameters
        ----------
        pid, file : int
            The process, and its file descriptor.

        Raises
        ------
        WorkersError
            If it cannot be opened.
        """
        try:
            return cls._mapped(os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR))
        except OSError as error:
            raise WorkersError(
                f"the memory of another process cannot be opened ({error.strerror})",
                given=f"file descriptor {file} of process {pid}, in process {os.getpid()}",
                remedy="send a copy: array.copy() or tensor.clone()",
            ) from error

    @classmethod
    def _opened(cls, file: Any) -> SharedMemory:
        return cls._mapped(file.detach())

    @classmethod
    def _mapped(cls, file: int) -> SharedMemory:
        other = cls.__new__(cls)
        try:
            other._hold(file)
        except OSError:
            os.close(file)
            raise
        return other

    def __reduce__(self) -> tuple[object, ...]:
        return SharedMemory._opened, (DupFd(self._file),)

    def close(self) -> None:
        """Let go of the memory. It lives as long as any other array over it."""
        self._close()
        self._file, self.buffer = -1, np.empty(0, np.uint8)

    def _hold(self, file: int) -> None:
        self.buffer = np.frombuffer(mmap.mmap(file, os.fstat(file).st_size), np.uint8)
        self._file = file
        # Also if nobody calls `close`.
        self._close: weakref.finalize[Any, Any] = weakref.finalize(self, os.close, file)
        self._close.atexit = False


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("xloader")
    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file


_MOST_KEPT = 2
"""Most slots whose batches the user has. Others are copied for the user."""


class SharedSlots(BatchMemory):
    """Some slots, one after the other in a block of memory."""

    def __init__(self, memory: Buffer, kinds: Sequence[ArrayKind], num_slots: int) -> None:
        self._memory = memory
        self._layout = SlotLayout.of(kinds)
        self._num_slots = num_slots
        # No lock: a garbage collection may free a slot while this thread already holds the lock.
        self._returned: deque[Lease] = deque()
        self._free = deque(range(num_slots))
        self._kept: set[int] = set()

    def has_room(self) -> bool:
        """Whether a slot is free. If not, the user has its batch, or it is being made."""
        while self._returned:
            number = self.number_of(self._returned.popleft().buffer)
            self._kept.discard(number)
            self._free.append(number)
        return bool(self._free)

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """The arrays of a free slot."""
        return self._layout.arrays(leased(self._slot(self._free.popleft()), self._returned))

    def nbytes_of(self, num_batches: int) -> int:
        """Bytes of all slots, used or not."""
        return self._num_slots * self._layout.nbytes

    def deliver(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays of a batch for its user; copies, where the user keeps others."""
        self.has_room()
        if len(self._kept) >= min(_MOST_KEPT, self._num_slots - 1):
            return [array.copy() for array in arrays]
        self._kept.add(self.number_of(arrays[0]))
        return arrays

    def number_of(self, array: NDArray[Any]) -> int:
        """Number of the slot that an array lies in."""
        return (address_of(array) - address_of(self._memory)) // self._layout.nbytes

    def arrays(self, number: int) -> list[NDArray[Any]]:
        """The arrays of a slot, for a process that was told its number."""
        return self._layout.arrays(self._slot(number))

    def close(self) -> None:
        """Let go of the memory. It lives as long as arrays over it."""
        self._memory = np.empty(0, np.uint8)
        self._free.clear()
        # What arrays still have comes back to a list that nobody else has.
        self._returned.clear()
        self._returned = deque()

    def _slot(self, number: int) -> Buffer:
        return self._memory[number * self._layout.nbytes : (number + 1) * self._layout.nbytes]


_ALIGNMENT = 64


class Parcel(NamedTuple):
    """An object that was taken apart.

    Parameters
    ----------
    data : bytes
        All of it but its arrays.
    places : tuple of (int, int)
        Where each array begins and ends in the room; none if the arrays did not fit in there and
        are part of the data.
    """

    data: bytes
    places: tuple[tuple[int, int], ...]


def pack(value: object, room: Buffer | None, hand_over: Callable[[Any], Any]) -> Parcel:
    """Take an object apart.

    Parameters
    ----------
    value : object
        Anything that can be pickled.
    room : numpy.ndarray of uint8
        Gets the bytes of arrays, if there is enough room.
    hand_over : callable
        Makes an array of the loader's kind from a NumPy array. Tensors of that kind count as
        arrays.
    """
    tensor_type = type(hand_over(np.zeros(1, np.float32)))
    buffers: list[pickle.PickleBuffer] = []
    data = _dumps(value, tensor_type, hand_over, buffers.append)
    places, end = [], 0
    for buffer in buffers:
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + buffer.raw().nbytes
        places.append((begin, end))
    if room is None or end > room.nbytes:
        return Parcel(_dumps(value, tensor_type, hand_over, None), ())
    for buffer, (begin, end) in zip(buffers, places, strict=True):
        room[begin:end] = np.frombuffer(buffer.raw(), np.uint8)
    return Parcel(data, tuple(places))


def unpack(parcel: Parcel, room: Buffer | None) -> Any:
    """Put an object together again. Its arrays use the memory of the room.

    Parameters
    ----------
    parcel : Parcel
        What `pack` returned.
    room : numpy.ndarray of uint8
        The same room.
    """
    if room is None:
        return pickle.loads(parcel.data)
    return pickle.loads(parcel.data, buffers=[room[begin:end] for begin, end in parcel.places])


def _dumps(
    value: object,
    tensor_type: type,
    hand_over: Callable[[Any], Any],
    keep: Callable[[pickle.PickleBuffer], Any] | None,
) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is tensor_type and tensor_type is not np.ndarray:
                # NumPy lacks some dtypes, and tensors with gradients are more than an array.
                with contextlib.suppress(TypeError, RuntimeError):
                    return hand_over, (np.asarray(value),)
            return super().reducer_override(value)

    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=keep).dump(value)
    return file.getvalue()
