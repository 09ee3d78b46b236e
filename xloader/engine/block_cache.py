"""A cache of decoded blocks, from which the least recently used ones are dropped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint
from xloader.engine.block_reader import BlockReader
from xloader.engine.block_table import BlockTable, LoadedBlock
from xloader.engine.buffers import BlockPool
from xloader.engine.group_needs import Begin
from xloader.planning.cache_budget import BlockNumbers, Recent


class BlockCache:
    """The decoded values of the blocks that `Recent` lists. It is not thread-safe.

    Parameters
    ----------
    footprint : Footprint
        The groups of variables that samples need.
    keys : BlockNumbers
        Numbers the blocks of all groups.
    reader : BlockReader
        Gives the shapes of the blocks. The caller reads them.
    capacity_nbytes : int
        The most decoded bytes that are held.

    Attributes
    ----------
    recent : Recent
        The blocks in order of their last use. After `Recent.touch`, first `drop` the dropped
        blocks, then `add` the missing ones.
    block_table : BlockTable
        The blocks by slot.
    """

    def __init__(
        self, footprint: Footprint, keys: BlockNumbers, reader: BlockReader, capacity_nbytes: int
    ) -> None:
        self._groups = footprint.groups
        self._keys = keys
        self._reader = reader
        self._pool = BlockPool(capacity_nbytes)
        self._blocks: dict[int, LoadedBlock] = {}
        self.recent = Recent(capacity_nbytes)
        # Blocks are found by key here, so the table's arrays of residences need only one element.
        self.block_table = BlockTable(self._groups, [1] * len(self._groups))

    @property
    def peak_nbytes(self) -> int:
        """The most decoded bytes held at any time."""
        return self._pool.peak_nbytes

    def add(self, keys: Iterable[int]) -> list[list[LoadedBlock]]:
        """Make blocks with memory, whose values are not read yet.

        Parameters
        ----------
        keys : iterable of int
            Keys of blocks that are not in the cache.

        Returns
        -------
        list of (list of LoadedBlock)
            The new blocks of each group.
        """
        line = np.sort(np.fromiter(keys, np.int64))
        edges = np.searchsorted(line, self._keys.bases).tolist()
        return [
            self._add(number, line[lo:hi])
            for number, (lo, hi) in enumerate(itertools.pairwise(edges))
        ]

    def _add(self, number: int, keys: Ints) -> list[LoadedBlock]:
        group = self._groups[number]
        numbers = keys - self._keys.bases[number]
        indices = zip(*(i.tolist() for i in np.unravel_index(numbers, group.shape)), strict=True)
        added = []
        for key, index, nbytes in zip(
            keys.tolist(), indices, group.read_nbytes(numbers).tolist(), strict=True
        ):
            begin = Begin(number, 0, index, nbytes, num_samples=1, row=0)
            block = self._blocks[key] = self.block_table.put(begin, is_row=False)
            layout = self._reader.layout(group, index)
            block.buffer = self._pool.take(layout.nbytes)
            block.places = layout.slots(block.buffer)
            block.num_reads_left = group.num_chunks_per_block
            added.append(block)
        return added

    def slots_of(self, keys: Ints) -> Ints:
        """The slot of each block in the table, given the blocks' keys."""
        return np.array([self._blocks[key].slot for key in keys.tolist()], np.int32)

    def drop(self, key: int) -> None:
        """Drop the block with a key, and return its memory to the pool."""
        block = self._blocks.pop(key)
        self.block_table.take_off(block)
        assert block.buffer is not None
        self._pool.give_back(block.buffer)
        block.places, block.buffer = {}, None

    def mend(self) -> None:
        """Remove all blocks without values, after some could not be read.

        No thread may be reading any more.
        """
        for key, block in list(self._blocks.items()):
            if not block.is_loaded or key not in self.recent:
                self.drop(key)
        for key in [key for key in self.recent if key not in self._blocks]:
            self.recent.forget(key)
