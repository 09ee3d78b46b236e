"""The stored objects of an array, as its store lists them, beside those that it may have.

No object is read: a chunk that is cut short is found by its size only if nothing is left of it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import numpy as np
from zarr.abc.store import Store

from xloader.sources import zarr_adapter
from xloader.sources.chunk_sizes import ObjectInventory, spans_of
from xloader.sources.stores.bounded_reads import CHUNK_KEY
from xloader.sources.zarr.stored_array import StoredArray

METADATA: Final = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""Last parts of keys that hold no values."""

_MOST_LISTED: Final = 2_000_000
"""Arrays of more objects are not listed, which would take minutes and much memory."""

_MOST_SIZES: Final = 1_000
"""Sizes of so many objects are asked for. Of more objects, the total is estimated from a few."""

_NUM_NAMED: Final = 3

_MOST_OBJECTS: Final = 8


def take_inventory(array: StoredArray) -> ObjectInventory | None:
    """List the stored objects of an array.

    None if the store cannot be listed, or if there are too many objects.
    """
    store, counts = array.store, array.grid.object_counts
    if math.prod(counts) > _MOST_LISTED:
        return None
    prefix = f"{array.path}/" if array.path else ""
    keys = list_names(store, lambda: store.list_prefix(prefix))
    if keys is None:
        return None
    # Zip files list folders, and file managers leave files of their own.
    there = {key for key in keys if CHUNK_KEY.fullmatch(key, len(prefix))}
    expected = [array.key_of_object(index) for index in itertools.product(*map(range, counts))]
    absent = [key for key in expected if key not in there]
    beyond = sorted(there.difference(expected))
    # Many objects are absent of sparse data; none of the others needs to be looked for twice.
    present = [key for key in expected if key in there]
    sizes = _sizes_of(store, present) if len(present) <= _MOST_SIZES else [None]
    known_sizes = [size for size in sizes if size is not None]
    return ObjectInventory(
        num_objects=len(expected),
        num_absent=len(absent),
        absent=tuple(absent[:_NUM_NAMED]),
        num_beyond=len(beyond),
        beyond=tuple(beyond[:_NUM_NAMED]),
        empty=tuple(key for key, size in zip(present, sizes, strict=False) if size == 0),
        nbytes=sum(known_sizes) if len(known_sizes) == len(present) else None,
    )


def list_names(
    store: Store, make_listing: Callable[[], AsyncIterator[str]], most: int | None = None
) -> list[str] | None:
    """The names in a listing of a store, the first of them at most; None if it cannot be listed."""
    if not store.supports_listing:
        return None

    async def collect() -> list[str]:
        names = []
        async for name in make_listing():
            names.append(name)
            if most is not None and len(names) >= most:
                break
        return names

    try:
        return list(zarr_adapter.sync(collect()))
    # A store over HTTP claims that it can be listed, and then fails in a way of its own.
    except Exception:
        return None


def _sizes_of(store: Store, keys: Sequence[str]) -> list[int | None]:
    """The size of each object in bytes; None where the store does not tell it without reading."""
    inner = zarr_adapter.innermost(store)
    # The method that stores inherit from zarr's base class reads the whole object.
    if not isinstance(inner, Store) or type(inner).getsize is Store.getsize:
        return [None] * len(keys)

    async def ask() -> list[Any]:
        sizes = (inner.getsize(key) for key in keys)
        return await asyncio.gather(*sizes, return_exceptions=True)

    return [size if isinstance(size, int) else None for size in zarr_adapter.sync(ask())]


def stored_share(array: StoredArray, itemsize: int) -> float | None:
    """Stored bytes for each decoded byte, of up to 8 objects from all over an array.

    None if the store does not tell sizes without reading, or has none of these objects.
    """
    counts, shape = array.grid.object_counts, array.grid.shape
    last = math.prod(counts) - 1
    places = sorted({place * last // (_MOST_OBJECTS - 1) for place in range(_MOST_OBJECTS)})
    indices = [tuple(map(int, np.unravel_index(place, counts))) for place in places if last >= 0]
    stored = decoded = 0
    sizes = _sizes_of(array.store, [array.key_of_object(index) for index in indices])
    for index, nbytes in zip(indices, sizes, strict=True):
        if nbytes is None:
            continue
        stored += nbytes
        spans = zip(spans_of(array.grid.object_sizes, index, shape), shape, strict=True)
        # The last object may reach past the end.
        decoded += itemsize * math.prod(min(end, size) - begin for (begin, end), size in spans)
    return stored / decoded if decoded else None
