"""Gathering: copying the parts of decoded blocks that rows take into the arrays of a batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Access, Footprint
from xloader.engine.block_reader import BlockSlot, Stored
from xloader.engine.block_table import BlockTable
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.copies import alike_hits, copy_alike, copy_each
from xloader.engine.field_places import Stack, Target, stacked
from xloader.engine.overlaps import Hits
from xloader.recipe.layout import FieldLayout

_NARROW_NBYTES = 1 << 14
"""Rows of fewer bytes are narrow: if there are many, they are copied many in one call."""

Views = Sequence[Sequence[Sequence[NDArray[Any]]]]
"""Per group, access and stack, the view of the batch's fields that the stack is copied to."""


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
        # An example batch shows how the fields lie in memory. Two rows, so that the stride of rows
        # counts.
        example = fields.take(2)
        self._stacks: list[dict[Access, list[Stack]]] = []
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
            self._stacks.append({a: stacked(own, example) for a, own in targets.items()})

    @cached_property
    def accesses(self) -> list[tuple[Access, ...]]:
        """Per group, the accesses with which fields take its variables."""
        return [tuple(stacks) for stacks in self._stacks]

    @cached_property
    def row_nbytes(self) -> list[int]:
        """Per group, the stored bytes that one sample takes of its variables."""
        groups = range(len(self._stacks))
        return [sum(target.row_nbytes for target in self._targets(group)) for group in groups]

    def views(self, arrays: Arrays) -> Views:
        """Views of the place of each stack in a batch, made once for all blocks.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The batch's fields, by name.

        Returns
        -------
        sequence
            Per group, access and stack, a writable view.
        """
        return [
            [[stack.view(arrays) for stack in stacks] for stacks in group.values()]
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

    def rows_of(self, group: int, views: Views, row: int) -> dict[str, BlockSlot]:
        """Places in one row of a batch for decoding a block straight into it.

        Parameters
        ----------
        group : int
            Index of a group for which `is_direct` is true.
        views : sequence
            The views of the batch, from `views`.
        row : int
            The row.

        Returns
        -------
        dict of str to BlockSlot
            Per variable of the group, its place.
        """
        (stacks,) = self._stacks[group].values()
        return {
            target.part.variable: BlockSlot(view[:, row], number)
            for stack, view in zip(stacks, views[group][0], strict=True)
            for number, target in enumerate(stack.targets)
        }

    def gather(
        self,
        group: int,
        access: int,
        hits: Hits,
        block_table: BlockTable,
        slots: Ints,
        views: Views,
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
        slots : numpy.ndarray of int64, shape (n,)
            Per hit, the slot of its block.
        views : sequence
            The views of the batch, from `views`.
        """
        spans = self.accesses[group][access]
        pairs = list(zip(self._stacks[group][spans], views[group][access], strict=True))
        wide = [pair for pair in pairs if pair[0].first.row_nbytes >= _NARROW_NBYTES]
        if wide:
            copy_each(hits, spans, block_table, slots, wide)
        narrow = [pair for pair in pairs if pair[0].first.row_nbytes < _NARROW_NBYTES]
        if not narrow:
            return
        alike, rest = alike_hits(hits)
        for kind in alike:
            for stack, view in narrow:
                copy_alike(hits.take(kind), spans, block_table, slots[kind], stack, view)
        if rest is not None:
            few = hits.take(rest) if alike else hits
            copy_each(few, spans, block_table, slots[rest], narrow)

    def _targets(self, group: int) -> list[Target]:
        stacks = [stack for own in self._stacks[group].values() for stack in own]
        return [target for stack in stacks for target in stack.targets]
