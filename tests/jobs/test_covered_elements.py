"""The elements that samples need: those that turn up in their values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import event, given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.jobs import covered_elements
from xloader.jobs.covered_elements import BoxCover, CoveredElements
from xloader.recipe.layout import make_layouts
from xloader.testing import write_store


def needed(case: Case, name: str) -> np.ndarray:
    """Whether each selected element of a variable turns up in a sample, by numbering them all."""
    numbered = {
        name: (array.dims, np.arange(array.size, dtype="i8").reshape(array.shape) + 2)
        for name, array in case.dataset.items()
    }
    recipe = case.samples.recipe
    store = write_store(xr.Dataset(numbered, case.dataset.coords), case.chunks)
    source = xloader.open(store).recipe.source
    parts = [p for own in make_layouts(recipe) for p in own.parts if p.variable == name]
    ids = recipe.subset.possible_ids if recipe.subset is not None else np.arange(recipe.num_ids)
    subset = recipe.subset
    if subset is not None:
        subset = replace(subset, weights=None, points=None, num_draws=None)
    samples = xloader.Samples(replace(recipe, source=source, subset=subset))
    batch = samples[ids.tolist()]
    found: set[int] = set()
    for layout in make_layouts(samples.recipe):
        for part in layout.parts:
            if part.variable == name:
                values = part.view(np.asarray(batch[layout.name]))
                found.update(np.unique(values).astype("i8").tolist())
    assert parts
    whole = (
        case.dataset[name]
        .copy(data=numbered[name][1])
        .isel({d: s for d, s in case.selection.items() if d in case.dataset[name].dims})
    )
    return np.isin(whole.to_numpy(), list(found))


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
        assert cover.count == np.count_nonzero(box)
        assert (cover.is_all, cover.is_empty) == (box.all(), not box.any())
        kind = "flags" if cover.flags is not None else "all" if cover.is_all else "lines"
        event(kind)


def test_a_chunk_within_the_samples_costs_no_flags() -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((40, 6)))})
    recipe = xloader.open(ds).window({"time": 4}, stride=1).recipe
    cover = CoveredElements(recipe, make_layouts(recipe), "t").of_box((10, 0), (10, 6))
    assert cover.lines == (None, None)
    assert cover.flags is None


def test_union_of_lines_stays_lines_where_it_can() -> None:
    early, late = np.array([True, True, False]), np.array([False, True, True])
    first, second = BoxCover((3, 2), (early, None)), BoxCover((3, 2), (late, None))
    assert first.union(second).is_all
    other = BoxCover((3, 2), (late, np.array([True, False])))
    both = first.union(other)
    assert both.flags is not None
    assert both.count == 5
    assert math.prod(both.shape) == 6
