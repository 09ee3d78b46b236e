"""Ids of samples within boxes, with and without the compiled library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.compiled.library import load_library
from xloader.core import boxes as boxes_module
from xloader.core.boxes import Boxes


@pytest.fixture(params=["compiled", "numpy"], autouse=True, scope="module")
def library(request: pytest.FixtureRequest) -> object:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled" and load_library()[0] is None:
            pytest.skip(load_library()[1])
        if request.param == "numpy":
            patch.setattr(boxes_module, "find_function", lambda *_: None)
        yield


@given(
    counts=st.lists(st.sampled_from([1, 2, 7, 30]), min_size=1, max_size=4),
    num_boxes=st.integers(1, 5),
    num_samples=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_ids_count_the_positions_of_a_box_in_c_order(
    counts: list[int], num_boxes: int, num_samples: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lo = [rng.integers(0, count, num_boxes) for count in counts]
    hi = [rng.integers(low + 1, count + 1) for low, count in zip(lo, counts, strict=True)]
    boxes = Boxes(tuple(lo), tuple(hi))
    which = rng.integers(0, num_boxes, num_samples)
    ranks = rng.integers(0, boxes.num_samples[which])
    every = np.arange(np.prod(counts)).reshape(counts)
    inside = [
        every[tuple(slice(low[box], high[box]) for low, high in zip(lo, hi, strict=True))].ravel()
        for box in range(num_boxes)
    ]
    expected = [inside[box][rank] for box, rank in zip(which, ranks, strict=True)]
    assert boxes.ids_of(which, ranks, counts).tolist() == expected


@pytest.mark.parametrize("size", [3, 1 << 33])
def test_ids_beyond_32_bits(size: int) -> None:
    boxes = Boxes((np.array([1 << 25]), np.array([2])), (np.array([1 << 26]), np.array([2 + size])))
    ranks = np.array([0, 4, size - 1, size, (size << 24) + 1])
    found = boxes.ids_of(np.zeros(5, np.int64), ranks, (1 << 26, 1 << 34))
    expected = [(((1 << 25) + rank // size) << 34) + 2 + rank % size for rank in ranks.tolist()]
    assert found.tolist() == expected
