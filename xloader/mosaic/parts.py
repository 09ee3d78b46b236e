"""Parts: where the predictions of all ranks wait until they are merged.

Beside the target ``forecast.zarr`` lies a folder until every sample has been written::

    forecast.zarr.parts/
        grid/mosaic.json              the variables, and where windows are placed
        grid/labels.zarr/             the coordinates, also of the coverage
        rank-0000/3f2a9c51-000000.records
        rank-0001/...

Each rank adds files to its own folder, and changes none. A file of *records* holds the predictions
of some samples, as three arrays in NumPy's format: a checksum of the second; ids and starts; and
the predictions, those of all variables of a sample in one row. It appears at one stroke; one that
is shorter or longer than that, or of another mosaic, does not count.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, TargetError
from xloader.mosaic.target_grid import COVERAGE, GridVariable, TargetGrid
from xloader.sources.stores.write_places import (
    check_stored_names,
    whole_file,
    whole_folder,
    writing,
)

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


def write_record(path: Path, key: str, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
    """Write a file of records at one stroke.

    `starts` has shape (n, num_axes), `values` (n, row_size).
    """
    places = np.column_stack([ids, starts])
    with whole_file(path) as file:
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
        size, along = math.prod(below), wanted[axis]
        step = max(_SLAB_NBYTES // (size * record.dtype.itemsize), 1)
        above = (range(span.start, span.stop) for span in wanted[:axis])
        for *outer, begin in itertools.product(*above, range(along.start, along.stop, step)):
            count = min(step, along.stop - begin)
            first = 0
            for place, length in zip((*outer, begin), shape, strict=False):
                first = first * length + place
            flat = self._read(number, row, self._begins[variable] + first * size, count * size)
            slab = flat.reshape(count, *below)[(slice(None), *wanted[axis + 1 :])]
            cuts = [slice(place, place + 1) for place in outer]
            piece = [*cuts, slice(begin, begin + count), *wanted[axis + 1 :]]
            where = tuple(
                slice(span.start - whole.start, span.stop - whole.start)
                for span, whole in zip(piece, wanted, strict=True)
            )
            yield where, slab.reshape([span.stop - span.start for span in piece])

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


GRID_FILE: Final = Path("grid", "mosaic.json")
LABELS: Final = Path("grid", "labels.zarr")


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


class FolderParts:
    """Records in files of a folder."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        with writing(folder):
            text = (folder / GRID_FILE).read_text("utf-8")
        self.grid = TargetGrid.from_json(text)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._rank_folder = folder / f"rank-{rank:04d}"
        # Files of one run never meet those of another, even if both take themselves for one rank.
        self._token = uuid.uuid4().hex[:8]
        self._num_files = 0

    def add(self, ids: Ints, starts: Ints, values: NDArray[Any]) -> None:
        """Add the predictions of some samples, as a file of this rank."""
        with writing(self.folder):
            self._rank_folder.mkdir(exist_ok=True)
        name = f"{self._token}-{self._num_files:06d}.records"
        write_record(self._rank_folder / name, self.key, ids, starts, values)
        self._num_files += 1

    def records(self) -> list[Record]:
        """The records of all ranks, by rank and name of file."""
        return [record for record in self.files().values() if record is not None]

    def files(self) -> dict[Path, Record | None]:
        """All files of records; with None for those that cannot be read, and so do not count."""
        paths = sorted(self.folder.glob("rank-*/*.records"))
        return {path: read_record(path, self.key) for path in paths}


def parts_folder(target: Path) -> Path:
    """The folder of parts of a target."""
    if not target.name:
        raise OptionError(
            "the target of a mosaic has no name of its own",
            given=repr(str(target)),
            remedy='name it, as in "forecast.zarr"',
        )
    return target.with_name(target.name + ".parts")


def has_parts(target: Path) -> bool:
    """Whether predictions wait beside a target."""
    return (parts_folder(target) / GRID_FILE).is_file()


def open_parts(target: Path, grid: TargetGrid, labels: xr.Dataset, rank: int) -> FolderParts:
    """Open the parts of a target, which are made if there are none."""
    folder = parts_folder(target)
    if not has_parts(target):
        _make(folder, grid, labels)
    parts = FolderParts(folder, rank)
    before = parts.grid.fingerprint
    differing = [name for name, digest in grid.fingerprint.items() if before.get(name) != digest]
    if differing:
        raise TargetError(
            f"{parts.folder} holds predictions of other samples",
            given=f"samples with another {', '.join(differing)}",
            remedy="make them as before, or pass another target, or overwrite=True to begin anew",
        )
    return parts


def _make(folder: Path, grid: TargetGrid, labels: xr.Dataset) -> None:
    """Make a folder of parts."""
    check_stored_names([*(variable.name for variable in grid.variables), *map(str, labels.coords)])
    with whole_folder(folder / GRID_FILE.parent, GRID_FILE.name) as made:
        (made / GRID_FILE.name).write_text(grid.to_json(), "utf-8")
        stored = made / LABELS.name
        zarr.create_group(str(stored), zarr_format=3)
        zarr.create_group(str(stored / COVERAGE), zarr_format=3)
        for group, coords in label_groups(grid, labels):
            indexes = coords.drop_vars(set(coords.coords) - set(coords.xindexes))
            for name, part in ((group, coords), (f"{COVERAGE}/{group}", indexes)):
                path = name.strip("/") or None
                part.to_zarr(stored, group=path, mode="a", zarr_format=3, consolidated=False)


def done_ids(records: Sequence[Record]) -> Ints:
    """The ids of all records, as they come; int64."""
    return np.concatenate([np.zeros(0, np.int64), *(record.ids for record in records)])
