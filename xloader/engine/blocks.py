"""Reading blocks: which chunks make one, and where each is decoded to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.footprint import Group
from xloader.grid import Axis, Ints
from xloader.packing import Packing
from xloader.sources.base import Fetched, Read, Source


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


@dataclass(eq=False, slots=True)
class Bundle:
    """Some chunks of a block that are read together.

    Parameters
    ----------
    reads : list of Read
    places : list of (str, tuple)
        Per read, the variable and where in its part of the block the values go.
    nbytes : int
        Decoded bytes.
    is_waiting : bool
        Whether its bytes are fetched ahead.
    fetched : Fetched, optional
        What came of that.
    fetch_seconds : float
    error : BaseException, optional
        Why it cannot be decoded.
    """

    reads: list[Read]
    places: list[tuple[str, tuple[Any, ...]]]
    nbytes: int
    is_waiting: bool
    fetched: Fetched | None = None
    fetch_seconds: float = 0.0
    error: BaseException | None = None


_Choice = tuple[int, slice | Ints, slice, int]
"""Along one dimension: a stored chunk, the part of it that is wanted, its place, its size."""


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
        self._is_waiting = {name: source.is_waiting(name) for name in stored}
        self._whole: dict[tuple[str, int], list[_Choice]] = {}
        # Per dimension of a variable, which of the windowed ones it is.
        self._along = {
            name: [windowed.index(dim) if dim in windowed else None for dim in kept.dims]
            for name, kept in stored.items()
        }

    @property
    def is_waiting(self) -> bool:
        """Whether some variable is fetched ahead."""
        return any(self._is_waiting.values())

    def shapes(self, group: Group, block: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shape of each variable's part of a block."""
        sizes = [
            1 if axis is None else int(axis.edges[index + 1] - axis.edges[index])
            for axis, index in zip(group.axes, block, strict=True)
        ]
        return {
            demand.variable: tuple(
                axis.size if along is None else sizes[along]
                for axis, along in zip(
                    self._stored[demand.variable].axes, self._along[demand.variable], strict=True
                )
            )
            for demand in group.demands
        }

    def views(
        self, shapes: Mapping[str, tuple[int, ...]], buffer: NDArray[np.uint8]
    ) -> dict[str, NDArray[Any]]:
        """Arrays over one buffer, of which `nbytes` says how long it must be."""
        views, begin = {}, 0
        # The widest dtypes come first, so that every array begins at a multiple of its itemsize.
        for name in sorted(shapes, key=lambda name: -self._stored[name].dtype.itemsize):
            dtype = self._stored[name].dtype
            end = begin + math.prod(shapes[name]) * dtype.itemsize
            views[name] = buffer[begin:end].view(dtype).reshape(shapes[name])
            begin = end
        return views

    def nbytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Decoded bytes of a block."""
        return sum(
            math.prod(shape) * self._stored[name].dtype.itemsize for name, shape in shapes.items()
        )

    def bundles(self, group: Group, block: tuple[int, ...]) -> list[Bundle]:
        """Every chunk of a block, those together that are read with less effort so."""
        bundles: dict[Hashable, list[Bundle]] = {}
        for read, place, nbytes in self._reads(group, block):
            key = self._source.bundle_of(read.variable, read.chunk)
            parts = bundles.setdefault(key, [])
            if not parts or parts[-1].nbytes + nbytes > self._most_nbytes:
                parts.append(Bundle([], [], 0, self._is_waiting[read.variable]))
            parts[-1].reads.append(read)
            parts[-1].places.append((read.variable, place))
            parts[-1].nbytes += nbytes
        return [part for parts in bundles.values() for part in parts]

    def fetch(self, bundle: Bundle) -> Fetched:
        """Get the bytes of some chunks, as far as their source gets them ahead."""
        return self._source.fetch(bundle.reads)

    def _reads(
        self, group: Group, block: tuple[int, ...]
    ) -> Iterator[tuple[Read, tuple[Any, ...], int]]:
        for demand in group.demands:
            name = demand.variable
            stored, along = self._stored[name], self._along[name]
            choices = [
                self._every(name, dim, axis) if at is None else [_choice(axis, block[at], 0)]
                for dim, (axis, at) in enumerate(zip(stored.axes, along, strict=True))
            ]
            for picked in itertools.product(*choices):
                chunk = tuple(choice[0] for choice in picked)
                cut = tuple(choice[1] for choice in picked)
                nbytes = math.prod(choice[3] for choice in picked) * stored.dtype.itemsize
                # The ellipsis keeps a variable without dimensions an array.
                place = (*(choice[2] for choice in picked), ...)
                yield Read(name, chunk, cut), place, nbytes

    def _every(self, name: str, dim: int, axis: Axis) -> list[_Choice]:
        if (name, dim) not in self._whole:
            self._whole[name, dim] = [
                _choice(axis, index, int(axis.edges[index])) for index in range(axis.num_blocks)
            ]
        return self._whole[name, dim]


def _choice(axis: Axis, index: int, begin: int) -> _Choice:
    chunk, cut, size = axis.stored_part(index)
    return chunk, cut, slice(begin, begin + size), size
