"""Opens what works of a damaged Zarr store, and says why the rest does not.

zarr and xarray open all arrays of a group or none. Here each array is looked at alone. Those that
cannot be opened are hidden, and the others are opened as usual.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import zarr
from zarr.abc.store import Store

from xloader.errors import ArrayNotGroupError, SourceNotFoundError, XloaderError
from xloader.sources import zarr_adapter
from xloader.sources.base import Source
from xloader.sources.open.from_zarr import HidingStore
from xloader.sources.open.open_source import location_of, open_source
from xloader.sources.stores.redaction import told_of
from xloader.sources.stores.stored_objects import CHUNK_KEY
from xloader.sources.zarr.object_inventory import METADATA, list_keys, list_names
from xloader.sources.zarr.parse_codecs import check_codecs, unknown_codec_error
from xloader.sources.zarr.stored_array import check_keys
from xloader.sources.zarr.stored_grid import grid_of

_FEW: Final = 1_000
"""Keys of a folder that are looked at to see what it is."""

GROUP_DOCUMENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "zarr.json": {"zarr_format": 3, "node_type": "group"},
    ".zgroup": {"zarr_format": 2},
}
"""Documents that make a folder a group, and what they must say."""


@dataclass(frozen=True)
class WorkingParts:
    """The part of a store that could be opened, and the arrays that are broken.

    `source`: the variables that work; None if there is none. `is_consolidated`: whether the store
    has consolidated metadata; None if it is no Zarr store.
    """

    source: Source | None
    broken: Mapping[str, str]
    is_consolidated: bool | None


def open_working_parts(
    path: str | os.PathLike[str],
    *,
    variables: Iterable[str] = (),
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WorkingParts:
    """Open the arrays of a store that can be opened. No chunk of a data variable is read."""
    names = tuple(variables)
    options: dict[str, Any] = {"group": group, "storage_options": storage_options}
    source, failed = None, None
    try:
        source = _open(path, names, **options)
    except (SourceNotFoundError, ArrayNotGroupError):
        raise
    except XloaderError as error:
        failed = error
    place = location_of(path, storage_options)
    if place is None:
        if failed is not None:
            raise failed
        return WorkingParts(source, {}, None)
    try:
        store = place.open_store()
    except Exception:
        if failed is None:
            raise
        # It says why in words; that of the store's library does not.
        raise failed from failed.__cause__
    prefix = _prefix_of(group)
    arrays = _Arrays(store, prefix, place.secrets)
    broken = arrays.find_broken(is_open=source is not None)
    if failed is None:
        return WorkingParts(source, broken, arrays.is_consolidated)
    left = tuple(name for name in names if name not in broken)
    if broken and (left or not names):
        source = _try_without(store, group, left, set(broken))
    if source is None:
        culprit, source = _find_culprit(store, group, left, broken, arrays.names, names)
        if culprit:
            broken = {**broken, culprit: f"it cannot be read: {failed.what}"}
    if not broken:
        raise failed
    return WorkingParts(source, broken, arrays.is_consolidated)


def _open(source: Any, names: Collection[str], **options: Any) -> Source:
    return open_source(source, variables=tuple(names) or None, on_missing="fill", **options)


def _try_without(
    store: Store, group: str | None, names: Collection[str], hidden: Collection[str]
) -> Source | None:
    """The store without some arrays; None if it cannot be opened without them, either."""
    paths = {f"{_prefix_of(group)}{name}" for name in hidden}
    try:
        # Consolidated metadata would still list what is hidden.
        return _open(HidingStore(store, paths), names, group=group, consolidated=False)
    except XloaderError:
        return None


def _find_culprit(
    store: Store,
    group: str | None,
    left: Collection[str],
    broken: Mapping[str, str],
    every: Collection[str],
    names: Collection[str],
) -> tuple[str, Source | None]:
    """Hide one more array at a time, until the others can be opened."""
    if names and not left:
        return "", None
    for name in every:
        if name in broken:
            continue
        other_names = [other_name for other_name in left if other_name != name]
        if names and not other_names:
            continue
        source = _try_without(store, group, other_names, {*broken, name})
        if source is not None:
            return name, source
    return "", None


class _Arrays:
    """The arrays of one group: their metadata documents, read one by one."""

    def __init__(self, store: Store, prefix: str, secrets: tuple[str, ...]) -> None:
        self._store = store
        self._secrets = secrets
        self._prefix = prefix
        self._consolidated = self._read_consolidated()
        self.is_consolidated = bool(self._consolidated)
        # In a store that cannot be listed, only consolidated metadata name the arrays.
        self.names = tuple(sorted({*self._consolidated, *self._folders()}))

    def find_broken(self, *, is_open: bool) -> dict[str, str]:
        """Find the arrays that are broken, and why."""
        broken = self._group_fault()
        documents: dict[str, dict[str, Any]] = {}
        for name in self.names:
            document, reason = self._document(name)
            if reason:
                broken[name] = reason
            elif document is not None:
                documents[name] = document
        for name, document in documents.items():
            copy, shape = self._consolidated.get(name), document.get("shape")
            if copy is not None and copy.get("shape") != shape:
                broken[name] = (
                    f"consolidated metadata say shape {_sizes(copy.get('shape'))}, its own "
                    f"metadata {_sizes(shape)}"
                )
            elif not is_open and (reason := self._why_not(name, document)):
                broken[name] = reason
        if not is_open:
            broken |= self._conflicts({k: v for k, v in documents.items() if k not in broken})
        return broken

    def _group_fault(self) -> dict[str, str]:
        """The fault of the group's own document, by the document's name; empty if it is well."""
        for last, needed in GROUP_DOCUMENTS.items():
            text = self._get(last)
            if text is None:
                continue
            try:
                document = json.loads(text)
            except ValueError as error:
                return {last: f"the group's own {last} is not JSON ({error})"}
            entries = document if isinstance(document, dict) else {}
            lacking = [f'"{k}": {json.dumps(v)}' for k, v in needed.items() if entries.get(k) != v]
            if lacking:
                fault = f"the group's own {last} lacks {' and '.join(lacking)}"
                return {last: f"{fault}, so that other tools may not open the group"}
            break
        return {}

    def _document(self, name: str) -> tuple[dict[str, Any] | None, str]:
        """The metadata document of an array, or why there is none; neither for a group."""
        for last in ("zarr.json", ".zarray"):
            text = self._get(f"{name}/{last}")
            if text is None:
                continue
            try:
                document = json.loads(text)
            except ValueError as error:
                return None, f"{last} is not JSON ({error})"
            if not isinstance(document, dict):
                return None, f"{last} is not an object of JSON"
            is_array = last == ".zarray" or document.get("node_type") == "array"
            return (document, "") if is_array else (None, "")
        if name in self._consolidated:
            return None, "its zarr.json or .zarray is gone; consolidated metadata still describe it"
        if self._get(f"{name}/.zgroup") is not None:
            return None, ""
        begin = f"{self._prefix}{name}/"
        keys = [key.removeprefix(begin) for key in list_keys(self._store, begin, _FEW) or ()]
        has_chunks = any(CHUNK_KEY.fullmatch(key) for key in keys)
        has_arrays = any(key.rpartition("/")[2] in METADATA for key in keys)
        if has_chunks and not has_arrays:
            return None, "a folder of chunks without zarr.json or .zarray: nothing can read it"
        return None, ""

    def _why_not(self, name: str, document: Mapping[str, Any]) -> str:
        """Why an array cannot be opened by itself; an empty text if it can."""
        try:
            with zarr_adapter.allow_rectilinear_chunks():
                array = zarr.open_array(self._store, path=f"{self._prefix}{name}", mode="r")
            check_keys(array)
            check_codecs(array)
            grid_of(array)
        except XloaderError as error:
            return str(error)
        # zarr raises errors of many kinds for documents that make no sense.
        except Exception as error:
            of_codec = unknown_codec_error(error, name)
            return told_of(error, self._secrets) if of_codec is None else str(of_codec)
        if self._dims(name, document) is None:
            return "its dimensions have no names, which xarray needs"
        return ""

    def _dims(self, name: str, document: Mapping[str, Any]) -> list[str] | None:
        if not document["shape"]:
            return []
        dims = document.get("dimension_names")
        if document.get("zarr_format") == 2:
            try:
                dims = json.loads(self._get(f"{name}/.zattrs") or "{}").get("_ARRAY_DIMENSIONS")
            except ValueError:
                return None
        if not isinstance(dims, list) or None in dims:
            return None
        return dims if len(dims) == len(document["shape"]) else None

    def _conflicts(self, documents: Mapping[str, dict[str, Any]]) -> dict[str, str]:
        """The arrays that have another number of elements along a dimension than most others."""
        sizes: dict[str, dict[str, int]] = {}
        for name, document in documents.items():
            dims = self._dims(name, document) or ()
            for dim, size in zip(dims, document["shape"], strict=True):
                sizes.setdefault(dim, {})[name] = size
        broken = {}
        for dim, of_array in sizes.items():
            votes: Counter[int] = Counter()
            for name, size in of_array.items():
                # The labels of a dimension know best, where votes are equal.
                votes[size] += 2 + (name == dim)
            (common, _), *others = votes.most_common()
            for name, size in of_array.items() if others else ():
                if size != common:
                    broken[name] = (
                        f"it has {size:,} elements along {dim!r}, where the others have {common:,}"
                    )
        return broken

    def _read_consolidated(self) -> dict[str, dict[str, Any]]:
        """The documents of arrays in consolidated metadata, by the name of the array."""
        try:
            top = json.loads(self._get("zarr.json") or "{}")
            held = (top.get("consolidated_metadata") or {}).get("metadata") or {}
            if not held:
                older = json.loads(self._get(".zmetadata") or "{}").get("metadata") or {}
                ends = "/.zarray"
                held = {k.removesuffix(ends): v for k, v in older.items() if k.endswith(ends)}
        except (ValueError, AttributeError):
            return {}
        # Arrays of groups further down belong to these.
        return {
            name: document
            for name, document in held.items()
            if isinstance(document, dict)
            and "/" not in name
            and document.get("node_type", "array") == "array"
        }

    def _folders(self) -> list[str]:
        """Names of the folders in the group."""
        names = list_names(self._store, lambda: self._store.list_dir(self._prefix.rstrip("/")))
        return [name.rstrip("/") for name in names or () if name not in METADATA]

    def _get(self, key: str) -> bytes | None:
        """The bytes of an object of the group; None if there is none, or it cannot be read."""
        if not zarr_adapter.is_known():
            return None
        prototype = zarr_adapter.default_buffer_prototype()
        try:
            buffer = zarr_adapter.sync(self._store.get(f"{self._prefix}{key}", prototype))
        # Each store has errors of its own for names that cannot be keys.
        except Exception:
            return None
        return None if buffer is None else bytes(buffer.to_bytes())


def _prefix_of(group: str | None) -> str:
    path = (group or "").strip("/")
    return f"{path}/" if path else ""


def _sizes(shape: object) -> str:
    return f"({', '.join(map(str, shape))})" if isinstance(shape, list) else str(shape)
