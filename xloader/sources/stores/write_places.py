"""Places where results are written: apart from the data, and file by file at one stroke."""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from xloader.errors import (
    SourceAccessError,
    StoreFullError,
    TargetError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.sources.base import Source
from xloader.sources.stores.bounded_reads import local_path

ZARR_MARKS: Final = ("zarr.json", ".zgroup", ".zmetadata", ".zarray", ".zattrs")
"""Objects of which each Zarr store has at least one."""

FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a disk or a quota without room."""


def full_error(place: object, given: object) -> StoreFullError:
    """The error for a place without room."""
    return StoreFullError(
        f"no room is left in {place}",
        given=str(given),
        remedy="make room, and run the same job again: it goes on from what is written",
    )


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn errors of the file system while something is written into errors of this library."""
    try:
        yield
    except XloaderError:
        raise
    except OSError as error:
        # Where a folder is copied, the errors of its files are told by their texts alone.
        texts = str(error) if isinstance(error, shutil.Error) else ""
        if error.errno in FULL_ERRNOS or any(os.strerror(n) in texts for n in FULL_ERRNOS):
            raise full_error(place, error) from error
        raise SourceAccessError(
            f"{place} cannot be written to",
            given=str(error),
            remedy="check that its folder is there and may be written to, and run the same again",
        ) from error


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write it. It appears at one stroke, when all of it is on the disk."""
    partial = path.with_name(f"{path.stem}-{uuid.uuid4().hex[:8]}.partial")
    with writing(path.parent):
        try:
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


@contextmanager
def whole_folder(path: Path, first: str) -> Iterator[Path]:
    """Fill a folder that appears at one stroke. Several processes may fill the same one."""
    partial = path.with_name(f"{uuid.uuid4().hex[:8]}.partial")
    with writing(path.parent):
        try:
            partial.mkdir(parents=True)
            yield partial
            os.stat(partial / first)
            os.rename(partial, path)
        except OSError:
            # Another process may have been faster.
            if not path.exists():
                raise
        finally:
            remove_partial(partial)


def replace_folder(made: Path, target: Path) -> None:
    """Move a file or folder to a target, in place of what is there.

    If another process is faster in one of the steps, its own stays.
    """
    old = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.replaced")
    with suppress(FileNotFoundError):
        os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        with suppress(OSError):
            os.rename(old, target)
        raise
    finally:
        if target.exists():
            remove_partial(old)


def remove_partial(path: Path) -> None:
    """Remove a folder or file, if there is one, and the folder that it lies in, if it is empty."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def remove_folder(folder: Path) -> None:
    """Remove a folder, under another name first, so that nobody sees a half of it.

    What killed processes had begun to remove goes as well.
    """
    if folder.exists():
        with writing(folder.parent), suppress(FileNotFoundError):
            os.rename(folder, folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.removed"))
    for removed in folder.parent.glob(f"{glob.escape(folder.name)}.*.removed"):
        shutil.rmtree(removed, ignore_errors=True)


def check_stored_names(names: Iterable[str]) -> None:
    """Check that variables and dimensions can be stored under their names, as parts of paths."""
    for name in names:
        pieces = name.split("/")
        if "\\" in name or any(piece in ("", ".", "..", *ZARR_MARKS) for piece in pieces):
            raise UnsupportedDataError(
                "a variable or dimension cannot be stored under its name",
                given=repr(name),
                allowed="names that can be parts of a path, without empty parts, '.' and '..'",
                remedy=f"rename it in xarray before: ds.rename({{{name!r}: 'another_name'}})",
            )


def check_apart(target: str | os.PathLike[str], source: Source) -> None:
    """Check that a target and the data of a source do not lie in each other."""
    place = local_path(target)
    if "://" not in place:
        place = os.path.abspath(place)
    # The name of a source of many stores tells only two of them; each store has a watch.
    names = {source.name, *(watch.store for watch in source.watches(list(source.variables)))}
    # Names such as "an open Dataset of /a.zarr and /b.zarr".
    pieces = [re.split(r" and |, ", name.replace("file://", "")) for name in names]
    paths = [path.removeprefix("an open Dataset of ") for path in itertools.chain(*pieces)]
    if any(_is_within(place, path) or _is_within(path, place) for path in paths):
        raise TargetError(
            "the target lies in the source, or the source in the target",
            given=os.fspath(target),
            remedy="choose another target",
        )


def check_replaceable(target: Path) -> None:
    """Check that what lies at a path is a file or a Zarr store, which may be overwritten."""
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not any((target / mark).exists() for mark in ZARR_MARKS):
        raise TargetError(
            f"{target} is a folder that is no Zarr store",
            given="overwrite=True",
            remedy="choose another path, or remove the folder yourself",
        )


def _is_within(inner: str, outer: str) -> bool:
    """Whether a path is another one, or lies in it."""
    if not (os.path.isabs(inner) and os.path.isabs(outer)):
        return inner == outer and "://" in inner
    inner_path, outer_path = os.path.realpath(inner), os.path.realpath(outer)
    return inner_path == outer_path or inner_path.startswith(outer_path.rstrip(os.sep) + os.sep)
