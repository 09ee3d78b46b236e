"""Sums over windows, from the sums of chunks, by summed areas.

Along one dimension, a window's sum is the difference of two cumulative sums. With a dilation,
there is a cumulative sum for each residue. In n dimensions, this is done along one after the
other. A window that straddles chunks gets a part of its sum from each::

    element    0  1  2  3 | 4  5  6  7
    valid      1  1  0  1 | 1  0  1  1
    cumulated  0  1  2  2  3             before each element, and at the end
    window         `--------'            elements 2 to 4: 3 - 2 = 1 of the first chunk, then 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.windows import Windows

Span = tuple[int, int, int]
"""Elements that a field takes of a window along a dimension: ``(first, step, count)``."""


@dataclass(frozen=True, eq=False)
class StartLine:
    """The first elements of windows along one dimension, of all windows or of some.

    `positions`: the positions that count, ascending; by default all.
    """

    windows: Windows
    dim: int
    positions: Ints | None = None

    def __len__(self) -> int:
        if self.positions is None:
            return self.windows.num_positions[self.dim]
        return len(self.positions)

    def starts(self, begin: int, end: int) -> Ints:
        """First element of the windows ``begin`` to ``end``."""
        positions = np.arange(begin, end) if self.positions is None else self.positions[begin:end]
        return self.windows.starts_of(self.dim, positions)

    def touching(self, begin: Ints, end: Ints, span: Span) -> tuple[Ints, Ints]:
        """Half-open range of the windows of which a span may reach into ``[begin, end)``."""
        first, step, count = span
        last = first + step * (count - 1)
        return self._windows_from(begin - last), self._windows_from(end - first)

    def _windows_from(self, elements: Ints) -> Ints:
        found = self.windows.num_before(self.dim, elements)
        if self.positions is None:
            return found
        return np.asarray(np.searchsorted(self.positions, found), np.int64)


def sum_windows(values: Ints, axis: int, begin: int, starts: Ints, span: Span) -> Ints:
    """Sums over windows along one axis, of the elements that lie in a chunk."""
    first, step, count = span
    size = values.shape[axis]
    num_turns = -(-size // step)
    lined = np.moveaxis(values, axis, 0)
    sums = np.zeros((num_turns + 1, step, *lined.shape[1:]), values.dtype)
    flat = sums.reshape(-1, *lined.shape[1:])
    flat[step : step + size] = lined
    # Row ``i`` of ``flat`` is now the sum of all elements before ``i`` of the same residue.
    np.cumsum(sums, axis=0, out=sums)
    at = starts + (first - begin)
    lo = np.where(at >= 0, at, at % step)
    hi = np.minimum(at + step * count, lo + step * -(-np.maximum(size - lo, 0) // step))
    found = flat[np.maximum(hi, lo)]
    found -= flat[lo]
    return np.moveaxis(found, 0, axis)


class RollingCounts:
    """Counts for the windows under way; those of complete windows are taken out."""

    def __init__(
        self, sizes: tuple[int, ...], has_sweep: bool, dtype: np.dtype, first: int = 0
    ) -> None:
        self._has_sweep = has_sweep
        self._first = first
        self._counts = np.zeros((0, *sizes[1:]) if has_sweep else sizes, dtype)

    def reserve(self, end: int) -> None:
        """Make room for windows up to ``end`` along the first dimension."""
        if not self._has_sweep:
            return
        missing = end - self._first - len(self._counts)
        if missing > 0:
            more = np.zeros((missing, *self._counts.shape[1:]), self._counts.dtype)
            self._counts = np.concatenate([self._counts, more])

    def add(self, begins: tuple[int, ...], counts: Ints) -> None:
        """Add counts to a box of windows that begins at ``begins``."""
        own = list(begins)
        if self._has_sweep:
            own[0] -= self._first
        box = tuple(slice(b, b + n) for b, n in zip(own, counts.shape, strict=True))
        self._counts[box] += counts

    def peek(self, begin: int, end: int) -> NDArray[np.signedinteger]:
        """The counts of windows ``begin`` to ``end`` along the first dimension, or all of them."""
        if not self._has_sweep:
            return self._counts
        found = self._counts[begin - self._first : end - self._first]
        if len(found) < end - begin:
            # No chunk that is needed reaches into these windows, so no room was made for them.
            none = np.zeros((end - begin - len(found), *found.shape[1:]), found.dtype)
            found = np.concatenate([found, none])
        return found

    def drop(self, end: int) -> None:
        """Forget the windows below ``end`` along the first dimension."""
        if self._has_sweep and end > self._first:
            self._counts = self._counts[end - self._first :].copy()
            self._first = end
