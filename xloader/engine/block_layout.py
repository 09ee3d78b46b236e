"""How the decoded values of a block lie in memory."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.core.packing import Packing


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
    """

    axes: tuple[Axis, ...]
    windowed: tuple[int | None, ...]
    dtype: np.dtype
    packing: Packing | None

    @cached_property
    def kind(self) -> Hashable:
        """A key: equal for variables whose parts of a block always have one shape and dtype."""
        sizes = [
            (axis.size, None) if dim is None else (None, dim)
            for axis, dim in zip(self.axes, self.windowed, strict=True)
        ]
        return self.dtype.str, tuple(sizes)


class BlockSlot(NamedTuple):
    """The place of a variable's part of a block, in an array with other parts of the same shape.

    Parameters
    ----------
    joint : numpy.ndarray
        Parts of one shape, stacked on axis 0.
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
    """Parts of one shape and dtype that lie side by side: where they begin, and which they are."""

    begin: int
    end: int
    dtype: np.dtype
    shape: tuple[int, ...]
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
        for begin, end, dtype, shape, names in self.stacks:
            joint = buffer[begin:end].view(dtype).reshape(shape)
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
        shape = (len(names), *part)
        end = begin + math.prod(shape) * first.dtype.itemsize
        stacks.append(_SlotStack(begin, end, first.dtype, shape, names))
        begin = end
    return BlockLayout(begin, tuple(stacks))
