"""Shapes of chunks and shards that a copy of some variables might have.

A shape has one size for each dimension, which all variables with that dimension share::

    window   time=6, stride 1;  lat, lon whole;  float32 of 8760 x 721 x 1440
    chunks   time=1  lat=721 lon=1440     4 MB     one field
             time=6  lat=361 lon=720      6 MB     a window's length, fields cut in four
             ...                                   up to 16 MB

Along windowed dimensions, sizes are tried that fit windows and strides. Every sample takes all of
the other dimensions, so these are cut only where a chunk would be too large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Shape = Mapping[str, int]
"""Number of elements by dimension."""

LEAST_CHUNK_NBYTES: Final = 1 << 19
"""Smaller chunks take longer to find and to call a codec for than to decode."""

MOST_CHUNK_NBYTES: Final = 1 << 24
"""With larger chunks, few fit into a memory of a GiB, so batches mix poorly."""

MEDIUM_NBYTES: Final = 4 << 20
"""Chunks that are neither small nor large suit most other uses too."""

_LEAST_HELD: Final = 64
"""Chunks that the memory should hold, even if they must be small for it."""

_POOR: Final = math.log(2)
_ALIKE: Final = 0.05
"""Factors between rough values, as logarithms: those of poor shapes, and of shapes as good."""

_SHARD_NBYTES: Final = 1 << 27
_MOST_SHARD_NBYTES: Final = 1 << 28
"""Decoded bytes of a shard: from the first to the second number where there is enough data."""

_MOST_IN_SHARD: Final = 1 << 16
"""Chunks of a shard, whose index of 16 bytes for each is read at once."""

_MOST_COMBINATIONS: Final = 2000
"""Shapes along windowed dimensions that are looked at, without a plan."""

_SECONDS_PER_BYTE: Final = 2e-9
_SECONDS_PER_CHUNK: Final = 110e-6
_SECONDS_PER_VISIT: Final = 1e-6
"""Seconds to decode a byte, for each chunk beside it, and for each chunk that a sample touches."""


@dataclass(frozen=True)
class ChunkedDim:
    """A dimension that chunks cut.

    `extent`: number of elements from the first to the last one that a sample needs; None where
    every sample takes the whole dimension.
    """

    name: str
    size: int
    extent: int | None = None
    stride: int = 1
    num_windows: int = 1

    def touched(self, chunk: int) -> float:
        """Mean number of chunks that a window touches."""
        if self.extent is None:
            return float(-(-self.size // chunk))
        # Starts repeat modulo the chunk, and a few of them give the mean well enough.
        starts = [place * self.stride for place in range(min(self.num_windows, 256))]
        counts = [(s + self.extent - 1) // chunk - s // chunk + 1 for s in starts]
        return sum(counts) / len(counts)


@dataclass(frozen=True)
class ChunkedVariable:
    """A variable that chunks cut: its dimensions, and the bytes of one stored element."""

    dims: tuple[str, ...]
    itemsize: int


@dataclass(frozen=True)
class ChunkedPart:
    """The variables that are stored anew, and what samples take of them."""

    dims: tuple[ChunkedDim, ...]
    variables: tuple[ChunkedVariable, ...]
    num_samples: int
    batch_size: int
    pool_nbytes: int

    @cached_property
    def sizes(self) -> Shape:
        """Number of elements of each dimension."""
        return {dim.name: dim.size for dim in self.dims}

    @cached_property
    def nbytes(self) -> int:
        """Decoded bytes of all variables."""
        return sum(self._nbytes_of(variable, self.sizes) for variable in self.variables)

    def chunk_nbytes(self, chunks: Shape) -> int:
        """Decoded bytes of the largest chunk of any variable."""
        return max(self._nbytes_of(variable, chunks) for variable in self.variables)

    def num_chunks(self, chunks: Shape) -> int:
        """Number of chunks of all variables. Shards are counted by giving their shape."""
        return sum(
            math.prod(-(-self.sizes[dim] // chunks[dim]) for dim in variable.dims)
            for variable in self.variables
        )

    def rough_value(self, chunks: Shape) -> float:
        """A rough estimate, without a plan, of how good a shape is: a mixing, divided by seconds.

        Each chunk counts as read once, or as often as samples need it where that is less.
        """
        windowed = {dim.name for dim in self.dims if dim.extent is not None}
        tile = {dim: chunks[dim] if dim in windowed else size for dim, size in self.sizes.items()}
        tile_nbytes = sum(self._nbytes_of(variable, tile) for variable in self.variables)
        touched = math.prod(dim.touched(chunks[dim.name]) for dim in self.dims if dim.extent)
        nbytes = min(self.nbytes, self.num_samples * touched * tile_nbytes)
        # A chunk is read again where the memory cannot hold what a window and its neighbours need.
        again = max(1.0, 2 * touched * tile_nbytes / max(self.pool_nbytes, 1))
        num_reads = again * nbytes / self.nbytes * self.num_chunks(chunks)
        seconds = again * nbytes * _SECONDS_PER_BYTE + num_reads * _SECONDS_PER_CHUNK
        seconds += self.num_samples * touched * _SECONDS_PER_VISIT
        held = self.pool_nbytes / tile_nbytes
        return min(1.0, max(held - touched, 0.5) / min(self.batch_size, 64)) / seconds

    def _nbytes_of(self, variable: ChunkedVariable, shape: Shape) -> int:
        return variable.itemsize * math.prod(shape[dim] for dim in variable.dims)


def candidate_shapes(part: ChunkedPart) -> list[dict[str, int]]:
    """Shapes of chunks worth a plan, the ones with the greatest rough value first.

    At least one shape.
    """
    windowed = [dim for dim in part.dims if dim.extent is not None]
    most = max(3, int(_MOST_COMBINATIONS ** (1 / max(len(windowed), 1))))
    ladders = [_sizes_along(dim, min(most, 24)) for dim in windowed]
    shapes: dict[tuple[int, ...], dict[str, int]] = {}
    for sizes in itertools.product(*ladders):
        shape = {**part.sizes, **dict(zip((dim.name for dim in windowed), sizes, strict=True))}
        shape = _cut_whole_dims(part, shape)
        shapes[tuple(shape.values())] = shape
    nbytes = {key: part.chunk_nbytes(shape) for key, shape in shapes.items()}
    # Data that fit into less than a chunk are one chunk. A small memory needs small chunks.
    whole = part.chunk_nbytes(part.sizes)
    least = min(LEAST_CHUNK_NBYTES, whole, max(part.pool_nbytes // _LEAST_HELD, 1))
    fitting = [key for key in shapes if least <= nbytes[key] <= MOST_CHUNK_NBYTES]
    if not fitting:
        fitting = [min(shapes, key=lambda key: abs(math.log(nbytes[key] / LEAST_CHUNK_NBYTES)))]
    values = {key: math.log(part.rough_value(shapes[key])) for key in fitting}
    best = max(values.values())
    # Poor shapes, such as chunks of one row for windows of 64 rows, also take longest to plan for.
    good = [key for key in fitting if values[key] >= best - _POOR]

    def rank(key: tuple[int, ...]) -> tuple[int, float]:
        """Of shapes that are about as good, those with chunks of a medium size come first."""
        return round((best - values[key]) / _ALIKE), abs(math.log(nbytes[key] / MEDIUM_NBYTES))

    return [shapes[key] for key in sorted(good, key=rank)]


def diverse_shapes(shapes: Sequence[Shape], most: int) -> list[Shape]:
    """Choose the first shapes of a list, and others that differ from these as much as possible."""
    chosen = list(shapes[: max(most // 2, 1)])
    rest = list(shapes[len(chosen) :])
    gaps = [min(_distance(shape, pick) for pick in chosen) for shape in rest]
    while rest and len(chosen) < most:
        place = gaps.index(max(gaps))
        chosen.append(rest.pop(place))
        gaps.pop(place)
        gaps = [min(gap, _distance(s, chosen[-1])) for gap, s in zip(gaps, rest, strict=True)]
    return chosen


def neighbour_shapes(shapes: Sequence[Shape], best: Shape, most: int) -> list[Shape]:
    """The shapes of a list that are nearest to a good one, which is left out."""
    neighbours = [shape for shape in shapes if shape != best]
    return sorted(neighbours, key=lambda shape: _distance(shape, best))[:most]


def shard_shape(part: ChunkedPart, chunks: Shape) -> dict[str, int] | None:
    """The shape of shards for some chunks; None where each would hold a single chunk.

    A shard takes all chunks of the dimensions that samples take whole, because these are read
    together. Then it grows along the windowed dimension with the most chunks.
    """
    counts = {dim.name: -(-dim.size // chunks[dim.name]) for dim in part.dims}
    times = dict.fromkeys(counts, 1)
    whole = [dim.name for dim in part.dims if dim.extent is None]

    def shape() -> dict[str, int]:
        return {dim: chunks[dim] * times[dim] for dim in chunks}

    while part.chunk_nbytes(shape()) < _SHARD_NBYTES:
        left = {dim: counts[dim] / times[dim] for dim in counts if times[dim] < counts[dim]}
        if not left:
            break
        first = [dim for dim in whole if dim in left] or list(left)
        dim = max(first, key=left.__getitem__)
        before, times[dim] = times[dim], min(2 * times[dim], counts[dim])
        is_full = math.prod(times.values()) > _MOST_IN_SHARD
        if is_full or part.chunk_nbytes(shape()) > _MOST_SHARD_NBYTES:
            times[dim] = before
            break
    return shape() if math.prod(times.values()) > 1 else None


def _sizes_along(dim: ChunkedDim, most: int) -> list[int]:
    """Sizes to try along a windowed dimension: 1, the whole, and multiples of window and stride."""
    assert dim.extent is not None
    units = {1, dim.extent, dim.stride}
    sizes = {
        unit * factor << power
        for unit in units
        for factor in (1, 3)
        for power in range(dim.size.bit_length())
        # Three times a unit only of windows: chunks of 3, 6, 12 seldom fit anything better.
        if factor == 1 or unit == dim.extent
    }
    ladder = sorted({size for size in sizes if size < dim.size} | {dim.size})
    if len(ladder) <= most:
        return ladder
    kept = [ladder[round(i * (len(ladder) - 1) / (most - 1))] for i in range(most)]
    return sorted({*kept, *(min(unit, dim.size) for unit in units)})


def _cut_whole_dims(part: ChunkedPart, shape: dict[str, int]) -> dict[str, int]:
    """Halve dimensions that samples take whole until no chunk is too large.

    The first dimensions, such as levels, are cut before the last two, which are rarely so long.
    """
    shape = dict(shape)
    whole = [dim.name for dim in part.dims if dim.extent is None]
    fields = {dim for variable in part.variables for dim in variable.dims[-2:]}
    while part.chunk_nbytes(shape) > MOST_CHUNK_NBYTES:
        long = [dim for dim in whole if shape[dim] > 1]
        if not long:
            break
        first = [dim for dim in long if dim not in fields] or long
        dim = max(first, key=shape.__getitem__)
        shape[dim] = -(-shape[dim] // 2)
    return shape


def _distance(first: Shape, second: Shape) -> float:
    """How much two shapes differ: the factors between their sizes, as powers of two."""
    return sum(abs(math.log2(first[dim] / second[dim])) for dim in first)
