"""The tiles along one dimension: which one holds an element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.line import Ends


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one dimension.

    Where windows wrap, tiles are counted along two turns of the dimension, one after the other, as
    in `xloader.core.line.Circle`.
    """

    axis: Axis | None
    num_blocks: int
    edges: Ints
    ends: Ends

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, elements: Ints) -> Ints:
        """The tile of each element.

        Elements of a second turn have tiles from ``len(self)`` on. Elements outside padded borders
        have the nearest tile.
        """
        if self.ends != "wrap":
            return self._of_turn(elements)
        turn = elements // self.edges[-1]
        tiles: Ints = self._of_turn(elements - turn * self.edges[-1]) + turn * len(self)
        return tiles

    def _of_turn(self, elements: Ints) -> Ints:
        if self.axis is None or not self.num_blocks:
            return np.zeros(len(elements), np.int64)
        if self.ends == "pad":
            elements = np.clip(elements, 0, self.edges[-1] - 1)
        blocks = self.axis.block_of(elements)
        return blocks if self.num_blocks == 1 else blocks // self.num_blocks

    def homes(self, firsts: Ints) -> Ints:
        """The home tile of windows, given the first element that each one needs."""
        # If the first element itself lies in the second turn, its tile would be before the homes of
        # earlier windows, and homes must ascend.
        is_circle = self.ends == "wrap"
        return self._of_turn(np.minimum(firsts, self.edges[-1] - 1) if is_circle else firsts)

    def fold(self, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
        """Convert ranges of tiles of two turns to ranges of tiles: two for each where windows wrap.

        `lo, hi` have shape (num_ranges, n).
        """
        if self.ends != "wrap":
            return lo, hi
        last = len(self) - 1
        is_split = (lo <= last) & (hi > last)
        once = lo % len(self), np.where(is_split, last, hi % len(self))
        again = np.where(is_split, 0, once[0]), hi % len(self)
        return np.concatenate([once[0], again[0]]), np.concatenate([once[1], again[1]])
