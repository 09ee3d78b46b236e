"""Runs the transforms of a recipe on a gathered batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import names_function
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.batch_datasets import from_frame, to_frame, with_ids
from xloader.transforms.fillna import Fillna
from xloader.transforms.normalize import Normalize
from xloader.transforms.rng import NO_EPOCH, Chance
from xloader.transforms.steps import Map, Method


def finish(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    arrays: dict[str, NDArray[Any]],
    ids: Ints,
    chance: Chance = NO_EPOCH,
    normalized: Collection[str] = (),
) -> dict[str, NDArray[Any]]:
    """Run the transforms of a recipe on a gathered batch."""
    if not recipe.is_mapped:
        _run_in_place(recipe, layouts, arrays, ids, normalized)
        return arrays
    return from_frame(finish_frame(recipe, layouts, arrays, ids, chance, normalized), len(ids))


def finish_frame(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    arrays: dict[str, NDArray[Any]],
    ids: Ints,
    chance: Chance = NO_EPOCH,
    normalized: Collection[str] = (),
) -> xr.Dataset:
    """As :func:`finish`, but as a Dataset with labels, whose variables are not checked."""
    num_done = _run_in_place(recipe, layouts, arrays, ids, normalized)
    frame = to_frame(recipe, layouts, arrays, ids)
    num_random = 0
    for step in recipe.steps[num_done:]:
        assert isinstance(step, Map | Method)
        with names_function(f"{step.describe()}, recorded on samples,"):
            if isinstance(step, Map) and step.random:
                frame = step.apply(frame, chance.rng(ids, num_random))
                num_random += 1
            else:
                frame = step.apply(frame)
        if frame.sizes.get(SAMPLE) == len(ids):
            # xarray drops the ids if a function combines samples with others.
            frame = with_ids(frame, ids)
    return frame


def _run_in_place(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    arrays: dict[str, NDArray[Any]],
    ids: Ints,
    normalized: Collection[str],
) -> int:
    """Run the transforms before the first that is not in place; return their number.

    Label fields are filled first. No chunk holds their values: they follow from the ids.
    """
    for column in recipe.label_columns:
        arrays[column.name][...] = column.values[ids]
    for number, step in enumerate(recipe.steps):
        if not isinstance(step, Fillna | Normalize):
            return number
        if isinstance(step, Fillna):
            step.apply(layouts, arrays)
        else:
            left = step if number else step.without(normalized)
            left.apply(recipe, layouts, arrays, ids)
    return len(recipe.steps)
