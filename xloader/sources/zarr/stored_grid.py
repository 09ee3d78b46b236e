"""How a Zarr array is cut into stored objects, and into chunks within them if they are shards.

The sizes are read from the metadata document, as the Zarr specification defines it. They are the
sizes that were encoded. The last chunk may reach past the array's end, and the part past it is
dropped when the chunk is read::

    regular       10 elements, chunks of 4          4 4 4      reads 4 4 2
    rectilinear   10 elements, chunks (2, 5, 5)     2 5 5      reads 2 5 3
    sharded       shards (4, 8) of chunks of 2      2 2 | 2 2 2 2

All chunks within shards have the same size, which divides every shard.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import floordiv
from typing import Any, Final, TypeAlias

import numpy as np
import zarr

from xloader.core.axis import MOST_BLOCKS
from xloader.errors import UnsupportedDataError
from xloader.sources.chunk_sizes import Sizes, compact, num_chunks

MOST_NBYTES: Final = 2**60
"""The most bytes of an array or of a chunk. Sizes, and sums of sizes, must fit into 64-bit
integers.
"""

Begins: TypeAlias = int | tuple[int, ...]
"""The distance from each object to the next, or a tuple of where each object begins and
where the last one ends.
"""


@dataclass(frozen=True)
class StoredGrid:
    """The chunks and stored objects of an array."""

    shape: tuple[int, ...]
    object_sizes: tuple[Sizes, ...]
    inner_shape: tuple[int, ...] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether the stored objects are shards, which hold many chunks."""
        return self.inner_shape is not None

    @cached_property
    def chunks(self) -> tuple[Sizes, ...]:
        """Per dimension, the sizes of chunks within the array, in the form of `Variable.chunks`."""
        if self.inner_shape is not None:
            return self.inner_shape
        pairs = zip(self.object_sizes, self.shape, strict=True)
        return tuple(_clipped(sizes, size) for sizes, size in pairs)

    @cached_property
    def regular_shape(self) -> tuple[int, ...] | None:
        """The stored shape of every chunk; None if chunks differ."""
        return _as_ints(self.inner_shape or self.object_sizes)

    @cached_property
    def largest_shape(self) -> tuple[int, ...]:
        """The largest stored size of a chunk along each dimension."""
        sizes = self.inner_shape or self.object_sizes
        return tuple(n if isinstance(n, int) else max(n) for n in sizes)

    @cached_property
    def object_counts(self) -> tuple[int, ...]:
        """Number of stored objects along each dimension."""
        return tuple(map(num_chunks, self.object_sizes, self.shape))

    @cached_property
    def num_chunks_in_shards(self) -> int:
        """Number of chunks in all shards, those past the array's end included."""
        assert self.inner_shape is not None, "only shards have room for many chunks"
        along = zip(self.object_sizes, self.shape, self.inner_shape, strict=True)
        return math.prod(
            num_chunks(sizes, size) * sizes // inner
            if isinstance(sizes, int)
            else sum(sizes) // inner
            for sizes, size, inner in along
        )

    def stored_shape(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a chunk as it is encoded, in elements."""
        if self.regular_shape is not None:
            return self.regular_shape
        pairs = zip(self.object_sizes, chunk, strict=True)
        return tuple(n if isinstance(n, int) else n[i] for n, i in pairs)

    def shape_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Number of elements of a chunk within the array, along each dimension."""
        return tuple(
            min(size, end - start)
            for size, end, start in zip(
                self.stored_shape(chunk), self.shape, self.origin_of(chunk), strict=True
            )
        )

    def origin_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Offset of a chunk's first element in the array, along each dimension."""
        return _begins_of(self._starts, chunk)

    def object_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the stored object that holds a chunk."""
        if self.inner_shape is None:
            return chunk
        if self._num_per_object is not None:
            return tuple(map(floordiv, chunk, self._num_per_object))
        return tuple(
            i // firsts if isinstance(firsts, int) else bisect_right(firsts, i) - 1
            for i, firsts in zip(chunk, self._first_chunks, strict=True)
        )

    def first_chunk(self, shard: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the first chunk of a shard."""
        return _begins_of(self._first_chunks, shard)

    def chunks_per_object(self, shard: tuple[int, ...]) -> tuple[int, ...]:
        """Number of chunks of a shard along each dimension, those past the end included."""
        return tuple(
            firsts if isinstance(firsts, int) else firsts[i + 1] - firsts[i]
            for i, firsts in zip(shard, self._first_chunks, strict=True)
        )

    def num_chunks_within(self, shard: tuple[int, ...]) -> int:
        """Number of chunks of a shard that lie within the array."""
        assert self.inner_shape is not None, "only shards hold many chunks"
        firsts, sizes = self.first_chunk(shard), self.chunks_per_object(shard)
        along = zip(sizes, firsts, self.inner_shape, self.shape, strict=True)
        return math.prod(min(n, num_chunks(inner, end) - first) for n, first, inner, end in along)

    @cached_property
    def _starts(self) -> tuple[Begins, ...]:
        """Per dimension, the offset of each chunk's first element."""
        return tuple(_begins(sizes, 1) for sizes in self.inner_shape or self.object_sizes)

    @cached_property
    def _num_per_object(self) -> tuple[int, ...] | None:
        """Number of chunks per shard along each dimension; None if shards differ."""
        return _as_ints(self._first_chunks)

    @cached_property
    def _first_chunks(self) -> tuple[Begins, ...]:
        """Per dimension, the index of each shard's first chunk."""
        assert self.inner_shape is not None, "only shards begin with one of many chunks"
        return tuple(map(_begins, self.object_sizes, self.inner_shape))


def grid_of(array: zarr.Array[Any]) -> StoredGrid:
    """Read how a Zarr array is cut into chunks."""
    sizes, inner = _sizes_of_document(array)
    smallest = (n if isinstance(n, int) else min(n, default=1) for n in (*sizes, *(inner or ())))
    if min(smallest, default=1) < 1:
        raise UnsupportedDataError(
            f"array {array.path!r} has empty chunks",
            given=f"chunks of shape {sizes if inner is None else inner}",
            remedy="rewrite the array",
        )
    grid = StoredGrid(tuple(array.shape), sizes, inner)
    _check_sizes(array, grid)
    return grid


def _check_sizes(array: zarr.Array[Any], grid: StoredGrid) -> None:
    """Refuse sizes that no store can have, before memory is allocated for them."""
    itemsize = np.dtype(array.dtype).itemsize
    for what, shape in (("is", grid.shape), ("has chunks that are", grid.largest_shape)):
        if math.prod(shape) * itemsize > MOST_NBYTES:
            raise UnsupportedDataError(
                f"array {array.path!r} {what} too large",
                given=f"shape {shape}, {itemsize} bytes each",
                allowed="up to 2**60 bytes",
                remedy="correct the shapes in its metadata, or leave it out with variables=[...]",
            )
    if grid.inner_shape is None:
        return
    largest = tuple(n if isinstance(n, int) else max(n) for n in grid.object_sizes)
    if math.prod(largest) > MOST_BLOCKS * math.prod(grid.inner_shape):
        raise UnsupportedDataError(
            f"array {array.path!r} has shards with too many chunks",
            given=f"shards of shape {largest}, chunks of shape {grid.inner_shape}",
            allowed=f"up to {MOST_BLOCKS} chunks in a shard",
            remedy="rewrite the array with smaller shards or larger chunks",
        )


def _sizes_of_document(array: zarr.Array[Any]) -> tuple[tuple[Sizes, ...], tuple[int, ...] | None]:
    """The sizes of stored objects, and the shape of the chunks within them if they are shards."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        return tuple(int(n) for n in metadata.chunks), None
    document: Mapping[str, Any] = metadata.to_dict()
    inner = None
    (codec, *rest) = document["codecs"]
    if not rest and codec["name"] == "sharding_indexed":
        inner = tuple(int(n) for n in codec["configuration"]["chunk_shape"])
    grid = document["chunk_grid"]
    key = {"regular": "chunk_shape", "rectilinear": "chunk_shapes"}[grid["name"]]
    return tuple(map(_expanded, grid["configuration"][key])), inner


def _expanded(sizes: int | Sequence[int | Sequence[int]]) -> Sizes:
    """The sizes along one dimension. In the document, a pair is a size and its repeats."""
    if isinstance(sizes, int):
        return sizes
    pairs = [(size, 1) if isinstance(size, int) else tuple(size) for size in sizes]
    count = sum(int(times) for _, times in pairs)
    if count > MOST_BLOCKS:
        raise UnsupportedDataError(
            "a dimension has too many chunks of different sizes",
            given=f"{count} chunks",
            allowed=f"up to {MOST_BLOCKS}",
            remedy="rewrite the array with larger chunks, or with chunks of one size",
        )
    return tuple(itertools.chain.from_iterable((int(n),) * int(times) for n, times in pairs))


def _begins(sizes: Sizes, unit: int) -> Begins:
    """Where objects of the given sizes begin, counted in units that divide every size."""
    if isinstance(sizes, int):
        return sizes // unit
    return tuple(itertools.accumulate((size // unit for size in sizes), initial=0))


def _begins_of(begins: tuple[Begins, ...], index: tuple[int, ...]) -> tuple[int, ...]:
    pairs = zip(begins, index, strict=True)
    return tuple(i * starts if isinstance(starts, int) else starts[i] for starts, i in pairs)


def _clipped(sizes: Sizes, size: int) -> Sizes:
    """The sizes with the parts past the array's end removed."""
    if isinstance(sizes, int):
        return sizes
    ends = itertools.accumulate(sizes)
    within = (min(n, size - end + n) for n, end in zip(sizes, ends, strict=True))
    return compact(tuple(n for n in within if n > 0))


def _as_ints(sizes: Sequence[Sizes]) -> tuple[int, ...] | None:
    """The sizes, if there is one number for each dimension; else None."""
    ints = tuple(n for n in sizes if isinstance(n, int))
    return ints if len(ints) == len(sizes) else None
