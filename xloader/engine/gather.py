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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.engine.blocks import Stored
from xloader.engine.hits import Hits
from xloader.engine.shelf import Shelf
from xloader.footprint import Access, Footprint
from xloader.grid import Ints
from xloader.layout import FieldLayout, Part
from xloader.packing import Packing

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
    column : int
        Which of its group's variables it is.
    windowed : tuple of (int or None)
        Per dimension of the variable, which of the windowed ones it is.
    packing : Packing or None
    row_nbytes : int
        What it gives to a sample.
    is_direct : bool
        Whether the field has the values, and the dimensions, as they are stored.
    """

    field: str
    part: Part
    column: int
    windowed: tuple[int | None, ...]
    packing: Packing | None
    row_nbytes: int
    is_direct: bool

    def write(self, values: NDArray[Any], place: NDArray[Any]) -> None:
        """Write values as the field has them to their place."""
        if self.packing is None:
            place[...] = values
        elif values.shape == place.shape:
            self.packing.unpack_into(values, place)
        else:
            # Along dimensions that the variable lacks, one value goes to many places.
            place[...] = self.packing.unpack(values)


Views = Sequence[NDArray[Any]]
"""Per target, the view of the batch's field that it is written to."""


class Gatherer:
    """Knows where every variable goes.

    Parameters
    ----------
    footprint : Footprint
    layouts : tuple of FieldLayout
    stored : mapping of str to Stored
        Per variable, how it is stored.
    """

    def __init__(
        self,
        footprint: Footprint,
        layouts: tuple[FieldLayout, ...],
        stored: Mapping[str, Stored],
    ) -> None:
        dims = footprint.windows.dims
        columns = {
            demand.variable: (number, column)
            for number, group in enumerate(footprint.groups)
            for column, demand in enumerate(group.demands)
        }
        self._targets: list[Target] = []
        self._of_access: list[dict[Access, list[int]]] = [{} for _ in footprint.groups]
        for layout in layouts:
            for part in layout.parts:
                kept = stored[part.variable]
                group, column = columns[part.variable]
                windowed = tuple(dims.index(d) if d in dims else None for d in kept.dims)
                known = self._of_access[group].setdefault(part.accesses, [])
                known.append(len(self._targets))
                self._targets.append(
                    Target(
                        field=layout.name,
                        part=part,
                        column=column,
                        windowed=windowed,
                        packing=kept.packing,
                        row_nbytes=_row_nbytes(part, kept, windowed),
                        is_direct=_is_direct(part, kept, layout.dtype),
                    )
                )

    @property
    def accesses(self) -> list[tuple[Access, ...]]:
        """Per group, what fields take of its variables."""
        return [tuple(targets) for targets in self._of_access]

    def row_nbytes(self, group: int) -> int:
        """What the variables of a group give to a sample."""
        targets = self._of_access[group].values()
        return sum(self._targets[t].row_nbytes for own in targets for t in own)

    def views(self, arrays: Mapping[str, NDArray[Any]]) -> Views:
        """The place of each target in a batch's fields, made once for all blocks."""
        return [target.part.view(arrays[target.field]) for target in self._targets]

    def is_direct(self, group: int) -> bool:
        """Whether a chunk that is a window may be decoded straight into its row."""
        if len(self._of_access[group]) > 1:
            return False
        targets = [self._targets[t] for own in self._of_access[group].values() for t in own]
        names = {target.part.variable for target in targets}
        return len(names) == len(targets) and all(target.is_direct for target in targets)

    def rows_of(self, group: int, views: Views, row: int) -> dict[str, NDArray[Any]]:
        """Per variable of a group, one row of the field that it alone fills."""
        numbers = [t for own in self._of_access[group].values() for t in own]
        return {self._targets[t].part.variable: views[t][row] for t in numbers}

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
        views : sequence of numpy.ndarray
            What `views` made of the batch's fields.
        """
        spans, numbers = list(self._of_access[group].items())[access]
        targets = [self._targets[number] for number in numbers]
        own = [views[number] for number in numbers]
        is_narrow = [t.row_nbytes < _NARROW_NBYTES for t in targets]
        alike, rest = _alike(hits) if any(is_narrow) else ([], slice(None))
        for kind in alike:
            same, at = hits.take(kind), slots[kind]
            for target, view, narrow in zip(targets, own, is_narrow, strict=True):
                if narrow:
                    _copy_alike(same, spans, shelf, at, target, view)
                else:
                    _copy_each(same, spans, shelf, at, [target], [view])
        if rest is not None:
            _copy_each(hits.take(rest) if alike else hits, spans, shelf, slots[rest], targets, own)


def _row_nbytes(part: Part, stored: Stored, windowed: tuple[int | None, ...]) -> int:
    nbytes = stored.dtype.itemsize
    for axis, dim in zip(stored.axes, windowed, strict=True):
        span = None if dim is None else part.accesses[dim]
        nbytes *= axis.size if span is None else span[2]
    return nbytes


def _is_direct(part: Part, stored: Stored, dtype: np.dtype) -> bool:
    is_plain = stored.packing is None and stored.dtype == dtype
    return is_plain and len(part.axes) == len(stored.dims)


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
    targets: Sequence[Target],
    views: Sequence[NDArray[Any]],
) -> None:
    """Copy row by row."""
    rows = hits.rows.tolist()
    blocks = [shelf.blocks[slot] for slot in slots.tolist()]
    cuts = _cuts(hits, spans)
    indices: dict[tuple[int | None, ...], list[tuple[Any, Any]]] = {}
    for target, view in zip(targets, views, strict=True):
        if target.windowed not in indices:
            indices[target.windowed] = _indices(target.windowed, rows, cuts)
        name = target.part.variable
        every = [block.values[name] for block in blocks]
        if target.packing is None:
            for values, (source, place) in zip(every, indices[target.windowed], strict=True):
                view[place] = values[source]
            continue
        for values, (source, place) in zip(every, indices[target.windowed], strict=True):
            target.write(values[source], view[place])


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
    every = [(slice(None), slice(None))] * len(rows)
    along = [every if d is None or cuts[d] is None else cuts[d] for d in windowed]
    if not along:
        return [((), (row, ...)) for row in rows]
    return [
        (tuple(cut[0] for cut in own), (row, ..., *(cut[1] for cut in own)))
        for row, own in zip(rows, zip(*along, strict=True), strict=True)
    ]


def _copy_alike(
    hits: Hits, spans: Access, shelf: Shelf, slots: Ints, target: Target, view: NDArray[Any]
) -> None:
    """Copy rows that take the same part of their windows, of blocks of one shape, at once."""
    first = shelf.blocks[int(slots[0])]
    assert first is not None
    values = first.values[target.part.variable]
    addresses = shelf.addresses[slots, target.column]
    origin = int(addresses.min())
    begins = (addresses - origin) // values.itemsize
    shape: list[int] = []
    strides: list[int] = []
    place: list[slice] = []
    for axis, dim in enumerate(target.windowed):
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
    per_part = max(1, _PART_NBYTES // max(target.row_nbytes, 1))
    missing = (1,) * (view.ndim - memory.ndim)
    for lo in range(0, len(begins), per_part):
        found = memory[begins[lo : lo + per_part]]
        if target.packing is not None:
            found = target.packing.unpack(found)
        index: Any = (hits.rows[lo : lo + per_part], ..., *place)
        view[index] = found.reshape(len(found), *missing, *found.shape[1:]) if missing else found


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
