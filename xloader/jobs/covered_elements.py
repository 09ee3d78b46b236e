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
from collections.abc import Iterator
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

Access = tuple[Span | None, ...]
"""Elements of a window that a field takes along each dimension of a variable."""


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
            if sum(not np.array_equal(a, b) for a, b in pairs) <= 1:  # type: ignore[arg-type]
                return BoxCover(self.shape, tuple(_either(*pair) for pair in pairs))
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


def _unless_all(flags: Flags) -> Flags | None:
    return None if flags.all() else flags


def _either(first: Flags | None, second: Flags | None) -> Flags | None:
    return None if first is None or second is None else _unless_all(first | second)


def _of_flags(flags: Flags) -> BoxCover:
    return BoxCover(flags.shape, (None,) * flags.ndim, _unless_all(flags))


class CoveredElements:
    """The elements of one variable that the samples of a recipe need.

    Samples with weight 0 need nothing, because no epoch has them. Elements beyond padded borders
    are those inside that stand for them.
    """

    def __init__(self, recipe: Recipe, layouts: tuple[FieldLayout, ...], variable: str) -> None:
        self._uses: list[tuple[Access, Lines]] = []
        if recipe.windows is None:
            return
        windows = self._windows = recipe.windows
        dims = recipe.variable(variable).dims
        # By dimension of the variable, its number among the windowed dimensions.
        numbers = [windows.dims.index(dim) if dim in windows.dims else None for dim in dims]
        self._numbers = numbers
        places = _SamplePlaces.of(
            recipe, windows, tuple(sorted({n for n in numbers if n is not None}))
        )
        self._places = places
        accesses = {
            tuple(None if number is None else part.accesses[number] for number in numbers)
            for layout in layouts
            for part in layout.parts
            if part.variable == variable
        }
        for access in sorted(accesses, key=repr):
            lines: list[Flags | None] = [None] * len(dims)
            for dim, number, span in self._spans(access):
                is_used = places.used[places.dims.index(number)]
                lines[dim] = _unless_all(_elements_of(windows, number, span, is_used))
            self._uses.append((access, tuple(lines)))

    def _spans(self, access: Access) -> Iterator[tuple[int, int, Span]]:
        """Yield dimensions of the variable, their numbers among those of the windows, and spans."""
        for dim, (number, span) in enumerate(zip(self._numbers, access, strict=True)):
            if number is not None and span is not None:
                yield dim, number, span

    def of_box(self, begins: tuple[int, ...], shape: tuple[int, ...]) -> BoxCover:
        """The elements of a box that samples need."""
        if not self._uses:
            return BoxCover(shape, (None,) * len(shape))
        box = tuple(slice(b, b + size) for b, size in zip(begins, shape, strict=True))
        covers = []
        for access, lines in self._uses:
            pairs = zip(lines, box, strict=True)
            cut = [None if line is None else _unless_all(line[part]) for line, part in pairs]
            cover = BoxCover(shape, tuple(cut))
            if self._places.chosen is not None and not cover.is_empty:
                cover = self._of_chosen(access, begins, shape)
            covers.append(cover)
        return reduce(BoxCover.union, covers)

    def _of_chosen(
        self, access: Access, begins: tuple[int, ...], shape: tuple[int, ...]
    ) -> BoxCover:
        """The elements of one access, where samples do not lie at all combinations of positions."""
        windows, places, positions = self._windows, self._places, {}
        for dim, number, span in self._spans(access):
            end = begins[dim] + shape[dim]
            positions[number] = _touching(windows, number, span, begins[dim], end)
        if not all(map(len, positions.values())):
            return _of_flags(np.zeros(shape, np.bool_))
        flags = places.flags_at(tuple(positions[number] for number in places.dims))
        axes = range(flags.ndim)
        used = [np.asarray(flags.any(axis=tuple(d for d in axes if d != axis))) for axis in axes]
        is_product = math.prod(int(line.sum()) for line in used) == int(np.count_nonzero(flags))
        lines: list[Flags | None] = [None] * len(shape)
        for dim, number, span in self._spans(access):
            ranges = ElementRanges.of(windows, number, span, positions[number])
            edges = np.arange(begins[dim], begins[dim] + shape[dim] + 1)
            axis = places.dims.index(number)
            if is_product:
                lines[dim] = _unless_all(ranges.cover(used[axis], 0, edges))
            else:
                flags = ranges.cover(flags, axis, edges)
        if is_product:
            return BoxCover(shape, tuple(lines))
        # Flags along the windowed dimensions become flags along those of the variable.
        kept = [number for number in self._numbers if number is not None]
        pairs = zip(self._numbers, shape, strict=True)
        sizes = [1 if number is None else size for number, size in pairs]
        ordered = flags.transpose([places.dims.index(number) for number in kept])
        return _of_flags(np.broadcast_to(ordered.reshape(sizes), shape))


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
        if recipe.subset is None or recipe.subset.has_all or not dims:
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
