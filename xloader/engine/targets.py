"""Where variables go: their places in the fields of a batch, those side by side together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from xloader.engine.block_reader import Stored
from xloader.engine.block_table import LoadedBlock
from xloader.engine.buffers import Arrays
from xloader.recipe.layout import FieldPart


@dataclass(frozen=True)
class Target:
    """One variable's place in one field.

    Parameters
    ----------
    field : str
    part : FieldPart
    stored : Stored
    column : int
        Which of its group's variables it is.
    number : int
        Which it is of those variables of the group that share its kind.
    dtype : numpy.dtype
        Of the field.
    """

    field: str
    part: FieldPart
    stored: Stored
    column: int
    number: int
    dtype: np.dtype

    @property
    def is_direct(self) -> bool:
        """Whether the field has the values, and the dimensions, as they are stored."""
        is_plain = self.stored.packing is None and self.stored.dtype == self.dtype
        return is_plain and len(self.part.axes) == len(self.stored.axes)

    @cached_property
    def row_nbytes(self) -> int:
        """What it gives to a sample, as stored."""
        nbytes = self.stored.dtype.itemsize
        for axis, dim in zip(self.stored.axes, self.stored.windowed, strict=True):
            span = None if dim is None else self.part.accesses[dim]
            nbytes *= axis.size if span is None else span[2]
        return nbytes


@dataclass(frozen=True)
class Stack:
    """Targets that are copied at once: variables side by side, in blocks and in batches.

    Parameters
    ----------
    targets : tuple of Target
    """

    targets: tuple[Target, ...]

    @property
    def first(self) -> Target:
        """The first of them."""
        return self.targets[0]

    @property
    def stored(self) -> Stored:
        """How they are stored."""
        return self.first.stored

    def view(self, arrays: Arrays) -> NDArray[Any]:
        """Their places in a batch, shape ``(len(targets), n, ...)``."""
        views = [target.part.view(arrays[target.field]) for target in self.targets[:2]]
        if len(views) == 1:
            return views[0][None]
        hop = _address(views[1]) - _address(views[0])
        shape, strides = (len(self.targets), *views[0].shape), (hop, *views[0].strides)
        return as_strided(views[0], shape, strides)

    def source(self, block: LoadedBlock) -> NDArray[Any]:
        """Their parts of a block, shape ``(len(targets), ...)``."""
        joint, number = block.places[self.first.part.variable]
        part: NDArray[Any] = joint[number : number + len(self.targets)]
        return part


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def stacked(targets: list[Target], example: Arrays) -> list[Stack]:
    """Targets of one access as stacks, as long as they follow each other in every place."""
    stacks: list[list[Target]] = []
    views = {id(t): t.part.view(example[t.field]) for t in targets}
    hop = 0
    for target in sorted(targets, key=lambda t: (str(t.stored.kind), t.number)):
        last = stacks[-1][-1] if stacks else None
        if last is not None and _follows(last, target):
            mine, other = views[id(target)], views[id(last)]
            found = _address(mine) - _address(other)
            is_alike = mine.strides == other.strides and mine.dtype == other.dtype
            # In another batch, other memory lies elsewhere.
            is_alike &= mine.shape == other.shape and mine.base is other.base and found > 0
            if is_alike and (len(stacks[-1]) == 1 or found == hop):
                stacks[-1].append(target)
                hop = found
                continue
        stacks.append([target])
    return [Stack(tuple(own)) for own in stacks]


def _follows(last: Target, target: Target) -> bool:
    is_plain = last.stored.packing is None and target.stored.packing is None
    is_next = target.stored.kind == last.stored.kind and target.number == last.number + 1
    return is_plain and is_next
