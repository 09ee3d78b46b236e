"""How the decoded values of a block lie in memory.

Most blocks keep the order of their dimensions. Where samples are long and thin across it, as time
series of single pixels are, the long dimension comes last in memory::

    (time, lat, lon), 24 x 1 x 1      24 numbers, each in a cache line of its own
    (lat, lon, time) in memory        24 numbers side by side, in two or three cache lines
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.core.packing import Packing

_SHORT_NBYTES: Final = 16
"""Bytes that lie side by side in a sample up to which another order is worth its while: a quarter
of a cache line."""

_MANY_TIMES: Final = 8
"""How many times as long as such a stretch a sample must be along the dimension that comes last in
memory. Decoding into another order takes longer."""


def memory_order(
    counts: Sequence[int], sizes: Sequence[int], itemsize: int, num_samples: int
) -> tuple[int, ...]:
    """The order of a variable's dimensions in decoded blocks, the outermost first.

    Parameters
    ----------
    counts : sequence of int
        Elements that a sample takes along each dimension, divided by the step between them.
    sizes : sequence of int
        Elements of the variable along each dimension.
    itemsize : int
        Bytes of an element.
    num_samples : int
        Samples of an epoch.

    Examples
    --------
    Time series of single pixels, and patches of one time step:

    >>> memory_order((24, 1, 1), (1440, 180, 360), 4, num_samples=60 * 180 * 360)
    (1, 2, 0)
    >>> memory_order((1, 60, 60), (1440, 180, 360), 4, num_samples=1440 * 18)
    (0, 1, 2)
    """
    as_stored = tuple(range(len(counts)))
    stretch = 1
    for count, size in zip(reversed(counts), reversed(sizes), strict=True):
        stretch *= count
        if count < size:
            break
    is_short = stretch * itemsize <= _SHORT_NBYTES
    is_thin = max(counts, default=0) >= _MANY_TIMES * stretch
    # Whole chunks are put in order, so samples must take most of what is selected.
    is_dense = 2 * num_samples * math.prod(counts) >= math.prod(sizes)
    if not (is_short and is_thin and is_dense):
        return as_stored
    longest = max(as_stored, key=lambda dim: (counts[dim], dim))
    return (*as_stored[:longest], *as_stored[longest + 1 :], longest)


@dataclass(frozen=True)
class Stored:
    """How a variable is stored, as selected.

    Parameters
    ----------
    axes : tuple of Axis
        The axis of each dimension.
    windowed : tuple of (int or None)
        Per dimension, its index among the windowed dimensions; None if it has no windows.
    dtype : numpy.dtype
        The dtype of a decoded block. For a packed variable, that of the packed values.
    packing : Packing or None
        How the values are packed; None if they are not.
    order : tuple of int
        The order of the dimensions in decoded blocks; see `memory_order`.
    """

    axes: tuple[Axis, ...]
    windowed: tuple[int | None, ...]
    dtype: np.dtype
    packing: Packing | None
    order: tuple[int, ...]

    @cached_property
    def kind(self) -> Hashable:
        """A key: equal for variables whose parts of a block have one shape, dtype and order."""
        sizes = [
            (axis.size, None) if dim is None else (None, dim)
            for axis, dim in zip(self.axes, self.windowed, strict=True)
        ]
        return self.dtype.str, tuple(sizes), self.order


class BlockSlot(NamedTuple):
    """The place of a variable's part of a block, in an array with other parts of the same shape.

    Parameters
    ----------
    joint : numpy.ndarray
        Parts of one shape, stacked on axis 0. The other axes are the dimensions as stored,
        whatever their order in memory.
    number : int
        Index of the variable's part on axis 0.
    """

    joint: NDArray[Any]
    number: int

    @property
    def values(self) -> NDArray[Any]:
        """The variable's part, as a view."""
        return self.part((...,))

    def part(self, index: tuple[Any, ...]) -> NDArray[Any]:
        """Some of the variable's part, by its index in it, as a view."""
        part: NDArray[Any] = self.joint[(self.number, *index)]
        return part


class _SlotStack(NamedTuple):
    """Parts of one shape and dtype that lie side by side: where and how, and which they are."""

    begin: int
    end: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    names: list[str]


@dataclass(frozen=True)
class BlockLayout:
    """The places of several variables in the memory of one block.

    Parameters
    ----------
    nbytes : int
        Size of the memory in bytes.
    stacks : tuple
        The parts of variables that lie side by side.
    """

    nbytes: int
    stacks: tuple[_SlotStack, ...]

    def slots(self, buffer: NDArray[np.uint8]) -> dict[str, BlockSlot]:
        """The place of each variable.

        Parameters
        ----------
        buffer : numpy.ndarray of uint8, shape (nbytes,)
            The memory.
        """
        slots = {}
        for begin, end, dtype, shape, strides, names in self.stacks:
            joint: NDArray[Any] = np.ndarray(shape, dtype, buffer[begin:end], strides=strides)
            for number, name in enumerate(names):
                slots[name] = BlockSlot(joint, number)
        return slots


def block_layout(stored: Mapping[str, Stored], sizes: tuple[int, ...]) -> BlockLayout:
    """Lay out the parts of variables in blocks of one size.

    Parameters
    ----------
    stored : mapping of str to Stored
        How each variable is stored.
    sizes : tuple of int
        Elements of the block along each windowed dimension.
    """
    kinds: dict[Hashable, list[str]] = {}
    for name, own in stored.items():
        kinds.setdefault(own.kind, []).append(name)
    stacks, begin = [], 0
    # The widest dtypes come first, so that every array begins at a multiple of its itemsize.
    for names in sorted(kinds.values(), key=lambda own: -stored[own[0]].dtype.itemsize):
        first = stored[names[0]]
        part = tuple(
            axis.size if dim is None else sizes[dim]
            for axis, dim in zip(first.axes, first.windowed, strict=True)
        )
        shape, strides, step = (len(names), *part), [0] * (1 + len(part)), first.dtype.itemsize
        for axis in (*(1 + dim for dim in reversed(first.order)), 0):
            strides[axis] = step
            step *= shape[axis]
        end = begin + step
        stacks.append(_SlotStack(begin, end, first.dtype, shape, tuple(strides), names))
        begin = end
    return BlockLayout(begin, tuple(stacks))
