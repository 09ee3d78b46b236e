"""The result of a job at a local path: found again when it is done, gone on with after a kill.

What a job makes is a Dataset, merged of parts. Until all are there, they wait in the folder beside
the target, as files of named entries. The *form* of a result is what all its parts must know: its
labels, and digests of the data, samples and options, which tell one job from another::

    kept = KeptResult.at("stats.nc", StatsTemplate)
    kept.finished(form.key)                # the result, if this job was done before
    parts = kept.open_parts(form)          # what was done before a kill, or nothing yet
    parts.add([("0-0", ...), ...])
    kept.write(result)                     # appears at one stroke, and the parts go
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar
from zipfile import ZipFile, ZipInfo

import xarray as xr

from xloader.errors import OptionError, StateError, TargetError
from xloader.jobs.parts_folder import PartsFolder
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import writing

_LEAST_FREE: Final = 1 << 20
"""Bytes for what a file holds beside its values."""


class JobForm:
    """The form of a result. It holds no values, and can be written as JSON.

    `name, noun`: of its files, and in messages. `mark`: the attribute of a result that holds the
    key of its job. `fingerprint`: digests of the data, the samples and the options, by these names.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    mark: ClassVar[str]
    fingerprint: Mapping[str, str]
    labels: xr.Dataset

    def to_json(self) -> str:
        """All but the labels, as JSON."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str, labels: xr.Dataset) -> Self:
        """The form that `to_json` wrote. ValueError: it is of another version."""
        raise NotImplementedError

    def differing(self, other: JobForm) -> list[str]:
        """In what another job differs: its data, samples or options."""
        theirs = other.fingerprint
        return [name for name, digest in self.fingerprint.items() if theirs.get(name) != digest]

    @property
    def key(self) -> str:
        """Text that differs for other data, samples or options."""
        return hashlib.sha256(json.dumps(dict(self.fingerprint)).encode()).hexdigest()[:16]


JobFormT = TypeVar("JobFormT", bound=JobForm)


@dataclass(frozen=True)
class KeptResult(Generic[JobFormT]):
    """A result at a path, and its parts beside it."""

    target: Path
    form_type: type[JobFormT]

    @classmethod
    def at(cls, path: str | os.PathLike[str], form_type: type[JobFormT]) -> Self:
        """Check the path of a result."""
        is_path = isinstance(path, str | os.PathLike)
        target = Path(local_path(path)).expanduser() if is_path else Path()
        if not is_path or "://" in local_path(path) or target.suffix not in (".nc", ".zarr"):
            name, noun = form_type.name, form_type.noun
            raise OptionError(
                f"the path of {noun} is not a local path of a netCDF file or a Zarr store",
                given=repr(path),
                remedy=f'pass path="{name}.nc" or "{name}.zarr", or leave it out and write the '
                "result",
            )
        return cls(target, form_type)

    @property
    def folder(self) -> PartsFolder:
        """The folder of the parts."""
        return PartsFolder(self.target, self.form_type.name)

    def finished(self, key: str | None) -> xr.Dataset | None:
        """The result of the same job, if it lies there already; None where nothing lies.

        `key`: the key of the job; None for that of the parts beside the target, if any.
        """
        if not self.target.exists():
            return None
        result, folder = self.stored(), self.folder
        mark = None if result is None else result.attrs[self.form_type.mark]
        try:
            key_of_parts = JobParts(self).form.key if folder.has_begun() else None
        except StateError:
            # Parts of another version do not matter to a job that is done.
            if mark is None or key != mark:
                raise
            key_of_parts = None
        if key is None:
            key = key_of_parts
        if mark is None or key not in (None, mark):
            noun = self.form_type.noun
            others = f"{noun} of other data, samples or options"
            raise TargetError(
                f"something lies at {self.target} already",
                given=f"something else than {noun}" if mark is None else others,
                remedy="open it with xarray, choose another path, or pass overwrite=True",
            )
        if key_of_parts == key or not folder.path.exists():
            # The job was killed after its result was whole.
            folder.remove()
        return result

    def stored(self) -> xr.Dataset | None:
        """The result that lies there, as it was before it was written; None if there is none."""
        options: dict[str, Any] = (
            {"engine": "zarr", "consolidated": False} if self.target.suffix == ".zarr" else {}
        )
        try:
            with xr.open_dataset(self.target, decode_timedelta=True, **options) as stored:
                return (
                    stored.load().drop_encoding() if self.form_type.mark in stored.attrs else None
                )
        except (OSError, ValueError, KeyError):
            return None

    def open_parts(self, form: JobFormT, *, overwrite: bool = False) -> JobParts[JobFormT]:
        """Open the parts, which are begun if there are none."""
        folder = self.folder
        if not folder.has_begun():
            if not overwrite:
                folder.check_is_ours()
            self._begin(form)
        try:
            parts = JobParts(self)
            if differing := form.differing(parts.form):
                raise StateError(
                    f"{folder.path} holds {self.form_type.noun} of another job",
                    given=f"a job with other {', '.join(differing)}",
                    remedy="call it as before, choose another path, or begin anew with "
                    "overwrite=True",
                )
            return parts
        except StateError:
            if not overwrite:
                raise
        folder.remove()
        self._begin(form)
        return JobParts(self)

    def _begin(self, form: JobFormT) -> None:
        def write_labels(path: Path) -> None:
            form.labels.to_zarr(path, zarr_format=3, consolidated=False)

        self.folder.begin(form.to_json(), write_labels)

    def write(self, result: xr.Dataset, *, overwrite: bool = False) -> None:
        """Write the result at one stroke, and remove the parts."""
        with writing(self.target.parent):
            self.folder.write_target(partial(_write, result), replaces=overwrite)
        self.folder.remove()


class JobParts(Generic[JobFormT]):
    """The parts of a result, as files of named entries."""

    def __init__(self, kept: KeptResult[JobFormT]) -> None:
        self._folder = folder = kept.folder
        try:
            text = folder.form.read_text("utf-8")
            with xr.open_zarr(folder.labels, consolidated=False) as labels:
                self.form = kept.form_type.from_json(text, labels.load())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder.path} holds no partial {kept.form_type.noun} that this version of "
                "xloader can read",
                given=str(error),
                remedy="remove it, or pass overwrite=True to begin anew",
            ) from error
        self._mark = json.dumps({"key": self.form.key}).encode()

    def add(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Write some entries as a file."""
        with self._folder.new_file() as file, ZipFile(file, "w") as archive:
            archive.comment = self._mark
            for name, data in entries:
                archive.writestr(ZipInfo(name), data)

    def places(self) -> tuple[dict[str, Path], list[Path]]:
        """The file of each entry, and the damaged files."""
        paths: dict[str, Path] = {}
        damaged = []
        for path in self._folder.files():
            try:
                with ZipFile(path) as archive:
                    if archive.comment != self._mark or archive.testzip():
                        raise ValueError(path.name)
                    for name in archive.namelist():
                        paths.setdefault(name, path)
            except MemoryError:
                raise
            except Exception:
                # Damaged bytes can make a reader of zip files raise nearly anything.
                damaged.append(path)
        return paths, damaged

    def read(self, paths: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
        """The entries at some places, file by file."""
        files: dict[Path, list[str]] = {}
        for name, path in paths.items():
            files.setdefault(path, []).append(name)
        for path, names in files.items():
            # An equal job that was faster may have removed it.
            with writing(path.parent), ZipFile(path) as archive:
                for name in names:
                    yield name, archive.read(name)


def _write(result: xr.Dataset, path: Path) -> None:
    """Write a result in the format that the suffix of a path names."""
    try:
        if path.suffix == ".nc":
            result.to_netcdf(path)
            return
        with warnings.catch_warnings():
            # zarr says that the dtype of the labels, and metadata in one place, are not in the
            # format.
            warnings.simplefilter("ignore")
            result.to_zarr(path, zarr_format=3, consolidated=True)
    except RuntimeError as error:
        # The netCDF library does not tell a full disk from other failures.
        is_full = shutil.disk_usage(path.parent).free < result.nbytes + _LEAST_FREE
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
