"""The blocks that are in memory or being loaded.

Each has a *slot*, an index into arrays, so that many rows find their blocks at once. A *residence*
is one stay of a block in memory, from its load until it is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.axis import Ints
from xloader.core.footprint import Group
from xloader.engine.block_layout import BlockSlot
from xloader.engine.buffers import Buffer
from xloader.engine.group_needs import Begin


@dataclass(eq=False)
class LoadedBlock:
    """A block that is in memory or being loaded.

    Parameters
    ----------
    begin : Begin
        Which residence it is, and of which block.
    slot : int
        Its slot in the table.
    is_row : bool
        Whether it is decoded straight into the only row that needs it.
    buffer : Buffer, optional
        Its memory in the pool.
    places : mapping of str to BlockSlot
        Per variable, where its values are decoded to.
    num_reads_left : int
        Chunks that are not read yet; -1 until they are listed.
    error : BaseException, optional
        The reason why it has no values.
    waiting : list
        The hits that can be gathered once it is loaded.
    is_over : bool
        Whether no row needs it any more. This may be so before it is loaded. If two lanes share a
        cohort, each loads all blocks of the cohort, also those that only the other's samples need.
    """

    begin: Begin
    slot: int
    is_row: bool = False
    buffer: Buffer | None = None
    places: Mapping[str, BlockSlot] = field(default_factory=dict)
    num_reads_left: int = -1
    error: BaseException | None = None
    waiting: list[Any] = field(default_factory=list)
    is_over: bool = False

    @property
    def is_loaded(self) -> bool:
        """Whether all its chunks have been read, or have failed."""
        return self.num_reads_left == 0


class BlockTable:
    """The blocks of a run, by residence and by slot.

    The table is not thread-safe. Change it only while holding a lock. The entries of a loaded block
    do not change until it is taken off, and may be read without the lock.

    Parameters
    ----------
    groups : sequence of Group
        The groups of variables that samples need.
    num_residences : sequence of int
        Number of residences of each group.

    Attributes
    ----------
    blocks : list of (LoadedBlock or None)
        The block in each slot.
    is_loaded : numpy.ndarray of bool, shape (num_slots,)
        Whether the block in each slot can be gathered from.
    addresses : numpy.ndarray of int64, shape (num_columns, num_slots)
        Per variable of its group and slot, the memory address of the values.
    num_failed : int
        Number of blocks in ``is_loaded`` that have an error.
    """

    def __init__(self, groups: Sequence[Group], num_residences: Sequence[int]) -> None:
        self._groups = groups
        self._slots = [np.full(size, -1, np.int32) for size in num_residences]
        self._free: list[int] = []
        self._num_columns = max((len(group.demands) for group in groups), default=1)
        self.blocks: list[LoadedBlock | None] = []
        self.is_loaded = np.zeros(0, np.bool_)
        self.addresses = np.zeros((self._num_columns, 0), np.int64)
        self.num_failed = 0

    def slots_of(self, group: int, residences: Ints) -> Ints:
        """The slot of each residence; -1 if it is not in the table.

        Parameters
        ----------
        group : int
            Index of the group.
        residences : numpy.ndarray of int64, shape (n,)
            Residences of the group.
        """
        return self._slots[group][residences]

    def known(self) -> list[NDArray[np.bool_]]:
        """Per group, a boolean array: whether each residence is in the table."""
        return [slots >= 0 for slots in self._slots]

    def put(self, begin: Begin, is_row: bool) -> LoadedBlock:
        """Add a block that is not loaded yet.

        Parameters
        ----------
        begin : Begin
            Its residence.
        is_row : bool
            Whether it will be decoded straight into the only row that needs it.
        """
        if not self._free:
            self._grow()
        block = LoadedBlock(begin, self._free.pop(), is_row)
        self.blocks[block.slot] = block
        self._slots[begin.group][begin.residence] = block.slot
        return block

    def set_loaded(self, block: LoadedBlock) -> None:
        """Mark a block as loaded, so that rows can be gathered from it.

        Its ``places`` must be set.
        """
        last, base, addresses = None, 0, []
        for demand in self._groups[block.begin.group].demands:
            joint, number = block.places[demand.variable]
            if joint is not last:
                last, base = joint, address_of(joint)
            addresses.append(base + number * joint.strides[0])
        self.addresses[: len(addresses), block.slot] = addresses
        self.is_loaded[block.slot] = True
        self.num_failed += block.error is not None

    def find(self, group: int, residence: int) -> LoadedBlock | None:
        """The block of a residence; None if it is not in the table.

        Parameters
        ----------
        group, residence : int
            The group, and the residence within it.
        """
        slot = self._slots[group][residence]
        return None if slot < 0 else self.blocks[slot]

    def take_off(self, block: LoadedBlock) -> None:
        """Remove a block from the table."""
        self.num_failed -= self.is_loaded[block.slot] and block.error is not None
        self.is_loaded[block.slot] = False
        self.blocks[block.slot] = None
        self._slots[block.begin.group][block.begin.residence] = -1
        self._free.append(block.slot)

    def there(self) -> list[LoadedBlock]:
        """All blocks in the table."""
        return [block for block in self.blocks if block is not None]

    def loaded(self) -> set[tuple[int, int]]:
        """The blocks whose chunks are all read, as (group, residence).

        A run on another thread may add blocks during the call.
        """
        begins = [b.begin for b in list(self.blocks) if b is not None and b.is_loaded]
        return {(begin.group, begin.residence) for begin in begins}

    def _grow(self) -> None:
        size = len(self.blocks)
        more = max(64, size)
        self.blocks.extend([None] * more)
        self.is_loaded = np.concatenate([self.is_loaded, np.zeros(more, np.bool_)])
        columns = np.zeros((self._num_columns, more), np.int64)
        self.addresses = np.concatenate([self.addresses, columns], axis=1)
        self._free.extend(range(size + more - 1, size - 1, -1))
