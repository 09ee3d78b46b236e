"""Dimensions as windows meet them: plain axes, circles, and axes with padded borders.

A circle closes on itself, as the longitudes of the globe do. Windows of 3 elements at stride 1
along a circle of 6 elements in chunks of 4::

    offset        0  1  2  3 | 4  5 | 6  7  8  9 | 10 11
    element       0  1  2  3 | 4  5 | 0  1  2  3 | 4  5
    block         0          | 1    | 2          | 3       unrolled: two turns, one after the other
    stored as     0          | 1    | 0          | 1
    last windows                4  5  6                    start at 4 and 5, and wrap
                                   5  6  7

Along the unrolled dimension, windows that wrap are windows like all others. Only the number of a
block must be folded back to the block that is stored.

At padded borders, windows reach beyond the first and the last element. What they take from outside
is filled in later, so only the part inside counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from xloader.core.axis import Axis, Ints

Ends = Literal["stop", "wrap", "pad"]
"""At the ends of a dimension, windows stay within it, run on at the other end, or reach out."""


@dataclass(frozen=True)
class Circle:
    """An axis that closes on itself, unrolled to two turns.

    No window is longer than the circle, so two turns hold all windows that start in the first.
    """

    axis: Axis

    @property
    def num_blocks(self) -> int:
        """Number of blocks of both turns."""
        return 2 * self.axis.num_blocks

    @cached_property
    def edges(self) -> Ints:
        """Offset of the first element of every block of both turns, then their size; int64."""
        own = self.axis.edges
        return np.concatenate([own, own[1:] + self.axis.size])

    @property
    def division(self) -> None:
        """None: the blocks of both turns together are no multiples of one size."""
        return None

    @cached_property
    def min_inner_block_size(self) -> int:
        """Number of elements of the shortest block. On a circle, each lies between two others."""
        return int(np.diff(self.axis.edges).min(initial=self.axis.size))

    def block_of(self, offsets: Ints) -> Ints:
        """Find the unrolled block of each offset within the two turns; int64, of the same shape."""
        turn = np.asarray(offsets, np.int64) // self.axis.size
        return self.axis.block_of(offsets - turn * self.axis.size) + turn * self.axis.num_blocks


@dataclass(frozen=True)
class PaddedAxis:
    """An axis with padded borders."""

    axis: Axis

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.axis.num_blocks

    @property
    def edges(self) -> Ints:
        """As `Axis.edges`."""
        return self.axis.edges

    @property
    def division(self) -> None:
        """None: offsets outside are no multiples of anything. They belong to the nearest block."""
        return None

    @property
    def min_inner_block_size(self) -> int:
        """As `Axis.min_inner_block_size`."""
        return self.axis.min_inner_block_size

    def block_of(self, offsets: Ints) -> Ints:
        """Find the block of each offset, and the nearest one for those outside; int64."""
        return self.axis.block_of(np.clip(offsets, 0, self.axis.size - 1))


Line = Axis | Circle | PaddedAxis
"""A windowed dimension as windows meet it."""


def line_of(axis: Axis, end: Ends) -> Line:
    """The line of an axis, given what windows do at its ends."""
    match end:
        case "wrap":
            return Circle(axis)
        case "pad":
            return PaddedAxis(axis)
        case _:
            return axis


def lines_of(axes: Sequence[Axis | None], ends: Sequence[Ends]) -> tuple[Line | None, ...]:
    """The lines of some axes; with empty ``ends``, windows stay within all of them."""
    if not ends:
        return tuple(axes)
    pairs = zip(axes, ends, strict=True)
    return tuple(None if axis is None else line_of(axis, end) for axis, end in pairs)


def fold_blocks(blocks: Ints, lines: tuple[Line | None, ...]) -> Ints:
    """Convert numbers of n-d blocks along lines to numbers of the blocks that are stored.

    `lines`: the line of each dimension; None where there is one block.
    """
    if not any(isinstance(line, Circle) for line in lines):
        return blocks
    unrolled = np.unravel_index(blocks, [1 if line is None else line.num_blocks for line in lines])
    folded = np.zeros(len(blocks), np.int64)
    for line, index in zip(lines, unrolled, strict=True):
        if isinstance(line, Circle):
            folded = folded * line.axis.num_blocks + index % line.axis.num_blocks
        elif line is not None:
            folded = folded * line.num_blocks + index
    return folded
