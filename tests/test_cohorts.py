from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import (
    box_footprint,
    circle_footprint,
    footprints,
    line_footprint,
    slow_block,
    slow_needs,
    slow_starts,
    span_offsets,
)
from xloader.core.axis import Axis
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.order.cohorts import cut_cohorts, tile_edges


def slow_tile(footprint: Footprint, dim: int, num_blocks: int) -> list[int]:
    """Return the tile of each element along a dimension."""
    axis = footprint.leading_axes[dim]
    if axis is None or num_blocks == 0:
        return [0] * footprint.windows.dim_sizes[dim]
    return [block // num_blocks for block in slow_block(axis)]


Tiles = tuple[int, ...]


def slow_touch(
    footprint: Footprint, dim: int, num_blocks: int
) -> tuple[list[tuple[Tiles, ...]], list[int]]:
    """Return the tiles of each access at each position along a dimension, and the homes.

    On a circle, tiles count on in a second turn, and a home lies in the first one. Outside padded
    borders, the nearest tile counts.
    """
    windows = footprint.windows
    tile = slow_tile(footprint, dim, num_blocks)
    line = dict(enumerate(tile + [own + tile[-1] + 1 for own in tile]))
    if windows.ends[dim] == "pad":
        size = len(tile)
        line = {at: tile[min(max(at, 0), size - 1)] for at in range(-size, 2 * size)}
    spans = sorted(
        {access[dim] for group in footprint.groups for access in group.accesses} - {None},
        key=lambda span: (span[0], span_offsets(span)[-1]),
    )
    touches, homes = [], []
    for origin in slow_starts(windows, dim):
        ends = [(line[origin + s[0]], line[origin + span_offsets(s)[-1]]) for s in spans]
        touches.append(tuple(tuple(range(lo, hi + 1)) for lo, hi in ends or [(line[origin],) * 2]))
        homes.append(min(min((lo for lo, _ in ends), default=line[origin]), tile[-1]))
    return touches, homes


def folded(tiles: Tiles, num_tiles: int) -> set[Tiles]:
    """Return the tiles of the first turn, and those of the second one where they are stored."""
    turns = itertools.groupby(tiles, lambda tile: tile // num_tiles)
    return {tuple(tile % num_tiles for tile in own) for _, own in turns}


@given(footprints(), st.data())
def test_a_piece_is_a_stretch_that_touches_the_same_tiles(
    footprint: Footprint, data: st.DataObject
) -> None:
    num_dims = len(footprint.windows.dims)
    tiling = tuple(data.draw(st.lists(st.integers(0, 3), min_size=num_dims, max_size=num_dims)))
    cohorts = cut_cohorts(footprint, tiling)
    for dim, pieces in enumerate(cohorts.pieces):
        touches, homes = slow_touch(footprint, dim, tiling[dim])
        num_tiles = len(pieces.tile_edges) - 1
        runs = np.searchsorted(
            footprint.windows.stretch_edges(dim), np.arange(len(touches)), "right"
        )
        # In a single tile, only a window's first needed element must stay on its turn.
        seen = [row if num_tiles > 1 else row[0][0] for row in touches]
        keys = zip(seen, runs.tolist(), strict=True)
        found = [len(list(same)) for _, same in itertools.groupby(keys)]
        assert np.diff(pieces.starts).tolist() == found
        firsts = pieces.starts[:-1].tolist()
        dense = {home: i for i, home in enumerate(sorted(set(homes)))}
        assert pieces.home.tolist() == [dense[homes[first]] for first in firsts]
        assert pieces.num_homes == len(dense)
        reaches = [
            max(max(t) for t in row) - min(home, *(min(t) for t in row))
            for row, home in zip(touches, homes, strict=True)
        ]
        assert pieces.reach == min(max(reaches), num_tiles - 1)
        # If no piece reaches beyond its home, the touched tiles are not stored.
        assert len(pieces.touch_lo) == len(pieces.touch_hi)
        assert (len(pieces.touch_lo) == 0) == (pieces.reach == 0)
        for piece, first in enumerate(firsts):
            parts = set().union(*(folded(tiles, num_tiles) for tiles in touches[first]))
            sets = {tuple(dense[t] for t in tiles if t in dense) for tiles in parts}
            ranges = zip(pieces.touch_lo[:, piece], pieces.touch_hi[:, piece], strict=True)
            assert {tuple(range(lo, hi)) for lo, hi in ranges} == (sets if pieces.reach else set())
            is_beyond = any(t not in dense for tiles in parts for t in tiles)
            assert pieces.is_beyond_homes[piece] == is_beyond


@given(footprints(max_dims=3, max_size=14))
def test_cohorts_part_the_samples(footprint: Footprint) -> None:
    """Cohorts cover every position once, and all samples of a cohort have the same home."""
    cohorts = cut_cohorts(footprint, (1,) * len(footprint.windows.dims))
    boxes = cohorts.boxes(np.arange(len(cohorts)))
    assert boxes.num_samples.tolist() == cohorts.num_samples.tolist()
    cohort_of = np.full(footprint.windows.num_positions, -1)
    for cohort in range(len(cohorts)):
        corners = zip(boxes.lo, boxes.hi, strict=True)
        part = cohort_of[tuple(slice(lo[cohort], hi[cohort]) for lo, hi in corners)]
        assert (part == -1).all()
        part[...] = cohort
    assert (cohort_of >= 0).all()
    homes = [slow_touch(footprint, dim, 1)[1] for dim in range(cohort_of.ndim)]
    dense = [{home: i for i, home in enumerate(sorted(set(row)))} for row in homes]
    shape = tuple(len(row) for row in dense)
    assert cohorts.home_shape == shape
    assert cohorts.num_tiles == int(np.prod(shape))
    for position in np.ndindex(cohort_of.shape):
        index = tuple(d[h[p]] for d, h, p in zip(dense, homes, position, strict=True))
        assert cohorts.tiles[cohort_of[position]] == np.ravel_multi_index(index, shape)


def test_tiles_follow_the_variable_with_the_most_bytes() -> None:
    footprint = box_footprint((24, 9), (5, 3), (2, 2))
    assert footprint.leading_axes[0] == Axis(24, 5, range(24))
    assert tile_edges(footprint, 0, 2).tolist() == [0, 10, 20, 24]
    assert tile_edges(footprint, 1, 0).tolist() == [0, 9]
    assert tile_edges(footprint, 1, 1).tolist() == [0, 3, 6, 9]


def test_the_number_of_cohorts_does_not_grow_with_the_samples() -> None:
    few, many = (cut_cohorts(line_footprint(100 * n, n, 3), (1,)) for n in (10, 10**6))
    assert len(few) == len(many) == 199


@pytest.mark.parametrize("tiling", [0, 1, 2])
@pytest.mark.parametrize("window", [1, 3, 5, 13])
def test_samples_of_a_subset_that_wrap_need_the_same_blocks(window: int, tiling: int) -> None:
    footprint = circle_footprint(13, 2, window)
    footprint = replace(footprint, subset=Subset(13, np.arange(13)))
    cohorts = cut_cohorts(footprint, (tiling,))
    assert cohorts.members is not None
    for cohort, num in enumerate(np.diff(cohorts.members.offsets).tolist()):
        only = np.zeros(num, np.int64)
        ids = cohorts.members.find(np.array([cohort]), only, np.arange(num))[0].tolist()
        needs = {
            frozenset(slow_needs(footprint.windows, group, number))
            for group in footprint.groups
            for number in ids
        }
        assert len(needs) <= 1
