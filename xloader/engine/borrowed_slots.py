"""The arrays that other processes lend to this one, and how they are given back.

The other side is `xloader.engine.lent_slots`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from multiprocessing import process
from typing import Any

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


class BorrowedSlots:
    """The slots that one process lends to this one.

    Attributes
    ----------
    slots : dict of bytes to (numpy.ndarray, numpy.ndarray)
        Header and batch of each slot, by its key.
    """

    def __init__(self) -> None:
        self.slots: dict[bytes, tuple[Buffer, Buffer]] = {}
        self._returned: deque[Lease] = deque()

    def add(self, key: bytes, memory: SharedMemory) -> None:
        """Add a slot, and drop those that the lender has given up."""
        self.slots[key] = parts_of(memory)
        self.slots[key][0][KNOWN] = 1
        for other, (header, _) in list(self.slots.items()):
            # A loan may still be under way.
            if header[GIVEN_UP] and not header[FIRST_LOAN:].any():
                del self.slots[other]

    def borrow(self, loan: Loan) -> Buffer:
        """The memory of a loan."""
        header, batch = self.slots[loan.key]
        array = batch[loan.offset : loan.offset + loan.nbytes]
        return leased(array, self._returned, header[loan.number : loan.number + 1])

    def give_back(self) -> None:
        """Clear the loans whose arrays were dropped."""
        while self._returned:
            self._returned.popleft().buffer[0] = 0


class Borrower:
    """Finds the arrays that other processes lend to this one.

    The slots of a child process are kept as long as the object that stands for the child: a
    ``DataLoader`` has one for each of its workers, and drops it when the worker has ended.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._children: weakref.WeakKeyDictionary[Any, BorrowedSlots] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the borrower, and no fork of it."""
        return os.getpid() == self._pid

    def borrow(self, loan: Loan) -> Buffer:
        """The memory of a loan, as an array of bytes. The loan ends when the array is dropped.

        Parameters
        ----------
        loan : Loan
            The loan.

        Raises
        ------
        WorkersError
            If the lender has ended before this process had the slot.
        """
        # One thread may pin the batches of a loop, while another thread runs another loop.
        with self._lock:
            self._give_back()
            own = [one for one in self._children.values() if loan.key in one.slots]
            found = own[0] if own else self._add(loan)
            array = None if found is None else found.borrow(loan)
        if array is None:
            array = _copied(loan)
        if loan.memory is not None:
            loan.memory.close()
        return array

    def give_back(self) -> None:
        """Note in the slots which arrays were dropped, so that they can be used again."""
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        for one in self._children.values():
            one.give_back()

    def _add(self, loan: Loan) -> BorrowedSlots | None:
        if loan.memory is None:
            return None
        # The public `active_children` also waits for those that have ended, which another thread
        # may do at the same time.
        for child in list(getattr(process, "_children", ())):
            if child.pid == loan.lender:
                slots = self._children.setdefault(child, BorrowedSlots())
                slots.add(loan.key, loan.memory)
                return slots
        return None


def _copied(loan: Loan) -> Buffer:
    """A copy of an array that was lent by a process which is no child of this one.

    Nobody would tell when that process has ended, so its slot is not kept.
    """
    memory = loan.memory or SharedMemory.of_process(loan.lender, loan.file)
    header, batch = parts_of(memory)
    memory.close()
    if header[:KEY_NBYTES].tobytes() != loan.key:
        raise WorkersError(
            "an array that a worker of a DataLoader has sent is not there any more",
            given=f"an array of process {loan.lender}, received in process {os.getpid()}",
            remedy="send a copy from the worker: tensor.clone()",
        )
    copy = batch[loan.offset : loan.offset + loan.nbytes].copy()
    header[loan.number] = 0
    return copy
