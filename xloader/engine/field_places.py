"""The places of variables in the fields of a batch.

Variables that lie side by side, in the decoded blocks and in the batch, form a *stack*. A stack is
copied in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.engine.block_layout import Stored
from xloader.engine.block_table import LoadedBlock
from xloader.engine.buffers import Arrays
from xloader.recipe.layout import FieldPart


@dataclass(frozen=True)
class Target:
    """The place of one variable in one field.

    Parameters
    ----------
    field : str
        Name of the field.
    part : FieldPart
        The part of the field that the variable fills.
    stored : Stored
        How the variable is stored.
    column : int
        Index of the variable among those of its group.
    number : int
        Index of the variable among those of its group that have the same `Stored.kind`.
    dtype : numpy.dtype
        The dtype of the field.
    """

    field: str
    part: FieldPart
    stored: Stored
    column: int
    number: int
    dtype: np.dtype

    @property
    def is_direct(self) -> bool:
        """Whether decoded values can be written into the field unchanged.

        The values are not packed, the dtypes are equal, and the variable has all dimensions of the
        field.
        """
        is_plain = self.stored.packing is None and self.stored.dtype == self.dtype
        return is_plain and len(self.part.axes) == len(self.stored.axes)

    @cached_property
    def row_nbytes(self) -> int:
        """Stored bytes that one sample takes of the variable."""
        nbytes = self.stored.dtype.itemsize
        for axis, dim in zip(self.stored.axes, self.stored.windowed, strict=True):
            span = None if dim is None else self.part.accesses[dim]
            nbytes *= axis.size if span is None else span[2]
        return nbytes


@dataclass(frozen=True)
class Stack:
    """Targets that are copied in one call: variables side by side in blocks and in batches.

    Parameters
    ----------
    targets : tuple of Target
        The targets, in the order in which they lie in memory.
    """

    targets: tuple[Target, ...]

    @property
    def first(self) -> Target:
        """The first target."""
        return self.targets[0]

    @property
    def stored(self) -> Stored:
        """How the first variable is stored. The others have the same `Stored.kind`."""
        return self.first.stored

    def view(self, arrays: Arrays) -> NDArray[Any]:
        """A view of their places in a batch.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The batch's fields, by name.

        Returns
        -------
        numpy.ndarray
            Writable, shape ``(len(targets), n, ...)``.
        """
        views = [target.part.view(arrays[target.field]) for target in self.targets[:2]]
        if len(views) == 1:
            return views[0][None]
        hop = address_of(views[1]) - address_of(views[0])
        shape, strides = (len(self.targets), *views[0].shape), (hop, *views[0].strides)
        return as_strided(views[0], shape, strides)

    def source(self, block: LoadedBlock) -> NDArray[Any]:
        """A view of their parts of a decoded block, shape ``(len(targets), ...)``."""
        joint, number = block.places[self.first.part.variable]
        part: NDArray[Any] = joint[number : number + len(self.targets)]
        return part


def stacked(targets: list[Target], example: Arrays) -> list[Stack]:
    """Join the targets of one access to stacks, where they follow each other in blocks and batches.

    Parameters
    ----------
    targets : list of Target
        Targets of variables of one group, with the same access.
    example : dict of str to numpy.ndarray
        The fields of a batch, from which the distances in memory are taken.

    Returns
    -------
    list of Stack
        Every target is in exactly one of them.
    """
    stacks: list[list[Target]] = []
    views = {id(t): t.part.view(example[t.field]) for t in targets}
    hop = 0
    for target in sorted(targets, key=lambda t: (str(t.stored.kind), t.number)):
        last = stacks[-1][-1] if stacks else None
        if last is not None and _follows(last, target):
            mine, other = views[id(target)], views[id(last)]
            found = address_of(mine) - address_of(other)
            is_alike = mine.strides == other.strides and mine.dtype == other.dtype
            # Fields of separate allocations lie at other distances in the next batch: no common
            # base, no stack.
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
