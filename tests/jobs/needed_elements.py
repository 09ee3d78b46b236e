"""The elements that samples need, found in the values of all samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

import xloader
from tests.cases import Case
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
