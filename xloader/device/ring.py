"""The ring of slots: memory that batches are gathered into and that the device reads by itself.

Each slot holds all fields of one batch. It goes round::

    free -> a batch is gathered into it -> it is copied to the device -> free

All slots are one block of memory, pinned once. A slot is free again when no array refers to it any
more. The arrays of a batch live until its copy is done, so nothing is gathered over it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from xloader.device.hardware import Hardware
from xloader.device.pinned_slots import PinnedBlock, PinnedSlots, page_aligned
from xloader.engine.buffers import ArrayKind, Lease, allocate, leased
from xloader.engine.slot_layout import SlotLayout


class SlotRing(PinnedSlots):
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
