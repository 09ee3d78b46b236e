"""Sizes of chunks along one dimension: one number where all are alike, else each one's own.

As `Variable.chunks` has them; the last of chunks that are alike may be cut short by the end::

    4          10 elements in chunks of   4 4 2
    (2, 4, 4)  10 elements in chunks of   2 4 4
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

from xloader.core.axis import MOST_BLOCKS
from xloader.errors import OptionError

Sizes: TypeAlias = int | tuple[int, ...]
"""The size of every chunk, in elements, or the size of each."""


def compact(sizes: tuple[int, ...]) -> Sizes:
    """The size of every chunk where only the last is shorter, else all of them.

    Examples
    --------
    >>> compact((4, 4, 3)), compact((2, 4, 4))
    (4, (2, 4, 4))
    """
    first = sizes[0] if sizes else 1
    is_regular = all(part == first for part in sizes[:-1]) and sizes[-1:] <= (first,)
    return max(1, first) if is_regular else sizes


def each(sizes: Sizes, size: int) -> tuple[int, ...]:
    """The size of each chunk of ``size`` elements.

    Examples
    --------
    >>> each(4, 10), each((2, 4, 4), 10)
    ((4, 4, 2), (2, 4, 4))
    """
    if isinstance(sizes, tuple):
        return sizes
    whole, rest = divmod(size, sizes)
    return (sizes,) * whole + ((rest,) if rest else ())


def num_chunks(sizes: Sizes, size: int) -> int:
    """Number of chunks of ``size`` elements.

    Examples
    --------
    >>> num_chunks(4, 10), num_chunks((2, 4, 4), 10)
    (3, 3)
    """
    return len(sizes) if isinstance(sizes, tuple) else -(-size // sizes)


def span_of(sizes: Sizes, index: int, size: int) -> tuple[int, int]:
    """First and end offset of a chunk of ``size`` elements.

    Examples
    --------
    >>> span_of(4, 2, 10), span_of((3, 3, 4), 2, 10)
    ((8, 10), (6, 10))
    """
    if isinstance(sizes, int):
        return index * sizes, min((index + 1) * sizes, size)
    start = sum(sizes[:index])
    return start, start + sizes[index]


def join_sizes(parts: Sequence[tuple[Sizes, int]]) -> Sizes:
    """The chunks of several parts in a row, each given with its number of elements.

    Raises
    ------
    OptionError
        If there are more than can be listed, and they have to be.

    Examples
    --------
    >>> join_sizes([(4, 8), (4, 6)]), join_sizes([(4, 6), (4, 8)])
    (4, (4, 2, 4, 4))
    """
    kept = [(sizes, size) for sizes, size in parts if size]
    first = kept[0][0] if kept else 1
    # Said without listing them: there may be a chunk for each of millions of elements.
    if (
        isinstance(first, int)
        and all(sizes == first for sizes, _ in kept)
        and all(size % first == 0 for _, size in kept[:-1])
    ):
        return first
    count = sum(num_chunks(*part) for part in kept)
    if count > MOST_BLOCKS:
        raise OptionError(
            "parts in a row have more chunks than can be listed, as they are not cut alike",
            given=f"{count} chunks",
            allowed=f"up to {MOST_BLOCKS}, or parts that all end where their chunks do",
            remedy="store the parts in larger chunks, or join fewer of them",
        )
    return compact(tuple(itertools.chain.from_iterable(each(*part) for part in kept)))
