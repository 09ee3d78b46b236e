"""Folders of classes: which files there are, and of which class each is. No file is opened."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError, SourceAccessError, SourceNotFoundError, UnsupportedDataError

EXTENSIONS: Final[tuple[str, ...]] = (
    *(".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5"),
    *(".grib", ".grib2", ".grb", ".grb2"),
    *(".tif", ".tiff"),
    *(".zarr", ".zarr.zip"),
)
"""Ends of the names of files, and of folders of Zarr, that are samples."""

_ZARR_MARKS: Final = frozenset({"zarr.json", ".zgroup"})
"""Files by which a folder is known as a Zarr group, whatever its name."""


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
            allowed="text or a pathlib.Path",
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
            allowed="a folder with a folder for each class",
            remedy=f"check the path, which stands for {top}",
        ) from error
    folders = [e for e in children if e.is_dir() and not e.name.startswith(".")]
    if not folders:
        raise SourceNotFoundError(
            "the folder has no folder for a class",
            given=str(top),
            allowed="a folder for each class, such as cyclone/ and none/, with files in them",
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
            allowed='text, such as ".nc"',
            remedy="leave extensions out to take all kinds that are known",
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
            allowed="folders that you may read",
            remedy="change its permissions, or move it out of the class folders",
        ) from error
    below = []
    for entry in children:
        if entry.name.startswith("."):
            continue
        within = f"{name}/{entry.name}"
        is_sample = entry.name.lower().endswith(ends)
        is_folder = entry.is_dir()
        is_zarr = is_folder and not is_sample and _is_zarr(entry.path)
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


def _is_zarr(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, mark)) for mark in _ZARR_MARKS)


def _in_words(unknown: Counter[str], outside: int) -> str:
    notes = []
    if unknown:
        kinds = ", ".join(f"{num:,} {end}" for end, num in unknown.most_common(5))
        notes.append(f"{_files(unknown.total())} of other kinds ({kinds})")
    if outside:
        notes.append(f"{_files(outside)} beside the class folders")
    return " and ".join(notes)


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def named(texts: Sequence[str]) -> NDArray[Any]:
    """Texts as an array of objects, which takes no room for the longest of them."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
