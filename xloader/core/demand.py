"""The parts of one variable that the fields of a sample need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from xloader.core.axis import Axis

Access = tuple[tuple[int, int, int] | None, ...]
"""Elements of a window that a field takes: per windowed dimension, ``(first, step, count)`` in
elements from the window's start, or None where the variable lacks the dimension."""


@dataclass(frozen=True)
class Demand:
    """The parts of one variable that the fields of a sample need."""

    variable: str
    axes: tuple[Axis | None, ...]
    whole_axes: tuple[Axis, ...]
    itemsize: int
    accesses: frozenset[Access]
    index_nbytes: int = 0
    thinning: int = 1
    is_computed: bool = False

    @property
    def num_chunks_per_block(self) -> int:
        """Number of chunks of this variable in one block of its group."""
        return math.prod(axis.num_blocks for axis in self.whole_axes)

    @property
    def num_reads_per_block(self) -> int:
        """As `num_chunks_per_block`, but 0 for a variable that is computed."""
        return 0 if self.is_computed else self.num_chunks_per_block

    @property
    def unit_nbytes(self) -> int:
        """Selected bytes at one element of the windowed dimensions, over all other dimensions."""
        return self.itemsize * math.prod(axis.size for axis in self.whole_axes)

    @property
    def unit_read_nbytes(self) -> int:
        """As `unit_nbytes`, but read: along the other dimensions, chunks count in full.

        It is 0 for a variable that is computed.
        """
        if self.is_computed:
            return 0
        sizes = math.prod(axis.total_read_size for axis in self.whole_axes)
        return self.itemsize * self.thinning * sizes

    @property
    def selected_nbytes(self) -> int:
        """Bytes of the selected part of the variable."""
        return self.unit_nbytes * math.prod(a.size for a in self.axes if a is not None)

    @cached_property
    def max_chunk_nbytes(self) -> int:
        """Decoded bytes of the variable's largest chunk, not cut down to the selection."""
        axes = [*self.whole_axes, *(axis for axis in self.axes if axis is not None)]
        sizes = math.prod(axis.max_read_size for axis in axes)
        return self.itemsize * self.thinning * sizes
