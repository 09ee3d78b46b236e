"""Records: the predictions of some samples, in memory or in a file of parts.

A file has three arrays in NumPy's format: a checksum of the second; ids and starts; and the
predictions, those of all variables of a sample in one row. A file that is shorter or longer than
that, or of another mosaic, does not count.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.jobs.kept_result import JobParts
from xloader.mosaic.target_grid import TargetGrid
from xloader.sources.chunk_sizes import boxes_of

_SLAB_NBYTES: Final = 1 << 20
"""Bytes of a row that are read at a time."""
_MOST_OPEN: Final = 64

Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Record:
    """The predictions of some samples, in memory or in a file.

    `starts` has shape (n, num_axes), `values` (n, row_size).
    """

    ids: Ints
    starts: Ints
    dtype: np.dtype
    values: NDArray[Any] | None = None
    path: Path = Path()
    offset: int = 0


def write_record(file: BinaryIO, key: str, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
    """Write records to a file.

    `starts` has shape (n, num_axes), `values` (n, row_size).
    """
    places = np.column_stack([ids, starts])
    for array in (_checksum(places, key), places, values):
        np.save(file, array)


def read_record(path: Path, key: str) -> Record | None:
    """The ids and starts of a file of records, and where its predictions are.

    None if the file is damaged, or belongs to another mosaic.
    """
    try:
        with open(path, "rb") as file:
            checksum, places = np.load(file), np.load(file)
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            begin, end = file.tell(), file.seek(0, os.SEEK_END)
            is_whole = end - begin == math.prod(shape) * dtype.itemsize
    except Exception:
        # NumPy raises errors of many types for files that are damaged.
        return None
    if not is_whole or checksum != _checksum(places, key):
        return None
    return Record(places[:, 0], places[:, 1:], dtype, path=path, offset=begin)


def _checksum(places: Ints, key: str) -> np.uint32:
    return np.uint32(zlib.crc32(key.encode() + places.tobytes()))


class RecordReader:
    """Reads pieces of predictions from records. It keeps some files open, until it is closed."""

    def __init__(self, grid: TargetGrid, records: Sequence[Record]) -> None:
        self._records = records
        self._shapes = [grid.row_shape(variable) for variable in grid.variables]
        # Where each variable begins in a row, and where the row ends.
        self._begins = [0, *itertools.accumulate(map(math.prod, self._shapes))]
        self._open: dict[Path, FileIO] = {}

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def slabs(
        self, number: int, row: int, variable: int, wanted: Slices
    ) -> Iterator[tuple[Slices, NDArray[Any]]]:
        """Pieces of the prediction of one sample, which together are the wanted one.

        For each, few bytes are read, without a gap.
        """
        record, shape = self._records[number], self._shapes[variable]
        # Slabs are cut along this axis: those before have one element in each, those behind all.
        axis, below = 0, shape[1:]
        while below and (
            wanted[axis].stop - wanted[axis].start == 1
            or math.prod(below) * record.dtype.itemsize > _SLAB_NBYTES
        ):
            axis, below = axis + 1, below[1:]
        size = math.prod(below)
        step = max(_SLAB_NBYTES // (size * record.dtype.itemsize), 1)
        sizes = [span.stop - span.start for span in wanted]
        for box in boxes_of(sizes, [*(1,) * axis, step, *sizes[axis + 1 :]]):
            first, count = 0, box[axis][1] - box[axis][0]
            for span, (begin, _), length in zip(wanted[: axis + 1], box, shape, strict=False):
                first = first * length + span.start + begin
            flat = self._read(number, row, self._begins[variable] + first * size, count * size)
            slab = flat.reshape(count, *below)[(slice(None), *wanted[axis + 1 :])]
            yield tuple(slice(*cut) for cut in box), slab.reshape([e - b for b, e in box])

    def is_same(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Whether two rows, each of a record, agree in all bits; NaN equals NaN then."""
        dtypes = {self._records[number].dtype for number, _ in (first, second)}
        step = _SLAB_NBYTES // 8
        cuts = [(at, min(step, self._begins[-1] - at)) for at in range(0, self._begins[-1], step)]
        return len(dtypes) == 1 and all(
            self._read(*first, *cut).tobytes() == self._read(*second, *cut).tobytes()
            for cut in cuts
        )

    def _read(self, number: int, row: int, begin: int, count: int) -> NDArray[Any]:
        """Some numbers of a row, one after another."""
        record = self._records[number]
        if record.values is not None:
            return record.values[row, begin : begin + count]
        file = self._open.pop(record.path, None) or FileIO(record.path)
        self._open[record.path] = file
        if len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        file.seek(record.offset + record.dtype.itemsize * (row * self._begins[-1] + begin))
        # `numpy.fromfile` is slower for the short rows of small windows.
        flat = np.empty(count, record.dtype)
        if file.readinto(flat.data.cast("B")) != flat.nbytes:
            raise EOFError(f"{record.path} became shorter while it was read")
        return flat


class MemoryParts:
    """Records in memory."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def add(self, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
        """Add the predictions of some samples. The arrays are kept, not copied."""
        self._records.append(Record(ids, starts, values.dtype, values))

    def records(self) -> list[Record]:
        """All records, in the order in which they were added."""
        return list(self._records)


class FolderParts(JobParts[TargetGrid]):
    """Records in files of a folder."""

    def add(self, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
        """Add the predictions of some samples, as a file."""
        with self.new_file() as file:
            write_record(file, self.form.key, ids, starts, values)

    def records(self) -> list[Record]:
        """The records of all processes, by name of file."""
        return [record for record in self.files().values() if record is not None]

    def files(self) -> dict[Path, Record | None]:
        """All files of records; with None for those that cannot be read, and so do not count."""
        return {path: read_record(path, self.form.key) for path in self.paths()}


def done_ids(records: Sequence[Record]) -> Ints:
    """The ids of all records, as they come; int64."""
    return np.concatenate([np.zeros(0, np.int64), *(record.ids for record in records)])
