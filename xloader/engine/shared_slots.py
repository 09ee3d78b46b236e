"""Slots of memory that worker processes share: in each, a batch until its user has dropped it.

::

    slot    | the gathered fields | room for what transforms and collate_fn return |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.engine.buffers import ArrayKind, BatchMemory, Buffer, Lease, leased
from xloader.engine.slot_layout import SlotLayout

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
        self._memory = self._memory[:0]
        self._free.clear()

    def _slot(self, number: int) -> Buffer:
        return self._memory[number * self._layout.nbytes : (number + 1) * self._layout.nbytes]
