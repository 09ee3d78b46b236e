"""The metadata documents of Zarr arrays: parsing them, and comparing them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from xloader.sources import zarr_adapter
from xloader.sources.zarr.allowed_codecs import Metadata

_NAMES: Final = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}
"""Names of an array's documents, by version of the format. The first one must exist."""

_DECODING: Final = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    "dtype",
)
"""Attributes that decide how stored numbers are decoded. Others may change at any time."""

_PLURAL: Final = ("chunks", "shards", "codecs", "dimensions")


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
    found = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name, "none"), after.get(name, "none")
        if one != other:
            was, are = ("were", "are") if name in _PLURAL else ("was", "is")
            found.append(f"{name} {was} {one}, {are} now {other}")
    return found


def is_grown(opened: Metadata, now: Metadata) -> bool:
    """Whether the array only grew, if it changed at all: its old values lie where they were."""
    before, after = _facts(opened), _facts(now)
    sizes = zip(opened.shape, now.shape, strict=False)
    return before | {"shape": ""} == after | {"shape": ""} and all(a <= b for a, b in sizes)


def _facts(metadata: Metadata) -> dict[str, str]:
    """The properties that are compared, by name, as text."""
    said: dict[str, Any] = metadata.to_dict()
    attributes = said.get("attributes") or {}
    own = _facts_of_v2(said) if metadata.zarr_format == 2 else _facts_of_v3(said)
    facts = {"shape": said["shape"], **own, "fill value": said["fill_value"]}
    facts |= {name: attributes[name] for name in _DECODING if name in attributes}
    return {name: _told(value) for name, value in facts.items()}


def _facts_of_v2(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "chunks": said.get("chunks"),
        "dtype": said.get("dtype"),
        "codecs": [said.get("filters"), said.get("compressor"), said.get("order")],
        "dimensions": (said.get("attributes") or {}).get("_ARRAY_DIMENSIONS"),
        "separator of keys": said.get("dimension_separator"),
    }


def _facts_of_v3(said: dict[str, Any]) -> dict[str, Any]:
    grid, codecs = said["chunk_grid"], list(said["codecs"])
    facts = {"chunks": _sizes(grid)}
    sharding = codecs[0] if len(codecs) == 1 else {}
    if sharding.get("name") == "sharding_indexed":
        inner = dict(sharding["configuration"])
        facts = {"shards": _sizes(grid), "chunks": inner.pop("chunk_shape")}
        codecs = [inner]
    return facts | {
        "dtype": said.get("data_type"),
        "codecs": [*codecs, *said.get("storage_transformers", ())],
        "dimensions": said.get("dimension_names"),
        "keys of chunks": said.get("chunk_key_encoding"),
    }


def _sizes(grid: dict[str, Any]) -> Any:
    return grid["configuration"]["chunk_shape"] if grid["name"] == "regular" else grid


def _told(value: Any) -> str:
    """A value as text: a sequence of integers as a tuple, a string unchanged, others as JSON."""
    if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
        return str(tuple(value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
