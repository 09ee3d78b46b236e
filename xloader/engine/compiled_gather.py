"""The compiled way to gather: one call copies all that rows take of loaded blocks.

`gather_rows.c` copies without Python's lock, so that several threads gather side by side. It is
compiled when xloader is installed, if there is a C compiler. Where it is missing,
`xloader.engine.copies` does the same with NumPy.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Access
from xloader.engine.buffers import Arrays
from xloader.engine.field_places import Stack, address_of
from xloader.engine.overlaps import Hits

_VERSION: Final = 1
"""Version of the arguments. The library must have been compiled from a source of the same one."""

_NAME: Final = "_gather_rows.so"
"""The file that the installation makes beside this one."""

_SAME, _WIDEN, _NARROW, _LOOK_UP = range(4)
"""How numbers are copied: unchanged, as wider or narrower floats, or through a table."""

_FLOATS: Final = (np.dtype("f4"), np.dtype("f8"))


@functools.cache
def find_library() -> Callable[..., None] | None:
    """The compiled function; None if it was not compiled, or is switched off.

    The environment variable ``XLOADER_COMPILED=0`` switches it off.
    """
    path = Path(__file__).with_name(_NAME)
    if os.environ.get("XLOADER_COMPILED") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        if library.xloader_gather_version() != _VERSION:
            return None
        found: Any = library.xloader_gather
    except (OSError, AttributeError):
        # It was compiled on another kind of machine, or from another release.
        return None
    found.restype = None
    found.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    function: Callable[..., None] = found
    return function


def gather_in_words() -> str:
    """Say how rows are copied into batches in this process, for `explain()`."""
    if find_library() is not None:
        return "compiled, without Python's lock"
    if os.environ.get("XLOADER_COMPILED") == "0":
        return "NumPy, as XLOADER_COMPILED=0 asks for"
    return "NumPy, which holds Python's lock: install xloader where there is a C compiler"


@dataclass(frozen=True, eq=False)
class CompiledCopy:
    """A stack of variables, in the form that the compiled function takes.

    Parameters
    ----------
    function : callable
        The compiled function.
    layout : numpy.ndarray of int64
        Way of copying, sizes of a stored and of a delivered number in bytes, numbers of windowed
        dimensions, outer loops and axes, bytes between rows; for each outer loop its count and
        step in bytes; for each axis its windowed dimension or -1, its step and size in elements,
        and its step in the batch in bytes.
    table : numpy.ndarray, optional
        The value of each packed number.
    field : str
        Name of the field that the first variable goes to.
    offset : int
        Bytes from the beginning of the field to the first number.
    column : int
        Index of the first variable among those of its group.
    """

    function: Callable[..., None]
    layout: Ints
    table: np.ndarray | None
    field: str
    offset: int
    column: int

    def __post_init__(self) -> None:
        at = None if self.table is None else address_of(self.table)
        object.__setattr__(self, "_begin", (address_of(self.layout), at))

    def target(self, arrays: Arrays) -> int:
        """The address of the first number of a batch."""
        return address_of(arrays[self.field]) + self.offset

    def copy(self, hits: Hits, addresses: Ints, target: int) -> None:
        """Copy the parts of blocks that some rows take.

        Parameters
        ----------
        hits : Hits
            Which rows take which parts of blocks.
        addresses : numpy.ndarray of int64, shape (n,)
            Per hit, the address of the block's values of the first variable. The last axis is
            contiguous.
        target : int
            Where the batch begins, from `target`.
        """
        table = hits.table
        self.function(
            *self._begin,  # type: ignore[attr-defined]
            target,
            address_of(table),
            table.strides[0] // 8,
            len(hits),
            hits.shift,
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
        None if the function is missing, or cannot copy these dtypes.
    """
    function = find_library()
    first = stack.first
    view = stack.view(example)
    found = _way(stack, view.dtype)
    windowed, axes = first.stored.windowed, first.stored.axes
    num_outer = view.ndim - len(axes)
    is_odd = any(dim is not None and spans[dim] is None for dim in windowed)
    if function is None or found is None or is_odd:
        return None
    way, table = found
    # The second axis is that of the rows.
    outer = [at for at in range(num_outer) if at != 1]
    layout: list[int] = [
        *(way, first.stored.dtype.itemsize, view.dtype.itemsize),
        *(len(spans), len(outer), len(axes), view.strides[1]),
    ]
    for at in outer:
        layout += [view.shape[at], view.strides[at]]
    for axis, dim, stride in zip(axes, windowed, view.strides[num_outer:], strict=True):
        span = None if dim is None else spans[dim]
        layout += [-1, 1, axis.size] if dim is None or span is None else [dim, span[1], 0]
        layout.append(stride)
    offset = address_of(view) - address_of(example[first.field])
    return CompiledCopy(
        function, np.array(layout, np.int64), table, first.field, offset, first.column
    )


def _way(stack: Stack, dtype: np.dtype) -> tuple[int, np.ndarray | None] | None:
    """How the numbers of a stack are copied, and the table for that; None if it cannot be done."""
    stored = stack.stored
    if stored.packing is not None:
        table = stored.packing.table
        is_told = table is not None and table.dtype == dtype and dtype in _FLOATS
        return (_LOOK_UP, table) if is_told else None
    if stored.dtype == dtype and not dtype.hasobject:
        return _SAME, None
    if dtype in _FLOATS and stored.dtype in _FLOATS:
        return (_WIDEN if dtype.itemsize == 8 else _NARROW), None
    return None
