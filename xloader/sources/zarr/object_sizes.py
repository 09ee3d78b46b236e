"""The stored sizes of a few chunks or shards of an array, which tell how well it is compressed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from zarr.abc.store import Store

from xloader.errors import XloaderError
from xloader.sources import zarr_adapter
from xloader.sources.retries import current
from xloader.sources.zarr.stored_grid import StoredGrid

_MOST_OBJECTS: Final = 8


def stored_share(
    store: Store, grid: StoredGrid, key_of: Callable[[tuple[int, ...]], str], itemsize: int
) -> float | None:
    """Stored bytes for each decoded byte, of up to 8 objects from all over an array.

    None if the store does not tell sizes without reading, or has none of these objects.
    """
    inner = zarr_adapter.innermost(store)
    # The method that stores inherit from zarr's base class reads the whole object.
    if not isinstance(inner, Store) or type(inner).getsize is Store.getsize:
        return None
    stored = decoded = 0
    for chunk in _chunks_across(grid):
        key = key_of(chunk)
        try:
            nbytes = current().ask(key, partial(_size_of, inner, key))
        except (XloaderError, OSError):
            continue
        stored += nbytes
        decoded += itemsize * _num_elements(grid, chunk)
    return stored / decoded if decoded else None


def _size_of(store: Store, key: str) -> int:
    return int(zarr_adapter.sync(store.getsize(key)))


def _chunks_across(grid: StoredGrid) -> list[tuple[int, ...]]:
    """The first chunks of a few objects, spread over the array."""
    counts = grid.object_counts
    total = math.prod(counts)
    places = sorted({place * (total - 1) // (_MOST_OBJECTS - 1) for place in range(_MOST_OBJECTS)})
    objects = [_unravel(place, counts) for place in places if total]
    return [grid.first_chunk(own) if grid.is_sharded else own for own in objects]


def _unravel(place: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for count in reversed(counts):
        place, own = divmod(place, count)
        index.append(own)
    return tuple(reversed(index))


def _num_elements(grid: StoredGrid, chunk: tuple[int, ...]) -> int:
    """Elements of the object that a chunk is the first of, within the array."""
    if not grid.is_sharded:
        return math.prod(grid.shape_of(chunk))
    shard = grid.object_of(chunk)
    sizes = (
        own if isinstance(own, int) else own[index]
        for own, index in zip(grid.object_sizes, shard, strict=True)
    )
    begins = grid.origin_of(chunk)
    return math.prod(
        min(size, end - begin) for size, end, begin in zip(sizes, grid.shape, begins, strict=True)
    )
