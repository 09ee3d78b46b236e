"""Records: the predictions of some samples, in memory or in a file of parts.

A file has three arrays in NumPy's format: a checksum of the second; ids and starts; and the
predictions, those of all variables of a sample in one row. A file that is shorter or longer than
that, or of another mosaic, does not count.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import TargetError
from xloader.jobs.parts_folder import PartsFolder
from xloader.mosaic.target_grid import COVERAGE, GridVariable, TargetGrid
from xloader.sources.chunk_sizes import boxes_of
from xloader.sources.stores.write_places import check_stored_names, writing

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


def group_of(name: str) -> str:
    """The group in which something of that name is stored; empty for the root."""
    return name.rpartition("/")[0]


def name_within(group: str, name: str) -> str:
    """The name that something has in a group."""
    return name.removeprefix(f"{group}/") if group else name


def groups_of(grid: TargetGrid) -> dict[str, list[GridVariable]]:
    """The variables of each group, in their order."""
    groups: dict[str, list[GridVariable]] = {}
    for variable in grid.variables:
        groups.setdefault(group_of(variable.name), []).append(variable)
    return groups


def label_groups(grid: TargetGrid, labels: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """The coordinates of each group, as Zarr can hold them."""
    stored = _storable(labels)
    groups = groups_of(grid)
    for group, variables in groups.items():
        dims = {dim for variable in variables for dim in variable.dims}
        coords = {
            name: coord
            for name, coord in stored.coords.items()
            if set(coord.dims) <= dims and group_of(str(name)) in ("", group)
        }
        part = xr.Dataset(coords=coords)
        names = [str(name) for name in {*part.coords, *part.dims}]
        renamed = {name: name_within(group, name) for name in names}
        yield group, part.rename({old: new for old, new in renamed.items() if old != new})


def _storable(labels: xr.Dataset) -> xr.Dataset:
    """Coordinates as Zarr can hold them: text of any length, and levels of an index one by one."""
    several = [dim for dim in labels.dims if getattr(labels.indexes.get(dim), "nlevels", 1) > 1]
    plain = labels.reset_index(several)
    texts = {
        name: coord.astype(object)
        for name, coord in plain.coords.items()
        # Categories and other dtypes of pandas are none of NumPy's.
        if not isinstance(coord.dtype, np.dtype) or coord.dtype.kind == "U"
    }
    return plain.assign_coords(texts)


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


def mosaic_folder(target: Path) -> PartsFolder:
    """The folder in which the predictions of a mosaic wait."""
    return PartsFolder(target, "mosaic")


class FolderParts:
    """Records in files of a folder."""

    def __init__(self, folder: PartsFolder) -> None:
        self.folder = folder
        with writing(folder.path):
            text = folder.form.read_text("utf-8")
        self.grid = TargetGrid.from_json(text)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]

    def add(self, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
        """Add the predictions of some samples, as a file."""
        with self.folder.new_file() as file:
            write_record(file, self.key, ids, starts, values)

    def records(self) -> list[Record]:
        """The records of all processes, by name of file."""
        return [record for record in self.files().values() if record is not None]

    def files(self) -> dict[Path, Record | None]:
        """All files of records; with None for those that cannot be read, and so do not count."""
        return {path: read_record(path, self.key) for path in self.folder.files()}


def open_parts(target: Path, grid: TargetGrid, labels: xr.Dataset) -> FolderParts:
    """Open the parts of a target, which are made if there are none."""
    folder = mosaic_folder(target)
    if not folder.has_begun():
        check_stored_names([*(v.name for v in grid.variables), *map(str, labels.coords)])
        folder.check_is_ours()
        folder.begin(grid.to_json(), partial(_write_labels, grid, labels))
    parts = FolderParts(folder)
    before = parts.grid.fingerprint
    differing = [name for name, digest in grid.fingerprint.items() if before.get(name) != digest]
    if differing:
        raise TargetError(
            f"{folder.path} holds predictions of other samples",
            given=f"samples with another {', '.join(differing)}",
            remedy="make them as before, or pass another target, or overwrite=True to begin anew",
        )
    return parts


def _write_labels(grid: TargetGrid, labels: xr.Dataset, path: Path) -> None:
    """Write a store that has the coordinates only, also those of the coverage."""
    zarr.create_group(str(path), zarr_format=3)
    zarr.create_group(str(path / COVERAGE), zarr_format=3)
    for group, coords in label_groups(grid, labels):
        indexes = coords.drop_vars(set(coords.coords) - set(coords.xindexes))
        for name, part in ((group, coords), (f"{COVERAGE}/{group}", indexes)):
            inner = name.strip("/") or None
            part.to_zarr(path, group=inner, mode="a", zarr_format=3, consolidated=False)


def done_ids(records: Sequence[Record]) -> Ints:
    """The ids of all records, as they come; int64."""
    return np.concatenate([np.zeros(0, np.int64), *(record.ids for record in records)])
