"""Where the fields of a batch lie in one buffer, so that one copy brings all of them to a device.

::

    | inputs, targets of one shape and dtype |pad| elevation |pad|
    0                                        256-byte boundaries
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.engine.buffers import ArrayKind, Arrays, Buffer

ALIGNMENT = 256
"""Bytes. GPUs read memory fastest from such addresses, and CUDA's own allocations begin there."""

_SMALL_GAP_NBYTES = 1 << 18
"""A gap of fewer bytes crosses with the rest. To begin a copy takes several microseconds, in which
a bus moves about as much."""


@dataclass(frozen=True)
class SlotLayout:
    """The arrays of a batch, one after the other in a buffer.

    Parameters
    ----------
    kinds : tuple of ArrayKind
        The arrays.
    offsets : tuple of int
        Where each begins in the buffer, in bytes: multiples of 256.
    nbytes : int
        Bytes of the buffer, a multiple of 256.

    Examples
    --------
    >>> f4, u1 = np.dtype("f4"), np.dtype("u1")
    >>> layout = SlotLayout.of([ArrayKind((2, 50), f4), ArrayKind((3,), u1)])
    >>> layout.offsets, layout.nbytes
    ((0, 512), 768)
    """

    kinds: tuple[ArrayKind, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, kinds: Sequence[ArrayKind]) -> SlotLayout:
        """Lay out arrays of these kinds.

        Parameters
        ----------
        kinds : sequence of ArrayKind
            The arrays.
        """
        offsets, end = [], 0
        for kind in kinds:
            offsets.append(end)
            end += -(-kind.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(kinds), tuple(offsets), max(end, ALIGNMENT))

    def arrays(self, buffer: Buffer) -> list[NDArray[Any]]:
        """Views of a buffer as the arrays.

        Parameters
        ----------
        buffer : numpy.ndarray
            Bytes, at least ``nbytes`` of them.
        """
        return [
            buffer[offset : offset + kind.nbytes].view(kind.dtype).reshape(kind.shape)
            for offset, kind in zip(self.offsets, self.kinds, strict=True)
        ]


@dataclass(frozen=True)
class FieldBytes:
    """The place of one field of a batch in a buffer.

    Parameters
    ----------
    name : str
        Name of the field.
    offset : int
        Where it begins, in bytes.
    kind : ArrayKind
        Its shape, with the rows of this batch, and its dtype.
    """

    name: str
    offset: int
    kind: ArrayKind


def ranges_of(places: Sequence[FieldBytes]) -> list[tuple[int, int]]:
    """The parts of a buffer that hold fields, as few as is worth while.

    They are fewer bytes than the buffer where rows are missing, or values have become narrower.

    Parameters
    ----------
    places : sequence of FieldBytes
        The places of the fields.

    Returns
    -------
    list of (int, int)
        Where each part begins and ends.

    Examples
    --------
    >>> small, large = ArrayKind((8,), np.dtype("u1")), ArrayKind((2**20,), np.dtype("u1"))
    >>> ranges_of([FieldBytes("a", 0, small), FieldBytes("b", 256, small)])
    [(0, 264)]
    >>> ranges_of([FieldBytes("a", 2**20, large), FieldBytes("b", 0, small)])
    [(0, 8), (1048576, 2097152)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted((one.offset, one.offset + one.kind.nbytes) for one in places):
        if found and begin - found[-1][1] < _SMALL_GAP_NBYTES:
            begin, end = found[-1][0], max(end, found[-1][1])
            found.pop()
        found.append((begin, end))
    return found


def find_fields(arrays: Arrays, begin: int, end: int) -> tuple[FieldBytes, ...] | None:
    """Find the places of a batch's fields in a buffer.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The fields.
    begin, end : int
        The buffer's address, and the address after its last byte.

    Returns
    -------
    tuple of FieldBytes or None
        One for each field; None if a field lies elsewhere, or not in one piece.
    """
    found = []
    for name, array in arrays.items():
        offset = address_of(array) - begin
        if offset < 0 or offset + array.nbytes > end - begin or not array.flags.c_contiguous:
            return None
        found.append(FieldBytes(name, offset, ArrayKind(array.shape, array.dtype)))
    return tuple(found)


def copy_fields(arrays: Arrays, buffer: Buffer) -> tuple[FieldBytes, ...]:
    """Copy the fields of a batch into a buffer.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The fields, in any memory.
    buffer : numpy.ndarray
        Bytes, at least as many as the fields' `SlotLayout` has.

    Returns
    -------
    tuple of FieldBytes
        The place of each field.
    """
    layout = SlotLayout.of([ArrayKind(array.shape, array.dtype) for array in arrays.values()])
    for target, array in zip(layout.arrays(buffer), arrays.values(), strict=True):
        np.copyto(target, array)
    return tuple(
        FieldBytes(name, offset, kind)
        for name, offset, kind in zip(arrays, layout.offsets, layout.kinds, strict=True)
    )
