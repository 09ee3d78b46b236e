"""The elements that windows need along one dimension, as ranges, and the cells that they cover."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from xloader.core.axis import Ints
from xloader.core.windows import Windows
from xloader.errors import OptionError


def sums_before(values: NDArray[Any], axis: int, dtype: DTypeLike = np.int64) -> Ints:
    """Sum all values before each index along an axis."""
    before = np.zeros([n + (d == axis) for d, n in enumerate(values.shape)], dtype)
    np.cumsum(values, axis=axis, out=before[(slice(None),) * axis + (slice(1, None),)])
    return before


MOST_PLACES: Final = 1 << 27
"""Most places of windows, or cells, that are compared. Each takes about 10 bytes."""

Span = tuple[int, int, int]
"""The part of a window that is needed: ``(first, step, count)``, in elements from its start."""


@dataclass(frozen=True, eq=False)
class ElementRanges:
    """The elements that the window at each position needs along one dimension.

    `lo, hi` have shape (num_positions, num_ranges).
    """

    lo: Ints
    hi: Ints

    @classmethod
    def of(
        cls, windows: Windows, dim: int, span: Span, positions: Ints, *, is_split: bool = False
    ) -> ElementRanges:
        """The elements that a part of windows, at ascending ``positions``, takes along ``dim``."""
        first, step, count = span
        starts = windows.starts_of(dim, positions)
        if step == 1 and not is_split:
            lo, hi = (starts + first)[:, None], (starts + first + count)[:, None]
        else:
            lo = starts[:, None] + first + step * np.arange(count)
            hi = lo + 1
        size = windows.dim_sizes[dim]
        if windows.wraps[dim]:
            lo, hi = np.hstack([lo, lo - size]), np.hstack([hi, hi - size])
        return cls(np.clip(lo, 0, size), np.clip(hi, 0, size))

    def cover(self, marks: NDArray[np.bool_], axis: int, edges: Ints) -> NDArray[np.bool_]:
        """Replace an axis of positions by one of cells."""
        num = len(edges) - 1
        is_covered = np.zeros([num if d == axis else n for d, n in enumerate(marks.shape)], bool)
        for part in self._sums(marks, axis, edges, np.int32):
            is_covered |= part > 0
        return is_covered

    def count(self, counts: NDArray[Any], axis: int, edges: Ints) -> NDArray[Any]:
        """Replace an axis of positions by one of cells, and sum the windows that need each cell."""
        return np.asarray(sum(self._sums(counts, axis, edges, counts.dtype)))

    def _sums(
        self, values: NDArray[Any], axis: int, edges: Ints, dtype: DTypeLike
    ) -> Iterator[NDArray[Any]]:
        """For each range of windows, the sum over the windows whose range holds each cell."""
        before = sums_before(values, axis, dtype)
        cells = edges[:-1]
        for lo, hi in zip(self.lo.T, self.hi.T, strict=True):
            # The positions whose range holds a cell follow each other.
            begin = np.searchsorted(hi, cells, side="right")
            end = np.searchsorted(lo, cells, side="right")
            yield before.take(np.maximum(end, begin), axis) - before.take(begin, axis)


def touching(windows: Windows, marked_rows: Ints, window_rows: Ints) -> NDArray[np.bool_]:
    """Whether windows, ``(m, num_dims)``, share an element with any of those that are marked.

    A window counts from the first to the last element that a sample needs.
    """
    used = [np.unique(both) for both in np.concatenate([marked_rows, window_rows]).T]
    # Only positions that occur take room.
    marked_rows, window_rows = (
        np.stack([np.searchsorted(p, q) for p, q in zip(used, rows.T, strict=True)], axis=-1)
        for rows in (marked_rows, window_rows)
    )
    check_num_places([len(positions) for positions in used])
    marks = np.zeros([len(positions) for positions in used], np.bool_)
    marks[tuple(marked_rows.T)] = True
    bounds = []
    for dim, (extent, positions) in enumerate(zip(windows.extents, used, strict=True)):
        ranges = ElementRanges.of(windows, dim, (0, 1, extent), positions)
        edges = np.unique(np.concatenate([ranges.lo, ranges.hi], axis=None))
        marks = ranges.cover(marks, dim, edges)
        bounds.append((np.searchsorted(edges, ranges.lo), np.searchsorted(edges, ranges.hi)))
    sums: Ints = marks.astype(np.int64)
    for dim in range(marks.ndim):
        sums = sums_before(sums, dim)
    num_touched = np.zeros(len(window_rows), np.int64)
    # A window that wraps is two ranges. The sum over a box of ranges is the alternating sum over
    # its corners.
    for part in np.ndindex(*(lo.shape[1] for lo, _ in bounds)):
        for corner in np.ndindex(*(2,) * marks.ndim):
            at = tuple(
                bounds[dim][side][window_rows[:, dim], part[dim]] for dim, side in enumerate(corner)
            )
            num_touched += (-1) ** (marks.ndim - sum(corner)) * sums[at]
    return num_touched > 0


def check_num_places(shape: Sequence[int]) -> None:
    """Refuse more places of windows, or cells, than can be compared in memory."""
    if math.prod(shape) > MOST_PLACES:
        raise OptionError(
            "the samples are too many to compare their elements",
            given=f"{math.prod(shape)} places of windows",
            allowed=f"up to {MOST_PLACES}",
            remedy="compare samples of a part of the data, chosen with .sel before .window; or "
            "split by labels, fractions or blocks",
        )
