"""Records: the predictions of some samples, in one file.

A file has one line of JSON, then the ids, the starts, and the predictions of each variable. It
appears at one stroke, so a killed process leaves whole files only; a file that is shorter or longer
than its first line says is as if it were absent.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.sources.stores.write_places import whole_file

_MOST_HEAD: Final = 1 << 16
_SLAB_NBYTES: Final = 1 << 20
"""Bytes of a row that are read at a time."""
_MOST_OPEN: Final = 64

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Record:
    """The predictions of some samples.

    `starts` has shape (n, num_axes).
    """

    ids: Ints
    starts: Ints
    dtype: np.dtype
    path: Path | None = None
    offset: int = 0
    rows: Sequence[NDArray[Any]] = ()


def write_record(
    path: Path, key: str, ids: Ints, starts: Ints, rows: Sequence[NDArray[Any]]
) -> None:
    """Write a file of records at one stroke.

    `starts` has shape (n, num_axes).
    """
    body = ids.astype("<i8").tobytes() + starts.astype("<i8").tobytes()
    little = rows[0].dtype.newbyteorder("<")
    head = {
        "key": key,
        "num_rows": len(ids),
        "num_axes": starts.shape[1],
        "crc32": zlib.crc32(body),
        "dtype": little.str,
        "nbytes": len(body) + sum(array.nbytes for array in rows),
    }
    with whole_file(path) as file:
        file.write(json.dumps(head).encode() + b"\n" + body)
        for array in rows:
            file.write(np.ascontiguousarray(array, little).data)


def read_record(path: Path, key: str) -> Record | None:
    """The ids and starts of a file of records, and where its predictions are.

    None if the file is damaged, or belongs to another mosaic.
    """
    try:
        with open(path, "rb") as file:
            line = file.readline(_MOST_HEAD)
            head = json.loads(line)
            num, num_axes = int(head["num_rows"]), int(head["num_axes"])
            if head["key"] != key or path.stat().st_size != len(line) + head["nbytes"]:
                return None
            body = file.read(8 * num * (1 + num_axes))
            dtype = np.dtype(head["dtype"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if zlib.crc32(body) != head["crc32"] or dtype.kind != "f":
        return None
    numbers = np.frombuffer(body, "<i8").astype(np.int64)
    starts = numbers[num:].reshape(num, num_axes)
    return Record(numbers[:num], starts, dtype, path, len(line) + len(body))


class RecordReader:
    """Reads parts of predictions from records. It keeps some files open, until it is closed."""

    def __init__(self, records: Sequence[Record], row_shapes: Sequence[Shape]) -> None:
        self._records = records
        self._row_shapes = row_shapes
        self._row_sizes = [math.prod(shape) for shape in row_shapes]
        self._open: OrderedDict[int, FileIO] = OrderedDict()

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def slabs(
        self, number: int, row: int, variable: int, wanted: Slices
    ) -> Iterator[tuple[Slices, NDArray[Any]]]:
        """Parts of the prediction of one sample, which together are the wanted one."""
        record = self._records[number]
        if record.path is None:
            values = record.rows[variable][row][wanted]
            yield tuple(slice(0, size) for size in values.shape), values
            return
        file = self._file(number, record.path)
        shape, item = self._row_shapes[variable], record.dtype.itemsize
        before = len(record.ids) * sum(self._row_sizes[:variable])
        origin = record.offset + item * (before + row * self._row_sizes[variable])
        for piece in _parts(shape, wanted, item):
            depth = next(
                (d for d, span in enumerate(piece) if span.stop - span.start > 1), len(piece) - 1
            )
            # All axes before this one have one element, so whole rows of the rest are contiguous.
            rest = shape[depth + 1 :]
            first = 0
            for size, span in zip(shape[: depth + 1], piece, strict=False):
                first = first * size + span.start
            num = piece[depth].stop - piece[depth].start
            slab = np.empty((num, *rest), record.dtype)
            _read_into(file, slab, origin + item * first * math.prod(rest), record.path)
            where = tuple(
                slice(span.start - all_.start, span.stop - all_.start)
                for span, all_ in zip(piece, wanted, strict=True)
            )
            values = slab[(slice(None), *piece[depth + 1 :])]
            yield where, values.reshape([span.stop - span.start for span in piece])

    def _file(self, number: int, path: Path) -> FileIO:
        if number not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[number] = FileIO(path)
        self._open.move_to_end(number)
        return self._open[number]


def _parts(shape: Shape, wanted: Slices, itemsize: int) -> Iterator[Slices]:
    """Cut what is wanted into parts, for each of which few contiguous bytes are read."""
    split = 0
    # One element along the split axis, with all of the axes behind it, is one slab at most.
    while split < len(shape) - 1 and math.prod(shape[split + 1 :]) * itemsize > _SLAB_NBYTES:
        split += 1
    each = max(_SLAB_NBYTES // (math.prod(shape[split + 1 :]) * itemsize), 1)
    along = wanted[split]
    cuts = [slice(a, min(a + each, along.stop)) for a in range(along.start, along.stop, each)]
    for outer in product(*(range(span.start, span.stop) for span in wanted[:split])):
        for cut in cuts:
            yield (*(slice(i, i + 1) for i in outer), cut, *wanted[split + 1 :])


def _read_into(file: FileIO, array: NDArray[Any], offset: int, path: Path) -> None:
    file.seek(offset)
    view = memoryview(array.data).cast("B")
    while len(view):
        num = file.readinto(view)
        if not num:
            raise EOFError(f"{path} became shorter while it was read")
        view = view[num:]
