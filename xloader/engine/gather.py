"""Gathering: copying the parts of decoded blocks that rows take into the arrays of a batch.

In this file and in those that it uses, the batches of a tray count as one batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.footprint import Access, Footprint
from xloader.engine.block_layout import BlockSlot, Stored
from xloader.engine.block_table import BlockTable
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.compiled_gather import CompiledCopy, compile_copy
from xloader.engine.copies import copy_rows
from xloader.engine.field_places import Stack, Target, stacked
from xloader.engine.overlaps import Chosen, Hits
from xloader.recipe.layout import FieldLayout

_EVERY: Final = slice(None)


class Place:
    """The place of a stack of variables in a batch.

    Parameters
    ----------
    stack : Stack
        The variables.
    arrays : dict of str to numpy.ndarray
        The batch's fields, by name.
    compiled : CompiledCopy, optional
        The compiled copy of the stack.
    """

    __slots__ = ("_arrays", "_view", "address", "compiled", "stack")

    def __init__(self, stack: Stack, arrays: Arrays, compiled: CompiledCopy | None) -> None:
        self._arrays = arrays
        self._view: NDArray[Any] | None = None
        self.stack = stack
        self.compiled = compiled
        self.address = 0 if compiled is None else compiled.address_in(arrays)

    @property
    def view(self) -> NDArray[Any]:
        """The view of the fields that the variables are copied to, see `Stack.view`."""
        if self._view is None:
            self._view = self.stack.view(self._arrays)
        return self._view


Places = Sequence[Sequence[Sequence[Place]]]
"""Per group, access and stack, its place in a batch."""


class Gatherer:
    """Copier of decoded values to their places in the fields of a batch.

    Parameters
    ----------
    footprint : Footprint
        The groups of variables that samples need.
    layouts : tuple of FieldLayout
        The layout of each field.
    fields : Fields
        Allocates the batches.
    stored : mapping of str to Stored
        Per variable, how it is stored.
    """

    def __init__(
        self,
        footprint: Footprint,
        layouts: tuple[FieldLayout, ...],
        fields: Fields,
        stored: Mapping[str, Stored],
    ) -> None:
        parts = [(layout, part) for layout in layouts for part in layout.parts]
        example = fields.example()
        # Per group and access, each stack with its compiled copy.
        self._stacks: list[dict[Access, list[tuple[Stack, CompiledCopy | None]]]] = []
        for group in footprint.groups:
            numbers: dict[Hashable, int] = {}
            targets: dict[Access, list[Target]] = {}
            for column, demand in enumerate(group.demands):
                own = stored[demand.variable]
                number = numbers[own.kind] = numbers.get(own.kind, -1) + 1
                for layout, part in parts:
                    if part.variable == demand.variable:
                        target = Target(layout.name, part, own, column, number, layout.dtype)
                        targets.setdefault(part.accesses, []).append(target)
            self._stacks.append(
                {
                    access: [(s, compile_copy(s, access, example)) for s in stacked(own, example)]
                    for access, own in targets.items()
                }
            )

    @cached_property
    def accesses(self) -> list[tuple[Access, ...]]:
        """Per group, the accesses with which fields take its variables."""
        return [tuple(stacks) for stacks in self._stacks]

    @cached_property
    def row_nbytes(self) -> list[int]:
        """Per group, the stored bytes that one sample takes of its variables."""
        groups = range(len(self._stacks))
        return [sum(target.row_nbytes for target in self._targets(group)) for group in groups]

    @cached_property
    def is_compiled(self) -> bool:
        """Whether all rows are copied without Python's lock."""
        stacks = (own for group in self._stacks for stacks in group.values() for own in stacks)
        return all(compiled is not None for _, compiled in stacks)

    def stacks(self, group: int) -> list[list[tuple[Stack, CompiledCopy | None]]]:
        """Per access of a group, its stacks, each with its compiled copy."""
        return list(self._stacks[group].values())

    def places(self, arrays: Arrays) -> Places:
        """The place of each stack in a batch, found once for all blocks.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The batch's fields, by name.

        Returns
        -------
        sequence
            Per group, access and stack, its place.
        """
        return [
            [[Place(stack, arrays, compiled) for stack, compiled in own] for own in group.values()]
            for group in self._stacks
        ]

    def is_direct(self, group: int) -> bool:
        """Whether a block that is exactly one window may be decoded straight into its row.

        Parameters
        ----------
        group : int
            Index of the group.
        """
        return self._is_direct[group]

    @cached_property
    def _is_direct(self) -> list[bool]:
        # Cached: asked for each block that is added, while the run's lock is held.
        found = []
        for group, stacks in enumerate(self._stacks):
            targets = self._targets(group)
            names = {target.part.variable for target in targets}
            is_alone = len(stacks) == 1 and len(names) == len(targets)
            found.append(is_alone and all(target.is_direct for target in targets))
        return found

    def rows_of(self, group: int, places: Places, row: int) -> dict[str, BlockSlot]:
        """Places in one row of a batch for decoding a block straight into it.

        Parameters
        ----------
        group : int
            Index of a group for which `is_direct` is true.
        places : sequence
            The places in the batch, from `places`.
        row : int
            The row.

        Returns
        -------
        dict of str to BlockSlot
            Per variable of the group, its place.
        """
        return {
            target.part.variable: BlockSlot(place.view[:, row], number)
            for place in places[group][0]
            for number, target in enumerate(place.stack.targets)
        }

    def gather(
        self,
        group: int,
        access: int,
        hits: Hits,
        block_table: BlockTable,
        slots: NDArray[np.int32],
        places: Places,
        chosen: Chosen = _EVERY,
    ) -> None:
        """Copy the parts of loaded blocks that some rows take into a batch.

        Parameters
        ----------
        group, access : int
            Indices of the group and of the access that the hits belong to.
        hits : Hits
            Which rows take which parts of blocks.
        block_table : BlockTable
            Gives the blocks.
        slots : numpy.ndarray of int32, shape (n,)
            Per hit, the slot of its block.
        places : sequence
            The places in the batch, from `places`.
        chosen : slice or numpy.ndarray of int64
            The hits to copy, by default all.
        """
        others = []
        for place in places[group][access]:
            if place.compiled is None:
                others.append(place)
                continue
            # A table that grows gets new arrays, so this one is kept alive meanwhile. `places` and
            # `block_table` keep all other memory alive.
            addresses = block_table.addresses[place.compiled.column]
            place.compiled.copy(hits, chosen, slots, addresses, place.address)
        if others:
            hits, slots = hits.take(chosen), slots[chosen]
            pairs = [(place.stack, place.view) for place in others]
            copy_rows(hits, self.accesses[group][access], block_table, slots, pairs)

    def _targets(self, group: int) -> list[Target]:
        stacks = [stack for own in self._stacks[group].values() for stack, _ in own]
        return [target for stack in stacks for target in stack.targets]
