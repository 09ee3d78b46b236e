"""The elements of a variable that samples need, each once, however many windows hold it.

Where windows lie at all combinations of some positions along each dimension, so do the elements
that they need: one line of flags for each dimension says everything. Samples that were chosen by a
mask or around points need other elements. Those are found box by box, from the windows that reach
into the box::

    windows        `-----'     `-----'
                       `-----'
    elements     . x x x x x . x x x . .
    box                  [         ]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.element_ranges import ElementRanges, Span
from xloader.core.window_sets import (
    WindowBits,
    WindowSet,
    box_flags,
    smallest_of_bits,
    smallest_of_list,
)
from xloader.core.windows import Windows
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

_PIECE_SIZE: Final = 1 << 20
"""Windows that are handled in one call."""

_MOST_FLAGS: Final = 1 << 28
"""Most places of windows that are marked with one byte each."""

Flags = NDArray[np.bool_]
Lines = tuple[Flags | None, ...]
"""One flag for each element along each dimension; None where all elements are needed."""


@dataclass(frozen=True, eq=False)
class BoxCover:
    """The elements of a box that samples need.

    `lines`: per dimension, the elements that are needed; None for all.
    """

    shape: tuple[int, ...]
    lines: Lines
    flags: Flags | None = None

    @property
    def is_all(self) -> bool:
        """Whether samples need every element."""
        return self.flags is None and all(line is None for line in self.lines)

    @property
    def is_empty(self) -> bool:
        """Whether samples need no element."""
        if self.flags is not None:
            return not self.flags.any()
        return any(line is not None and not line.any() for line in self.lines)

    @property
    def count(self) -> int:
        """Number of elements that samples need."""
        if self.flags is not None:
            return int(np.count_nonzero(self.flags))
        return math.prod(
            size if line is None else int(np.count_nonzero(line))
            for size, line in zip(self.shape, self.lines, strict=True)
        )

    def mask(self) -> Flags | None:
        """The flags, to be broadcast over the box; None if every element is needed."""
        return mask_of(self.lines, self.flags)

    def union(self, other: BoxCover) -> BoxCover:
        """The elements that either of two sets of samples needs."""
        if self.is_all or other.is_empty:
            return self
        if other.is_all or self.is_empty:
            return other
        if self.flags is None and other.flags is None:
            pairs = list(zip(self.lines, other.lines, strict=True))
            differing = [axis for axis, pair in enumerate(pairs) if not _are_equal(*pair)]
            if len(differing) <= 1:
                lines = [_either(*pair) for pair in pairs]
                return BoxCover(self.shape, tuple(lines))
        first, second = self.mask(), other.mask()
        assert first is not None
        assert second is not None
        return _of_flags(np.broadcast_to(first | second, self.shape))


def mask_of(lines: Lines, flags: Flags | None) -> Flags | None:
    """Flags and lines of flags as one mask, to be broadcast; None if they leave out nothing."""
    mask = flags
    for axis, line in enumerate(lines):
        if line is not None:
            along = line.reshape([-1 if d == axis else 1 for d in range(len(lines))])
            mask = along if mask is None else mask & along
    return mask


def _are_equal(first: Flags | None, second: Flags | None) -> bool:
    if first is None or second is None:
        return first is second
    return bool(np.array_equal(first, second))


def _either(first: Flags | None, second: Flags | None) -> Flags | None:
    if first is None or second is None:
        return None
    flags = first | second
    return None if flags.all() else flags


def _of_flags(flags: Flags) -> BoxCover:
    none = (None,) * flags.ndim
    return BoxCover(flags.shape, none, None if flags.all() else flags)


class CoveredElements:
    """The elements of one variable that the samples of a recipe need.

    Samples with weight 0 need nothing, because no epoch has them. Elements beyond padded borders
    are those inside that stand for them.
    """

    def __init__(self, recipe: Recipe, layouts: tuple[FieldLayout, ...], variable: str) -> None:
        dims = recipe.variable(variable).dims
        self._uses: list[_AccessCover] = []
        if recipe.windows is None:
            return
        windows = recipe.windows
        parts = [part for layout in layouts for part in layout.parts if part.variable == variable]
        # By dimension of the variable, its number among the windowed dimensions.
        numbers = [windows.dims.index(dim) if dim in windows.dims else None for dim in dims]
        accesses = {
            tuple(None if number is None else part.accesses[number] for number in numbers)
            for part in parts
        }
        places = _SamplePlaces.of(
            recipe, windows, tuple(sorted({n for n in numbers if n is not None}))
        )
        self._uses = [
            _AccessCover.of(windows, tuple(numbers), access, places)
            for access in sorted(accesses, key=repr)
        ]

    def of_box(self, begins: tuple[int, ...], shape: tuple[int, ...]) -> BoxCover:
        """The elements of a box that samples need."""
        if not self._uses:
            return BoxCover(shape, (None,) * len(shape))
        return reduce(BoxCover.union, (use.of_box(begins, shape) for use in self._uses))


@dataclass(frozen=True, eq=False)
class _SamplePlaces:
    """The positions of samples along those windowed dimensions that a variable has.

    `chosen`: the combinations of positions at which samples lie; None if that is all of those
    used.
    """

    dims: tuple[int, ...]
    shape: tuple[int, ...]
    used: tuple[Flags, ...]
    chosen: WindowSet | None

    @classmethod
    def of(cls, recipe: Recipe, windows: Windows, dims: tuple[int, ...]) -> _SamplePlaces:
        shape = tuple(windows.num_positions[dim] for dim in dims)
        if recipe.subset is None or not dims:
            return cls(dims, shape, tuple(np.ones(size, np.bool_) for size in shape), None)
        chosen = _chosen_places(recipe, dims, shape)
        used = tuple(np.zeros(size, np.bool_) for size in shape)
        for piece in chosen.pieces():
            for flags, index in zip(used, np.unravel_index(piece, shape), strict=True):
                flags[index] = True
        is_product = math.prod(int(flags.sum()) for flags in used) == len(chosen)
        return cls(dims, shape, used, None if is_product else chosen)

    def flags_at(self, positions: tuple[Ints, ...]) -> Flags:
        """Whether there is a sample at each combination of positions along the dimensions."""
        assert self.chosen is not None
        sizes = tuple(map(len, positions))
        bounds = [(int(along[0]), int(along[-1]) + 1) for along in positions]
        is_box = all(e - b == n for (b, e), n in zip(bounds, sizes, strict=True))
        if isinstance(self.chosen, WindowBits) and is_box:
            lo, hi = zip(*bounds, strict=True)
            return np.concatenate(list(box_flags(self.chosen, self.shape, lo, hi))).reshape(sizes)
        windows = np.ravel_multi_index(np.ix_(*positions), self.shape)
        return self.chosen.contains(windows.reshape(-1)).reshape(sizes)


def _chosen_places(recipe: Recipe, dims: tuple[int, ...], shape: tuple[int, ...]) -> WindowSet:
    """The combinations of positions along some dimensions at which samples lie."""
    subset = recipe.subset
    assert subset is not None
    is_whole = len(dims) == len(recipe.require_windows().dims)
    if is_whole and subset.weights is None and isinstance(subset.indices, WindowSet):
        return subset.indices
    ids = subset.possible_ids
    size = math.prod(shape)
    flags = np.zeros(size, np.bool_) if size <= _MOST_FLAGS else None
    chosen = [np.zeros(0, np.int64)]
    for begin in range(0, len(ids), _PIECE_SIZE):
        positions = recipe.positions_of(ids[begin : begin + _PIECE_SIZE])[:, list(dims)]
        places = np.asarray(np.ravel_multi_index(tuple(positions.T), shape), np.int64)
        if flags is None:
            chosen.append(np.unique(places))
        else:
            flags[places] = True
    if flags is None:
        return smallest_of_list(size, np.unique(np.concatenate(chosen)))
    return smallest_of_bits(WindowBits.of_flags(flags))


@dataclass(frozen=True, eq=False)
class _AccessCover:
    """The elements that the samples need by one access of a field.

    `lines`: per dimension of the variable, the elements that any sample needs; None for all.
    """

    windows: Windows
    numbers: tuple[int | None, ...]
    access: tuple[Span | None, ...]
    places: _SamplePlaces
    lines: Lines

    @classmethod
    def of(
        cls,
        windows: Windows,
        numbers: tuple[int | None, ...],
        access: tuple[Span | None, ...],
        places: _SamplePlaces,
    ) -> _AccessCover:
        lines: list[Flags | None] = []
        for number, span in zip(numbers, access, strict=True):
            if number is None or span is None:
                lines.append(None)
                continue
            line = _elements_of(windows, number, span, places.used[places.dims.index(number)])
            lines.append(None if line.all() else line)
        return cls(windows, numbers, access, places, tuple(lines))

    def of_box(self, begins: tuple[int, ...], shape: tuple[int, ...]) -> BoxCover:
        """The elements of a box that the samples need by this access."""
        lines: list[Flags | None] = []
        for line, begin, size in zip(self.lines, begins, shape, strict=True):
            needed = None if line is None else line[begin : begin + size]
            lines.append(None if needed is None or needed.all() else needed)
        whole = BoxCover(shape, tuple(lines))
        if self.places.chosen is None or whole.is_empty:
            return whole
        return self._of_chosen(begins, shape)

    def _of_chosen(self, begins: tuple[int, ...], shape: tuple[int, ...]) -> BoxCover:
        """As `of_box`, where samples do not lie at all combinations of positions."""
        windows, positions = self.windows, {}
        for number, span, begin, size in zip(self.numbers, self.access, begins, shape, strict=True):
            if number is not None and span is not None:
                positions[number] = _touching(windows, number, span, begin, begin + size)
        if not all(map(len, positions.values())):
            return _of_flags(np.zeros(shape, np.bool_))
        flags = self.places.flags_at(tuple(positions[number] for number in self.places.dims))
        used: list[Flags] = [
            np.asarray(flags.any(axis=tuple(d for d in range(flags.ndim) if d != axis)))
            for axis in range(flags.ndim)
        ]
        is_product = math.prod(int(line.sum()) for line in used) == int(np.count_nonzero(flags))
        marks: list[Flags] = used if is_product else [flags]
        lines: list[Flags | None] = [None] * len(shape)
        for dim, (number, span) in enumerate(zip(self.numbers, self.access, strict=True)):
            if number is None or span is None:
                continue
            ranges = ElementRanges.of(windows, number, span, positions[number])
            edges = np.arange(begins[dim], begins[dim] + shape[dim] + 1)
            axis = self.places.dims.index(number)
            if is_product:
                line = ranges.cover(marks[axis], 0, edges)
                lines[dim] = None if line.all() else line
            else:
                marks[0] = ranges.cover(marks[0], axis, edges)
        if is_product:
            return BoxCover(shape, tuple(lines))
        return _of_flags(self._placed(marks[0], shape))

    def _placed(self, marks: Flags, shape: tuple[int, ...]) -> Flags:
        """Flags along the windowed dimensions, as flags along those of the variable."""
        kept = [number for number in self.numbers if number is not None]
        ordered = marks.transpose([self.places.dims.index(number) for number in kept])
        sizes = [
            1 if number is None else size for number, size in zip(self.numbers, shape, strict=True)
        ]
        return np.broadcast_to(ordered.reshape(sizes), shape)


def _elements_of(windows: Windows, dim: int, span: Span, is_used: Flags) -> Flags:
    """The elements along a dimension that the windows at some positions need."""
    size = windows.dim_sizes[dim]
    # How many ranges begin at each element, less those that end there.
    steps = np.zeros(size + 1, np.int64)
    positions = np.flatnonzero(is_used)
    each = max(_PIECE_SIZE // span[2], 1)
    for begin in range(0, len(positions), each):
        ranges = ElementRanges.of(windows, dim, span, positions[begin : begin + each])
        steps += np.bincount(ranges.lo.reshape(-1), minlength=size + 1)
        steps -= np.bincount(ranges.hi.reshape(-1), minlength=size + 1)
    return np.asarray(np.cumsum(steps[:-1]) > 0)


def _touching(windows: Windows, dim: int, span: Span, begin: int, end: int) -> Ints:
    """The positions along a dimension whose windows may reach into ``[begin, end)``, ascending."""
    first, last = span[0], span[0] + span[1] * (span[2] - 1)
    shifts = (0, windows.dim_sizes[dim]) if windows.wraps[dim] else (0,)
    positions = []
    for shift in shifts:
        bounds = np.array([begin + shift - last, end + shift - first])
        lo, hi = windows.num_before(dim, bounds).tolist()
        positions.append(np.arange(lo, hi, dtype=np.int64))
    return positions[0] if len(positions) == 1 else np.unique(np.concatenate(positions))
