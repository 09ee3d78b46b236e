"""The parts of the engine that read chunks and copy samples, for planned and for cached reads.

Of what windows take at padded borders, only the part inside an array is read. After it is copied to
its row, the rest of the row is filled from it::

    element    -2 -1 | 0  1  2
    row               a  b  c        as gathered
    edge        a  a  a  b  c
    reflect     c  b  a  b  c
    a number    0  0  a  b  c

These are the meanings that the words have for `numpy.pad`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Demand, Footprint
from xloader.core.packing import Packing
from xloader.core.retry_policy import RetryPolicy
from xloader.core.windows import Pad, Windows
from xloader.engine.block_layout import Stored, memory_order
from xloader.engine.block_reader import BlockReader
from xloader.engine.buffers import Arrays, Fields
from xloader.engine.field_places import FieldPlaces
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

_MOST_CUT: Final = 1.25
"""Most elements of the chunks read, for each that is selected, where few chunks are cut."""

NO_PACKINGS: Final[Mapping[str, Packing | None]] = MappingProxyType({})


class Borders:
    """Fills what rows take from outside, along all padded dimensions of all fields.

    Along several dimensions, one is padded after the other, in the order of ``windows.dims``.

    Parameters
    ----------
    windows : Windows
        The windows.
    layouts : tuple of FieldLayout
        The layouts of the fields, as gathered.
    """

    def __init__(self, windows: Windows, layouts: tuple[FieldLayout, ...]) -> None:
        self._windows = windows
        # The field, the axis of its array (axis 0 is that of the rows), the number of the dimension
        # and the value of elements outside.
        self._borders = [
            (layout.name, 1 + layout.dims.index(name), dim, pad)
            for layout in layouts
            for dim, (name, pad) in enumerate(zip(windows.dims, windows.pads, strict=True))
            if pad is not None and name in layout.dims
        ]

    def __bool__(self) -> bool:
        return bool(self._borders)

    def fill(self, arrays: Arrays, firsts: Ints) -> None:
        """Fill what rows take from outside.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The fields, by name. They are changed.
        firsts : numpy.ndarray of int64, shape (n, num_dims)
            Offset of the first element of each of the first ``n`` rows; below 0 before the array.
        """
        for field, axis, dim, pad in self._borders:
            own = firsts[:, dim]
            # From here on the dimension is the last axis, so that all others need no index.
            array = np.moveaxis(arrays[field][: len(firsts)], axis, -1)
            span, size = array.shape[-1], self._windows.dim_sizes[dim]
            for rows, num in _alike(np.maximum(-own, 0)):
                _fill_front(array, rows, num, pad)
            for rows, num in _alike(np.maximum(own + span - size, 0)):
                _fill_front(array[..., ::-1], rows, num, pad)


def _alike(counts: Ints) -> Iterator[tuple[Ints, int]]:
    """The rows of each number of elements outside, without those that have none."""
    for num in np.unique(counts).tolist():
        if num:
            yield np.flatnonzero(counts == num), num


def _fill_front(array: NDArray[Any], rows: Ints, num: int, pad: Pad) -> None:
    """Fill the first elements of some rows, from those after them."""
    match pad:
        case "edge":
            array[rows, ..., :num] = array[rows, ..., num : num + 1]
        case "reflect":
            array[rows, ..., :num] = array[rows, ..., 2 * num : num : -1]
        case _:
            array[rows, ..., :num] = pad


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
