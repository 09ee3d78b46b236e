from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import footprints, slow_needs
from xloader.core.footprint import Footprint
from xloader.order.cohorts import cut_cohorts
from xloader.order.tile_needs import needed_nbytes


def slow_nbytes(footprint: Footprint, tiling: tuple[int, ...]) -> list[int]:
    """Return the bytes that each home tile needs, computed sample by sample."""
    cohorts = cut_cohorts(footprint, tiling)
    blocks: list[set[tuple[int, int]]] = [set() for _ in range(cohorts.num_tiles)]
    for cohort in range(len(cohorts)):
        box, tile = cohorts.boxes(np.array([cohort])), int(cohorts.tiles[cohort])
        spans = [range(int(lo[0]), int(hi[0])) for lo, hi in zip(box.lo, box.hi, strict=True)]
        for position in np.ndindex(*map(len, spans)):
            place = [span[i] for span, i in zip(spans, position, strict=True)]
            sample = int(footprint.windows.ids_of(np.array([place]))[0])
            for number, group in enumerate(footprint.groups):
                blocks[tile] |= {
                    (number, block) for block in slow_needs(footprint.windows, group, sample)
                }
    return [
        sum(int(footprint.groups[g].block_nbytes(np.array([block]))[0]) for g, block in needed)
        for needed in blocks
    ]


@given(footprints(), st.integers(0, 3))
def test_what_tiles_need_is_what_their_samples_need(footprint: Footprint, size: int) -> None:
    tiling = (size,) * len(footprint.windows.dims)
    found = needed_nbytes(footprint, cut_cohorts(footprint, tiling))
    assert found.tolist() == slow_nbytes(footprint, tiling)
