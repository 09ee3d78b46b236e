"""Batches in shared memory: each process gathers its rows of a batch into one and the same slot.

::

    slot    | rows of process 0 | rows of process 1 | ... |  the gathered fields
            | ids, occurrences, replaced rows       |        of the same rows
            | counts and errors of process 0 | ...           how many rows are there
            | extra                                  what transforms and collate_fn return

A slot goes round: free, granted to all processes for one step, filled, finished by one of them,
delivered, and free again when the user has dropped the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.engine.buffers import ArrayKind, Buffer, Fields
from xloader.engine.slot_layout import SlotLayout
from xloader.recipe.layout import FieldLayout

NOTE_NBYTES: Final = 4096
"""Room for the pickled error of each process."""


class Slot(NamedTuple):
    """The arrays of one slot.

    Parameters
    ----------
    counts : numpy.ndarray of int64, shape (num_processes, 3)
        Of each process, its rows, whether occurrences count, and the bytes of its note.
    notes : numpy.ndarray of uint8, shape (num_processes, NOTE_NBYTES)
        Of each process, its first error with rows that could not be read, pickled.
    ids, occurrences : numpy.ndarray of int64, shape (num_rows,)
        The sample of each row, and which time in the epoch it occurs.
    is_replaced : numpy.ndarray of bool, shape (num_rows,)
        Whether a row stands in for one that could not be read.
    extra : numpy.ndarray of uint8
        Room for what lies nowhere else.
    gathered : list of numpy.ndarray
        The gathered fields, as `Fields` stacks them.
    """

    counts: Ints
    notes: NDArray[np.uint8]
    ids: Ints
    occurrences: Ints
    is_replaced: NDArray[np.bool_]
    extra: Buffer
    gathered: list[NDArray[Any]]


class BatchSlots:
    """The slots of a block of memory.

    Parameters
    ----------
    kinds : sequence of ArrayKind
        The gathered arrays of a batch, as `Fields` stacks them.
    num_rows : int
        Rows of a batch.
    num_processes : int
        Number of processes that fill it.
    extra_nbytes : int
        Bytes of the extra room.
    """

    def __init__(
        self, kinds: Sequence[ArrayKind], num_rows: int, num_processes: int, extra_nbytes: int
    ) -> None:
        whole = np.dtype(np.int64)
        self._layout = SlotLayout.of(
            [
                ArrayKind((num_processes, 3), whole),
                ArrayKind((num_processes, NOTE_NBYTES), np.dtype(np.uint8)),
                ArrayKind((num_rows,), whole),
                ArrayKind((num_rows,), whole),
                ArrayKind((num_rows,), np.dtype(np.bool_)),
                ArrayKind((extra_nbytes,), np.dtype(np.uint8)),
                *kinds,
            ]
        )

    @classmethod
    def of(
        cls,
        layouts: Sequence[FieldLayout],
        num_rows: int,
        num_processes: int,
        extra_nbytes: int,
    ) -> BatchSlots:
        """The slots for batches of some fields.

        Parameters
        ----------
        layouts : sequence of FieldLayout
            The layout of each field.
        num_rows, num_processes, extra_nbytes : int
            As for the class.
        """
        fields = Fields(layouts, num_rows, 1)
        return cls(fields.kinds, num_rows, num_processes, extra_nbytes)

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot."""
        return self._layout.nbytes

    def slot(self, buffer: Buffer) -> Slot:
        """The arrays of a slot.

        Parameters
        ----------
        buffer : numpy.ndarray
            The memory of the slot.
        """
        arrays = self._layout.arrays(buffer)
        counts, notes, ids, occurrences, is_replaced, extra = arrays[:6]
        return Slot(counts, notes, ids, occurrences, is_replaced, extra, arrays[6:])


class GrantedRows:
    """The rows of one process in the slots that it was granted, as the memory of its batches.

    Parameters
    ----------
    slots : list of Slot
        All slots.
    rows : slice
        The rows of the process.
    """

    def __init__(self, slots: list[Slot], rows: slice) -> None:
        self._slots = slots
        self._rows = rows
        self._granted: deque[int] | None = None

    def begin(self, granted: deque[int] | None) -> None:
        """Begin a run, or end it.

        Parameters
        ----------
        granted : deque of int or None
            Gets the numbers of slots, in the order of the batches. None ends a run: arrays taken
            from then on are only to be looked at.
        """
        self._granted = granted

    def has_room(self) -> bool:
        """Whether a slot is granted for the next batch. If not, one will be."""
        return bool(self._granted)

    def take(self, kinds: Sequence[ArrayKind]) -> list[NDArray[Any]]:
        """The rows in the next granted slot."""
        slot = self._slots[self._granted.popleft() if self._granted else 0]
        return [stacked[:, self._rows] for stacked in slot.gathered]

    def nbytes_of(self, num_batches: int) -> int:
        """None: the process that takes the batches counts the slots."""
        return 0
