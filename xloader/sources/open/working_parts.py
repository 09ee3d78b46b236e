"""Opens what works of a damaged Zarr store, and says why the rest does not.

zarr and xarray open all arrays of a group or none. Here each array is looked at alone. Those that
cannot be opened are hidden, and the others are opened as usual.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import zarr
from zarr.abc.store import Store

from xloader.errors import ArrayNotGroupError, SourceNotFoundError, XloaderError
from xloader.sources import zarr_adapter
from xloader.sources.base import Source
from xloader.sources.open.from_zarr import HidingStore, dims_of
from xloader.sources.open.open_source import location_of, open_source
from xloader.sources.stores.bounded_reads import CHUNK_KEY
from xloader.sources.stores.redaction import told_of
from xloader.sources.zarr.object_inventory import METADATA, list_names
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
    place = location_of(path, storage_options, {})
    if isinstance(place, str):
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
    arrays = _Arrays(store, group, place.secrets)
    broken = arrays.find_broken(is_open=source is not None)
    if failed is not None:
        source, broken = arrays.open_others(names, broken, failed)
    return WorkingParts(source, broken, arrays.is_consolidated)


def _open(source: Any, names: Sequence[str], **options: Any) -> Source:
    return open_source(source, variables=names or None, on_missing="fill", **options)


class _Arrays:
    """The arrays of one group: their metadata documents, read one by one."""

    def __init__(self, store: Store, group: str | None, secrets: tuple[str, ...]) -> None:
        path = (group or "").strip("/")
        self._group = group
        self._store = store
        self._prefix = f"{path}/" if path else ""
        self._secrets = secrets
        self._consolidated = self._read_consolidated()
        self.is_consolidated = bool(self._consolidated)
        folders = list_names(store, lambda: store.list_dir(path)) or ()
        # In a store that cannot be listed, only consolidated metadata name the arrays.
        others = {name.rstrip("/") for name in folders if name not in METADATA}
        self._names = tuple(sorted({*self._consolidated, *others}))
        self._sizes: dict[str, dict[str, int]] = {}

    def open_others(
        self, names: Sequence[str], broken: dict[str, str], failed: XloaderError
    ) -> tuple[Source | None, dict[str, str]]:
        """Open the arrays that work, if need be without one more, which is then at fault."""
        reason = f"it cannot be read: {failed.what}"
        for culprit in (None, *(name for name in self._names if name not in broken)):
            hidden = broken if culprit is None else broken | {culprit: reason}
            left = [name for name in names if name not in hidden]
            if not hidden or (names and not left):
                continue
            store = HidingStore(self._store, [f"{self._prefix}{name}" for name in hidden])
            with suppress(XloaderError):
                # Consolidated metadata would still list what is hidden.
                return _open(store, left, group=self._group, consolidated=False), hidden
        if not broken:
            raise failed
        return None, broken

    def find_broken(self, *, is_open: bool) -> dict[str, str]:
        """Find the arrays that are broken, and why."""
        faults = {name: self._fault_of(name, is_open) for name in self._names}
        broken = {name: fault for name, fault in faults.items() if fault}
        return self._group_fault() | broken | self._conflicts()

    def _fault_of(self, name: str, is_open: bool) -> str:
        """The fault of an array in words; empty if it is well or a group."""
        last, document, fault = self._read(f"{name}/zarr.json", f"{name}/.zarray")
        copy = self._consolidated.get(name)
        if not last:
            if copy is not None:
                return "its zarr.json or .zarray is gone; consolidated metadata still describe it"
            return self._fault_of_folder(name)
        if fault or document.get("node_type", "array") != "array":
            return fault
        if copy is not None and copy.get("shape") != document.get("shape"):
            shapes = [
                str(metadata.get("shape")).replace("[", "(").replace("]", ")")
                for metadata in (copy, document)
            ]
            return f"consolidated metadata say shape {shapes[0]}, its own metadata {shapes[1]}"
        return "" if is_open else self._why_not(name)

    def _fault_of_folder(self, name: str) -> str:
        """The fault of a folder that no metadata document makes an array."""
        if self._get(f"{name}/.zgroup") is not None:
            return ""
        begin = f"{self._prefix}{name}/"
        listed = list_names(self._store, lambda: self._store.list_prefix(begin), _FEW)
        keys = [key.removeprefix(begin) for key in listed or ()]
        has_metadata = any(key.rpartition("/")[2] in METADATA for key in keys)
        if has_metadata or not any(map(CHUNK_KEY.fullmatch, keys)):
            return ""
        return "a folder of chunks without zarr.json or .zarray: nothing can read it"

    def _group_fault(self) -> dict[str, str]:
        """The fault of the group's own document, by the document's name; empty if it is well."""
        last, document, fault = self._read(*GROUP_DOCUMENTS)
        if fault:
            return {last: f"the group's own {fault}"}
        needed = GROUP_DOCUMENTS.get(last, {})
        lacking = [f'"{k}": {json.dumps(v)}' for k, v in needed.items() if document.get(k) != v]
        if not lacking:
            return {}
        fault = f"the group's own {last} lacks {' and '.join(lacking)}"
        return {last: f"{fault}, so that other tools may not open the group"}

    def _why_not(self, name: str) -> str:
        """Why an array cannot be opened by itself; else an empty text, and its sizes are kept."""
        try:
            with zarr_adapter.allow_rectilinear_chunks():
                array = zarr.open_array(self._store, path=f"{self._prefix}{name}", mode="r")
            check_keys(array)
            check_codecs(array)
            grid_of(array)
            dims = dims_of(array)
        except XloaderError as error:
            return str(error)
        # zarr raises errors of many kinds for documents that make no sense.
        except Exception as error:
            of_codec = unknown_codec_error(error, name)
            return told_of(error, self._secrets) if of_codec is None else str(of_codec)
        if dims is None:
            return "its dimensions have no names, which xarray needs" if array.ndim else ""
        self._sizes[name] = dict(zip(dims, array.shape, strict=True))
        return ""

    def _conflicts(self) -> dict[str, str]:
        """The arrays that have another number of elements along a dimension than most others."""
        broken: dict[str, str] = {}
        for dim in dict.fromkeys(dim for sizes in self._sizes.values() for dim in sizes):
            of_array = {name: sizes[dim] for name, sizes in self._sizes.items() if dim in sizes}
            votes = Counter(of_array.values())
            # The labels of a dimension know best, where votes are equal.
            common = max(votes, key=lambda size: (votes[size], size == of_array.get(dim)))
            broken |= {
                name: f"it has {size:,} elements along {dim!r}, where the others have {common:,}"
                for name, size in of_array.items()
                if size != common
            }
        return broken

    def _read_consolidated(self) -> dict[str, dict[str, Any]]:
        """The documents of arrays in consolidated metadata, by the name of the array."""
        _, top, _ = self._read("zarr.json")
        _, older, _ = self._read(".zmetadata")
        try:
            held = (top.get("consolidated_metadata") or older).get("metadata") or {}
            # What lies further down belongs to other groups, or is an attribute.
            return {
                name: document
                for key, document in held.items()
                if "/" not in (name := key.removesuffix("/.zarray"))
                and name not in METADATA
                and document.get("node_type", "array") == "array"
            }
        except AttributeError:
            return {}

    def _read(self, *keys: str) -> tuple[str, dict[str, Any], str]:
        """The first document that is there: its name, its entries, and why it has none."""
        for key in keys:
            text = self._get(key)
            if text is None:
                continue
            last = key.rpartition("/")[2]
            try:
                document = json.loads(text)
            except ValueError as error:
                return last, {}, f"{last} is not JSON ({error})"
            if isinstance(document, dict):
                return last, document, ""
            return last, {}, f"{last} is not an object of JSON"
        return "", {}, ""

    def _get(self, key: str) -> bytes | None:
        """The bytes of an object of the group; None if there is none, or it cannot be read."""
        prototype = zarr_adapter.default_buffer_prototype()
        try:
            buffer = zarr_adapter.sync(self._store.get(f"{self._prefix}{key}", prototype))
        # Each store has errors of its own for names that cannot be keys.
        except Exception:
            return None
        return None if buffer is None else bytes(buffer.to_bytes())
