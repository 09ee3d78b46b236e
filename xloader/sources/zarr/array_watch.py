"""Watches of Zarr arrays, which compare the metadata documents with those at opening.

In a folder, the documents are read again only if their stamps differ. In any other store, each
look reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ZipStore

from xloader.sources import zarr_adapter
from xloader.sources.store_watch import (
    FileWatch,
    Stamp,
    StampedFiles,
    Watch,
    generation_of,
    stamp_of,
)
from xloader.sources.stores.bounded_reads import OrdinaryFiles
from xloader.sources.stores.redaction import Secrets, access_error, cause_of
from xloader.sources.zarr.object_readers import objects_of
from xloader.sources.zarr.parse_codecs import Metadata

_NAMES: Final = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}
"""Names of an array's documents, by version of the format. The first one must exist."""

_DECODING: Final = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    "dtype",
)
"""Attributes that decide how stored numbers are decoded. Others may change at any time."""

_PLURAL: Final = ("chunks", "shards", "codecs", "dimensions")

_FOLDERS: Final = (LocalStore, OrdinaryFiles)
"""Classes of stores whose metadata documents are files."""

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


def differences(opened: Metadata, now: Metadata) -> list[str]:
    """Describe the differences of metadata that change the values that are read."""
    before, after = _facts(opened), _facts(now)
    changes = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, "none"), after.get(name, "none")
        if old != new:
            was, are = ("were", "are") if name in _PLURAL else ("was", "is")
            changes.append(f"{name} {was} {old}, {are} now {new}")
    return changes


def is_grown(opened: Metadata, now: Metadata) -> bool:
    """Whether the array only grew, if it changed at all: its old values lie where they were."""
    before, after = _facts(opened), _facts(now)
    sizes = zip(opened.shape, now.shape, strict=False)
    return before | {"shape": ""} == after | {"shape": ""} and all(a <= b for a, b in sizes)


def _facts(metadata: Metadata) -> dict[str, str]:
    """The properties that are compared, by name, as text."""
    document: dict[str, Any] = metadata.to_dict()
    attributes = document.get("attributes") or {}
    layout = _facts_of_v2(document) if metadata.zarr_format == 2 else _facts_of_v3(document)
    facts = {"shape": document["shape"], **layout, "fill value": document["fill_value"]}
    facts |= {name: attributes[name] for name in _DECODING if name in attributes}
    return {name: _as_text(value) for name, value in facts.items()}


def _facts_of_v2(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "chunks": document.get("chunks"),
        "dtype": document.get("dtype"),
        "codecs": [document.get("filters"), document.get("compressor"), document.get("order")],
        "dimensions": (document.get("attributes") or {}).get("_ARRAY_DIMENSIONS"),
        "separator of keys": document.get("dimension_separator"),
    }


def _facts_of_v3(document: dict[str, Any]) -> dict[str, Any]:
    grid, codecs = document["chunk_grid"], list(document["codecs"])
    facts = {"chunks": _sizes(grid)}
    sharding = codecs[0] if len(codecs) == 1 else {}
    if sharding.get("name") == "sharding_indexed":
        inner = dict(sharding["configuration"])
        facts = {"shards": _sizes(grid), "chunks": inner.pop("chunk_shape")}
        codecs = [inner]
    return facts | {
        "dtype": document.get("data_type"),
        "codecs": [*codecs, *document.get("storage_transformers", ())],
        "dimensions": document.get("dimension_names"),
        "keys of chunks": document.get("chunk_key_encoding"),
    }


def _sizes(grid: dict[str, Any]) -> Any:
    return grid["configuration"]["chunk_shape"] if grid["name"] == "regular" else grid


def _as_text(value: Any) -> str:
    """A value as text: a sequence of integers as a tuple, a string unchanged, others as JSON."""
    if isinstance(value, list | tuple) and all(isinstance(number, int) for number in value):
        return str(tuple(value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True)
class Opening:
    """The metadata documents of one array at opening. It is pickled with the source."""

    digest: bytes = b""
    files: StampedFiles | None = None
    is_in_folder: bool = False
    generation: int | None = None


@dataclass(frozen=True)
class Openings:
    """The arrays of a source at opening, from which each process makes its watches."""

    store: str
    secrets: Secrets
    arrays: Mapping[str, Opening]
    is_behind: bool

    @classmethod
    def now(
        cls, arrays: Mapping[str, zarr.Array[Any]], store: str, secrets: Secrets, *, is_behind: bool
    ) -> Openings:
        """Record arrays that were just opened."""
        openings = {v: opening for v, array in arrays.items() if (opening := _opening(array))}
        if openings and is_behind and not _has_documents(next(iter(arrays.values()))):
            # Without documents of its own an array has only consolidated metadata, and there is
            # nothing to compare.
            openings = {}
        return cls(store, secrets, openings, is_behind)

    def watch(
        self, variable: str, path: str, metadata: Metadata, get_store: Callable[[], Store]
    ) -> Watch:
        """Make the watch of one array."""
        opening = self.arrays.get(variable)
        if opening is None:
            return Watch(self.store)
        if opening.files is not None and not opening.is_in_folder:
            return FileWatch(self.store, opening.files)
        return _ArrayWatch(self, variable, path, metadata, get_store)


class _ArrayWatch(Watch):
    """Watch of the metadata documents of one array; see `Openings.watch`."""

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
        self._opening = opening
        self._paths = () if opening.files is None else opening.files.paths
        self._seen_stamps: Sequence[Stamp | None] | None = None
        self._seen_digest = b""

    def _compare(self, *, is_missed: bool) -> str:
        try:
            change = self._change_since(is_missed=is_missed)
        # The libraries of stores raise errors of their own, whose text may hold a signed URL.
        except Exception as error:
            store, secrets = self._openings.store, self._openings.secrets
            fault = access_error(error, store, secrets, "while reading its metadata again")
            raise fault from cause_of(error, secrets)
        return change and f"variable {self._variable!r}{change}"

    def _change_since(self, *, is_missed: bool) -> str:
        stamps = [stamp_of(path) for path in self._paths] if self._paths else None
        if stamps is None or stamps != self._seen_stamps:
            keys = keys_of(self._array_path, self._metadata.zarr_format)
            texts = _read(self._get_store(), keys)
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
        is_first = not self._seen_digest
        if changes and is_first and self._openings.is_behind and is_grown(self._metadata, now):
            # Older consolidated metadata is accepted if the array had grown before the opening.
            if digest == (self._opening.digest or digest):
                self._metadata = now
                return ""
            changes += ["unless its consolidated metadata is out of date"]
        return ", ".join(changes)

    def _gone(self) -> str:
        version = self._metadata.zarr_format
        (first, *_) = keys_of(self._array_path, _OTHER[version])
        if _read(self._get_store(), [first])[0] is None:
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


def _opening(array: zarr.Array[Any]) -> Opening | None:
    """Record an array without a request to the store; None if it cannot be watched."""
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
    # A subclass may read from elsewhere.
    if isinstance(store, LocalStore) and type(store) in _FOLDERS:
        return [os.path.join(store.root, key) for key in keys]
    return []


def _read(store: Store, keys: Sequence[str]) -> list[bytes | None]:
    """The bytes stored under some keys; None for each key that is absent."""
    if paths := _paths_of(store, keys):
        # The buffer of chunk reads may hold a chunk that is not decoded yet, so it is not used.
        return [_read_file(path) for path in paths]
    objects = objects_of(store)
    buffers = [objects.get(key) for key in keys]
    return [None if buffer is None else bytes(buffer) for buffer in buffers]


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _digest_of(texts: Sequence[bytes | None]) -> bytes:
    digests = [b"-" if text is None else hashlib.sha256(text).digest() for text in texts]
    return hashlib.sha256(b"".join(digests)).digest()[:8]
