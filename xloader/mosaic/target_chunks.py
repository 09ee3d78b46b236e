"""The chunks in which a mosaic is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from xloader.core.option_checks import MOST, check_whole

MOST_CELLS: Final = 3 << 19
"""Most cells of a chunk, unless the user asks for more. A chunk is blended as a whole."""


def chunks_of(
    dims: Sequence[str],
    shape: Sequence[int],
    sizes: Mapping[str, int | tuple[int, ...]],
    asked: Mapping[str, int],
) -> tuple[int, ...]:
    """Choose the chunks of a variable of the mosaic.

    Parameters
    ----------
    dims : sequence of str
        Its dimensions.
    shape : sequence of int
        Number of cells along each.
    sizes : mapping of str to (int or tuple of int)
        Chunk sizes of the stored variable that is predicted, by dimension.
    asked : mapping of str to int
        Chunk sizes that the user asks for, by dimension.

    Returns
    -------
    tuple of int
        The sizes asked for; else those of the stored variable, halved until a chunk is small
        enough; else the whole dimension.

    Raises
    ------
    OptionError
        If a size is not a whole number from 1 on.

    Examples
    --------
    >>> chunks_of(["time", "lat"], [100, 721], {"time": 16, "lat": 721}, {"time": 1})
    (1, 721)
    """
    chunks = []
    for dim, size in zip(dims, shape, strict=True):
        if dim in asked:
            check_whole(f"chunks of {dim!r}", asked[dim], 1, MOST)
        own = asked.get(dim, sizes.get(dim, size))
        chunks.append(max(min(max(own) if isinstance(own, tuple) else own, size), 1))
    free = [number for number, dim in enumerate(dims) if dim not in asked]
    while math.prod(chunks) > MOST_CELLS and any(chunks[number] > 1 for number in free):
        longest = max(free, key=chunks.__getitem__)
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)
