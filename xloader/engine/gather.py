"""Copying what rows take of decoded blocks into the arrays of a batch.

Wide rows are copied one by one, which is as fast as memory is. Narrow ones of many blocks are
copied in one call::

    block 7   |. . . x x x . . .|             one view of memory, from the lowest block on:
    block 2       |. x x x . . . . .|         its row i is what a row would take that
    block 9               |x x x . . . .|     began at element i, wherever that is
                     |
                     rows where hits begin  ->  batch[rows]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from xloader.engine.blocks import Place, Stored
from xloader.engine.fields import Arrays, Fields
from xloader.engine.hits import Hits
from xloader.engine.shelf import Block, Shelf
from xloader.footprint import Access, Footprint
from xloader.grid import Ints
from xloader.layout import FieldLayout, Part

_NARROW_NBYTES = 1 << 14
"""Rows of fewer bytes are copied in one call where there are so many of them: a second copy
then costs less than a call for each row."""

_MANY_ROWS = 12

_PART_NBYTES = 1 << 18
"""Copied in one call at most: what lies between its two copies stays in the processor's cache."""

_ALL_OF_MEMORY = 1 << 46
"""Elements of a view of whatever lies behind a block. More than there is memory."""


@dataclass(frozen=True)
class Target:
    """One variable's place in one field.

    Parameters
    ----------
    field : str
    part : Part
    stored : Stored
    column : int
        Which of its group's variables it is.
    number : int
        Which it is of those variables of the group that share its kind.
    is_direct : bool
        Whether the field has the values, and the dimensions, as they are stored.
    """

    field: str
    part: Part
    stored: Stored
    column: int
    number: int
    is_direct: bool

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

    def source(self, block: Block) -> NDArray[Any]:
        """Their parts of a block, shape ``(len(targets), ...)``."""
        joint, number = block.places[self.first.part.variable]
        part: NDArray[Any] = joint[number : number + len(self.targets)]
        return part

    def write(self, values: NDArray[Any], place: NDArray[Any]) -> None:
        """Write values as the fields have them to their place."""
        packing = self.stored.packing
        if packing is None:
            place[...] = values
        elif values.shape == place.shape:
            packing.unpack_into(values, place)
        else:
            # Along dimensions that the variable lacks, one value goes to many places.
            place[...] = packing.unpack(values)


Views = Sequence[Sequence[Sequence[NDArray[Any]]]]
"""Per group, access and stack, the view of a batch's fields that is written to."""


class Gatherer:
    """Knows where every variable goes.

    Parameters
    ----------
    footprint : Footprint
    layouts : tuple of FieldLayout
    fields : Fields
        What allocates batches.
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
        # A batch to see how fields lie to each other: of two rows, so that rows count too.
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
                        is_direct = _is_direct(part, own, layout.dtype)
                        target = Target(layout.name, part, own, column, number, is_direct)
                        targets.setdefault(part.accesses, []).append(target)
            self._stacks.append({a: _stacked(own, example) for a, own in targets.items()})

    @cached_property
    def accesses(self) -> list[tuple[Access, ...]]:
        """Per group, what fields take of its variables."""
        return [tuple(stacks) for stacks in self._stacks]

    def row_nbytes(self, group: int) -> int:
        """What the variables of a group give to a sample."""
        return sum(target.row_nbytes for target in self._targets(group))

    def views(self, arrays: Arrays) -> Views:
        """The place of each stack in a batch's fields, made once for all blocks."""
        return [
            [[stack.view(arrays) for stack in stacks] for stacks in group.values()]
            for group in self._stacks
        ]

    def is_direct(self, group: int) -> bool:
        """Whether a chunk that is a window may be decoded straight into its row."""
        targets = self._targets(group)
        names = {target.part.variable for target in targets}
        is_alone = len(self._stacks[group]) == 1 and len(names) == len(targets)
        return is_alone and all(target.is_direct for target in targets)

    def rows_of(self, group: int, views: Views, row: int) -> dict[str, Place]:
        """Per variable of a group, one row of the field that it alone fills."""
        (stacks,) = self._stacks[group].values()
        return {
            target.part.variable: Place(view[:, row], number)
            for stack, view in zip(stacks, views[group][0], strict=True)
            for number, target in enumerate(stack.targets)
        }

    def gather(
        self, group: int, access: int, hits: Hits, shelf: Shelf, slots: Ints, views: Views
    ) -> None:
        """Copy what some rows take of loaded blocks.

        Parameters
        ----------
        group, access : int
            What the hits are of.
        hits : Hits
        shelf : Shelf
            Where the blocks are.
        slots : numpy.ndarray of int64, shape (n,)
            Per hit, the slot of its block.
        views : sequence
            What `views` made of the batch's fields.
        """
        spans = self.accesses[group][access]
        pairs = list(zip(self._stacks[group][spans], views[group][access], strict=True))
        wide = [pair for pair in pairs if pair[0].first.row_nbytes >= _NARROW_NBYTES]
        if wide:
            _copy_each(hits, spans, shelf, slots, wide)
        narrow = [pair for pair in pairs if pair[0].first.row_nbytes < _NARROW_NBYTES]
        if not narrow:
            return
        alike, rest = _alike(hits)
        for kind in alike:
            for stack, view in narrow:
                _copy_alike(hits.take(kind), spans, shelf, slots[kind], stack, view)
        if rest is not None:
            few = hits.take(rest) if alike else hits
            _copy_each(few, spans, shelf, slots[rest], narrow)

    def _targets(self, group: int) -> list[Target]:
        stacks = [stack for own in self._stacks[group].values() for stack in own]
        return [target for stack in stacks for target in stack.targets]


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _is_direct(part: Part, stored: Stored, dtype: np.dtype) -> bool:
    is_plain = stored.packing is None and stored.dtype == dtype
    return is_plain and len(part.axes) == len(stored.axes)


def _stacked(targets: list[Target], example: Arrays) -> list[Stack]:
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
            is_alike &= mine.shape == other.shape and found > 0
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


def _alike(hits: Hits) -> tuple[list[Ints | slice], Ints | slice | None]:
    """Which hits are many of a kind, kind by kind, and which ones are left."""
    everything = slice(None)
    if len(hits) < _MANY_ROWS:
        return [], everything
    if (hits.kinds == hits.kinds[0]).all():
        return [everything], None
    if max(Counter(hits.kinds.tolist()).values()) < _MANY_ROWS:
        return [], everything
    line = np.argsort(hits.kinds, kind="stable")
    cuts = np.flatnonzero(np.diff(hits.kinds[line])) + 1
    kinds = np.split(line, cuts)
    many = [kind for kind in kinds if len(kind) >= _MANY_ROWS]
    few = [kind for kind in kinds if len(kind) < _MANY_ROWS]
    return list(many), np.concatenate(few) if few else None


def _copy_each(
    hits: Hits,
    spans: Access,
    shelf: Shelf,
    slots: Ints,
    pairs: Sequence[tuple[Stack, NDArray[Any]]],
) -> None:
    """Copy row by row."""
    rows = hits.rows.tolist()
    blocks = [shelf.blocks[slot] for slot in slots.tolist()]
    cuts = _cuts(hits, spans)
    indices: dict[tuple[int | None, ...], list[tuple[Any, Any]]] = {}
    for stack, view in pairs:
        windowed = stack.stored.windowed
        if windowed not in indices:
            indices[windowed] = _indices(windowed, rows, cuts)
        every = [stack.source(block) for block in blocks if block is not None]
        if stack.stored.packing is None:
            for values, (source, place) in zip(every, indices[windowed], strict=True):
                view[place] = values[source]
            continue
        for values, (source, place) in zip(every, indices[windowed], strict=True):
            stack.write(values[source], view[place])


def _cuts(hits: Hits, spans: Access) -> list[list[tuple[slice, slice]] | None]:
    """Per windowed dimension, where each hit takes from and where to."""
    cuts: list[list[tuple[slice, slice]] | None] = []
    for dim, span in enumerate(spans):
        if span is None:
            cuts.append(None)
            continue
        step = span[1]
        los, sizes, begins = (c[dim].tolist() for c in (hits.lo, hits.size, hits.begin))
        cuts.append(
            [
                (slice(b, b + (n - 1) * step + 1, step), slice(lo, lo + n))
                for lo, n, b in zip(los, sizes, begins, strict=True)
            ]
        )
    return cuts


def _indices(
    windowed: tuple[int | None, ...],
    rows: list[int],
    cuts: list[list[tuple[slice, slice]] | None],
) -> list[tuple[Any, Any]]:
    """Per hit, the index into a block and that into the view of a field."""
    whole = slice(None)
    every = [(whole, whole)] * len(rows)
    along = [every if d is None else cuts[d] or every for d in windowed]
    if not along:
        return [((whole,), (whole, row, ...)) for row in rows]
    return [
        ((whole, *(cut[0] for cut in own)), (whole, row, ..., *(cut[1] for cut in own)))
        for row, own in zip(rows, zip(*along, strict=True), strict=True)
    ]


def _copy_alike(
    hits: Hits, spans: Access, shelf: Shelf, slots: Ints, stack: Stack, view: NDArray[Any]
) -> None:
    """Copy rows that take the same part of their windows, of blocks of one shape, at once."""
    first = shelf.blocks[int(slots[0])]
    assert first is not None
    values = stack.source(first)
    addresses = shelf.addresses[slots, stack.first.column]
    origin = int(addresses.min())
    begins = (addresses - origin) // values.itemsize
    shape, strides, place = [len(values)], [values.strides[0]], []
    for axis, dim in enumerate(stack.stored.windowed, start=1):
        span = None if dim is None else spans[dim]
        stride = values.strides[axis]
        if dim is None or span is None:
            shape.append(values.shape[axis])
            place.append(slice(None))
        else:
            begins += hits.begin[dim] * (stride // values.itemsize)
            lo, size = int(hits.lo[dim, 0]), int(hits.size[dim, 0])
            shape.append(size)
            stride *= span[1]
            place.append(slice(lo, lo + size))
        strides.append(stride)
    memory = _memory(values, origin, tuple(shape), tuple(strides))
    per_part = max(1, _PART_NBYTES // (len(values) * max(stack.first.row_nbytes, 1)))
    missing = (1,) * (view.ndim - memory.ndim)
    for lo in range(0, len(begins), per_part):
        found = memory[begins[lo : lo + per_part]].swapaxes(0, 1)
        if stack.stored.packing is not None:
            found = stack.stored.packing.unpack(found)
        index: Any = (slice(None), hits.rows[lo : lo + per_part], ..., *place)
        view[index] = found.reshape(*found.shape[:2], *missing, *found.shape[2:])


class _Memory:
    """What NumPy takes for the memory from an address on."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _memory(
    values: NDArray[Any], origin: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    """A view with a row for each element from ``origin`` on, which only holders of blocks read."""
    interface = {
        "version": 3,
        "typestr": values.dtype.str,
        "data": (origin, True),
        "shape": (_ALL_OF_MEMORY, *shape),
        "strides": (values.itemsize, *strides),
    }
    return np.asarray(_Memory(interface))
