"""Blocks in memory or on their way, by slot: one by one, and as arrays for many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Group
from xloader.engine.block_reader import BlockSlot
from xloader.engine.buffers import Buffer
from xloader.engine.steps import Begin


@dataclass(eq=False)
class LoadedBlock:
    """A residence under way: where its values are, and what is still to be read.

    Parameters
    ----------
    begin : Begin
    slot : int
    buffer : Buffer, optional
        Its memory in the pool.
    places : mapping of str to BlockSlot
        Per variable, where it is decoded to.
    num_reads_left : int
        Chunks to come; -1 where they are not known yet.
    error : BaseException, optional
        Why it has no values.
    is_row : bool
        Whether it is decoded straight into the only row that needs it.
    waiting : list
        What can be gathered once it is loaded.
    is_over : bool
        Whether no row needs it any more: so it is for a lane that shares samples of an entry
        with another one, whose blocks it loads as well.
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
        """Whether its rows can be gathered."""
        return self.num_reads_left == 0


class BlockTable:
    """The blocks of a run, by residence and by slot.

    Not safe for threads by itself: whoever changes it holds a lock. What belongs to a loaded
    block does not change until it is taken off, and is read without one.

    Parameters
    ----------
    groups : sequence of Group
    num_residences : sequence of int
        Per group.

    Attributes
    ----------
    blocks : list of (LoadedBlock or None)
        Per slot.
    is_loaded : numpy.ndarray of bool, shape (num_slots,)
    addresses : numpy.ndarray of int64, shape (num_slots, num_columns)
        Per slot and variable of its group, where its values lie.
    """

    def __init__(self, groups: Sequence[Group], num_residences: Sequence[int]) -> None:
        self._groups = groups
        self._slots = [np.full(size, -1, np.int32) for size in num_residences]
        self._free: list[int] = []
        self._num_columns = max((len(group.demands) for group in groups), default=1)
        self.blocks: list[LoadedBlock | None] = []
        self.is_loaded = np.zeros(0, np.bool_)
        self.addresses = np.zeros((0, self._num_columns), np.int64)
        self.num_failed = 0

    def slots_of(self, group: int, residences: Ints) -> Ints:
        """The slot of each residence; -1 for one that is not there."""
        return self._slots[group][residences]

    def known(self) -> list[NDArray[np.bool_]]:
        """Per group and residence, whether it is there."""
        return [slots >= 0 for slots in self._slots]

    def put(self, begin: Begin, is_row: bool) -> LoadedBlock:
        """Make a block, which is not loaded."""
        if not self._free:
            self._grow()
        block = LoadedBlock(begin, self._free.pop(), is_row)
        self.blocks[block.slot] = block
        self._slots[begin.group][begin.residence] = block.slot
        return block

    def set_loaded(self, block: LoadedBlock) -> None:
        """Let a block's rows be gathered."""
        for column, demand in enumerate(self._groups[block.begin.group].demands):
            joint, number = block.places[demand.variable]
            address = joint.__array_interface__["data"][0] + number * joint.strides[0]
            self.addresses[block.slot, column] = address
        self.is_loaded[block.slot] = True
        self.num_failed += block.error is not None

    def find(self, group: int, residence: int) -> LoadedBlock | None:
        """The block of a residence, where it is there."""
        slot = self._slots[group][residence]
        return None if slot < 0 else self.blocks[slot]

    def take_off(self, block: LoadedBlock) -> None:
        """Forget a block."""
        self.num_failed -= self.is_loaded[block.slot] and block.error is not None
        self.is_loaded[block.slot] = False
        self.blocks[block.slot] = None
        self._slots[block.begin.group][block.begin.residence] = -1
        self._free.append(block.slot)

    def there(self) -> list[LoadedBlock]:
        """All blocks."""
        return [block for block in self.blocks if block is not None]

    def loaded(self) -> set[tuple[int, int]]:
        """The loaded blocks, by group and residence. A run may add to them meanwhile."""
        begins = [b.begin for b in list(self.blocks) if b is not None and b.is_loaded]
        return {(begin.group, begin.residence) for begin in begins}

    def _grow(self) -> None:
        size = len(self.blocks)
        more = max(64, size)
        self.blocks.extend([None] * more)
        self.is_loaded = np.concatenate([self.is_loaded, np.zeros(more, np.bool_)])
        columns = np.zeros((more, self._num_columns), np.int64)
        self.addresses = np.concatenate([self.addresses, columns])
        self._free.extend(range(size + more - 1, size - 1, -1))
