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

    Parameters
    ----------
    axis : Axis, optional
        The axis whose blocks make up the tiles; None if no variable has the dimension.
    num_blocks : int
        Number of its blocks in a tile; 0 for all.
    edges : numpy.ndarray of int64, shape (num_tiles + 1,)
        First element of each tile, then the size of the dimension.
    ends : {"stop", "wrap", "pad"}
        What windows do at the ends of the dimension.

    Examples
    --------
    >>> tiles = Tiles(Axis(10, 4, range(10)), 1, np.array([0, 4, 8, 10]), "wrap")
    >>> tiles.of(np.array([7, 8, 10, 15])).tolist()
    [1, 2, 3, 4]
    >>> lo, hi = tiles.fold(np.array([[1, 2]]), np.array([[2, 3]]))
    >>> lo.tolist(), hi.tolist()
    ([[1, 2], [1, 0]], [[2, 2], [2, 0]])
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

        Parameters
        ----------
        lo, hi : numpy.ndarray of int64, shape (num_ranges, n)
            The first and the last tile of each range.

        Returns
        -------
        lo, hi : numpy.ndarray of int64, shape (num_ranges, n) or (2 * num_ranges, n)
            The same. The second range of one that does not pass the end equals its first one.
        """
        if self.ends != "wrap":
            return lo, hi
        last = len(self) - 1
        is_split = (lo <= last) & (hi > last)
        once = lo % len(self), np.where(is_split, last, hi % len(self))
        again = np.where(is_split, 0, once[0]), hi % len(self)
        return np.concatenate([once[0], again[0]]), np.concatenate([once[1], again[1]])
