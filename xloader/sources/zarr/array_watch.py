"""Watches of Zarr arrays, which compare the metadata documents with those at opening.

In a folder, the documents are read again only if their stamps differ. In any other store, each
look reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import zarr
from zarr.abc.store import Store
from zarr.storage import ZipStore

from xloader.errors import ForkError
from xloader.sources import zarr_adapter
from xloader.sources.arrays.catalog import DECODING_KEYS
from xloader.sources.store_watch import (
    FileWatch,
    Stamp,
    StampedFiles,
    Watch,
    generation_of,
    stamp_of,
)
from xloader.sources.stores.redaction import Secrets, access_error, cause_of
from xloader.sources.zarr.object_readers import Files, objects_of
from xloader.sources.zarr.parse_codecs import Metadata

_NAMES: Final = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}
"""Names of an array's documents, by version of the format. The first one must exist."""

_DECODING: Final = (*DECODING_KEYS, "dtype", "_ARRAY_DIMENSIONS")
"""Attributes that decide what is read. Others may change at any time."""

_OTHER: Final = {2: 3, 3: 2}
"""For each version of the Zarr format, the other one."""


def keys_of(path: str, zarr_format: int) -> tuple[str, ...]:
    """Keys of an array's metadata documents."""
    prefix = f"{path}/" if path else ""
    return tuple(prefix + name for name in _NAMES[zarr_format])


def parse(texts: Sequence[bytes | None], opened: Metadata) -> Metadata:
    """Parse metadata documents into zarr's metadata of an array.

    `texts`: None for an absent one.
    """
    document, *attributes = (json.loads(text) if text else {} for text in texts)
    if attributes:
        document["attributes"] = attributes[0]
    with zarr_adapter.allow_rectilinear_chunks():
        return cast("Metadata", type(opened).from_dict(document))


def differences(opened: Metadata, now: Metadata) -> dict[str, str]:
    """Describe the differences of metadata that change the values that are read, by entry."""
    before, after = _facts(opened), _facts(now)
    changes = {}
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, "none"), after.get(name, "none")
        if old != new:
            changes[name] = f"{name} was {old}, is now {new}"
    return changes


def _facts(metadata: Metadata) -> dict[str, str]:
    """The entries of a document that are compared, by name, as text."""
    # Nobody has to understand the extra fields of a document.
    extra = getattr(metadata, "extra_fields", ())
    document: dict[str, Any] = {n: v for n, v in metadata.to_dict().items() if n not in extra}
    attributes = document.pop("attributes", None) or {}
    document |= {f"attribute {name}": attributes[name] for name in _DECODING if name in attributes}
    return {name: _as_text(value) for name, value in document.items()}


def _as_text(value: Any) -> str:
    """A value as text: a sequence of integers as a tuple, a string unchanged, others as JSON."""
    if isinstance(value, list | tuple) and all(isinstance(number, int) for number in value):
        return str(tuple(value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True, repr=False)
class Opening:
    """One array at opening. It is pickled with the source.

    `files`, `digest`, `generation`: those of its documents, if they are files. `get_store`: opens
    the store, once in each process.
    """

    store: str
    secrets: Secrets
    variable: str
    path: str
    metadata: Metadata
    get_store: Callable[[], Store]
    is_behind: bool
    files: StampedFiles | None = None
    digest: bytes = b""
    generation: int | None = None


class _ArrayWatch(Watch):
    """Watch of the metadata documents of one array."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening.store, is_near=opening.files is not None)
        self._opening = opening
        self._metadata = opening.metadata
        self._paths = () if opening.files is None else opening.files.paths
        self._seen_stamps: Sequence[Stamp | None] | None = None
        self._seen_digest = b""

    def __reduce__(self) -> tuple[object, ...]:
        return _ArrayWatch, (self._opening,)

    def _compare(self, *, is_missed: bool) -> str:
        try:
            change = self._change_since(is_missed=is_missed)
        except ForkError:
            raise
        # The libraries of stores raise errors of their own, whose text may hold a signed URL.
        except Exception as error:
            secrets = self._opening.secrets
            fault = access_error(error, self.store, secrets, "while reading its metadata again")
            raise fault from cause_of(error, secrets)
        return change and f"variable {self._opening.variable!r}{change}"

    def _change_since(self, *, is_missed: bool) -> str:
        stamps = [stamp_of(path) for path in self._paths] if self._paths else None
        if stamps is None or stamps != self._seen_stamps:
            keys = keys_of(self._opening.path, self._metadata.zarr_format)
            texts = _read(self._opening.get_store(), keys)
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
        """Describe how documents differ from those at opening; empty if they do not."""
        try:
            now = parse(texts, self._metadata)
            # zarr parses attributes of any type, which are first looked at here.
            changes = differences(self._metadata, now)
        except Exception as error:
            return f"its metadata cannot be read any more ({type(error).__name__})"
        texts_of_changes = list(changes.values())
        sizes = zip(self._metadata.shape, now.shape, strict=False)
        is_grown = changes.keys() == {"shape"} and all(a <= b for a, b in sizes)
        if is_grown and not self._seen_digest and self._opening.is_behind:
            # Older consolidated metadata is accepted if the array had grown before the opening.
            if digest == (self._opening.digest or digest):
                self._metadata = now
                return ""
            texts_of_changes += ["unless its consolidated metadata is out of date"]
        return ", ".join(texts_of_changes)

    def _gone(self) -> str:
        version = self._metadata.zarr_format
        (first, *_) = keys_of(self._opening.path, _OTHER[version])
        if _read(self._opening.get_store(), [first])[0] is None:
            return " is gone"
        return f": the Zarr format was {version}, is now {_OTHER[version]}"

    def _is_anew(self, now: Stamp | None, *, is_missed: bool) -> bool:
        """Whether the array was deleted and written again with the same metadata.

        Writing values does not change the document's file. A deleted and rewritten document has a
        new modification time. It also has a new inode, or a new generation where it got the inode
        of the deleted file, while a touched file keeps both.
        """
        files = self._opening.files
        if files is None or self._seen_digest != self._opening.digest:
            return False
        then = files.stamps[0]
        if now is None or then is None or now.mtime_ns == then.mtime_ns:
            return False
        # Stamps of another machine cannot be compared.
        if files.here() is not files:
            return False
        # The generation last: asking for it opens the file.
        is_other = is_missed or now.inode != then.inode
        return is_other or generation_of(self._paths[0]) != self._opening.generation


def watches_of(
    arrays: Mapping[str, zarr.Array[Any]],
    store: str,
    secrets: Secrets,
    get_store: Callable[[], Store],
    *,
    is_behind: bool,
) -> dict[str, Watch]:
    """The watches of arrays that were just opened, by variable."""
    if is_behind and arrays and not _has_documents(next(iter(arrays.values()))):
        # Without documents of its own an array has only consolidated metadata, and there is
        # nothing to compare.
        return {variable: Watch(store) for variable in arrays}
    openings = {
        v: Opening(store, secrets, v, array.path, array.metadata, get_store, is_behind)
        for v, array in arrays.items()
    }
    return {v: _watch_of(opening, arrays[v].store) for v, opening in openings.items()}


def _watch_of(opening: Opening, store: Store) -> Watch:
    """The watch of one array, made without a request to the store."""
    if type(store) is ZipStore:
        return FileWatch(opening.store, StampedFiles.now(os.path.abspath(store.path)))
    keys = keys_of(opening.path, opening.metadata.zarr_format)
    paths = _paths_of(store, keys)
    if not paths:
        return _ArrayWatch(opening)
    files = StampedFiles.now(*paths)
    if files.stamps[0] is None:
        return Watch(opening.store)
    digest, generation = _digest_of(_read(store, keys)), generation_of(paths[0])
    return _ArrayWatch(replace(opening, files=files, digest=digest, generation=generation))


def _has_documents(array: zarr.Array[Any]) -> bool:
    """Whether an array's own metadata documents exist and can be read."""
    keys = keys_of(array.path, array.metadata.zarr_format)
    try:
        return _read(array.store, keys[:1])[0] is not None
    except Exception:
        return False


def _paths_of(store: Store, keys: Sequence[str]) -> list[str]:
    """Paths of some keys of a folder; empty for any other store."""
    objects = objects_of(store)
    return [objects.prefix + key for key in keys] if isinstance(objects, Files) else []


def _read(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """The bytes stored under some keys; None for each key that is absent."""
    if paths := _paths_of(store, keys):
        # The buffer of chunk reads may hold a chunk that is not decoded yet, so it is not used.
        return [_read_file(Path(path)) for path in paths]
    buffers = map(objects_of(store).get, keys)
    return [None if buffer is None else bytes(buffer) for buffer in buffers]


def _read_file(path: Path) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None


def _digest_of(texts: Sequence[bytes | None]) -> bytes:
    digests = [b"-" if text is None else hashlib.sha256(text).digest() for text in texts]
    return hashlib.sha256(b"".join(digests)).digest()[:8]
