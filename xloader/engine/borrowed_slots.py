"""The arrays that other processes lend to this one, and how they are given back.

The other side is `xloader.engine.lent_slots`.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from typing import Final

from xloader.engine.buffers import Buffer, Lease, leased
from xloader.engine.lent_slots import (
    FIRST_LOAN,
    GIVEN_UP,
    KEY_NBYTES,
    KNOWN,
    Loan,
    parts_of,
)
from xloader.engine.shared_memory import SharedMemory
from xloader.errors import WorkersError

_SLOTS: Final = "_xloader_slots"
"""Attribute of a holder."""


class BorrowedSlot:
    """A slot of another process.

    Parameters
    ----------
    memory : SharedMemory
        The slot.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._header, self._batch = parts_of(memory)
        # An array that the user keeps keeps this, too: it must belong to this slot alone.
        self._returned: deque[Lease] = deque()
        self._header[KNOWN] = 1

    @property
    def is_over(self) -> bool:
        """Whether the lender has given it up. An array may still be under way."""
        return bool(self._header[GIVEN_UP]) and not self._header[FIRST_LOAN:].any()

    def borrow(self, loan: Loan) -> Buffer:
        """The memory of a loan."""
        array = self._batch[loan.offset : loan.offset + loan.nbytes]
        return leased(array, self._returned, self._header[loan.number : loan.number + 1])

    def give_back(self) -> None:
        """Clear the loans whose arrays were dropped."""
        while self._returned:
            # Another thread may take the last one.
            with contextlib.suppress(IndexError):
                self._returned.popleft().buffer[0] = 0


class BorrowedSlots(dict[bytes, BorrowedSlot]):
    """The slots of one holder, by their keys."""

    def add(self, loan: Loan) -> None:
        """Add the slot of a loan, and drop those that are over."""
        assert loan.memory is not None
        self[loan.key] = BorrowedSlot(loan.memory)
        for key, slot in list(self.items()):
            if slot.is_over:
                del self[key]


class Borrower:
    """Finds the arrays that other processes lend to this one.

    There is no lock. A garbage collection in the middle may end a ``DataLoader``, and wait for its
    thread that pins batches, which may be here too. The arrays of one holder come on one thread.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._known: list[weakref.ref[BorrowedSlots]] = []

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the borrower, and no fork of it."""
        return os.getpid() == self._pid

    def borrow(self, loan: Loan, holder: object | None = None) -> Buffer:
        """The memory of a loan, as an array of bytes. The loan ends when the array is dropped.

        Parameters
        ----------
        loan : Loan
            The loan.
        holder : object, optional
            The slot is kept as long as this object. Without one, the array is a copy.

        Raises
        ------
        WorkersError
            If the lender has ended before this process had the slot.
        """
        self.give_back()
        slot = self._find(loan)
        if slot is None and loan.memory is not None and holder is not None:
            self._slots_of(holder).add(loan)
            slot = self._find(loan)
        return _copied(loan) if slot is None else slot.borrow(loan)

    def give_back(self) -> None:
        """Note in the slots which arrays were dropped, so that they can be used again."""
        for slots in self._all():
            for slot in list(slots.values()):
                slot.give_back()

    def _find(self, loan: Loan) -> BorrowedSlot | None:
        found = [slots.get(loan.key) for slots in self._all()]
        return next((slot for slot in found if slot is not None), None)

    def _all(self) -> list[BorrowedSlots]:
        # In a copy, as another thread may add one meanwhile.
        found = [ref() for ref in list(self._known)]
        return [one for one in found if one is not None]

    def _slots_of(self, holder: object) -> BorrowedSlots:
        slots: BorrowedSlots | None = vars(holder).get(_SLOTS)
        if slots is None:
            # A weak reference without a callback: Ctrl-C in one would be lost.
            slots = vars(holder)[_SLOTS] = BorrowedSlots()
            self._known.append(weakref.ref(slots))
            for ref in list(self._known):
                if ref() is None:
                    with contextlib.suppress(ValueError):
                        self._known.remove(ref)
        return slots


def _copied(loan: Loan) -> Buffer:
    """A copy of an array whose slot is not kept."""
    memory = loan.memory or SharedMemory.of_process(loan.lender, loan.file)
    header, batch = parts_of(memory)
    if header[:KEY_NBYTES].tobytes() != loan.key:
        raise WorkersError(
            "an array that a worker of a DataLoader has sent is not there any more",
            given=f"an array of process {loan.lender}, received in process {os.getpid()}",
            remedy="send a copy from the worker: tensor.clone()",
        )
    copy = batch[loan.offset : loan.offset + loan.nbytes].copy()
    header[loan.number] = 0
    return copy
