"""The result of a job at a local path: found again when it is done, gone on with after a kill.

What a job makes is merged of parts. Until all are there, they wait in a folder beside the target.
The *form* of a result is what all its parts must know: its labels, and digests of the data, samples
and options, which tell one job from another::

    kept = KeptResult.at("stats.nc", StatsTemplate)
    kept.finished(form.stamp)                  # the result, if this job was done before
    parts = kept.open_parts(form, TreeParts)   # what was done before a kill, or nothing yet
    parts.add(...)
    kept.write(result)                         # appears at one stroke, and the parts go

    stats.nc.parts/
        form/stats.json                what the whole is, as all parts must know it
        form/labels.zarr/              its coordinates
        parts/3f2a9c51-000000.part     results of some units of the work
        parts/...

Files are added, and none is changed. So a process that is killed leaves whole files only, and those
of several machines do not meet.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Generic, Self, TypeVar

import xarray as xr

from xloader.errors import OptionError, SourceAccessError, StateError, TargetError, XloaderError
from xloader.sources.base import Source
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import (
    check_apart,
    check_replaceable,
    remove_folder,
    remove_partial,
    replace_folder,
    whole_file,
    whole_folder,
    writing,
)

T = TypeVar("T")

_LABELS: Final = "labels.zarr"
_LEAST_FREE: Final = 1 << 20
"""Bytes for what a file holds beside its values."""


@dataclass(frozen=True, kw_only=True)
class JobForm:
    """The form of a result. It holds no values, and can be written as JSON.

    `name, noun`: of its files, and in messages. `mark`: the attribute of a result that holds the
    stamp of its job. `suffixes`: those of its paths; none for any. `nested`: classes of fields that
    hold several. `fingerprint`: digests of the data, the samples and the options, by such names.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    mark: ClassVar[str]
    version: ClassVar[int] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".nc", ".zarr")
    nested: ClassVar[Mapping[str, type[Any]]] = {}
    refusal: ClassVar[type[XloaderError]] = StateError

    fingerprint: Mapping[str, str]
    labels: xr.Dataset = field(compare=False, repr=False, default_factory=xr.Dataset)

    def to_json(self) -> str:
        """All but the labels, as JSON."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "labels"}
        return json.dumps({"version": self.version, **facts}, default=vars)

    @classmethod
    def from_json(cls, text: str, labels: xr.Dataset) -> Self:
        """The form that `to_json` wrote. ValueError: it is of another version."""
        facts = _as_tuple(json.loads(text))
        if facts.pop("version") != cls.version:
            raise ValueError("it was written by another version")
        for name, kind in cls.nested.items():
            facts[name] = tuple(kind(**parts) for parts in facts[name])
        return cls(**{**facts, "labels": labels})

    @classmethod
    def read(cls, text: str, labels: Path) -> Self:
        """The form whose JSON is a text, with the labels at a path."""
        with xr.open_zarr(labels, consolidated=False) as opened:
            return cls.from_json(text, opened.load())

    def write_labels(self, path: Path) -> None:
        """Write the labels as a Zarr store."""
        self.labels.to_zarr(path, zarr_format=3, consolidated=False)

    @classmethod
    def stored(cls, target: Path) -> tuple[object, Any] | None:
        """The stamp of the result at a target, and the result; None if it is no such result."""
        is_zarr = target.suffix == ".zarr"
        options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if is_zarr else {}
        try:
            with xr.open_dataset(target, decode_timedelta=True, **options) as stored:
                # As it was before it was written.
                return stored.attrs[cls.mark], stored.load().drop_encoding()
        except (OSError, ValueError, KeyError):
            return None

    def differing(self, other: JobForm) -> list[str]:
        """In what another job differs: its data, samples or options."""
        theirs = other.fingerprint
        return [name for name, digest in self.fingerprint.items() if theirs.get(name) != digest]

    @property
    def key(self) -> str:
        """Text that differs for other data, samples or options."""
        return hashlib.sha256(json.dumps(dict(self.fingerprint)).encode()).hexdigest()[:16]

    @property
    def stamp(self) -> object:
        """The mark by which a result tells its job from others."""
        return self.key


def _as_tuple(value: Any) -> Any:
    """A value of JSON, with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _as_tuple(inner) for key, inner in value.items()}
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


JobFormT = TypeVar("JobFormT", bound=JobForm)
PartsT = TypeVar("PartsT", bound="JobParts[Any]")


def path_here(path: object) -> Path | None:
    """A path of this machine; None for anything else, such as a URL."""
    if not isinstance(path, str | os.PathLike) or "://" in local_path(path):
        return None
    return Path(local_path(path)).expanduser()


@dataclass(frozen=True)
class KeptResult(Generic[JobFormT]):
    """A result at a path, and the folder of its parts beside it."""

    target: Path
    form_type: type[JobFormT]

    @classmethod
    def at(cls, path: str | os.PathLike[str], form_type: type[JobFormT]) -> Self:
        """Check the path of a result."""
        target, suffixes = path_here(path), form_type.suffixes
        if target is None or not (target.suffix in suffixes if suffixes else target.name):
            kind = "of a netCDF file or a Zarr store" if suffixes else "with a name of its own"
            examples = [f'"{form_type.name}{suffix}"' for suffix in suffixes or (".zarr",)]
            raise OptionError(
                f"the path of {form_type.noun} is not a local path {kind}",
                given=repr(path),
                remedy=f"pass {' or '.join(examples)}, and copy the result from there",
            )
        return cls(target, form_type)

    @classmethod
    def to_write(
        cls, path: Any, form_type: type[JobFormT], source: Source, *, overwrite: bool = False
    ) -> Self:
        """Check the path of a result of some data, and what it may replace."""
        kept = cls.at(path, form_type)
        check_apart(kept.target, source)
        if overwrite:
            check_replaceable(kept.target)
        return kept

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.target.with_name(self.target.name + ".parts")

    @property
    def form_path(self) -> Path:
        """The file of the form, beside which the labels lie."""
        return self.folder / "form" / f"{self.form_type.name}.json"

    def has_begun(self) -> bool:
        """Whether parts of this kind wait beside the target."""
        return self.form_path.is_file()

    def lying(self, stamp: object) -> Any:
        """The result of the same job that lies at the target; None where nothing lies."""
        if not self.target.exists():
            return None
        return self._same(self.form_type.stored(self.target), stamp)

    def _same(self, stored: tuple[object, Any] | None, stamp: object) -> Any:
        if stored is None or stamp not in (None, stored[0]):
            noun = self.form_type.noun
            others = f"{noun} of other data, samples or options"
            raise TargetError(
                f"something else lies at {self.target} already",
                given=f"no {noun}" if stored is None else others,
                remedy="open it with xarray, choose another path, or pass overwrite=True",
            )
        return stored[1]

    def finished(self, stamp: object) -> Any:
        """The result of the same job, if it lies there already; None where nothing lies.

        `stamp`: that of the job; None for that of the parts beside the target, if any.
        """
        if not self.target.exists():
            return None
        stored, stamp_of_parts = self.form_type.stored(self.target), None
        try:
            stamp_of_parts = JobParts(self).form.stamp if self.has_begun() else None
        except (self.form_type.refusal, SourceAccessError):
            # Parts of another version do not matter to a job that is done.
            if stored is None or stamp != stored[0]:
                raise
        stamp = stamp_of_parts if stamp is None else stamp
        result = self._same(stored, stamp)
        if stamp_of_parts == stamp or not self.folder.exists():
            # The job was killed after its result was whole.
            remove_folder(self.folder)
        return result

    def finished_or(
        self, stamp: object, work: Callable[[], T], *, overwrite: bool
    ) -> tuple[Any, T | None]:
        """The finished result, or None and what some work on the parts returns."""
        while True:
            finished = None if overwrite else self.finished(stamp)
            if finished is not None:
                return finished, None
            try:
                return None, work()
            except (StateError, OSError):
                if overwrite or not self.target.exists():
                    raise
                # An equal job that was faster has removed the parts.

    def open_parts(
        self, form: JobFormT, kind: Callable[[Self], PartsT], *, overwrite: bool = False
    ) -> PartsT:
        """Open the parts, which are begun if there are none."""
        if not self.has_begun():
            if not overwrite:
                self._check_is_ours()
            self._begin(form)
        try:
            parts = kind(self)
            if differing := form.differing(parts.form):
                raise form.refusal(
                    f"{self.folder} holds {form.noun} of another job",
                    given=f"a job with other {', '.join(differing)}",
                    remedy="call it as before, choose another path, or begin anew with "
                    "overwrite=True",
                )
            return parts
        except (form.refusal, SourceAccessError):
            if not overwrite:
                raise
        remove_folder(self.folder)
        self._begin(form)
        return kind(self)

    def _check_is_ours(self) -> None:
        """Refuse a folder that holds something else."""
        strange = [path.name for path in self.folder.glob("*") if path.suffix != ".partial"]
        # Another process may just have begun here, or have ended and removed the folder.
        if strange and not self.has_begun() and self.folder.exists():
            raise StateError(
                f"{self.folder} holds something else than parts of this result",
                given=", ".join(sorted(strange)[:3]),
                remedy="choose another path; or remove the folder, which an earlier version of "
                "xloader may have made",
            )

    def _begin(self, form: JobFormT) -> None:
        """Make the folder. Nothing is removed: another process may begin at the same time."""
        name = self.form_path.name
        with whole_folder(self.form_path.parent, name) as made:
            (made / name).write_text(form.to_json(), "utf-8")
            form.write_labels(made / _LABELS)

    def write(self, result: xr.Dataset, *, overwrite: bool = False) -> None:
        """Write the result at one stroke, and remove the parts."""
        with writing(self.target.parent):
            self.replace(partial(_write, result), replaces=overwrite)
        remove_folder(self.folder)

    def replace(self, write: Callable[[Path], T], *, replaces: bool) -> T:
        """Write the whole result at a path, and move it to the target at one stroke.

        `replaces`: whether it may take the place of a folder.
        """
        # In the folder that is removed afterwards, so that a killed process leaves nothing else.
        made = self.folder / f"{uuid.uuid4().hex[:8]}.merging{self.target.suffix}"
        begun = os.stat(self.form_path)
        try:
            result = write(made)
            # Another process may have removed it meanwhile, and zarr makes folders anew.
            now = os.stat(self.form_path)
            if (now.st_ino, now.st_mtime_ns) != (begun.st_ino, begun.st_mtime_ns):
                raise FileNotFoundError(f"{self.folder} was begun anew by another process")
            if replaces and (made.is_dir() or self.target.is_dir()):
                check_replaceable(self.target)
                replace_folder(made, self.target)
            else:
                os.replace(made, self.target)
        except BaseException:
            remove_partial(made)
            raise
        return result


class JobParts(Generic[JobFormT]):
    """The form and the files of the parts of a result."""

    def __init__(self, kept: KeptResult[JobFormT]) -> None:
        self.kept, form_type = kept, kept.form_type
        # Files of one run never meet those of another.
        self._token = uuid.uuid4().hex[:8]
        self._num_files = 0
        with writing(kept.folder):
            stored = kept.form_path.read_bytes()
        try:
            self.form = form_type.read(stored.decode(), kept.form_path.with_name(_LABELS))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise form_type.refusal(
                f"{kept.folder} holds no partial {form_type.noun} that this version of xloader "
                "can read",
                given=f"{type(error).__name__}: {error}",
                remedy="remove it, or pass overwrite=True to begin anew",
            ) from error

    @contextmanager
    def new_file(self) -> Iterator[BinaryIO]:
        """Open a new file of parts, which appears at one stroke."""
        path = self.kept.folder / "parts" / f"{self._token}-{self._num_files:06d}.part"
        with writing(self.kept.folder):
            path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            yield file
        self._num_files += 1

    def paths(self) -> list[Path]:
        """The files of all processes, by name."""
        return sorted(self.kept.folder.glob("parts/*.part"))


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
