"""A grid of cells over the windowed dimensions, each owned by at most one part of a split.

One dimension of 12 elements, cut into cells that two parts own, and windows of 3 at stride 2::

    element   0  1  2  3 | 4  5 | 6  7  8  9 10 11
    owner     train      | none | valid
    window    `-----'                                 of train
                    `-----'                           of no part: it leaves the cells of train
                          `-----'                     of no part
                                `-----'               of valid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.prefix_sums import sums_before
from xloader.core.windows import Windows

CROSSES: Final = -1
"""Stands for the part of a window that touches a part, but belongs to none."""
APART: Final = -2
"""Stands for the part of a window that touches no part."""


@dataclass(frozen=True, eq=False)
class PartGrid:
    """The cells of some dimensions, and the part that owns each."""

    dims: tuple[int, ...]
    edges: tuple[Ints, ...]
    owners: NDArray[np.int8]

    def boxes(self, windows: Windows, gaps: tuple[int, ...]) -> PartBoxes:
        """Find the part of each kind of window. Windows of a kind touch the same cells.

        A window belongs to a part if the part owns all its elements, from the first to the last
        one that a sample needs, and no other part owns an element within the gap around it.
        """
        kinds, spans, wider, owners = [], [], [], self.owners
        for axis, (dim, edges, gap) in enumerate(zip(self.dims, self.edges, gaps, strict=True)):
            if windows.wraps[dim]:
                # Three turns of the circle hold each window and the gap around it.
                turn = windows.dim_sizes[dim]
                edges = np.concatenate([edges[:-1] - turn, edges[:-1], edges + turn])
                owners = np.concatenate([owners] * 3, axis=axis)
            # Along a single dimension it is enough to look back: of two windows that are too
            # close, one comes after the other.
            after = gap if len(self.dims) > 1 else 0
            last = windows.extents[dim] - 1
            shifts = (0, last, -gap, last + after)
            # Windows between two of these positions touch the same cells.
            cuts = [windows.num_before(dim, edges[1:-1] - shift) for shift in shifts]
            begins = np.unique(np.concatenate([np.zeros(1, np.int64), *cuts]))
            begins = begins[begins < windows.num_positions[dim]]
            starts = windows.starts_of(dim, begins)
            cells = [
                np.clip(np.searchsorted(edges, starts + shift, side="right") - 1, 0, len(edges) - 2)
                for shift in shifts
            ]
            kinds.append(begins)
            spans.append((cells[0], cells[1] + 1))
            wider.append((cells[2], cells[3] + 1))
        inside, around = _CellBoxes.of(spans), _CellBoxes.of(wider)
        num_owned = around.sum(owners >= 0)
        parts = np.where(inside.sum(owners >= 0) > 0, CROSSES, APART).astype(np.int8)
        for part in range(int(owners.max(initial=-1)) + 1):
            is_own = owners == part
            is_whole = inside.sum(is_own) == inside.num_cells
            parts[is_whole & (around.sum(is_own) == num_owned)] = part
        return PartBoxes(self.dims, tuple(kinds), parts)


@dataclass(frozen=True, eq=False)
class PartBoxes:
    """The part of each kind of window. Windows of a kind touch the same cells.

    `kinds`: per cut dimension, the first position of each kind, ascending.
    """

    dims: tuple[int, ...]
    kinds: tuple[Ints, ...]
    parts: NDArray[np.int8]

    def parts_of(self, positions: Ints) -> NDArray[np.int8]:
        """The part of each window by its positions, shape ``(n, num_dims)``."""
        at = tuple(
            np.searchsorted(begins, positions[:, dim], side="right") - 1
            for dim, begins in zip(self.dims, self.kinds, strict=True)
        )
        return self.parts[at]


@dataclass(frozen=True, eq=False)
class _CellBoxes:
    """Boxes of cells: all combinations of a range along each dimension."""

    lo: tuple[Ints, ...]
    hi: tuple[Ints, ...]

    @classmethod
    def of(cls, spans: list[tuple[Ints, Ints]]) -> _CellBoxes:
        """The boxes of a half-open range of cells along each dimension."""
        lo, hi = zip(*spans, strict=True)
        return cls(tuple(lo), tuple(hi))

    @property
    def num_cells(self) -> Ints:
        """Number of cells of each box."""
        found = np.ones((), np.int64)
        for lo, hi in zip(self.lo, self.hi, strict=True):
            found = found[..., None] * (hi - lo)
        return np.asarray(found)

    def sum(self, flags: NDArray[np.bool_]) -> Ints:
        """Number of flagged cells in each box, from sums over all cells before a corner."""
        found = flags.astype(np.int64)
        for axis, (lo, hi) in enumerate(zip(self.lo, self.hi, strict=True)):
            before = sums_before(found, axis)
            found = before.take(hi, axis) - before.take(lo, axis)
        return found
