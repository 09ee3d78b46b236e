"""Tiles, and the cohorts of samples that need exactly the same tiles.

Along one dimension, windows of 3 at stride 1 on tiles of 4 elements::

    tile       0 0 0 0 | 1 1 1 1 | 2 2 2 2
    position   0 1 2 3   4 5 6 7   8 9
    piece      `-' `-'   `-' `-'   `-'
               0   0,1   1   1,2   2         tiles that the piece's samples touch
    home       0   0     1   1     2         tile of the first element that they need

A *piece* is a range of positions whose samples touch the same tiles (for a subset of the windows,
also the same blocks). A *cohort* combines one piece
of each windowed dimension. Pieces are found for each dimension alone, so the cost grows with the
number of tiles. For a subset, it also grows with the number of samples, or with the number of
windows by a few bits each.

Along a dimension that wraps, the last windows touch the last tiles and the first ones. Their home
is the last tile. Like the windows at the end of a run, they find their tiles in memory together
only by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ends, Ints, int_dtype
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.sorting import digit_order, is_first
from xloader.core.subset import Members
from xloader.core.window_sets import BoxedWindows
from xloader.core.windows import Windows


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one dimension.

    Where windows wrap, tiles are counted along two turns of the dimension, one after the other, as
    in `xloader.core.axis.Line`.
    """

    axis: Axis | None
    num_blocks: int
    edges: Ints
    ends: Ends

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, elements: Ints) -> Ints:
        """The tile of each element.

        Elements of a second turn have tiles from ``len(self)`` on. Elements outside padded borders
        have the nearest tile.
        """
        if self.ends != "wrap":
            return self._of_turn(elements)
        turn = elements // self.edges[-1]
        tiles: Ints = self._of_turn(elements - turn * self.edges[-1]) + turn * len(self)
        return tiles

    def _of_turn(self, elements: Ints) -> Ints:
        if self.axis is None or not self.num_blocks:
            return np.zeros(len(elements), np.int64)
        if self.ends == "pad":
            elements = np.clip(elements, 0, self.edges[-1] - 1)
        blocks = self.axis.block_of(elements)
        return blocks if self.num_blocks == 1 else blocks // self.num_blocks

    def homes(self, firsts: Ints) -> Ints:
        """The home tile of windows, given the first element that each one needs."""
        # If the first element itself lies in the second turn, its tile would be before the homes of
        # earlier windows, and homes must ascend.
        is_circle = self.ends == "wrap"
        return self._of_turn(np.minimum(firsts, self.edges[-1] - 1) if is_circle else firsts)

    def fold(self, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
        """Convert ranges of tiles of two turns to ranges of tiles: two for each where windows wrap.

        `lo, hi` have shape (num_ranges, n).
        """
        if self.ends != "wrap":
            return lo, hi
        last = len(self) - 1
        is_split = (lo <= last) & (hi > last)
        once = lo % len(self), np.where(is_split, last, hi % len(self))
        again = np.where(is_split, 0, once[0]), hi % len(self)
        return np.concatenate([once[0], again[0]]), np.concatenate([once[1], again[1]])


_PIECE_SIZE = 1 << 16
"""Number of pieces that are made in one call: the arrays for them fit a core's cache."""


@dataclass(frozen=True)
class Pieces:
    """The tiles and pieces of one windowed dimension.

    `touch_lo, touch_hi` have shape (num_ranges, num_pieces).
    """

    tile_edges: Ints
    starts: Ints
    home: Ints
    touch_lo: Ints
    touch_hi: Ints
    reach: int
    is_beyond_homes: NDArray[np.bool_]

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""
        return len(self.starts) - 1

    @cached_property
    def is_wide(self) -> NDArray[np.bool_]:
        """Whether each piece touches more tiles than its home."""
        is_wide = self.is_beyond_homes.copy()
        for lo, hi in zip(self.touch_lo, self.touch_hi, strict=True):
            is_wide |= (lo != self.home) | (hi != self.home + 1)
        return is_wide

    @cached_property
    def num_homes(self) -> int:
        """Number of homes: tiles that are home to some piece."""
        return int(self.home[-1]) + 1


@dataclass(frozen=True)
class Cohorts:
    """All cohorts of an n-d tiling. A cohort's number counts pieces in C order."""

    pieces: tuple[Pieces, ...]
    members: Members | BoxedWindows | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of pieces along each dimension."""
        return tuple(p.num_pieces for p in self.pieces)

    @cached_property
    def home_shape(self) -> tuple[int, ...]:
        """Number of homes along each dimension."""
        return tuple(p.num_homes for p in self.pieces)

    @property
    def num_tiles(self) -> int:
        """Number of n-d tiles that are home to some window."""
        return math.prod(self.home_shape)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def tiles(self) -> Ints:
        """Home tile of every cohort, numbered in C order over ``home_shape``."""
        if len(self.shape) == 1:
            return self.pieces[0].home
        tile = np.zeros((1,) * len(self.shape), np.int64)
        for dim, (pieces, count) in enumerate(zip(self.pieces, self.home_shape, strict=True)):
            tile = tile * count + _along(pieces.home, dim, len(self.shape))
        return np.broadcast_to(tile, self.shape).reshape(-1)

    @cached_property
    def most_positions(self) -> tuple[int, ...]:
        """Per dimension, the most positions of a cohort."""
        return tuple(int(np.diff(pieces.starts).max()) for pieces in self.pieces)

    @cached_property
    def used(self) -> Ints:
        """The cohorts that have samples, ascending."""
        if self.members is None:
            return np.arange(len(self))
        return np.flatnonzero(np.diff(self.members.offsets))

    def of_tiles(self, tiles: Ints) -> Ints:
        """The cohorts that have samples, tile by tile, ascending within each; int32."""
        by_tile, edges = self._by_tile
        counts = edges[tiles + 1] - edges[tiles]
        # Each step leads to the next cohort of the same tile, or to the first one of the next tile.
        steps = np.ones(int(counts.sum()), np.int32)
        firsts = np.cumsum(counts, dtype=np.int32) - counts
        steps[firsts[1:]] = edges[tiles[1:]] - edges[tiles[:-1] + 1] + 1
        steps[:1] = edges[tiles[:1]]
        cohorts = np.cumsum(steps, dtype=np.int32, out=steps)
        if by_tile is not None:
            cohorts = by_tile[cohorts]
        if self.members is None:
            return cohorts
        return cohorts[self.members.offsets[cohorts + 1] > self.members.offsets[cohorts]]

    @cached_property
    def _by_tile(self) -> tuple[Ints | None, Ints]:
        """All cohorts sorted by tile, None if they already are; and where each tile begins."""
        is_line = len(self.shape) == 1
        counts = np.bincount(self.tiles, minlength=self.num_tiles)
        edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        by_tile = None if is_line else digit_order(self.tiles, self.num_tiles).astype(np.int32)
        return by_tile, edges

    @cached_property
    def num_used_tiles(self) -> int:
        """Number of tiles that are home to a sample of this epoch."""
        if self.members is None:
            return self.num_tiles
        is_used = np.zeros(self.num_tiles, np.bool_)
        is_used[self.tiles[self.used]] = True
        return int(is_used.sum())

    def counts_of(self, cohorts: Ints) -> Ints:
        """Number of samples of each of the given cohorts."""
        if self.members is None:
            return self.boxes(cohorts).num_samples
        return self.members.offsets[cohorts + 1] - self.members.offsets[cohorts]

    @property
    def num_samples(self) -> Ints:
        """Number of samples of every cohort."""
        if self.members is not None:
            return np.diff(self.members.offsets)
        if len(self.shape) == 1:
            return np.diff(self.pieces[0].starts)
        count = np.ones((1,) * len(self.shape), np.int64)
        for dim, pieces in enumerate(self.pieces):
            count = count * _along(np.diff(pieces.starts), dim, len(self.shape))
        return np.broadcast_to(count, self.shape).reshape(-1)

    def indices(self, cohorts: Ints, dim: int) -> Ints:
        """The piece of each of the given cohorts along a dimension."""
        # With one dimension, numbers are indices already, and there may be millions of them.
        if len(self.shape) == 1:
            return cohorts
        return np.asarray(np.unravel_index(cohorts, self.shape)[dim])

    def boxes(self, cohorts: Ints) -> Boxes:
        """Boxes of the positions of the given cohorts."""
        is_line = len(self.shape) == 1
        indices = (cohorts,) if is_line else np.unravel_index(cohorts, self.shape)
        return Boxes.between([pieces.starts for pieces in self.pieces], indices)


def cut_cohorts(
    footprint: Footprint, tiling: tuple[int, ...], *, seed: int = 0, epoch: int = 0
) -> Cohorts:
    """Cut the samples of a footprint into cohorts."""
    pieces = cut_pieces(footprint, tiling)
    if footprint.subset is None:
        return Cohorts(pieces)
    if not footprint.is_drawn:
        starts = tuple(cut.starts for cut in pieces)
        boxed = footprint.subset.boxed(footprint.windows.num_positions, starts)
        if boxed is not None:
            return Cohorts(pieces, boxed)
    ids = footprint.subset.drawn(seed, epoch)
    cohort = np.zeros(len(ids), np.int64)
    for cut, column in zip(pieces, footprint.positions_of(ids).T, strict=True):
        cohort = cohort * cut.num_pieces + _piece_of(cut, column)
    num_cohorts = math.prod(cut.num_pieces for cut in pieces)
    return Cohorts(pieces, Members.of(ids, cohort, num_cohorts))


def _piece_of(cut: Pieces, positions: Ints) -> Ints:
    """The piece of each position along a dimension."""
    num_positions = int(cut.starts[-1])
    if num_positions > len(positions):
        return np.searchsorted(cut.starts, positions, side="right") - 1
    # Looking each one up in a table takes a fortieth of the time.
    return np.repeat(np.arange(cut.num_pieces), np.diff(cut.starts))[positions]


def cut_pieces(footprint: Footprint, tiling: tuple[int, ...]) -> tuple[Pieces, ...]:
    """Cut each windowed dimension into pieces; for ``tiling``, see `cut_cohorts`."""
    known = footprint.known_pieces
    for cut in enumerate(tiling):
        if cut not in known:
            known[cut] = _cut_dim(footprint, *cut)
    return tuple(known[cut] for cut in enumerate(tiling))


def tile_edges(footprint: Footprint, dim: int, num_blocks: int) -> Ints:
    """Edges of tiles of ``num_blocks`` blocks along a dimension; 0 makes a single tile."""
    axis = footprint.leading_axes[dim]
    size = footprint.windows.dim_sizes[dim]
    if axis is None or num_blocks == 0:
        return np.array([0, size], np.int64)
    if num_blocks == 1 and axis.size == size:
        return axis.edges
    return np.append(axis.edges[:-1][::num_blocks], size)


def _cut_dim(footprint: Footprint, dim: int, num_blocks: int) -> Pieces:
    windows = footprint.windows
    axis, edges = footprint.leading_axes[dim], tile_edges(footprint, dim, num_blocks)
    spans = sorted(
        {
            (span[0], span[0] + span[1] * (span[2] - 1))
            for group in footprint.groups
            for access in group.accesses
            if (span := access[dim]) is not None
        }
    ) or [(0, 0)]
    inner = edges[1:-1]
    offsets = {offset for span in spans for offset in span}
    if windows.ends[dim] == "wrap":
        # Also the windows whose elements pass the end are cut, at each tile that they reach.
        inner = np.concatenate([inner, edges[1:-1] + edges[-1], edges[-1:]])
        if len(edges) == 2:
            # All are in one tile, and only a window's first element must not pass the end.
            offsets = {spans[0][0]}
    # Between two windows of a piece, there is no gap.
    cuts = [windows.stretch_edges(dim)]
    for offset in sorted(offsets):
        # The first position whose element at this offset lies at or beyond the edge.
        cuts.append(windows.num_before(dim, inner - offset))
    if footprint.subset is not None:
        # A subset may hold any samples of a piece, so all of them must need the same blocks.
        cuts.append(footprint.block_starts[dim])
    starts = np.sort(np.concatenate(cuts), kind="stable")
    del inner, cuts
    starts = starts[is_first(starts)]
    num_positions = windows.num_positions[dim]
    starts = np.append(starts[starts < num_positions], num_positions)
    tiles = Tiles(axis, num_blocks, edges, windows.ends[dim])
    return _find_touches(windows, dim, tiles, starts, spans)


def _find_touches(
    windows: Windows, dim: int, tiles: Tiles, starts: Ints, spans: list[tuple[int, int]]
) -> Pieces:
    """The pieces that begin at ``starts``, with the homes that each one touches by each span."""
    num_pieces = len(starts) - 1
    ranges = [
        slice(begin, min(begin + _PIECE_SIZE, num_pieces))
        for begin in range(0, num_pieces, _PIECE_SIZE)
    ]
    is_home = np.zeros(len(tiles) + 1, np.int32)
    for piece in ranges:
        is_home[tiles.homes(windows.starts_of(dim, starts[piece]) + spans[0][0]) + 1] = 1
    homes_before = np.cumsum(is_home, dtype=np.int32)
    home = np.empty(num_pieces, np.int32)
    is_circle = tiles.ends == "wrap"
    num_ranges = 2 * len(spans) if is_circle else len(spans)
    touch_lo, touch_hi = (np.empty((num_ranges, num_pieces), np.int32) for _ in range(2))
    is_beyond = np.zeros(num_pieces, np.bool_)
    reach = 0
    for piece in ranges:
        begins = windows.starts_of(dim, starts[piece])
        lo = np.stack([tiles.of(begins + first) for first, _ in spans])
        hi = np.stack([tiles.of(begins + last) for _, last in spans])
        home_tile = tiles.homes(begins + spans[0][0]) if is_circle else lo[0]
        reach = max(
            reach, int((hi.max(axis=0) - np.minimum(lo.min(axis=0), home_tile)).max(initial=0))
        )
        lo, hi = tiles.fold(lo, hi)
        home[piece] = homes_before[home_tile]
        touch_lo[:, piece], touch_hi[:, piece] = homes_before[lo], homes_before[hi + 1]
        num_homes = touch_hi[:, piece] - touch_lo[:, piece]
        is_beyond[piece] = np.any(hi - lo + 1 > num_homes, axis=0)
    # On a circle, no two tiles are farther apart than the first and the last one.
    reach = min(reach, len(tiles) - 1)
    if not reach:
        # Each piece touches its home alone, which ``home`` already says.
        touch_lo = touch_hi = np.zeros((0, num_pieces), np.int32)
    return Pieces(
        tile_edges=tiles.edges,
        starts=starts.astype(int_dtype(int(starts[-1]))),
        home=home,
        touch_lo=touch_lo,
        touch_hi=touch_hi,
        reach=reach,
        is_beyond_homes=is_beyond,
    )


def _along(values: Ints, dim: int, num_dims: int) -> Ints:
    return values.reshape([-1 if d == dim else 1 for d in range(num_dims)])
