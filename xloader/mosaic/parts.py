"""Parts: where the predictions of all ranks wait until they are merged.

Beside the target ``forecast.zarr`` lies a folder until every sample has been written::

    forecast.zarr.parts/
        grid/mosaic.json              the variables, and where windows are placed
        grid/labels.zarr/             the coordinates
        rank-0000/3f2a9c51-0000.records
        rank-0001/...

Each rank adds files to its own folder, and changes none. A file of *records* holds the predictions
of some samples: one line of JSON, then the ids, the starts, and the predictions of each variable.
It appears at one stroke; one that is shorter or longer than its first line says does not count.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, TargetError
from xloader.mosaic.target_grid import GridVariable, TargetGrid
from xloader.sources.stores.write_places import (
    check_stored_names,
    whole_file,
    whole_folder,
    writing,
)

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
    """Reads pieces of predictions from records. It keeps some files open, until it is closed."""

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
        """Pieces of the prediction of one sample, which together are the wanted one."""
        record = self._records[number]
        if record.path is None:
            values = record.rows[variable][row][wanted]
            yield tuple(slice(0, size) for size in values.shape), values
            return
        file = self._file(number, record.path)
        shape, item = self._row_shapes[variable], record.dtype.itemsize
        before = len(record.ids) * sum(self._row_sizes[:variable])
        origin = record.offset + item * (before + row * self._row_sizes[variable])
        for piece in _pieces(shape, wanted, item):
            depth = next(
                (d for d, span in enumerate(piece) if span.stop - span.start > 1), len(piece) - 1
            )
            # All axes before this one have one element, so whole rows of the rest are contiguous.
            rest = shape[depth + 1 :]
            starts = [span.start for span in piece[: depth + 1]]
            first = int(np.ravel_multi_index(starts, shape[: depth + 1]))
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


def _pieces(shape: Shape, wanted: Slices, itemsize: int) -> Iterator[Slices]:
    """Cut what is wanted into pieces, for each of which few contiguous bytes are read."""
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

    def add(self, ids: Ints, starts: Ints, rows: Sequence[NDArray[Any]]) -> None:
        """Add the predictions of some samples. The arrays are kept, not copied."""
        self._records.append(Record(ids, starts, rows[0].dtype, rows=rows))

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

    def add(self, ids: Ints, starts: Ints, rows: Sequence[NDArray[Any]]) -> None:
        """Add the predictions of some samples, as a file of this rank."""
        with writing(self.folder):
            self._rank_folder.mkdir(exist_ok=True)
        name = f"{self._token}-{self._num_files:06d}.records"
        write_record(self._rank_folder / name, self.key, ids, starts, rows)
        self._num_files += 1

    def records(self) -> list[Record]:
        """The records of all ranks, by rank and name of file."""
        paths = sorted(self.folder.glob("rank-*/*.records"))
        records = (read_record(path, self.key) for path in paths)
        return [record for record in records if record is not None]

    def damaged(self) -> list[Path]:
        """Files of records that cannot be read, and so do not count."""
        paths = sorted(self.folder.glob("rank-*/*.records"))
        return [path for path in paths if read_record(path, self.key) is None]


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
        for group, coords in label_groups(grid, labels):
            coords.to_zarr(stored, group=group or None, mode="a", zarr_format=3, consolidated=False)


def done_ids(records: Sequence[Record]) -> Ints:
    """The ids of all records, as they come; int64."""
    return np.concatenate([np.zeros(0, np.int64), *(record.ids for record in records)])
