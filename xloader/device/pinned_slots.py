"""Slots of one block of pinned memory, each with a batch that is copied to the device.

The block is a `SlotRing`'s own, or the memory that worker processes share.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.messages import warn_caller
from xloader.device.hardware import Hardware
from xloader.engine.buffers import ArrayKind, Arrays, BatchMemory, Buffer, Lease, allocate, leased
from xloader.engine.slot_layout import ALIGNMENT, FieldBytes, SlotLayout, find_fields
from xloader.errors import EnvironmentWarning

_FROM_ORDINARY: Final = (
    "Batches are copied to the device from ordinary memory: this takes two to three times as long, "
    "and threads of this process wait for it."
)


class PinnedBlock:
    """Page-aligned memory, pinned for as long as anything refers to the block.

    It stays mapped until it has been unpinned. If the system refuses to pin it, a warning says so,
    and it is ordinary memory.
    """

    def __init__(
        self, hardware: Hardware, buffer: Buffer, consequence: str = _FROM_ORDINARY
    ) -> None:
        self.buffer = buffer
        self.tensor = torch.from_numpy(buffer)
        self.refusal = ""
        # Before it is pinned, as Ctrl-C may come within. The finalizer also keeps the memory. At
        # exit the process ends, and its memory with it. Copies may still be under way then.
        unpin = weakref.finalize(self, _unpin, hardware, buffer, os.getpid())
        unpin.atexit = False
        try:
            hardware.pin(buffer)
        except RuntimeError as error:
            unpin.detach()
            self.refusal = str(error).splitlines()[0]
            warn_caller(
                f"{buffer.nbytes} bytes of memory could not be pinned ({self.refusal}). "
                f"{consequence} Raise the limit on locked memory (ulimit -l), or pass a smaller "
                "batch_size or prefetch.",
                EnvironmentWarning,
            )


def page_aligned(nbytes: int) -> Buffer:
    """Ordinary memory that begins with a page, uint8, shape ``(nbytes,)``."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def _unpin(hardware: Hardware, buffer: Buffer, pid: int) -> None:
    if os.getpid() != pid:
        # A forked child has a copy of the memory, and must not touch the device.
        return
    try:
        hardware.settle()
    finally:
        hardware.unpin(buffer)


class PinnedSlots:
    """Slots of one size that batches are copied out of.

    Somebody else decides which slot a batch is gathered into. A slot must not be used again while
    anything refers to the arrays of its batch.
    """

    def __init__(self, num_slots: int, slot_nbytes: int, block: PinnedBlock | None = None) -> None:
        self._num_slots = num_slots
        self._slot_nbytes = slot_nbytes
        self._block = block
        self._lock = threading.RLock()
        self._num_copies = 0
        self._wake: Callable[[], None] = lambda: None

    @property
    def refusal(self) -> str:
        """Why the memory could not be pinned; empty if it is, or not yet."""
        # Another thread may close the slots meanwhile.
        block = self._block
        return "" if block is None else block.refusal

    def find(self, arrays: Arrays) -> tuple[torch.Tensor, tuple[FieldBytes, ...]] | None:
        """Find the slot that a batch was gathered into.

        The part of the slot that holds the fields, uint8, and the places of the fields in it; None
        if the arrays lie elsewhere.
        """
        # Another thread may close the slots meanwhile.
        block = self._block
        if block is None:
            return None
        size, first = self._slot_nbytes, address_of(block.buffer)
        number = (min(map(address_of, arrays.values())) - first) // size
        if not 0 <= number < self._num_slots:
            return None
        slot = first + number * size
        # What lies before and behind the fields needs no memory of the device.
        begins = [address_of(array) - slot for array in arrays.values()]
        begin = min(begins) // ALIGNMENT * ALIGNMENT
        end = max(at + array.nbytes for at, array in zip(begins, arrays.values(), strict=True))
        if end > size:
            return None
        places = find_fields(arrays, slot + begin, slot + end)
        if places is None:
            return None
        return block.tensor[number * size + begin : number * size + end], places

    def on_room(self, wake: Callable[[], None]) -> None:
        """Choose the function that is called whenever a copy is done, in place of an earlier one.

        `wake`: called on any thread, without a lock.
        """
        self._wake = wake

    def close(self) -> None:
        """Let go of the memory. It is unpinned at once, and lives as long as arrays over it."""
        self._block = None

    def begin_copy(self) -> None:
        """Note that a copy out of a slot is queued."""
        with self._lock:
            self._num_copies += 1

    def end_copy(self) -> None:
        """Note that it is done, and that no array of its batch is kept for it any more."""
        with self._lock:
            self._num_copies -= 1
        self._wake()


class SlotRing(PinnedSlots, BatchMemory):
    """A ring of slots of one size, as the memory of batches that threads gather.

    `take` never waits. Where all slots are in use, it gives ordinary memory of the same layout.
    """

    def __init__(self, hardware: Hardware, kinds: Sequence[ArrayKind], num_slots: int) -> None:
        self.layout = SlotLayout.of(kinds)
        super().__init__(num_slots, self.layout.nbytes)
        self.num_outside = 0
        self._hardware = hardware
        # No lock: a garbage collection may free a slot while this thread already holds the lock.
        self._free: deque[Lease] = deque()
        self._is_closed = False

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
            self._block = PinnedBlock(self._hardware, page_aligned(self.nbytes))
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

    def close(self) -> None:
        """Release the slots. Memory outside the ring is given from now on, if any is."""
        # Slots in use stay where they are, as ordinary memory.
        self._free = deque()
        self._is_closed = True
        super().close()
