"""Reading several parts of files with one compiled call, without Python's lock."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Final

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.stored_objects import ObjectPart

_ABSENT: Final = -1
"""The number that ``read_files.c`` gives, in place of a size, for a file that is absent."""

_ARGUMENTS: Final = (ADDRESS, ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS)


def reads_together() -> bool:
    """Whether `read_parts` can read, because the library was compiled."""
    return find_function("xloader_read_files", _ARGUMENTS) is not None


def read_parts(
    prefix: str, parts: Sequence[ObjectPart], buffer: Bytes, told: array[int]
) -> tuple[list[Bytes | None], int]:
    """Read parts of files into one buffer, as many as it has room for.

    The bytes of the first parts, as views of the buffer; None for a file that is absent.
    """
    function = find_function("xloader_read_files", _ARGUMENTS)
    assert function is not None, "reads_together() says whether there is one"
    paths, offset = bytearray(), 0
    asked = array("q")
    for at, (key, start, stop, most) in enumerate(parts):
        if not at or key != parts[at - 1].key:
            offset = len(paths)
            paths += os.fsencode(prefix + key) + b"\0"
        asked.extend((offset, start, -1 if stop is None else stop - start, most))
    num = function(
        bytes(paths),
        asked.buffer_info()[0],
        len(parts),
        address_of(buffer),
        buffer.size,
        told.buffer_info()[0],
    )
    if not num:
        return [], told[1]
    found = [
        None if size == _ABSENT else buffer[begin : begin + size]
        for begin, size in zip(told[: 2 * num : 2], told[1 : 2 * num : 2], strict=True)
    ]
    return found, 0
