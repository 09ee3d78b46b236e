"""Bytes of the blocks that the samples of each tile need together.

The memory must hold at least those of one tile. For most groups they are computed for each
dimension alone, because there are far fewer pieces than cohorts::

    1000 x 1000 tiles, windows of 2 x 2      4 000 000 cohorts, 2000 pieces along each dimension
"""

from __future__ import annotations

import math

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint, Group
from xloader.core.sorting import is_first
from xloader.order.cohorts import Cohorts

_PIECE_SIZE = 1 << 16
"""Number of pieces whose needs are found in one call: the arrays for them fit a core's cache."""


def tile_nbytes(footprint: Footprint, cohorts: Cohorts) -> int:
    """Largest number of bytes that the samples of one home tile need together."""
    return int(needed_nbytes(footprint, cohorts).max(initial=0))


def needed_nbytes(footprint: Footprint, cohorts: Cohorts) -> Ints:
    """Bytes of all blocks that the samples of each home tile need."""
    needed = np.zeros(cohorts.num_tiles, np.int64)
    # In a subset, a tile may lack the samples that need some of its blocks.
    is_whole = footprint.subset is None or footprint.subset.has_all
    by_dim = [group for group in footprint.groups if is_whole and _is_product(group)]
    for group in by_dim:
        num_elements = np.ones(1, np.int64)
        for dim in range(len(cohorts.pieces)):
            along = _elements_along(footprint, cohorts, group, dim)
            num_elements = (num_elements[:, None] * along).reshape(-1)
        needed += group.unit_nbytes * num_elements
    by_cohort = [group for group in footprint.groups if group not in by_dim]
    if not by_cohort:
        return needed
    # Where epochs are drawn, others may use other cohorts.
    used = np.arange(len(cohorts)) if footprint.is_drawn else cohorts.used
    boxes, tile_of = cohorts.boxes(used), cohorts.tiles[used]
    for group in by_cohort:
        rows, blocks = footprint.needs(group, boxes)
        tiles = tile_of[rows]
        if len(cohorts) > cohorts.num_tiles:
            # The pairs are nearly sorted, which makes a stable sort fast.
            pairs = np.sort(tiles * group.num_blocks + blocks, kind="stable")
            pairs = pairs[is_first(pairs)]
            tiles, blocks = pairs // group.num_blocks, pairs % group.num_blocks
        np.add.at(needed, tiles, group.block_nbytes(blocks))
    return needed


def _is_product(group: Group) -> bool:
    """Whether a group's accesses are all combinations of their spans along each dimension."""
    spans = zip(*group.accesses, strict=True)
    return math.prod(len(set(along)) for along in spans) == len(group.accesses)


def _elements_along(footprint: Footprint, cohorts: Cohorts, group: Group, dim: int) -> Ints:
    """Number of elements, along a dimension, of all blocks that the pieces of each home need."""
    axis, line, pieces = group.axes[dim], group.lines[dim], cohorts.pieces[dim]
    if axis is None or line is None:
        return np.ones(pieces.num_homes, np.int64)
    spans = {access[dim] for access in group.accesses}
    home, num_elements = pieces.home, np.zeros(pieces.num_homes, np.int64)
    begin = 0
    while begin < len(home):
        # As many pieces as end with a home, so that no home is counted in two parts.
        last = home[min(begin + _PIECE_SIZE, len(home)) - 1]
        end = int(np.searchsorted(home, last, side="right"))
        unused = (np.zeros(0, np.int64),) * dim
        starts = pieces.starts[begin : end + 1].astype(np.int64)
        boxes = Boxes((*unused, starts[:-1]), (*unused, starts[1:]))
        first, pairs = int(home[begin]), []
        for span in spans:
            assert span is not None, "what has a dimension is needed at some place of it"
            rows, blocks = footprint.blocks_along(line, span, dim, boxes)
            pairs.append((home[begin:end] - first)[rows] * np.int64(axis.num_blocks) + blocks)
        pair = np.sort(np.concatenate(pairs), kind="stable")
        pair = pair[is_first(pair)]
        homes, blocks = np.divmod(pair, axis.num_blocks)
        np.add.at(num_elements[first:], homes, axis.edges[blocks + 1] - axis.edges[blocks])
        begin = end
    return num_elements
