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
from xloader.engine.block_reader import MOST_SMALL_NBYTES, BlockReader
from xloader.engine.borders import Borders
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.gather import Gatherer
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.sources.base import SMALL_NBYTES

_FEWEST_CALLERS: Final = 4
"""Threads of Python that are kept: some make ready what others do without its lock."""

_MOST_CUT: Final = 1.25
"""Most elements of the chunks read, for each that is selected, where few chunks are cut."""

NO_PACKINGS: Final[Mapping[str, Packing | None]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class EngineParts:
    """The parts that read the chunks of samples and copy the samples into batches.

    Parameters
    ----------
    footprint : Footprint
        The chunks that samples need.
    fields : Fields
        Allocates the batches.
    reader : BlockReader
        Reads the blocks.
    gatherer : Gatherer
        Copies rows of blocks into batches. It was made with ``fields``.
    borders : Borders
        Fills what rows take from outside the array.
    num_threads : int
        Number of threads that read, decode and copy, as far as it is known before a read.
    most_threads : int
        Most threads; see `ReadRoom`.
    in_flight_nbytes : int
        Most decoded bytes of the chunks that are fetched ahead, or that are being read, at a time.
        A larger single bundle is read alone.
    retry_policy : RetryPolicy
        How long reads are waited for.
    num_helpers : int
        Number of native threads that help the others.
    """

    footprint: Footprint
    fields: Fields
    reader: BlockReader
    gatherer: Gatherer
    borders: Borders
    num_threads: int
    most_threads: int
    in_flight_nbytes: int
    retry_policy: RetryPolicy
    num_helpers: int = 0

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
        lent_nbytes: int = 0,
        num_helpers: int = 0,
    ) -> EngineParts:
        """Make the parts for the samples of a recipe.

        Parameters
        ----------
        recipe : Recipe
            The samples.
        layouts : tuple of FieldLayout
            The layouts of its fields.
        footprint : Footprint
            The chunks that the samples need.
        fields : Fields
            Allocates the batches.
        in_flight_nbytes : int
            Most decoded bytes in flight.
        num_cores : int
            Most threads. There are fewer at first where the bytes in flight have room for fewer of
            the largest chunks.
        retry_policy : RetryPolicy
            How long reads are waited for.
        packings : mapping of str to (Packing or None)
            For some variables, the packing to use in place of their own; None to copy the stored
            numbers as they are. The layouts then have the stored dtype.
        lent_nbytes : int, optional
            Part of the bytes in flight that batches hold, if there are several threads. It changes
            bundles only where one would take more than half of the rest: their size decides how
            evenly threads are busy.
        num_helpers : int, optional
            Number of native threads that help these threads.
        """
        num_threads = count_threads(footprint, in_flight_nbytes, num_cores)
        left_nbytes, bundle_nbytes = in_flight_nbytes - lent_nbytes, in_flight_nbytes // num_threads
        if lent_nbytes:
            bundle_nbytes = min(bundle_nbytes, left_nbytes // 2)
        stored = stored_variables(recipe, footprint)
        for name, packing in packings.items():
            stored[name] = replace(stored[name], packing=packing)
        return cls(
            footprint,
            fields,
            BlockReader(recipe.source, stored, bundle_nbytes, retry_policy),
            Gatherer(footprint, layouts, fields, stored),
            Borders(footprint.windows, layouts),
            num_threads,
            num_cores,
            left_nbytes,
            retry_policy,
            num_helpers,
        )


def count_threads(footprint: Footprint, in_flight_nbytes: int, num_cores: int) -> int:
    """Number of threads that can each read the largest chunk at the same time.

    Parameters
    ----------
    footprint : Footprint
        The chunks that samples need.
    in_flight_nbytes : int
        Most decoded bytes in flight.
    num_cores : int
        Most threads.
    """
    return min(num_cores, in_flight_nbytes // footprint.max_chunk_nbytes)


def count_callers(recipe: Recipe, footprint: Footprint, num_threads: int) -> int:
    """Number of threads of Python among those asked for. Native helpers take the place of others.

    Threads that read small chunks would mostly wait for Python's lock. So a few threads call
    compiled functions for several chunks at a time, and helpers, which need no lock, do a part of
    each call. That requires that several chunks are read together and decompressed straight into
    place, and that no transform needs the threads.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    footprint : Footprint
        The chunks that they need.
    num_threads : int
        The number asked for.
    """
    is_small = footprint.max_chunk_nbytes <= SMALL_NBYTES
    has_steps = bool(recipe.steps or recipe.label_columns)
    if num_threads <= _FEWEST_CALLERS or has_steps or not is_small:
        return num_threads
    stored, source = stored_variables(recipe, footprint), recipe.source
    read = [name for name in stored if not source.variables[name].is_computed]
    if not read or not all(source.is_compiled(n) and is_in_place(stored[n]) for n in read):
        return num_threads
    # The calls of all threads together have at least as many chunks as there are threads.
    num_chunks = min(group.num_chunks_per_block for group in footprint.groups)
    enough = max(
        -(-num_threads // max(num_chunks, 1)),
        -(-num_threads * footprint.max_chunk_nbytes // MOST_SMALL_NBYTES),
    )
    return min(max(enough, _FEWEST_CALLERS), num_threads)


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
    """Describe how each variable that the samples need is stored, as selected.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    footprint : Footprint
        The chunks that they need.

    Returns
    -------
    dict of str to Stored
        By variable.
    """
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
