"""Copying the parts of decoded blocks that rows take into the fields of a batch.

Wide rows are copied one by one, which is as fast as the memory allows. Narrow rows of many blocks
are copied in one call::

    block 7   |. . . x x x . . .|             one view of memory, from the lowest block on:
    block 2       |. x x x . . . . .|         its row i is what a row would take that
    block 9               |x x x . . . .|     began at element i, wherever that is
                     |
                     rows where hits begin  ->  batch[rows]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.footprint import Access
from xloader.core.packing import Packing
from xloader.engine.block_table import BlockTable
from xloader.engine.field_places import Stack
from xloader.engine.overlaps import Chosen, Hits

MANY_ROWS = 12
"""Narrow rows are copied in one call if at least this many take the same part of blocks of one
shape. That call copies twice, which then costs less than a call for each row."""

_NARROW_NBYTES = 1 << 14
"""Rows of fewer bytes are narrow: if there are many, they are copied many in one call."""

_PART_NBYTES = 1 << 18
"""Most bytes copied in one call. The intermediate copy then stays in the processor's cache."""

_MOST_NBYTES = 1 << 62
"""Most apparent bytes of a view. NumPy makes no larger array, even if its rows overlap in
memory."""


def copy_rows(
    hits: Hits,
    spans: Access,
    block_table: BlockTable,
    slots: NDArray[np.int32],
    pairs: Sequence[tuple[Stack, NDArray[Any]]],
) -> None:
    """Copy the parts of loaded blocks that some rows take.

    Parameters
    ----------
    hits : Hits
        Which rows take which parts of blocks.
    spans : tuple of ((int, int, int) or None)
        The access that the hits belong to.
    block_table : BlockTable
        Gives the blocks.
    slots : numpy.ndarray of int32, shape (n,)
        Per hit, the slot of its block.
    pairs : sequence of (Stack, numpy.ndarray)
        The variables to copy, and the views of the batch's fields that they go to.
    """
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


def alike_hits(hits: Hits) -> tuple[list[Chosen], Chosen | None]:
    """Sort out the hits of which many are of one kind.

    Parameters
    ----------
    hits : Hits
        The hits.

    Returns
    -------
    alike : list of (numpy.ndarray of int or slice)
        For each kind with at least `MANY_ROWS` hits, the indices of its hits.
    rest : numpy.ndarray of int, slice or None
        The indices of all other hits; None if there are none.
    """
    everything = slice(None)
    if len(hits) < MANY_ROWS:
        return [], everything
    kinds = hits.kinds
    if (kinds == kinds[0]).all():
        return [everything], None
    if max(Counter(kinds.tolist()).values()) < MANY_ROWS:
        return [], everything
    line = np.argsort(kinds, kind="stable")
    cuts = np.flatnonzero(np.diff(kinds[line])) + 1
    parts = np.split(line, cuts)
    many = [part for part in parts if len(part) >= MANY_ROWS]
    few = [part for part in parts if len(part) < MANY_ROWS]
    return list(many), np.concatenate(few) if few else None


def copy_each(
    hits: Hits,
    spans: Access,
    block_table: BlockTable,
    slots: NDArray[np.int32],
    pairs: Sequence[tuple[Stack, NDArray[Any]]],
) -> None:
    """Copy row by row.

    Parameters
    ----------
    hits : Hits
        Which rows take which parts of blocks.
    spans : tuple of ((int, int, int) or None)
        The access that the hits belong to.
    block_table : BlockTable
        Gives the blocks.
    slots : numpy.ndarray of int32, shape (n,)
        Per hit, the slot of its block.
    pairs : sequence of (Stack, numpy.ndarray)
        The variables to copy, and the views of the batch's fields that they go to.
    """
    rows = hits.rows.tolist()
    blocks = [block_table.blocks[slot] for slot in slots.tolist()]
    cuts = _cuts(hits, spans)
    indices: dict[tuple[tuple[int | None, ...], int], list[tuple[Any, Any]]] = {}
    for stack, view in pairs:
        windowed, packing = stack.stored.windowed, stack.stored.packing
        # Besides the variables and their dimensions, the view has rows and missing dimensions.
        kind = windowed, view.ndim - len(windowed) - 2
        if kind not in indices:
            indices[kind] = _indices(*kind, rows, cuts)
        every = [stack.source(block) for block in blocks if block is not None]
        for values, (source, place) in zip(every, indices[kind], strict=True):
            if packing is None:
                view[place] = values[source]
            else:
                _unpack(packing, values[source], view[place])


def _unpack(packing: Packing, values: NDArray[Any], place: NDArray[Any]) -> None:
    if values.shape == place.shape:
        packing.unpack_into(values, place)
    else:
        # Along dimensions that the variable lacks, one value fills several elements.
        place[...] = packing.unpack(values)


def _cuts(hits: Hits, spans: Access) -> list[list[tuple[slice, slice]] | None]:
    """Per windowed dimension, the slices of the block and of the window for each hit."""
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
    num_missing: int,
    rows: list[int],
    cuts: list[list[tuple[slice, slice]] | None],
) -> list[tuple[Any, Any]]:
    """Per hit, the index into the block and the index into the view of the fields.

    The values of a block get an axis for each of the ``num_missing`` dimensions of the field that
    the variables lack. It follows the axis that counts the variables, as in the view.
    """
    whole, missing = slice(None), (None,) * num_missing
    every = [(whole, whole)] * len(rows)
    along = [every if d is None else cuts[d] or every for d in windowed]
    if not along:
        return [((whole, *missing), (whole, row, ...)) for row in rows]
    return [
        ((whole, *missing, *(cut[0] for cut in own)), (whole, row, ..., *(cut[1] for cut in own)))
        for row, own in zip(rows, zip(*along, strict=True), strict=True)
    ]


def copy_alike(
    hits: Hits,
    spans: Access,
    block_table: BlockTable,
    slots: NDArray[np.int32],
    stack: Stack,
    view: NDArray[Any],
) -> None:
    """Copy rows that take the same part of their windows, of blocks of one shape, in few calls.

    Parameters
    ----------
    hits : Hits
        Hits of one kind.
    spans : tuple of ((int, int, int) or None)
        The access that the hits belong to.
    block_table : BlockTable
        Gives the blocks and their addresses.
    slots : numpy.ndarray of int32, shape (n,)
        Per hit, the slot of its block.
    stack : Stack
        The variables to copy.
    view : numpy.ndarray
        The view of the batch's fields that they go to.
    """
    first = block_table.blocks[int(slots[0])]
    assert first is not None
    values = stack.source(first)
    addresses = block_table.addresses[stack.first.column, slots]
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
    num_rows = int(begins.max()) + 1
    if num_rows * math.prod(shape) * values.itemsize > _MOST_NBYTES:
        copy_each(hits, spans, block_table, slots, [(stack, view)])
        return
    memory = _memory(values, origin, (num_rows, *shape), (values.itemsize, *strides))
    per_part = max(1, _PART_NBYTES // (len(values) * max(stack.first.row_nbytes, 1)))
    missing = (1,) * (view.ndim - memory.ndim)
    for lo in range(0, len(begins), per_part):
        found = memory[begins[lo : lo + per_part]].swapaxes(0, 1)
        if stack.stored.packing is not None:
            found = stack.stored.packing.unpack(found)
        index: Any = (slice(None), hits.rows[lo : lo + per_part], ..., *place)
        view[index] = found.reshape(*found.shape[:2], *missing, *found.shape[2:])


class _Memory:
    """An object that NumPy takes for the memory from an address on."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _memory(
    values: NDArray[Any], origin: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    """A read-only view of the memory from an address on. Read only the rows that lie in blocks."""
    interface = {
        "version": 3,
        "typestr": values.dtype.str,
        "data": (origin, True),
        "shape": shape,
        "strides": strides,
    }
    return np.asarray(_Memory(interface))
