"""Reading several parts of files with one compiled call, without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.stored_objects import ObjectPart

_ABSENT: Final = -1
"""The number that ``read_files.c`` gives, in place of a size, for a file that is absent."""

_ARGUMENTS: Final = (ADDRESS, ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS)


def reads_together() -> bool:
    """Whether `read_parts` can read, because the library was compiled."""
    return find_function("xloader_read_files", _ARGUMENTS) is not None


def read_parts(
    prefix: str, parts: Sequence[ObjectPart], buffer: Bytes, told: Ints
) -> tuple[list[Bytes | None], int]:
    """Read parts of files into one buffer, as many as it has room for.

    Parameters
    ----------
    prefix : str
        What precedes each key in the path of its file.
    parts : sequence of ObjectPart
        The parts. Each key is the path of a file within its store. Those of one file follow each
        other.
    buffer : numpy.ndarray of uint8
        Receives the bytes.
    told : numpy.ndarray of int64, shape (num_parts, 2)
        Receives place and size of each part, as soon as it is read.

    Returns
    -------
    found : list of (numpy.ndarray of uint8 or None)
        The bytes of the first parts, as views of the buffer; None for a file that is absent. The
        list ends before the first part for which there is no room, or that could not be read.
    needed_nbytes : int
        Size of the first part, if there is no room for it; else 0.
    """
    function = find_function("xloader_read_files", _ARGUMENTS)
    assert function is not None, "reads_together() says whether there is one"
    paths, offset = bytearray(), 0
    table: list[int] = []
    for at, (key, start, stop) in enumerate(parts):
        if not at or key != parts[at - 1].key:
            offset = len(paths)
            paths += os.fsencode(prefix + key) + b"\0"
        table += (offset, start, -1 if stop is None else stop - start)
    asked = np.array(table, np.int64)
    num = function(
        *(bytes(paths), address_of(asked), len(parts)),
        *(address_of(buffer), buffer.size, address_of(told)),
    )
    if not num:
        return [], int(told[0, 1])
    found = [
        None if size == _ABSENT else buffer[begin : begin + size]
        for begin, size in told[:num].tolist()
    ]
    return found, 0
