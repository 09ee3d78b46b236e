"""Runs recorded steps on a gathered batch."""

from __future__ import annotations

from typing import Any

import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import names_function
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.datasets import from_frame, to_frame, with_ids
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
) -> dict[str, NDArray[Any]]:
    """Run a recipe's steps on a gathered batch.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    layouts : tuple of FieldLayout
        Its layouts.
    arrays : dict of str to numpy.ndarray
        By field, C-contiguous, shape ``(n, *layout.shape)``. They are changed in place.
    ids : numpy.ndarray
        Ids of the samples, int64, shape ``(n,)``.
    chance : Chance, optional
        What the numbers follow from that random functions are given.

    Returns
    -------
    dict of str to numpy.ndarray
        The fields as delivered. Without :attr:`Recipe.is_mapped` these are ``arrays``.

    Raises
    ------
    OptionError
        If a step loses samples, or returns no Dataset.
    TransformError
        If a function raises something.
    """
    if not recipe.is_mapped:
        _run_in_place(recipe, layouts, arrays)
        return arrays
    return from_frame(finish_frame(recipe, layouts, arrays, ids, chance), len(ids))


def finish_frame(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    arrays: dict[str, NDArray[Any]],
    ids: Ints,
    chance: Chance = NO_EPOCH,
) -> xr.Dataset:
    """As :func:`finish`, as a Dataset with its labels. Arguments and errors are the same."""
    num_done = _run_in_place(recipe, layouts, arrays)
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
            # xarray drops them where a function mixes samples.
            frame = with_ids(frame, ids)
    return frame


def _run_in_place(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], arrays: dict[str, NDArray[Any]]
) -> int:
    """Run the steps up to the first that is not in place; the number of them."""
    for number, step in enumerate(recipe.steps):
        if not isinstance(step, Fillna | Normalize):
            return number
        step.apply(layouts, arrays)
    return len(recipe.steps)
