"""ClassSource: files of equal shape as chunks of size 1 along a dimension ``file``."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import DTypeLike, NDArray

from xloader.core.messages import extra_remedy, show_count
from xloader.errors import (
    ChunkError,
    CorruptChunkError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    UnsupportedDataError,
)
from xloader.sources.arrays import catalog
from xloader.sources.arrays.xarray_source import describe
from xloader.sources.base import Described, Fetched, Outcome, Read, Source, Variable
from xloader.sources.chunk_sizes import num_chunks, spans_of, take
from xloader.sources.fetched import Deferred
from xloader.sources.open.open_source import from_file, open_source
from xloader.sources.retries import current
from xloader.sources.stores.file_openers import FileOpener, Gate
from xloader.sources.stores.per_process import PerProcess

EXTENSIONS: Final[tuple[str, ...]] = (
    *(".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5"),
    *(".grib", ".grib2", ".grb", ".grb2"),
    *(".tif", ".tiff"),
    *(".zarr", ".zarr.zip"),
)
"""Ends of the names of files, and of folders of Zarr, that are samples."""

_ZARR_MARKS: Final = frozenset({"zarr.json", ".zgroup"})
"""Files by which a folder is known as a Zarr group, whatever its name."""


FILE: Final = "file"
"""The dimension along which files lie."""

CLASS: Final = "class"
"""The coordinate with the class of each file."""

LABEL_FIELD: Final = "label"
"""Name of the field with the class of each sample."""

_OWN_NAMES: Final = (FILE, CLASS, LABEL_FIELD, f"{FILE}_label", f"{CLASS}_label")
"""Names of the samples' own fields, dimensions and coordinates, which files cannot use."""


@dataclass(frozen=True, eq=False)
class ClassFiles:
    """The files below a folder that has a folder for each class.

    `classes`: names of the class folders, sorted. `paths`: the files relative to ``root``, class
    by class, sorted within each by folder and name.
    """

    root: str
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    codes: NDArray[np.int64]
    left_out: str = ""

    def __len__(self) -> int:
        return len(self.paths)

    def path_of(self, number: int) -> str:
        """The absolute path of a file."""
        return os.path.join(self.root, self.paths[number])

    def __reduce__(self) -> tuple[object, ...]:
        # Names of neighbouring files are nearly the same, so they compress well.
        text = "\0".join(self.paths).encode("utf-8", "surrogateescape")
        counts = np.bincount(self.codes, minlength=len(self.classes)).tolist()
        return _unpickle, (self.root, self.classes, zlib.compress(text), counts, self.left_out)


def _unpickle(
    root: str, classes: tuple[str, ...], text: bytes, counts: list[int], left_out: str
) -> ClassFiles:
    paths = tuple(zlib.decompress(text).decode("utf-8", "surrogateescape").split("\0"))
    return ClassFiles(root, classes, paths, np.repeat(np.arange(len(classes)), counts), left_out)


def list_classes(
    root: str | os.PathLike[str], extensions: Iterable[str] | None = None
) -> ClassFiles:
    """List the files of all classes, without opening any."""
    ends = _ends(extensions)
    if not isinstance(root, str | os.PathLike):
        raise UnsupportedDataError(
            "the root of class folders is no path",
            given=f"{type(root).__module__}.{type(root).__qualname__}",
            remedy="pass the path of the folder that has a folder for each class",
        )
    top = Path(root).expanduser().absolute()
    try:
        with os.scandir(top) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(
            "there is no such folder",
            given=os.fspath(root),
            remedy=f"check the path, which stands for {top}",
        ) from error
    folders = [e for e in children if e.is_dir() and not e.name.startswith(".")]
    if not folders:
        raise SourceNotFoundError(
            "the folder has no folder for a class",
            given=str(top),
            remedy="move the files of each class into a folder with the name of the class",
        )
    outside = sum(not (entry.is_dir() or entry.name.startswith(".")) for entry in children)
    unknown: Counter[str] = Counter()
    paths: list[str] = []
    counts = []
    for folder in folders:
        before = len(paths)
        files = _files_in(folder.path, folder.name, ends, unknown, frozenset())
        # Folder by folder, as ImageFolder sorts them, so that ids are the same.
        paths += sorted(files, key=os.path.split)
        counts.append(len(paths) - before)
    classes = tuple(folder.name for folder in folders)
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty:
        others = f"; names there end in {', '.join(sorted(unknown))}" if unknown else ""
        raise SourceNotFoundError(
            "a class folder has no file that can be a sample",
            given=f"{', '.join(map(repr, empty[:5]))} of {len(classes)} folders in {top}{others}",
            allowed=f"at least one file for each class, with a name that ends in {', '.join(ends)}",
            remedy="remove the empty folder, or name other ends of names with extensions=",
        )
    codes = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return ClassFiles(str(top), classes, tuple(paths), codes, _in_words(unknown, outside))


def _ends(extensions: Iterable[str] | None) -> tuple[str, ...]:
    if extensions is None:
        return EXTENSIONS
    ends: tuple[Any, ...] = ()
    if isinstance(extensions, Iterable):
        ends = (extensions,) if isinstance(extensions, str) else tuple(extensions)
    if not ends or not all(isinstance(end, str) and end for end in ends):
        raise OptionError(
            "these are not ends of names of files",
            given=f"extensions={extensions!r}",
            remedy='pass texts such as ".nc", or leave extensions out to take all kinds',
        )
    return tuple(end.lower() for end in ends)


def _files_in(
    path: str, name: str, ends: tuple[str, ...], unknown: Counter[str], above: frozenset[Any]
) -> Iterator[str]:
    """Yield the files in a folder and in those below, and count those of unknown kinds.

    ``name`` is the folder's path within the root; ``above`` are the folders that it lies in.
    """
    try:
        with os.scandir(path) as entries:
            children = list(entries)
    except OSError as error:
        raise SourceAccessError(
            f"a folder cannot be listed ({type(error).__name__})",
            given=path,
            remedy="change its permissions, or move it out of the class folders",
        ) from error
    below = []
    for entry in children:
        if entry.name.startswith("."):
            continue
        within = f"{name}/{entry.name}"
        is_sample = entry.name.lower().endswith(ends)
        is_folder = entry.is_dir()
        marks = (os.path.join(entry.path, mark) for mark in _ZARR_MARKS)
        is_zarr = is_folder and not is_sample and any(map(os.path.exists, marks))
        if is_sample or (is_zarr and ends is EXTENSIONS):
            yield within
        elif is_folder and not is_zarr:
            below.append((entry, within))
        else:
            unknown[os.path.splitext(entry.name)[1].lower() or "no extension"] += 1
    for entry, within in below:
        # A link to a folder above would have no end.
        key = os.path.realpath(entry.path)
        if key not in above:
            yield from _files_in(entry.path, within, ends, unknown, above | {key})


def _in_words(unknown: Counter[str], outside: int) -> str:
    notes = []
    if unknown:
        kinds = ", ".join(f"{num:,} {end}" for end, num in unknown.most_common(5))
        notes.append(f"{show_count(unknown.total(), 'file')} of other kinds ({kinds})")
    if outside:
        notes.append(f"{show_count(outside, 'file')} beside the class folders")
    return " and ".join(notes)


@dataclass(eq=False, repr=False)
class ClassSource(Described):
    """A source whose chunks are whole files."""

    files: ClassFiles
    _file_variables: Mapping[str, Variable]
    _dtype: DTypeLike | None
    _open_kwargs: Mapping[str, Any]

    def __post_init__(self) -> None:
        files, variables = self.files, self._file_variables
        self.name = f"{len(files):,} files of {len(files.classes)} classes in {files.root}"
        self._variables = {name: _along_files(v, len(files)) for name, v in variables.items()}
        digest = hashlib.sha256(catalog.fingerprint(self._variables, {}).encode())
        digest.update(json.dumps([files.classes, files.paths]).encode())
        self.fingerprint = digest.hexdigest()
        self._coordinates = PerProcess(partial(_labels, files), self.name, is_forkable=True)

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """The number of the file, which is opened once for all its variables."""
        return FILE, chunk[0]

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Nothing is read yet: files are opened when they are decoded; see `Source.fetch`."""
        return Deferred(partial(self._read, list(reads)))

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The path and the class of each file. Labels within files may differ, and are not read."""
        return self._coordinates.get()

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the files, which it does unless the first one is of Zarr."""
        return not _is_zarr(self.files.path_of(0))

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        return "file by file, each opened once for all its variables"

    def __reduce__(self) -> tuple[object, ...]:
        return ClassSource, (self.files, self._file_variables, self._dtype, self._open_kwargs)

    def _read(self, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        """Read files into their places. The reads of one file come together."""
        num_requests = num_missing = 0
        numbers = sorted(range(len(reads)), key=lambda number: reads[number].chunk[0])
        for file, group in itertools.groupby(numbers, lambda number: reads[number].chunk[0]):
            members = list(group)
            outcome = self._read_file(file, [reads[n] for n in members], [outs[n] for n in members])
            num_requests += outcome.num_requests
            num_missing += outcome.num_missing
        return Outcome(num_missing, num_requests)

    def _read_file(self, file: int, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        path = self.files.path_of(file)
        with self._errors(file, reads[0]):
            if _is_zarr(path):
                return self._read_zarr(path, reads, outs)
            results = current().ask(path, partial(self._values, path, reads))
        for read, out, values in zip(reads, outs, results, strict=True):
            if isinstance(values, str):
                raise self._differs(file, read, values)
            np.copyto(out[0, ...], values, casting="same_kind")
        return Outcome(0, 1)

    def _values(self, path: str, reads: Sequence[Read]) -> list[NDArray[Any] | str]:
        """The values of each read of a file; or in words, how a variable differs."""
        results: list[NDArray[Any] | str] = []
        dataset = _opener_of(path, self._open_kwargs)()
        try:
            for read in reads:
                names = (read.variable,) if read.variable in dataset.data_vars else ()
                variable = describe(dataset, names, self._dtype).get(read.variable)
                wrong = self._difference(read.variable, variable)
                if wrong:
                    results.append(wrong)
                    continue
                lazy = dataset[read.variable].variable[tuple(read.cut[1:])]
                with Gate.of_process().reading():
                    values = lazy.to_numpy()
                results.append(values)
        finally:
            with Gate.of_process().opening():
                dataset.close()
        return results

    def _read_zarr(self, path: str, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        source = open_source(path, dtype=self._dtype, **self._open_kwargs)
        num_missing = num_requests = 0
        for read, out in zip(reads, outs, strict=True):
            variable = source.variables.get(read.variable)
            wrong = self._difference(read.variable, variable)
            if wrong or variable is None:
                raise self._differs(read.chunk[0], read, wrong)
            whole, outcome = _whole(source, variable)
            np.copyto(out[0, ...], take(whole, read.cut[1:]), casting="same_kind")
            num_missing += outcome.num_missing
            num_requests += outcome.num_requests
        return Outcome(num_missing, num_requests)

    def _difference(self, name: str, variable: Variable | None) -> str:
        """How a file's variable differs from that of the first file, in words; or nothing."""
        wanted = self._file_variables[name]
        if variable is None:
            return f"there is no variable {name!r}"
        for what in ("dims", "shape", "dtype"):
            expected, actual = getattr(wanted, what), getattr(variable, what)
            if expected != actual:
                return f"{name!r} has the {what} {actual}, where the first file has {expected}"
        return ""

    def _differs(self, file: int, read: Read, wrong: str) -> ChunkError:
        first, path = self.files.paths[0], self.files.paths[file]
        what = f"the file {path} differs from the first one, {first}: {wrong}"
        remedy = 'bring all files to one shape, move this one away, or skip it: on_error="skip"'
        return self._error(ChunkError, file, read, what, remedy)

    def _error(
        self, kind: type[ChunkError], file: int, read: Read, what: str, remedy: str
    ) -> ChunkError:
        return kind(what, remedy=remedy, **read.place(self.files.root, self.files.paths[file]))

    @contextmanager
    def _errors(self, file: int, read: Read) -> Iterator[None]:
        """Turn errors in the ``with`` block into one that names the file."""
        path = self.files.paths[file]
        try:
            yield
        except (ChunkError, MemoryError, MissingDependencyError):
            raise
        except (FileNotFoundError, PermissionError, TimeoutError) as error:
            remedy = "check that it is still there, and open the folder again after changes"
            what = f"the file {path} cannot be read ({type(error).__name__})"
            raise self._error(ChunkError, file, read, what, remedy) from error
        except Exception as error:
            remedy = 'fetch or write it again, or skip it with on_error="skip"'
            what = f"the file {path} cannot be opened or decoded ({type(error).__name__})"
            raise self._error(CorruptChunkError, file, read, what, remedy) from error


def open_class_source(
    files: ClassFiles,
    variables: Iterable[str] | str | None,
    dtype: DTypeLike | None,
    open_kwargs: Mapping[str, Any],
) -> ClassSource:
    """Make a source of files, of which only the first is opened."""
    path = files.path_of(0)
    if _is_zarr(path):
        source = open_source(path, variables=variables, dtype=dtype, **open_kwargs)
    else:
        source = from_file(_opener_of(path, open_kwargs), variables, dtype)
    described = source.variables
    used = {name for variable in described.values() for name in (variable.name, *variable.dims)}
    if taken := [name for name in _OWN_NAMES if name in used]:
        raise OptionError(
            "the files use a name that the samples need for something else",
            given=f"{', '.join(map(repr, taken))} in {files.paths[0]}",
            remedy="rename it in the files, or leave a variable out with variables=[...]",
        )
    return ClassSource(files, dict(described), dtype, dict(open_kwargs))


def _opener_of(path: str, open_kwargs: Mapping[str, Any]) -> FileOpener:
    """Opens a file through xarray. A GeoTIFF needs rioxarray."""
    kwargs = dict(open_kwargs)
    if path.lower().endswith((".tif", ".tiff")) and "engine" not in kwargs:
        # A look that imports nothing: GDAL takes a second.
        if importlib.util.find_spec("rioxarray") is None:
            raise MissingDependencyError(
                "GeoTIFF files are read by rioxarray, which is not installed",
                given=path,
                remedy=extra_remedy("geotiff"),
            )
        kwargs["engine"] = "rasterio"
    return FileOpener(path, kwargs)


def _is_zarr(path: str) -> bool:
    return os.path.isdir(path) or path.lower().endswith(".zip")


def _along_files(variable: Variable, num_files: int) -> Variable:
    """A variable of one file, as a chunk for each file."""
    return replace(
        variable,
        dims=(FILE, *variable.dims),
        shape=(num_files, *variable.shape),
        chunks=(1, *(max(size, 1) for size in variable.shape)),
        packing=None,
        index_nbytes=0,
        thinning=1,
    )


def _whole(source: Source, variable: Variable) -> tuple[NDArray[Any], Outcome]:
    """All values of a variable, decoded chunk by chunk."""
    stored = np.empty(variable.shape, variable.stored_dtype)
    counts = map(num_chunks, variable.chunks, variable.shape)
    reads, outs = [], []
    for chunk in itertools.product(*map(range, counts)):
        spans = spans_of(variable.chunks, chunk, variable.shape)
        cut = tuple(slice(0, end - begin) for begin, end in spans)
        reads.append(Read(variable.name, chunk, cut))
        outs.append(stored[tuple(slice(begin, end) for begin, end in spans) or ...])
    attempts = current()
    before, attempts.reads = attempts.reads, reads
    try:
        outcome = source.fetch(reads).decode(outs)
    finally:
        attempts.reads = before
    packing = variable.packing
    return stored if packing is None else packing.unpack(stored), outcome


def _labels(files: ClassFiles) -> xr.Dataset:
    # Arrays of objects take no room for the longest text.
    classes = np.array(files.classes, object)[files.codes]
    return xr.Dataset(coords={FILE: (FILE, np.array(files.paths, object)), CLASS: (FILE, classes)})
