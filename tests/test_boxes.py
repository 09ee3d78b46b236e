"""Ids of samples within boxes, with and without the compiled library."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("size", [3, 1 << 33])
def test_ids_beyond_32_bits(size: int) -> None:
    boxes = Boxes((np.array([1 << 25]), np.array([2])), (np.array([1 << 26]), np.array([2 + size])))
    ranks = np.array([0, 4, size - 1, size, (size << 24) + 1])
    found = boxes.ids_of(np.zeros(5, np.int64), ranks, (1 << 26, 1 << 34))
    expected = [(((1 << 25) + rank // size) << 34) + 2 + rank % size for rank in ranks.tolist()]
    assert found.tolist() == expected
