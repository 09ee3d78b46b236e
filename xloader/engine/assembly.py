"""The parts of the engine that read chunks and copy samples, for planned and for cached reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Demand, Footprint
from xloader.core.packing import Packing
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.block_layout import Stored, memory_order
from xloader.engine.block_reader import BlockReader
from xloader.engine.borders import Borders
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.field_places import FieldPlaces
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

_MOST_CUT: Final = 1.25
"""Most elements of the chunks read, for each that is selected, where few chunks are cut."""

NO_PACKINGS: Final[Mapping[str, Packing | None]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class EngineParts:
    """The parts that read the chunks of samples and copy the samples into batches.

    `num_threads`: that read, decode and copy. `in_flight_nbytes`: most decoded bytes of chunks that
    are fetched ahead, or being read, at a time; a larger single bundle is read alone.
    """

    footprint: Footprint
    fields: Fields
    reader: BlockReader
    places: FieldPlaces
    borders: Borders
    num_threads: int
    in_flight_nbytes: int
    retry_policy: RetryPolicy

    def fill_borders(self, arrays: Arrays, ids: Ints) -> None:
        """Fill what the first rows of a batch take from outside, given the samples in them."""
        if self.borders:
            positions = self.footprint.positions_of(ids)
            self.borders.fill(arrays, self.footprint.windows.firsts_of(positions))

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        layouts: tuple[FieldLayout, ...],
        footprint: Footprint,
        fields: Fields,
        in_flight_nbytes: int,
        num_cores: int,
        retry_policy: RetryPolicy,
        packings: Mapping[str, Packing | None] = NO_PACKINGS,
    ) -> EngineParts:
        """Make the parts for the samples of a recipe.

        `num_cores`: most threads. `packings`: for some variables, the packing to use in place of
        their own; None to copy the stored numbers, whose dtype the layouts then have.
        """
        num_threads = count_threads(footprint, in_flight_nbytes, num_cores)
        stored = stored_variables(recipe, footprint)
        for name, packing in packings.items():
            stored[name] = replace(stored[name], packing=packing)
        return cls(
            footprint,
            fields,
            BlockReader(recipe.source, stored, in_flight_nbytes // num_threads, retry_policy),
            FieldPlaces(footprint, layouts, fields, stored),
            Borders(footprint.windows, layouts),
            num_threads,
            in_flight_nbytes,
            retry_policy,
        )


def count_threads(footprint: Footprint, in_flight_nbytes: int, num_cores: int) -> int:
    """Number of threads that can each read the largest chunk at the same time."""
    return min(num_cores, in_flight_nbytes // footprint.max_chunk_nbytes)


def is_in_place(stored: Stored) -> bool:
    """Whether nearly all chunks of a variable lie in a block as they are decompressed."""
    read = math.prod(axis.total_read_size for axis in stored.axes)
    whole = math.prod(axis.size for axis in stored.axes)
    # Of a block, only the first dimension may have several chunks.
    pairs = list(zip(stored.axes, stored.windowed, strict=True))[1:]
    is_joined = all(dim is not None or axis.num_blocks == 1 for axis, dim in pairs)
    is_ordered = stored.order == tuple(range(len(stored.axes)))
    return is_joined and is_ordered and read <= _MOST_CUT * whole


def stored_variables(recipe: Recipe, footprint: Footprint) -> dict[str, Stored]:
    """Describe how each variable that the samples need is stored, as selected."""
    dims = footprint.windows.dims
    demands = {demand.variable: demand for group in footprint.groups for demand in group.demands}
    stored = {}
    for v in map(recipe.variable, footprint.variables):
        axes = recipe.axes_of(v.name)
        windowed = tuple(dims.index(d) if d in dims else None for d in v.dims)
        counts = _most_taken(demands[v.name], axes, windowed)
        sizes = [axis.size for axis in axes]
        order = memory_order(counts, sizes, v.stored_dtype.itemsize, footprint.num_samples)
        stored[v.name] = Stored(axes, windowed, v.stored_dtype, v.packing, order)
    return stored


def _most_taken(
    demand: Demand, axes: tuple[Axis, ...], windowed: tuple[int | None, ...]
) -> tuple[int, ...]:
    """Elements that a sample takes along each dimension, by its largest access and its step."""
    taken = []
    for access in demand.accesses:
        spans = [None if dim is None else access[dim] for dim in windowed]
        taken.append(
            tuple(
                axis.size if span is None else max(1, span[2] // span[1])
                for axis, span in zip(axes, spans, strict=True)
            )
        )
    return max(taken, key=lambda counts: (math.prod(counts), counts))
