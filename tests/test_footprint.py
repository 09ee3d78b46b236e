from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import footprints, line_footprint, slow_needs, slow_stored_chunk
from xloader.core.axis import Axis
from xloader.core.boxes import Boxes
from xloader.core.footprint import Demand, Footprint, Group
from xloader.core.windows import Windows


def pairs_of(footprint: Footprint, group: Group, boxes: Boxes) -> list[tuple[int, int]]:
    rows, blocks = footprint.needs(group, boxes)
    return list(zip(rows.tolist(), blocks.tolist(), strict=True))


def slow_pairs(footprint: Footprint, group: Group) -> list[tuple[int, int]]:
    windows = footprint.windows
    return [
        (sample, block)
        for sample in range(len(windows))
        for block in sorted(slow_needs(windows, group, sample))
    ]


@given(footprints(), st.data())
def test_needs_of_boxes(footprint: Footprint, data: st.DataObject) -> None:
    """A box needs exactly the blocks that its samples need."""
    windows = footprint.windows
    bounds = []
    for count in windows.num_positions:
        drawn = data.draw(st.lists(st.integers(0, count), min_size=2, max_size=2, unique=True))
        bounds.append(sorted(drawn))
    boxes = Boxes(
        tuple(np.array([lo]) for lo, _ in bounds), tuple(np.array([hi]) for _, hi in bounds)
    )
    positions = [
        position
        for position in np.ndindex(windows.num_positions)
        if all(lo <= p < hi for p, (lo, hi) in zip(position, bounds, strict=True))
    ]
    assert boxes.num_samples.tolist() == [len(positions)]
    ids = windows.ids_of(np.array(positions)).tolist()
    for group in footprint.groups:
        expected = set().union(*(slow_needs(windows, group, sample) for sample in ids))
        assert pairs_of(footprint, group, boxes) == [(0, block) for block in sorted(expected)]


@given(footprints())
def test_bytes_of_blocks(footprint: Footprint) -> None:
    num_needed = total = 0
    for group in footprint.groups:
        blocks = np.arange(group.num_blocks)
        kept, read = group.block_nbytes(blocks).tolist(), group.read_nbytes(blocks).tolist()
        for block in blocks.tolist():
            index = np.unravel_index(block, group.shape)
            num_kept = num_read = 1
            for axis, i in zip(group.axes, index, strict=True):
                if axis is not None:
                    num_kept *= axis.edges[i + 1] - axis.edges[i]
                    num_read *= _chunk_size(axis, int(i))
            # Whole dimensions have 5 elements, and all of them are kept and read.
            unit = sum(4 * 5 ** len(demand.whole_axes) for demand in group.demands)
            assert (kept[block], read[block]) == (unit * num_kept, unit * num_read)
        assert sum(kept) == sum(demand.selected_nbytes for demand in group.demands)
        needed = {block for _, block in slow_pairs(footprint, group)}
        num_needed += len(needed) * group.num_reads_per_block
        total += sum(kept[block] for block in needed)
    assert (footprint.num_needed, footprint.total_nbytes) == (num_needed, total)


def _chunk_size(axis: Axis, block: int) -> int:
    chunk = sorted(set(slow_stored_chunk(axis)))[block]
    if isinstance(axis.chunks, tuple):
        return axis.chunks[chunk]
    return min(axis.chunks, axis.stored_size - chunk * axis.chunks)


def test_what_is_chunked_and_needed_alike_is_one_group() -> None:
    windows = Windows(("time", "lat"), (32, 8), (3, 8), (1, 8), (1, 1))
    time, lat = Axis(32, 8, range(32)), Axis(8, 4, range(8))
    level = Axis(13, 1, range(13))
    alike = frozenset({((0, 1, 3), (0, 1, 8))})
    surface = Demand("t2m", (time, lat), (), 4, alike)
    aloft = Demand("z", (time, lat), (level,), 4, alike)
    later = Demand("tp", (time, lat), (), 4, frozenset({((2, 1, 1), (0, 1, 8))}))
    static = Demand("orog", (None, lat), (), 8, frozenset({(None, (0, 1, 8))}))
    footprint = Footprint.of(windows, (surface, later, aloft, static))
    names = [[demand.variable for demand in group.demands] for group in footprint.groups]
    assert names == [["t2m", "z"], ["tp"], ["orog"]]
    assert [group.num_reads_per_block for group in footprint.groups] == [14, 1, 1]
    assert [group.shape for group in footprint.groups] == [(4, 2), (4, 2), (1, 2)]
    assert footprint.num_needed == 8 * 14 + 8 + 2
    assert footprint.first_offsets == (0, 0)
    assert footprint.max_chunk_nbytes == 8 * 4 * 4
    assert footprint.total_nbytes == 32 * 8 * 4 * 15 + 8 * 8


def test_first_offsets_are_of_the_fields_and_not_of_the_window() -> None:
    assert line_footprint(40, 4, 12, spans=((5, 1, 2), (9, 1, 1))).first_offsets == (5,)
