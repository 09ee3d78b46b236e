"""Watches of Zarr arrays: their metadata documents, compared with what was opened.

A folder is asked for the stamps of the documents, which are read where these differ. Any other
store is asked for the documents themselves.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ZipStore

from xloader.sources import zarr_adapter
from xloader.sources.ordinary_files import OrdinaryFiles
from xloader.sources.stamps import Stamp, StampedFiles, stamp_of
from xloader.sources.stores.access import access_error, cause_of
from xloader.sources.stores.naming import Secrets
from xloader.sources.watching import FileWatch, Watch
from xloader.sources.zarr.codecs import Metadata
from xloader.sources.zarr.documents import differences, is_grown, keys_of, parse
from xloader.sources.zarr.objects import objects_of

_FOLDERS: Final = (LocalStore, OrdinaryFiles)
"""Stores whose documents are files."""

_OTHER: Final = {2: 3, 3: 2}
"""The other version of the format."""


@dataclass(frozen=True)
class Opening:
    """What an array's documents were when it was opened; pickles with its source.

    Parameters
    ----------
    digest : bytes
        Of what they hold; empty where that was not read.
    files : StampedFiles, optional
        The documents, or the zip file that holds them, where these are files.
    is_in_folder : bool
        Whether each document is a file of its own.
    """

    digest: bytes = b""
    files: StampedFiles | None = None
    is_in_folder: bool = False


@dataclass(frozen=True)
class Openings:
    """What the arrays of a source were when they were opened: makes the watches of a process.

    Parameters
    ----------
    store : str
        Where they lie, for messages.
    secrets : Secrets
        Texts that no error may tell.
    arrays : mapping of str to Opening
        By variable, those that can be watched.
    is_behind : bool
        Whether the metadata may be consolidated ones, from before the arrays last grew.
    """

    store: str
    secrets: Secrets
    arrays: Mapping[str, Opening]
    is_behind: bool

    @classmethod
    def now(
        cls,
        arrays: Mapping[str, zarr.Array[Any]],
        store: str,
        secrets: Secrets,
        *,
        is_frozen: bool,
        is_behind: bool,
    ) -> Openings:
        """Look at arrays that have just been opened.

        Parameters
        ----------
        arrays : mapping of str to zarr.Array
        store, secrets, is_behind
            As of `Openings`.
        is_frozen : bool
            Whether the store cannot change, as a snapshot.
        """
        found: dict[str, Opening] = {}
        if zarr_adapter.is_known() and not is_frozen:
            found = {v: one for v, array in arrays.items() if (one := _opening(array))}
            if found and is_behind and not _has_documents(next(iter(arrays.values()))):
                # Consolidated metadata may be all there is: then nothing tells of one array.
                found = {}
        return cls(store, secrets, found, is_behind)

    def watch(
        self, variable: str, path: str, metadata: Metadata, get_store: Callable[[], Store]
    ) -> Watch:
        """The watch of one array.

        Parameters
        ----------
        variable : str
            Its name as a variable.
        path : str
            Its path within the store.
        metadata : ArrayV2Metadata or ArrayV3Metadata
            Its metadata as it was opened.
        get_store : callable
            Gives the open store. It is called at the first look.
        """
        opening = self.arrays.get(variable)
        if opening is None:
            return Watch(self.store)
        if opening.files is not None and not opening.is_in_folder:
            return FileWatch(self.store, opening.files)
        return _ArrayWatch(self, variable, path, metadata, get_store)


class _ArrayWatch(Watch):
    """Watches the documents of one array; see `Openings.watch`."""

    def __init__(
        self,
        openings: Openings,
        variable: str,
        path: str,
        metadata: Metadata,
        get_store: Callable[[], Store],
    ) -> None:
        opening = openings.arrays[variable]
        super().__init__(openings.store, is_near=opening.is_in_folder)
        self._openings = openings
        self._variable = variable
        self._metadata = metadata
        self._array_path = path
        self._get_store = get_store
        self._keys = keys_of(path, metadata.zarr_format)
        self._digest = opening.digest
        files = opening.files
        # The stamps of another machine's documents say nothing.
        self._files = files if files is not None and files.here() is files else None
        self._paths = () if files is None else files.paths
        self._seen_stamps: Sequence[Stamp | None] | None = None
        self._seen_digest = b""

    def _compare(self, *, is_missed: bool) -> str:
        try:
            change = self._change_since(is_missed=is_missed)
        # Each store's library has errors of its own, with the URL in them, signed or not.
        except Exception as error:
            store, secrets = self._openings.store, self._openings.secrets
            told = access_error(error, store, secrets, "its metadata was asked for again")
            raise told from cause_of(error, secrets)
        return change and f"variable {self._variable!r}{change}"

    def _change_since(self, *, is_missed: bool) -> str:
        stamps = [stamp_of(path) for path in self._paths] if self._paths else None
        if stamps is None or stamps != self._seen_stamps:
            texts = _read(self._get_store(), self._keys)
            if texts[0] is None:
                return self._gone()
            digest = _digest_of(texts)
            if digest != self._seen_digest:
                if change := self._difference(texts, digest):
                    return f": {change}"
                self._seen_digest = digest
            self._seen_stamps = stamps
        if stamps is not None and self._is_anew(stamps[0], is_missed=is_missed):
            return " was deleted and written again"
        return ""

    def _difference(self, texts: Sequence[bytes | None], digest: bytes) -> str:
        """In which way documents differ from those that were opened, in words."""
        try:
            now = parse(texts, self._metadata)
        except Exception as error:
            return f"its metadata cannot be read any more ({type(error).__name__})"
        found = differences(self._metadata, now)
        is_first = not self._seen_digest
        if found and is_first and self._openings.is_behind and is_grown(self._metadata, now):
            # Consolidated metadata that is behind is believed, if it is so since the opening.
            if digest == (self._digest or digest):
                self._metadata = now
                return ""
            found += ["or else its consolidated metadata are behind"]
        return ", ".join(found)

    def _gone(self) -> str:
        version = self._metadata.zarr_format
        (first, *_) = keys_of(self._array_path, _OTHER[version])
        if _read(self._get_store(), [first])[0] is None:
            return " is gone"
        return f": the Zarr format was {version}, is now {_OTHER[version]}"

    def _is_anew(self, now: Stamp | None, *, is_missed: bool) -> bool:
        """Whether the same document is there, and was written again as for another array.

        Neither writing values nor appending does that. A file that was merely touched keeps its
        number; but a new one may be given the number of the old one, so where chunks are absent
        as well, its time is enough.
        """
        then = self._files.stamps[0] if self._files is not None else None
        if now is None or then is None or self._seen_digest != self._digest:
            return False
        return now.mtime_ns != then.mtime_ns and (is_missed or now.inode != then.inode)


def _opening(array: zarr.Array[Any]) -> Opening | None:
    """What is seen of an array without a request; None where it cannot be watched."""
    store = array.store
    if type(store) is ZipStore:
        return Opening(files=StampedFiles.now(os.path.abspath(store.path)))
    keys = keys_of(array.path, array.metadata.zarr_format)
    paths = _paths_of(store, keys)
    if not paths:
        return Opening()
    files = StampedFiles.now(*paths)
    if files.stamps[0] is None:
        return None
    return Opening(_digest_of(_read(store, keys)), files, is_in_folder=True)


def _has_documents(array: zarr.Array[Any]) -> bool:
    """Whether an array has documents of its own, and may be asked for them."""
    keys = keys_of(array.path, array.metadata.zarr_format)
    try:
        return _read(array.store, keys[:1])[0] is not None
    except Exception:
        return False


def _paths_of(store: Store, keys: Sequence[str]) -> list[str]:
    """The files of a folder that are behind some keys; nothing where the store is none."""
    return [os.path.join(store.root, key) for key in keys] if type(store) in _FOLDERS else []


def _read(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """What is stored under some keys."""
    if paths := _paths_of(store, keys):
        # Not as chunks are read, into memory in which those of a shard may lie at this moment.
        return [_read_file(path) for path in paths]
    objects = objects_of(store)
    found = [objects.get(key) for key in keys]
    return [None if data is None else bytes(data) for data in found]


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _digest_of(texts: Sequence[bytes | None]) -> bytes:
    parts = [b"-" if text is None else hashlib.sha256(text).digest() for text in texts]
    return hashlib.sha256(b"".join(parts)).digest()[:8]
