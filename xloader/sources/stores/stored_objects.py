"""How a variable lies in its store: the objects that hold it, and how well they are compressed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xloader.sources.chunk_sizes import Sizes

CHUNK_KEY: Final = re.compile(r"(?:c[./])?\d+(?:[./]\d+)*|c")
"""Keys of stored objects within their array: ``c/0/1`` of Zarr v3, ``0.1`` of v2, ``c`` or ``0``
of a single value.
"""

_FILTERS: Final = ("zlib", "zstd", "bzip2", "blosc", "szip", "shuffle", "fletcher32")
"""Names of filters in the encodings of xarray."""


@dataclass(frozen=True)
class StoredObjects:
    """The stored objects of a variable, such as files.

    `stored_share`: stored bytes for each decoded byte, of a few objects; None if their sizes are
    not known.
    """

    shards: tuple[Sizes, ...] | None
    stored_share: float | None


@dataclass(frozen=True)
class ObjectInventory:
    """The stored objects of one array. An object is a chunk, or a shard of many chunks.

    `nbytes`: bytes of all objects within the shape; None if sizes were not asked for.
    """

    num_objects: int
    num_absent: int
    absent: tuple[str, ...]
    num_beyond: int
    beyond: tuple[str, ...]
    empty: tuple[str, ...]
    nbytes: int | None


@dataclass(frozen=True)
class StoredEncoding:
    """How a file stores a variable that xarray decodes."""

    dtype: str
    filters: tuple[str, ...]


def _ask(source: object, method: str, variable: str) -> Any:
    """The answer of a method about a variable, which only some sources have; else None."""
    return getattr(source, method)(variable) if hasattr(source, method) else None


def stored_objects_of(source: object, variable: str) -> StoredObjects | None:
    """The stored objects of a variable of any source; None if they are not known."""
    objects: StoredObjects | None = _ask(source, "stored_objects", variable)
    return objects


def inventory_of(source: object, variable: str) -> ObjectInventory | None:
    """The stored objects of a variable, as its store lists them; None if that is not known."""
    inventory: ObjectInventory | None = _ask(source, "inventory", variable)
    return inventory


def encoding_of(source: object, variable: str) -> StoredEncoding:
    """How a file stores a variable, as far as xarray has found it out."""
    encoding: Mapping[str, Any] = _ask(source, "encoding", variable) or {}
    level = encoding.get("complevel")
    filters = [
        f"{name} {level}" if name == "zlib" and level else name
        for name in _FILTERS
        if encoding.get(name)
    ]
    return StoredEncoding(str(encoding.get("dtype", "")), tuple(filters))
