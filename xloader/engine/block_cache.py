"""Decoded blocks in memory, the least recently used of which go."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint
from xloader.engine.block_reader import BlockReader
from xloader.engine.block_table import BlockTable, LoadedBlock
from xloader.engine.buffers import BlockPool
from xloader.engine.steps import Begin
from xloader.planning.lru_simulation import BlockNumbers, Recent


class BlockCache:
    """What `Recent` says is there, with its values. Not safe for threads by itself.

    Parameters
    ----------
    footprint : Footprint
    keys : BlockNumbers
    reader : BlockReader
    capacity_nbytes : int
        Decoded bytes that are held at most.

    Attributes
    ----------
    recent : Recent
        Who touches it drops here what has to go, and then adds what is missing.
    block_table : BlockTable
        Where the blocks are.
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
        # Blocks are found by key: what the shelf would know of residences need have no room.
        self.block_table = BlockTable(self._groups, [1] * len(self._groups))

    @property
    def peak_nbytes(self) -> int:
        """The most decoded bytes that were held at a time."""
        return self._pool.peak_nbytes

    def add(self, keys: Iterable[int]) -> list[list[LoadedBlock]]:
        """Make room for blocks that are missing. Per group, they have memory and no values yet."""
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
            shapes = self._reader.shapes(group, index)
            block.buffer = self._pool.take(self._reader.nbytes(shapes))
            block.places = self._reader.values(shapes, block.buffer)
            block.num_reads_left = group.num_reads_per_block
            added.append(block)
        return added

    def slots_of(self, keys: Ints) -> Ints:
        """The slot of each block."""
        return np.array([self._blocks[key].slot for key in keys.tolist()], np.int64)

    def drop(self, key: int) -> None:
        """Give the memory of a block back."""
        block = self._blocks.pop(key)
        self.block_table.take_off(block)
        assert block.buffer is not None
        self._pool.give_back(block.buffer)
        block.places, block.buffer = {}, None

    def mend(self) -> None:
        """Forget blocks without values, after some could not be read and nobody reads any more."""
        for key, block in list(self._blocks.items()):
            if not block.is_loaded or key not in self.recent:
                self.drop(key)
        for key in [key for key in self.recent if key not in self._blocks]:
            self.recent.forget(key)
