"""Sizes of chunks along one dimension, and the stored objects that hold the chunks of a variable.

`Variable.chunks` has the sizes as one number if all are alike, else as one for each. Of chunks that
are alike, the array's end may cut the last one short::

    4          10 elements in chunks of   4 4 2
    (2, 4, 4)  10 elements in chunks of   2 4 4
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import MOST_BLOCKS
from xloader.errors import OptionError

Cut = tuple[slice | NDArray[np.int64], ...]
"""Per dimension, the elements of a chunk to read, counted from the chunk's start."""

Sizes: TypeAlias = int | tuple[int, ...]
"""The size of every chunk in elements, or a tuple with the size of each."""


def compact(sizes: tuple[int, ...]) -> Sizes:
    """The common size of all chunks, where only the last may be shorter, else all sizes."""
    first = sizes[0] if sizes else 1
    is_regular = all(size == first for size in sizes[:-1]) and sizes[-1:] <= (first,)
    return max(1, first) if is_regular else sizes


def each(sizes: Sizes, size: int) -> tuple[int, ...]:
    """The size of each chunk along a dimension of ``size`` elements."""
    if isinstance(sizes, tuple):
        return sizes
    whole, rest = divmod(size, sizes)
    return (sizes,) * whole + ((rest,) if rest else ())


def num_chunks(sizes: Sizes, size: int) -> int:
    """Number of chunks along a dimension of ``size`` elements."""
    return len(sizes) if isinstance(sizes, tuple) else -(-size // sizes)


def span_of(sizes: Sizes, index: int, size: int) -> tuple[int, int]:
    """First and end offset of one chunk along a dimension of ``size`` elements."""
    if isinstance(sizes, int):
        return index * sizes, min((index + 1) * sizes, size)
    start = sum(sizes[:index])
    return start, start + sizes[index]


def spans_of(
    sizes: Sequence[Sizes], chunk: Sequence[int], shape: Sequence[int]
) -> list[tuple[int, int]]:
    """First and end offset of one chunk along each dimension of an array."""
    return [span_of(*along) for along in zip(sizes, chunk, shape, strict=True)]


def join_sizes(pieces: Sequence[tuple[Sizes, int]]) -> Sizes:
    """The chunk sizes of several parts that follow each other along one dimension."""
    kept = [(sizes, size) for sizes, size in pieces if size]
    first = kept[0][0] if kept else 1
    # Decided without listing the chunks: each of millions of elements may be a chunk.
    if (
        isinstance(first, int)
        and all(sizes == first for sizes, _ in kept)
        and all(size % first == 0 for _, size in kept[:-1])
    ):
        return first
    count = sum(num_chunks(*piece) for piece in kept)
    if count > MOST_BLOCKS:
        raise OptionError(
            "the joined parts have different chunk sizes, and too many chunks to list",
            given=f"{count} chunks",
            allowed=f"up to {MOST_BLOCKS}, or parts of equal chunks that end at a chunk boundary",
            remedy="store the parts in larger chunks, or join fewer of them",
        )
    return compact(tuple(itertools.chain.from_iterable(each(*piece) for piece in kept)))


def take(array: NDArray[Any], cut: Cut) -> NDArray[Any]:
    """Cut an array along each dimension independently."""
    if sum(isinstance(elements, np.ndarray) for elements in cut) <= 1:
        return np.asarray(array[cut])
    for axis, elements in enumerate(cut):
        array = array[(slice(None),) * axis + (elements,)]
    return array


def is_ordered(cut: Cut) -> bool:
    """Whether a cut keeps the stored order, so that one as large as its chunk is the chunk."""
    return all(isinstance(kept, slice) or bool((np.diff(kept) > 0).all()) for kept in cut)


def shift(cut: Cut, origin: tuple[int, ...], shape: tuple[int, ...]) -> Cut:
    """Convert offsets within a chunk to offsets within the whole array."""
    moved: list[slice | NDArray[np.int64]] = []
    for elements, start, size in zip(cut, origin, shape, strict=True):
        if isinstance(elements, slice):
            first, stop, step = elements.indices(size)
            moved.append(slice(start + first, start + stop, step))
        else:
            moved.append(elements + start)
    return tuple(moved)


def shape_of(cut: Cut, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the part that a cut takes out of an array of the given shape, in elements."""
    return tuple(
        len(range(*elements.indices(size))) if isinstance(elements, slice) else len(elements)
        for elements, size in zip(cut, shape, strict=True)
    )


def boxes_of(shape: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """The boxes of so many elements along each dimension that an array is cut into, in C order."""
    cuts = [
        [(begin, min(begin + step, end)) for begin in range(0, end, step)]
        for end, step in zip(shape, steps, strict=True)
    ]
    return itertools.product(*cuts)


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
    return cast("StoredObjects | None", _ask(source, "stored_objects", variable))


def inventory_of(source: object, variable: str) -> ObjectInventory | None:
    """The stored objects of a variable, as its store lists them; None if that is not known."""
    return cast("ObjectInventory | None", _ask(source, "inventory", variable))


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
