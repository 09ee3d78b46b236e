"""Watches of Zarr arrays: they compare the metadata documents with those at opening.

In a folder, the documents are read again only if their stamps differ. In any other store, each look
reads them.
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
from xloader.sources.file_stamps import Stamp, StampedFiles, generation_of, stamp_of
from xloader.sources.ordinary_files import OrdinaryFiles
from xloader.sources.store_watch import FileWatch, Watch
from xloader.sources.stores.access_errors import access_error, cause_of
from xloader.sources.stores.redaction import Secrets
from xloader.sources.zarr.allowed_codecs import Metadata
from xloader.sources.zarr.documents import differences, is_grown, keys_of, parse
from xloader.sources.zarr.object_readers import objects_of

_FOLDERS: Final = (LocalStore, OrdinaryFiles)
"""Stores whose documents are files."""

_OTHER: Final = {2: 3, 3: 2}
"""The other version of the format."""


@dataclass(frozen=True)
class Opening:
    """The metadata documents of an array at opening; pickles with its source.

    Parameters
    ----------
    digest : bytes
        Digest of their text; empty if it was not read.
    files : StampedFiles, optional
        The documents, or the zip file that holds them, if they are files.
    is_in_folder : bool
        Whether each document is a file of its own.
    generation : int, optional
        Of the first document's file, where the file system tells it.
    """

    digest: bytes = b""
    files: StampedFiles | None = None
    is_in_folder: bool = False
    generation: int | None = None


@dataclass(frozen=True)
class Openings:
    """The arrays of a source at opening, from which each process makes its watches.

    Parameters
    ----------
    store : str
        Name of the store, for messages.
    secrets : Secrets
        Texts that no error may contain.
    arrays : mapping of str to Opening
        The arrays that can be watched, by variable.
    is_behind : bool
        Whether the metadata may be consolidated metadata that is older than the arrays.
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
        """Record arrays that were just opened.

        Parameters
        ----------
        arrays : mapping of str to zarr.Array
        store, secrets, is_behind
            As of `Openings`.
        is_frozen : bool
            Whether the store cannot change, such as a snapshot.
        """
        found: dict[str, Opening] = {}
        if zarr_adapter.is_known() and not is_frozen:
            found = {v: one for v, array in arrays.items() if (one := _opening(array))}
            if found and is_behind and not _has_documents(next(iter(arrays.values()))):
                # A store may have consolidated metadata only: then there is nothing to compare.
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
            Returns the open store. Called at the first look.
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
        # Stamps of another machine cannot be compared.
        self._files = files if files is not None and files.here() is files else None
        self._paths = () if files is None else files.paths
        self._generation = opening.generation
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
            # Older consolidated metadata is accepted if the array had grown before the opening.
            if digest == (self._digest or digest):
                self._metadata = now
                return ""
            found += ["unless its consolidated metadata is out of date"]
        return ", ".join(found)

    def _gone(self) -> str:
        version = self._metadata.zarr_format
        (first, *_) = keys_of(self._array_path, _OTHER[version])
        if _read(self._get_store(), [first])[0] is None:
            return " is gone"
        return f": the Zarr format was {version}, is now {_OTHER[version]}"

    def _is_anew(self, now: Stamp | None, *, is_missed: bool) -> bool:
        """Whether the array was deleted and written again with the same metadata.

        Writing values leaves the document alone. A touched file keeps its inode. A new file may get
        the inode of the deleted one, but is of another generation. Where the file system does not
        tell generations, a new time is enough if a chunk is absent too.
        """
        then = self._files.stamps[0] if self._files is not None else None
        if now is None or then is None or self._seen_digest != self._digest:
            return False
        if now.mtime_ns == then.mtime_ns:
            return False
        is_other = now.inode != then.inode or generation_of(self._paths[0]) != self._generation
        return is_missed or is_other


def _opening(array: zarr.Array[Any]) -> Opening | None:
    """Record an array without a request; None if it cannot be watched."""
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
    digest, generation = _digest_of(_read(store, keys)), generation_of(paths[0])
    return Opening(digest, files, is_in_folder=True, generation=generation)


def _has_documents(array: zarr.Array[Any]) -> bool:
    """Whether an array's own metadata documents exist and can be read."""
    keys = keys_of(array.path, array.metadata.zarr_format)
    try:
        return _read(array.store, keys[:1])[0] is not None
    except Exception:
        return False


def _paths_of(store: Store, keys: Sequence[str]) -> list[str]:
    """Paths of some keys of a folder; empty for any other store."""
    # Not of a kind derived from them, which may read elsewhere.
    if isinstance(store, LocalStore) and type(store) in _FOLDERS:
        return [os.path.join(store.root, key) for key in keys]
    return []


def _read(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """What is stored under some keys."""
    if paths := _paths_of(store, keys):
        # Not into the buffer of chunk reads: it may hold chunks that are still to be decoded.
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
