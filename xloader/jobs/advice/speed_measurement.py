"""Measures how fast a few chunks of a store decode, today and in a new encoding."""

from __future__ import annotations

import math
import time
from typing import Any, Final

import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from xloader.jobs.advice.read_speed import ReadSpeed
from xloader.jobs.advice.target_recipe import taken_variables
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Read, Variable

_NUM_READS: Final = 4
_MOST_NBYTES: Final = 1 << 26
"""Decoded bytes that are read at most, beside the first chunk."""

_NUM_TURNS: Final = 3
_BLOCK_NBYTES: Final = 1 << 22
_LEVEL: Final = 0
"""Level of zstd that zarr uses by default."""


def measure_speed(recipe: Recipe) -> ReadSpeed:
    """Read up to four chunks of the variable with most bytes, and encode their values anew."""
    stored = [variable for variable in taken_variables(recipe) if not variable.is_computed]
    largest = max(stored, key=lambda v: math.prod(v.shape) * v.stored_dtype.itemsize)
    values, seconds = _read_some(recipe, largest)
    nbytes = sum(own.nbytes for own in values)
    plain = np.concatenate([own.ravel() for own in values])
    codec = Zstd(level=_LEVEL)
    step = max(_BLOCK_NBYTES // plain.itemsize, 1)
    blocks = [codec.encode(plain[begin : begin + step]) for begin in range(0, plain.size, step)]
    out = np.empty(step, plain.dtype)
    decoding = []
    for _ in range(_NUM_TURNS):
        begun = time.perf_counter()
        for number, block in enumerate(blocks):
            codec.decode(block, out[: min(step, plain.size - number * step)])
        decoding.append(time.perf_counter() - begun)
    return ReadSpeed(
        # Other programs may take the core in some of the turns.
        decode_ns=1e9 * min(decoding) / nbytes,
        today_ns=1e9 * seconds / nbytes,
        stored_share=sum(map(len, blocks)) / nbytes,
        num_reads=len(values),
    )


def _read_some(recipe: Recipe, variable: Variable) -> tuple[list[NDArray[Any]], float]:
    """The selected values of a few chunks from all over a variable, and the seconds for them."""
    axes = recipe.axes_of(variable.name)
    values: list[NDArray[Any]] = []
    seconds = 0.0
    seen: set[tuple[int, ...]] = set()
    for place in range(_NUM_READS):
        blocks = [place * (axis.num_blocks - 1) // (_NUM_READS - 1) for axis in axes]
        parts = [axis.stored_part(block) for axis, block in zip(axes, blocks, strict=True)]
        chunk = tuple(part[0] for part in parts)
        if chunk in seen or sum(own.nbytes for own in values) > _MOST_NBYTES:
            continue
        seen.add(chunk)
        out = np.empty([part[2] for part in parts], variable.stored_dtype)
        begun = time.perf_counter()
        read = Read(variable.name, chunk, tuple(part[1] for part in parts))
        recipe.source.fetch([read]).decode([out])
        seconds += time.perf_counter() - begun
        values.append(out)
    return values, seconds
