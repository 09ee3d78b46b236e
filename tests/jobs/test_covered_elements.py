"""The elements that samples need: those that turn up in their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.cases import Case, cases
from tests.jobs.needed_elements import needed
from xloader.jobs import covered_elements
from xloader.jobs.covered_elements import CoveredElements
from xloader.recipe.layout import make_layouts


@given(case=cases(), data=st.data())
def test_elements_that_turn_up_in_samples(case: Case, data: st.DataObject) -> None:
    recipe = case.samples.recipe
    layouts = make_layouts(recipe)
    for name in {part.variable for own in layouts for part in own.parts}:
        wanted = needed(case, name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(covered_elements, "_PIECE_SIZE", data.draw(st.sampled_from([7, 1 << 20])))
            covered = CoveredElements(recipe, layouts, name)
        begins = tuple(data.draw(st.integers(0, size - 1)) for size in wanted.shape)
        ends = tuple(
            data.draw(st.integers(b + 1, size))
            for b, size in zip(begins, wanted.shape, strict=True)
        )
        shape = tuple(e - b for b, e in zip(begins, ends, strict=True))
        box = wanted[tuple(map(slice, begins, ends))]
        cover = covered.of_box(begins, shape)
        mask = cover.mask()
        assert np.array_equal(np.broadcast_to(True if mask is None else mask, shape), box)
        assert (cover.is_all, cover.is_empty) == (box.all(), not box.any())
        kind = "flags" if cover.flags is not None else "all" if cover.is_all else "lines"
        event(kind)
