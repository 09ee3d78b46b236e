"""Reading blocks: which chunks make one, and where each is decoded to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xloader.footprint import Group
from xloader.grid import Axis
from xloader.packing import Packing
from xloader.sources.base import Outcome, Read, Source

Placed: TypeAlias = tuple[Read, NDArray[Any]]
"""What to read of a chunk, and where it is decoded to."""


@dataclass(frozen=True)
class Stored:
    """How a variable is stored, as selected.

    Parameters
    ----------
    dims : tuple of str
    axes : tuple of Axis
    dtype : numpy.dtype
        Of a decoded block: packed where the values are.
    packing : Packing or None
    """

    dims: tuple[str, ...]
    axes: tuple[Axis, ...]
    dtype: np.dtype
    packing: Packing | None


class BlockReader:
    """Lists the reads of a block, and does them.

    Parameters
    ----------
    source : Source
    stored : mapping of str to Stored
        Every variable that samples need.
    windowed : tuple of str
        The windowed dimensions.
    most_nbytes : int
        Decoded bytes of a bundle beyond which it is read in parts.
    """

    def __init__(
        self,
        source: Source,
        stored: Mapping[str, Stored],
        windowed: tuple[str, ...],
        most_nbytes: int,
    ) -> None:
        self._most_nbytes = most_nbytes
        self._source = source
        self._stored = stored
        self._windowed = windowed

    def shapes(self, group: Group, block: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shape of each variable's part of a block."""
        return {
            demand.variable: tuple(
                self._size(axis, self._block_along(dim, block))
                for dim, axis in self._dims(demand.variable)
            )
            for demand in group.demands
        }

    def views(
        self, group: Group, block: tuple[int, ...], buffer: NDArray[np.uint8]
    ) -> dict[str, NDArray[Any]]:
        """Arrays over one buffer, of which `nbytes` says how long it must be."""
        views, begin = {}, 0
        # The widest dtypes come first, so that every array begins at a multiple of its itemsize.
        shapes = self.shapes(group, block)
        for name in sorted(shapes, key=lambda name: -self._stored[name].dtype.itemsize):
            dtype = self._stored[name].dtype
            end = begin + math.prod(shapes[name]) * dtype.itemsize
            views[name] = buffer[begin:end].view(dtype).reshape(shapes[name])
            begin = end
        return views

    def nbytes(self, group: Group, block: tuple[int, ...]) -> int:
        """Decoded bytes of a block."""
        shapes = self.shapes(group, block)
        return sum(
            math.prod(shape) * self._stored[name].dtype.itemsize for name, shape in shapes.items()
        )

    def reads(
        self, group: Group, block: tuple[int, ...], values: Mapping[str, NDArray[Any]]
    ) -> Iterator[Placed]:
        """Every chunk of a block."""
        for demand in group.demands:
            choices: list[list[tuple[int, slice | NDArray[np.int64], slice]]] = []
            for dim, axis in self._dims(demand.variable):
                along = self._block_along(dim, block)
                blocks = range(axis.num_blocks) if along is None else (along,)
                origin = 0 if along is None else int(axis.edges[along])
                choices.append([self._choice(axis, index, origin) for index in blocks])
            for picked in itertools.product(*choices):
                # The ellipsis keeps a variable without dimensions an array.
                place: tuple[Any, ...] = (*(place for _, _, place in picked), ...)
                read = Read(
                    variable=demand.variable,
                    chunk=tuple(chunk for chunk, _, _ in picked),
                    cut=tuple(cut for _, cut, _ in picked),
                )
                yield read, values[demand.variable][place]

    def bundles(
        self, group: Group, block: tuple[int, ...], values: Mapping[str, NDArray[Any]]
    ) -> list[list[Placed]]:
        """Every chunk of a block, those together that are read with less effort so."""
        bundles: dict[Hashable, list[list[Placed]]] = {}
        room: dict[Hashable, int] = {}
        for read, out in self.reads(group, block, values):
            key = self._source.bundle_of(read.variable, read.chunk)
            parts = bundles.setdefault(key, [])
            if out.nbytes > room.get(key, 0):
                parts.append([])
                room[key] = self._most_nbytes
            parts[-1].append((read, out))
            room[key] -= out.nbytes
        return [part for parts in bundles.values() for part in parts]

    def do(self, bundle: list[Placed]) -> Outcome:
        """Decode some chunks into their places."""
        fetched = self._source.fetch([read for read, _ in bundle])
        return fetched.decode([out for _, out in bundle])

    def _dims(self, variable: str) -> Iterator[tuple[str, Axis]]:
        stored = self._stored[variable]
        return zip(stored.dims, stored.axes, strict=True)

    def _block_along(self, dim: str, block: tuple[int, ...]) -> int | None:
        return block[self._windowed.index(dim)] if dim in self._windowed else None

    @staticmethod
    def _size(axis: Axis, along: int | None) -> int:
        if along is None:
            return axis.size
        return int(axis.edges[along + 1] - axis.edges[along])

    @staticmethod
    def _choice(
        axis: Axis, index: int, origin: int
    ) -> tuple[int, slice | NDArray[np.int64], slice]:
        place = slice(int(axis.edges[index]) - origin, int(axis.edges[index + 1]) - origin)
        return axis.stored_chunk(index), axis.cut(index), place
