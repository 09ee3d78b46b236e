"""Batches that one process lends to another: both have them in shared memory, and none is copied.

PyTorch copies every tensor of a worker into new shared memory. Tensors that lie in a slot are lent
instead, and a few numbers are sent for each. All others are sent as PyTorch does it.

::

    slot | key | known? | given up? | loans | the arrays of a batch
         0     8        9           10      256

The lender gathers a batch into a slot and sends, for each array, where it lies: a *loan*. When the
borrower has dropped the array, it clears the byte of the loan. A slot is free when the lender has
dropped its batch too. No process waits for the other: where no slot is free, the lender uses
memory of its own and sends a copy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from xloader.compiled.library import address_of
from xloader.engine.buffers import (
    ArrayKind,
    BatchMemory,
    BatchPool,
    Buffer,
    Lease,
    MakeMemory,
    leased,
)
from xloader.engine.shared_slots import SharedMemory
from xloader.engine.slot_layout import ALIGNMENT, SlotLayout
from xloader.errors import WorkersError
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.sources.stores.per_process import PerProcess

HEADER_NBYTES: Final = ALIGNMENT
KEY_NBYTES: Final = 8

KNOWN: Final = 8
"""Byte that is 1 when the borrower has the slot, so that it need not be sent again."""

GIVEN_UP: Final = 9
"""Byte that is 1 when the lender will not use the slot any more."""

FIRST_LOAN: Final = 10
"""Byte of the first loan: 1 until the array of the loan is dropped."""


class Loan(NamedTuple):
    """Where the borrower finds an array.

    Parameters
    ----------
    key : bytes
        Names the slot.
    lender : int
        Id of the process that the slot belongs to.
    file : int
        The slot's file descriptor there.
    memory : SharedMemory or None
        The slot. None if the borrower has it.
    number : int
        Byte of the header that is to be cleared when the array is dropped.
    offset, nbytes : int
        Where the array begins in the slot, and how many bytes it takes.
    """

    key: bytes
    lender: int
    file: int
    memory: SharedMemory | None
    number: int
    offset: int
    nbytes: int


def parts_of(memory: SharedMemory) -> tuple[Buffer, Buffer]:
    """The header of a slot, and the room for its batch.

    Parameters
    ----------
    memory : SharedMemory
        The slot.
    """
    return memory.buffer[:HEADER_NBYTES], memory.buffer[HEADER_NBYTES:]


class LentSlot:
    """A slot, in the process that gathers batches into it.

    Parameters
    ----------
    nbytes : int
        Bytes of a batch.

    Raises
    ------
    WorkersError
        If there is not so much memory.
    """

    def __init__(self, nbytes: int) -> None:
        self.key = os.urandom(KEY_NBYTES)
        self._memory = SharedMemory(HEADER_NBYTES + nbytes)
        self._header, self._batch = parts_of(self._memory)
        self._header[:KEY_NBYTES] = np.frombuffer(self.key, np.uint8)
        self._returned: deque[Lease] = deque()
        # Free at once: nothing refers to the array.
        leased(self._batch, self._returned)
        weakref.finalize(self, _give_up, self._header, self._memory).atexit = False

    def take(self) -> Buffer | None:
        """The memory of the slot if it is free; else None."""
        if not self._returned or self._header[FIRST_LOAN:].any():
            return None
        self._returned.clear()
        return leased(self._batch, self._returned)

    def lend(self, address: int, nbytes: int) -> Loan | None:
        """Lend memory of the slot. The lender must still have an array there.

        Parameters
        ----------
        address, nbytes : int
            The memory.

        Returns
        -------
        Loan or None
            None if the memory lies elsewhere, or the slot has as many loans as it can have.
        """
        offset = address - address_of(self._batch)
        if offset < 0 or offset + nbytes > self._batch.nbytes:
            return None
        free = np.flatnonzero(self._header[FIRST_LOAN:] == 0)
        if not len(free):
            return None
        number = FIRST_LOAN + int(free[0])
        self._header[number] = 1
        memory = None if self._header[KNOWN] else self._memory
        return Loan(self.key, os.getpid(), self._memory.file, memory, number, offset, nbytes)


def _give_up(header: Buffer, memory: SharedMemory) -> None:
    header[GIVEN_UP] = 1
    memory.close()


class Lender:
    """Finds the slot that an array of this process lies in."""

    def __init__(self) -> None:
        self._slots: weakref.WeakValueDictionary[bytes, LentSlot] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def add(self, slot: LentSlot) -> None:
        """Add a slot. It is forgotten when nothing else refers to it."""
        self._slots[slot.key] = slot

    def lend(self, array: NDArray[Any]) -> Loan | None:
        """Lend an array to the process that it is sent to.

        Parameters
        ----------
        array : numpy.ndarray
            The array, with any strides that are not negative.

        Returns
        -------
        Loan or None
            None if the array lies in no slot: a copy must be sent.
        """
        if not array.size:
            return None
        begin, end = byte_bounds(array)
        # Two threads may send at the same time. Slots may be added meanwhile.
        with self._lock:
            for ref in self._slots.valuerefs():
                slot = ref()
                loan = None if slot is None else slot.lend(begin, end - begin)
                if loan is not None:
                    return loan
        return None


class LentBatches(BatchMemory):
    """Memory of batches that are lent: a few slots, each made when it is first needed.

    `take` never waits. Where all slots are in use, because the borrower keeps batches, or there is
    no memory for another slot, it gives ordinary memory.

    Parameters
    ----------
    kinds : sequence of ArrayKind
        The arrays of a batch.
    num_batches : int
        Of how many batches ordinary memory is kept for the next ones, as in `BatchPool`.
    lender : Lender
        Lends the slots.
    num_slots : int
        Most slots.
    """

    def __init__(
        self, kinds: Sequence[ArrayKind], num_batches: int, *, lender: Lender, num_slots: int
    ) -> None:
        self._layout = SlotLayout.of(kinds)
        self._num_batches = num_batches
        self._lender = lender
        self._most = num_slots
        self._slots: list[LentSlot] = []
        self._ordinary: BatchPool | None = None

    def has_room(self) -> bool:
        """Always true: nothing waits for a slot."""
        return True

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """Uninitialised arrays of a batch, in a slot if one is free."""
        batch = self._take_slot()
        if batch is not None:
            # Ordinary memory would come on top of the slots.
            self._ordinary = None
            return self._layout.arrays(batch)
        if self._ordinary is None:
            self._ordinary = BatchPool(kinds, self._num_batches)
        return self._ordinary.take(kinds)

    def nbytes_of(self, num_batches: int) -> int:
        """The memory of so many batches."""
        return num_batches * self._layout.nbytes

    def _take_slot(self) -> Buffer | None:
        for slot in self._slots:
            batch = slot.take()
            if batch is not None:
                return batch
        if len(self._slots) == self._most:
            return None
        try:
            slot = LentSlot(self._layout.nbytes)
        except WorkersError:
            self._most = len(self._slots)
            return None
        self._slots.append(slot)
        self._lender.add(slot)
        return slot.take()


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
        self._known: list[weakref.ref[BorrowedSlots]] = []

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


MORE_SLOTS: Final = 1
"""Slots of a worker beside the batches of its plan: for a moment, a loop has both the batch before
and the next one. Without that slot, PyTorch would copy one batch in ten, which takes twice the
memory of a slot."""

_lender = PerProcess(Lender, "memory to lend", is_remade=True)
_borrower = PerProcess(Borrower, "memory that is lent", is_remade=True)
"""A fork has copied the slots of its parent, and begins with none."""


def memory_to_lend(rank_plan: RankPlan) -> MakeMemory | None:
    """The maker of the memory for batches of a worker, from which they are sent without a copy.

    It has `MORE_SLOTS` slots more than the plan counts batches of a worker.
    """
    if get_worker_info() is None:
        return None
    ForkingPickler.register(torch.Tensor, _reduce)
    budget, workers = rank_plan.plan.budget, rank_plan.plan.workers
    num_slots = min(budget.num_batches + MORE_SLOTS, -(-rank_plan.num_steps // workers))
    return partial(LentBatches, lender=_lender.get(), num_slots=max(num_slots, 1))


def _reduce(tensor: torch.Tensor) -> Any:
    # PyTorch's way for all that is more than an array.
    with contextlib.suppress(TypeError, RuntimeError):
        is_bfloat16 = tensor.dtype == torch.bfloat16
        array: NDArray[Any] = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
        loan = _lender.get().lend(array)
        if loan is not None:
            return _rebuild, (loan, array.shape, array.strides, array.dtype, tensor.dtype)
    return _rebuild_copy, reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def _rebuild(
    loan: Loan,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype,
    torch_dtype: torch.dtype,
) -> torch.Tensor:
    # A DataLoader drops the queue of its workers when they have ended.
    caller = sys._getframe(1)
    is_queue = caller.f_globals.get("__name__") == "multiprocessing.queues"
    queue = caller.f_locals.get("self") if is_queue else None
    array = np.ndarray(shape, dtype, _borrower.get().borrow(loan, queue), 0, strides)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == torch_dtype else tensor.view(torch_dtype)


def _rebuild_copy(rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    # Where the user keeps many batches, only copies come until slots are given back.
    _borrower.get().give_back()
    return rebuild(*args)
