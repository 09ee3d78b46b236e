"""The ring of slots: memory that batches are gathered into and that the device reads by itself.

Each slot holds all fields of one batch. It goes round::

    free -> a batch is gathered into it -> it is copied to the device -> free

All slots are one block of memory, pinned once. A slot is free again when no array refers to it any
more. The arrays of a batch live until its copy is done, so nothing is gathered over it before.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.messages import warn_caller
from xloader.device.hardware import Hardware
from xloader.engine.buffers import ArrayKind, Arrays, Buffer, Lease, allocate, leased
from xloader.engine.slot_layout import FieldBytes, SlotLayout, find_fields
from xloader.errors import PinningWarning


class PinnedBlock:
    """Page-aligned memory, pinned for as long as anything refers to the block.

    If the system refuses to pin it, a warning says so, and it is ordinary memory.

    Parameters
    ----------
    hardware : Hardware
        The device that reads it.
    nbytes : int
        Its size.

    Attributes
    ----------
    buffer : numpy.ndarray
        The memory, uint8, shape ``(nbytes,)``.
    tensor : torch.Tensor
        The same memory.
    """

    def __init__(self, hardware: Hardware, nbytes: int) -> None:
        self.buffer: Buffer = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        self.tensor = torch.from_numpy(self.buffer)
        try:
            hardware.pin(self.buffer)
        except RuntimeError as error:
            warn_caller(
                f"{nbytes} bytes of memory could not be pinned ({str(error).splitlines()[0]}). "
                "Batches are copied to the device from ordinary memory: this takes two to three "
                "times as long, and threads of this process wait for it. Raise the limit on locked "
                "memory (ulimit -l), or pass a smaller batch_size or prefetch.",
                PinningWarning,
            )
            return
        # At exit the process ends, and its memory with it. Copies may still be under way then.
        weakref.finalize(self, _unpin, hardware, self.buffer, os.getpid()).atexit = False


def _unpin(hardware: Hardware, buffer: Buffer, pid: int) -> None:
    if os.getpid() != pid:
        # A forked child has a copy of the memory, and must not touch the device.
        return
    try:
        hardware.settle()
    finally:
        hardware.unpin(buffer)


class SlotRing:
    """A ring of slots of one size, as the memory of batches.

    `take` never waits. Where all slots are in use, it gives ordinary memory of the same layout.

    Parameters
    ----------
    hardware : Hardware
        The device.
    kinds : sequence of ArrayKind
        The arrays of a batch.
    num_slots : int
        Number of slots.

    Attributes
    ----------
    layout : SlotLayout
        Where the arrays lie in a slot.
    num_outside : int
        How often memory outside the ring was given.
    """

    def __init__(self, hardware: Hardware, kinds: Sequence[ArrayKind], num_slots: int) -> None:
        self.layout = SlotLayout.of(kinds)
        self.num_outside = 0
        self._hardware = hardware
        self._num_slots = num_slots
        self._block: PinnedBlock | None = None
        # No lock: a garbage collection may free a slot while this thread already holds the lock.
        self._free: deque[Lease] = deque()
        self._lock = threading.RLock()
        self._num_copies = 0
        self._kept: list[list[Any]] = []
        self._is_closed = False
        self._wake: Callable[[], None] = _do_nothing

    def is_for(self, kinds: Sequence[ArrayKind], num_slots: int) -> bool:
        """Whether the ring has so many slots for just these arrays."""
        return self.layout.kinds == tuple(kinds) and self._num_slots == num_slots

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self._num_slots * self.layout.nbytes

    def nbytes_of(self, num_batches: int) -> int:
        """Bytes of all slots, used or not."""
        return self.nbytes

    def has_room(self) -> bool:
        """Whether to take a slot now. If not, the copy out of one is under way."""
        return self._block is None or bool(self._free) or self._num_copies == 0

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """Uninitialised arrays of a batch, in one slot."""
        if self._block is None and not self._is_closed:
            # The first batch is an example, taken as a run is made: on the consumer's thread.
            self._block = PinnedBlock(self._hardware, self.nbytes)
            for slot in self._block.buffer.reshape(self._num_slots, -1):
                # Free at once: nothing refers to the array.
                leased(slot, self._free)
        try:
            buffer = leased(self._free.pop().buffer, self._free)
        except IndexError:
            # The arrays of a batch that failed live for as long as the user keeps its error.
            self.num_outside += 1
            buffer = allocate(self.layout.nbytes)
        return self.layout.arrays(buffer)

    def find(self, arrays: Arrays) -> tuple[torch.Tensor, tuple[FieldBytes, ...]] | None:
        """Find the slot that a batch was gathered into.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The fields of the batch.

        Returns
        -------
        tuple or None
            The memory of the slot, uint8, and the places of the fields in it; None if the arrays
            lie elsewhere.
        """
        # Another thread may close the ring meanwhile.
        block = self._block
        if block is None:
            return None
        size, first = self.layout.nbytes, address_of(block.buffer)
        number = (min(map(address_of, arrays.values())) - first) // size
        if not 0 <= number < self._num_slots:
            return None
        places = find_fields(arrays, first + number * size, first + (number + 1) * size)
        if places is None:
            return None
        return block.tensor[number * size : (number + 1) * size], places

    def on_room(self, wake: Callable[[], None]) -> None:
        """Choose the function that is called whenever a copy is done, in place of an earlier one.

        Parameters
        ----------
        wake : callable
            Called on any thread, without a lock.
        """
        self._wake = wake

    def close(self) -> None:
        """Release the slots. Memory outside the ring is given from now on, if any is."""
        # Slots in use stay where they are, as ordinary memory.
        self._free = deque()
        self._block = None
        self._is_closed = True

    def keep(self, arrays: list[Any]) -> None:
        """Never use the slot of these arrays again: nobody knows whether a copy still reads it."""
        self._kept.append(arrays)

    def begin_copy(self) -> None:
        """Note that a copy out of a slot is queued."""
        with self._lock:
            self._num_copies += 1

    def end_copy(self) -> None:
        """Note that it is done, and that no array of its batch is kept for it any more."""
        with self._lock:
            self._num_copies -= 1
        self._wake()


def _do_nothing() -> None:
    pass
