"""Programs as files, which a program in C can carry out without Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.engine.program import Segment
from xloader.engine.tables import NAMES, Tables, TablesInC

_MAGIC: Final = int.from_bytes(b"xprogram", "little")


def save_program(
    path: str | os.PathLike[str],
    tables: Tables,
    segments: Sequence[Segment],
    *,
    capacity: int,
    num_slots: int,
    options: Sequence[int],
) -> None:
    """Save a program, with all that an executor is told besides."""
    arrays = dict(tables.arrays)
    stacks = arrays["stacks"] = arrays["stacks"].copy()
    # Tables of values are addresses, which are found anew.
    stacks[:, 1] = 0
    arrays["functions"] = np.zeros(len(arrays["functions"]), np.int64)
    names = [own[0] for own in TablesInC._fields_[: -len(NAMES)]]
    counts = [getattr(tables.in_c, name) for name in names]
    parts = [_words(_MAGIC, *counts), *(_section(arrays[name]) for name in NAMES)]
    lookups = [(at, own) for at, own in enumerate(tables.lookups) if own is not None]
    parts.append(_words(len(lookups)))
    for at, own in lookups:
        parts += [_words(at), _section(own)]
    parts.append(_words(capacity, num_slots, *options, len(segments)))
    for segment in segments:
        first = segment.batches[0].index if segment.batches else 0
        sizes = len(segment.copy_ends), len(segment.copies), len(segment.ends)
        parts.append(_words(segment.first_load, len(segment.loads), first, *sizes))
        parts += [_section(table) for table in segment.tables().values()]
    Path(path).write_bytes(b"".join(parts))


def _words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _section(table: NDArray[Any]) -> bytes:
    """The bytes of a table after their number, filled up to whole words."""
    data = np.ascontiguousarray(table).tobytes()
    return _words(len(data)) + data + bytes(-len(data) % 8)
