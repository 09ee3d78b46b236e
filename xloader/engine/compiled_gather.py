"""The compiled way to gather: one call copies all that rows take of loaded blocks.

``gather_rows.c`` in `xloader.compiled` copies without Python's lock, so that several threads gather
side by side. Where it was not compiled, `xloader.engine.copies` does the same with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import (
    ADDRESS,
    NUMBER,
    Function,
    address_of,
    find_function,
    load_library,
)
from xloader.core.axis import Ints
from xloader.core.footprint import Access
from xloader.core.packing import Packing
from xloader.engine.buffers import Arrays
from xloader.engine.field_places import Stack
from xloader.engine.overlaps import Chosen, Hits

_SAME, _WIDEN, _LOOK_UP = range(3)
"""How numbers are converted: not at all, to wider floats, or with a table of all values."""

_MOST_LOOPS: Final = 64
"""The most nested loops of the compiled function."""

_FLOATS: Final = (np.dtype("f4"), np.dtype("f8"))

_ARGUMENTS: Final = (*(ADDRESS,) * 4, NUMBER, NUMBER, ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS)


def gather_in_words(copied: Iterable[tuple[str, np.dtype, Packing | None, np.dtype]]) -> str:
    """Say how variables are copied into batches in this process, for `explain()`.

    Parameters
    ----------
    copied : iterable of (str, numpy.dtype, Packing or None, numpy.dtype)
        Per variable its name, its stored dtype, its packing and the dtype of its field.
    """
    library, reason = load_library()
    if library is None:
        return f"by NumPy, which holds Python's lock: {reason}"
    others = sorted(
        {
            name
            for name, stored, packing, dtype in copied
            if _conversion(stored, packing, dtype) is None
        }
    )
    if not others:
        return "compiled, without Python's lock"
    return f"compiled, without Python's lock; {', '.join(others)} by NumPy, to convert the numbers"


@dataclass(frozen=True, eq=False)
class CompiledCopy:
    """A stack of variables, in the form that the compiled function takes.

    Parameters
    ----------
    function : callable
        The compiled function.
    layout : numpy.ndarray of int64
        Conversion, sizes of a stored and of a delivered number in bytes, numbers of windowed
        dimensions, outer loops and axes, bytes between rows; for each outer loop its count and
        step in bytes; for each axis, in the order of the blocks' memory, its windowed dimension or
        -1, its step and size in elements, and its step in the batch in bytes.
    table : numpy.ndarray, optional
        The value of each packed number.
    field : str
        Name of the field that the first variable goes to.
    offset : int
        Bytes from the beginning of the field to the first number.
    column : int
        Index of the first variable among those of its group.
    """

    function: Function
    layout: Ints
    table: np.ndarray | None
    field: str
    offset: int
    column: int

    @cached_property
    def _addresses(self) -> tuple[int, int | None]:
        """The addresses of the layout and of the table."""
        return address_of(self.layout), None if self.table is None else address_of(self.table)

    def address_in(self, arrays: Arrays) -> int:
        """The address of the first number of a batch."""
        return address_of(arrays[self.field]) + self.offset

    def copy(
        self, hits: Hits, chosen: Chosen, slots: NDArray[np.int32], addresses: Ints, target: int
    ) -> None:
        """Copy the parts of blocks that some rows take.

        The caller keeps the memory of the blocks and of the batch alive meanwhile.

        Parameters
        ----------
        hits : Hits
            Which rows take which parts of blocks.
        chosen : slice or numpy.ndarray of int64
            The hits to copy.
        slots : numpy.ndarray of int32, shape (n,)
            Per hit, the slot of its block.
        addresses : numpy.ndarray of int64, shape (num_slots,)
            Per slot, the address of the block's values of the first variable.
        target : int
            Where the batch begins, from `address_in`.
        """
        table = hits.table
        if isinstance(chosen, slice):
            line, (first, end, _) = None, chosen.indices(len(hits))
        else:
            line, first, end = address_of(chosen), 0, len(chosen)
        self.function(
            *self._addresses,
            target,
            address_of(table),
            table.strides[0] // 8,
            hits.shift,
            line,
            first,
            end - first,
            address_of(slots),
            address_of(addresses),
        )


def compile_copy(stack: Stack, spans: Access, example: Arrays) -> CompiledCopy | None:
    """Prepare the compiled copy of a stack.

    Parameters
    ----------
    stack : Stack
        The variables.
    spans : tuple of ((int, int, int) or None)
        The access with which they are taken.
    example : dict of str to numpy.ndarray
        The fields of a batch of two rows at least. All batches have the same strides.

    Returns
    -------
    CompiledCopy or None
        None if the function is missing, or cannot copy these numbers.
    """
    function = find_function("xloader_gather", _ARGUMENTS)
    first, stored = stack.first, stack.stored
    view = stack.view(example)
    conversion = _conversion(stored.dtype, stored.packing, view.dtype)
    num_outer = view.ndim - len(stored.axes)
    lacks_access = any(dim is not None and spans[dim] is None for dim in stored.windowed)
    if function is None or conversion is None or lacks_access or view.ndim > _MOST_LOOPS:
        return None
    # The second axis is that of the rows.
    outer = [at for at in range(num_outer) if at != 1]
    layout: list[int] = [
        *(conversion, stored.dtype.itemsize, view.dtype.itemsize),
        *(len(spans), len(outer), len(stored.axes), view.strides[1]),
    ]
    for at in outer:
        layout += [view.shape[at], view.strides[at]]
    for at in stored.order:
        dim = stored.windowed[at]
        span = None if dim is None else spans[dim]
        if dim is None or span is None:
            layout += [-1, 1, stored.axes[at].size]
        else:
            layout += [dim, span[1], 0]
        layout.append(view.strides[num_outer + at])
    table = stored.packing.table if stored.packing is not None else None
    offset = address_of(view) - address_of(example[first.field])
    return CompiledCopy(
        function, np.array(layout, np.int64), table, first.field, offset, first.column
    )


def _conversion(stored: np.dtype, packing: Packing | None, dtype: np.dtype) -> int | None:
    """How stored numbers become those of a field; None if the compiled function cannot do it."""
    if packing is not None:
        has_table = packing.table is not None and packing.table.dtype == dtype
        return _LOOK_UP if has_table and dtype in _FLOATS else None
    if stored == dtype and not dtype.hasobject:
        return _SAME
    return _WIDEN if (stored, dtype) == _FLOATS else None
