"""Shapes of chunks and shards: their sizes, and which ones are worth a plan."""

from __future__ import annotations

import math

import pytest

from xloader.jobs.advice.chunk_shapes import (
    LEAST_CHUNK_NBYTES,
    MOST_CHUNK_NBYTES,
    ChunkedDim,
    ChunkedPart,
    ChunkedVariable,
    candidate_shapes,
    shard_shape,
)

TIME = ChunkedDim("time", 87_600, 6, 1, 87_595)
LEVEL, LAT, LON = ChunkedDim("level", 13), ChunkedDim("lat", 721), ChunkedDim("lon", 1440)


def part_of(*dims: ChunkedDim, itemsize: int = 4, pool_nbytes: int = 1 << 31) -> ChunkedPart:
    variable = ChunkedVariable(tuple(dim.name for dim in dims), itemsize)
    num_samples = math.prod(dim.num_windows for dim in dims)
    return ChunkedPart(dims, (variable,), num_samples, 32, pool_nbytes)


PARTS = {
    "fields": part_of(TIME, LAT, LON),
    "levels": part_of(TIME, LEVEL, LAT, LON),
    "patches": part_of(
        TIME, ChunkedDim("lat", 721, 64, 32, 21), ChunkedDim("lon", 1440, 64, 32, 44)
    ),
    "pixels": part_of(
        ChunkedDim("time", 87_600, 24, 24, 3650),
        ChunkedDim("lat", 721, 1, 1, 721),
        ChunkedDim("lon", 1440, 1, 1, 1440),
    ),
    "packed": part_of(TIME, LAT, LON, itemsize=2),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_chunks_and_shards_have_sizes_that_stores_like(part: ChunkedPart) -> None:
    shapes = candidate_shapes(part)
    assert shapes
    assert len({tuple(shape.items()) for shape in shapes}) == len(shapes)
    for shape in shapes:
        assert LEAST_CHUNK_NBYTES <= part.chunk_nbytes(shape) <= MOST_CHUNK_NBYTES
        assert all(1 <= shape[dim.name] <= dim.size for dim in part.dims)
        shards = shard_shape(part, shape)
        assert shards is not None
        assert all(shards[dim] % size == 0 for dim, size in shape.items())
        assert all(shards[dim] <= -(-part.sizes[dim] // size) * size for dim, size in shape.items())
        assert (1 << 26) <= part.chunk_nbytes(shards) <= 1 << 28
        assert part.num_chunks(shards) < part.num_chunks(shape)


def test_an_index_of_a_shard_stays_small() -> None:
    part = part_of(ChunkedDim("time", 1 << 26, 1, 1, 1 << 26))
    shards = shard_shape(part, {"time": 64})
    assert shards == {"time": 64 << 16}
