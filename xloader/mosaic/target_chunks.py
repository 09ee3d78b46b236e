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
    """Choose the chunks of a variable of the mosaic."""
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
