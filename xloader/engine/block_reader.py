"""Reading blocks: which chunks make one, and where each is decoded to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Group
from xloader.core.packing import Packing
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.change_watch import ChangeWatch
from xloader.sources.base import Fetched, Read, Source


@dataclass(frozen=True)
class Stored:
    """How a variable is stored, as selected.

    Parameters
    ----------
    axes : tuple of Axis
        Of its dimensions.
    windowed : tuple of (int or None)
        Per dimension, which of the windowed ones it is.
    dtype : numpy.dtype
        Of a decoded block: packed where the values are.
    packing : Packing or None
    """

    axes: tuple[Axis, ...]
    windowed: tuple[int | None, ...]
    dtype: np.dtype
    packing: Packing | None

    @cached_property
    def kind(self) -> Hashable:
        """Equal for variables whose parts of a block always have one shape and dtype."""
        sizes = [
            (axis.size, None) if dim is None else (None, dim)
            for axis, dim in zip(self.axes, self.windowed, strict=True)
        ]
        return self.dtype.str, tuple(sizes)


class BlockSlot(NamedTuple):
    """Where a variable's part of a block lies: among others of its shape.

    Parameters
    ----------
    joint : numpy.ndarray
        Parts of one shape, stacked on axis 0.
    number : int
        Which of them it is.
    """

    joint: NDArray[Any]
    number: int

    @property
    def values(self) -> NDArray[Any]:
        """The part itself."""
        part: NDArray[Any] = self.joint[self.number, ...]
        return part


@dataclass(eq=False, slots=True)
class Bundle:
    """Some chunks that are read together.

    Parameters
    ----------
    reads : list of Read
    places : list of (int, tuple)
        Per read, which of the blocks it is for, and where in the variable's part of that block
        the values go.
    nbytes : int
        Decoded bytes.
    room_nbytes : int
        Decoded bytes of the chunks, not cut down: what has to be got of them, at most.
    is_waiting : bool
        Whether its bytes are fetched ahead.
    fetched : Fetched, optional
        What came of that.
    fetch_seconds : float
    error : BaseException, optional
        Why it cannot be decoded.
    num_requests : int
        Requests made for it so far.
    num_hung : int
        Attempts at it that a thread was given up in.
    is_refetched : bool
        Whether its bytes were fetched once more, because they had not decoded.
    """

    reads: list[Read]
    places: list[tuple[int, tuple[Any, ...]]]
    nbytes: int
    room_nbytes: int
    is_waiting: bool
    fetched: Fetched | None = None
    fetch_seconds: float = 0.0
    error: BaseException | None = None
    num_requests: int = 0
    num_hung: int = 0
    is_refetched: bool = False

    @property
    def held_nbytes(self) -> int:
        """Memory that its fetched bytes hold, until they are decoded."""
        return 0 if self.fetched is None else self.fetched.nbytes

    def singles(self) -> list[Bundle]:
        """The same chunks, each to be read by itself. What came of them so far is forgotten."""
        count = len(self.reads)
        nbytes, room_nbytes = self.nbytes // count, self.room_nbytes // count
        return [
            Bundle([read], [place], nbytes, room_nbytes, self.is_waiting)
            for read, place in zip(self.reads, self.places, strict=True)
        ]


_Choice = tuple[int, slice | Ints, slice, int]
"""Along one dimension: a stored chunk, the part of it that is wanted, its place, its size."""


class BlockReader:
    """Lists the reads of a block, and does them.

    Parameters
    ----------
    source : Source
    stored : mapping of str to Stored
        Every variable that samples need.
    most_nbytes : int
        Stored chunks of more decoded bytes are read in parts, though they are of one bundle.
    retry_policy : RetryPolicy, optional
        How long looks at the store are waited for.

    Attributes
    ----------
    change_watch : ChangeWatch
        Whether what is read is still what was opened.
    """

    def __init__(
        self,
        source: Source,
        stored: Mapping[str, Stored],
        most_nbytes: int,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self._most_nbytes = most_nbytes
        self._source = source
        self._stored = stored
        self._is_waiting = {name: source.is_waiting(name) for name in stored}
        self._whole: dict[tuple[str, int], list[_Choice]] = {}
        self.change_watch = ChangeWatch(source, stored, retry_policy)

    @property
    def name(self) -> str:
        """Where the data comes from, for messages."""
        return self._source.name

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
            name: tuple(
                axis.size if dim is None else sizes[dim]
                for axis, dim in zip(stored.axes, stored.windowed, strict=True)
            )
            for name, stored in ((d.variable, self._stored[d.variable]) for d in group.demands)
        }

    def values(
        self, shapes: Mapping[str, tuple[int, ...]], buffer: NDArray[np.uint8]
    ) -> dict[str, BlockSlot]:
        """Where each variable lies in one buffer, of which `nbytes` says how long it must be."""
        kinds: dict[Hashable, list[str]] = {}
        for name in shapes:
            kinds.setdefault(self._stored[name].kind, []).append(name)
        places, begin = {}, 0
        # The widest dtypes come first, so that every array begins at a multiple of its itemsize.
        for names in sorted(kinds.values(), key=lambda own: -self._stored[own[0]].dtype.itemsize):
            shape, dtype = (len(names), *shapes[names[0]]), self._stored[names[0]].dtype
            end = begin + math.prod(shape) * dtype.itemsize
            joint = buffer[begin:end].view(dtype).reshape(shape)
            places.update({name: BlockSlot(joint, number) for number, name in enumerate(names)})
            begin = end
        return places

    def nbytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Decoded bytes of a block."""
        return sum(
            math.prod(shape) * self._stored[name].dtype.itemsize for name, shape in shapes.items()
        )

    def bundles(self, group: Group, blocks: Sequence[tuple[int, ...]]) -> list[Bundle]:
        """Every chunk of some blocks, those together that are read with less effort so."""
        bundles: dict[Hashable, list[Bundle]] = {}
        chunk_nbytes = {demand.variable: demand.max_chunk_nbytes for demand in group.demands}
        for number, read, place, nbytes in self._reads(group, blocks):
            key = self._source.bundle_of(read.variable, read.chunk)
            parts = bundles.setdefault(key, [])
            room_nbytes = chunk_nbytes[read.variable]
            if not parts or parts[-1].room_nbytes + room_nbytes > self._most_nbytes:
                parts.append(Bundle([], [], 0, 0, self._is_waiting[read.variable]))
            parts[-1].reads.append(read)
            parts[-1].places.append((number, place))
            parts[-1].nbytes += nbytes
            parts[-1].room_nbytes += room_nbytes
        return [part for parts in bundles.values() for part in parts]

    def fetch(self, bundle: Bundle) -> Fetched:
        """Get the bytes of some chunks, as far as their source gets them ahead."""
        return self._source.fetch(bundle.reads)

    def _reads(
        self, group: Group, blocks: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, Read, tuple[Any, ...], int]]:
        for (number, block), demand in itertools.product(enumerate(blocks), group.demands):
            name = demand.variable
            stored = self._stored[name]
            choices = [
                self._every(name, dim, axis) if at is None else [_choice(axis, block[at], 0)]
                for dim, (axis, at) in enumerate(zip(stored.axes, stored.windowed, strict=True))
            ]
            for picked in itertools.product(*choices):
                chunk = tuple(choice[0] for choice in picked)
                cut = tuple(choice[1] for choice in picked)
                nbytes = math.prod(choice[3] for choice in picked) * stored.dtype.itemsize
                # The ellipsis keeps a variable without dimensions an array.
                place = (*(choice[2] for choice in picked), ...)
                yield number, Read(name, chunk, cut), place, nbytes

    def _every(self, name: str, dim: int, axis: Axis) -> list[_Choice]:
        if (name, dim) not in self._whole:
            self._whole[name, dim] = [
                _choice(axis, index, int(axis.edges[index])) for index in range(axis.num_blocks)
            ]
        return self._whole[name, dim]


def _choice(axis: Axis, index: int, begin: int) -> _Choice:
    chunk, cut, size = axis.stored_part(index)
    return chunk, cut, slice(begin, begin + size), size
