"""Labels of a batch whose values are there already, found without reading any.

The labels follow from the recipe and the ids. Transforms may change them, so these are run once
more, on made-up values. Labels that a function makes from values cannot be found in this way: they
differ between two sets of made-up values, which is an error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, TransformError
from xloader.recipe.layout import make_layouts
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.apply_steps import finish_frame
from xloader.transforms.batch_datasets import to_frame
from xloader.transforms.normalize import in_words
from xloader.transforms.rng import NO_EPOCH, Chance

_REMEDY = "call samples.to_xarray(batch.ids), which reads the samples and runs the transforms"


def label_batch(
    recipe: Recipe, arrays: Mapping[str, NDArray[Any]], ids: Ints, chance: Chance = NO_EPOCH
) -> xr.Dataset:
    """Make a Dataset of a finished batch, as :meth:`xloader.Samples.to_xarray` gives it."""
    frame = blank_batch(recipe, ids, chance)
    shapes = {str(name): field.transpose(SAMPLE, ...).shape for name, field in frame.items()}
    given = {name: array.shape for name, array in arrays.items()}
    if given != shapes:
        raise OptionError(
            "the fields of this batch are not those of its samples",
            given=", ".join(f"{name} {shape}" for name, shape in given.items()),
            allowed=", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            remedy="a function that is called on single samples or on the device, or a "
            "collate_fn, has changed them, and has no labels to change: record it with "
            "samples.map(fn), or build a Dataset with the labels of batch.coords",
        )
    values = {}
    for name, field in frame.items():
        own = xr.Variable((SAMPLE, *_rest(field.dims)), arrays[str(name)])
        values[name] = own.transpose(*field.dims).data
    return frame.copy(data=values)


def blank_batch(recipe: Recipe, ids: Ints, chance: Chance = NO_EPOCH) -> xr.Dataset:
    """Make a Dataset of a batch with its labels and with made-up values."""
    layouts = make_layouts(recipe)
    shapes = {layout.name: (len(ids), *layout.shape) for layout in layouts}
    if not recipe.is_mapped:
        blank = {
            layout.name: np.broadcast_to(np.zeros((), layout.dtype), shapes[layout.name])
            for layout in layouts
        }
        return to_frame(recipe, layouts, blank, ids)
    tried = []
    for largest in (1, 7):
        made = {
            layout.name: np.resize(np.arange(largest), shapes[layout.name]).astype(layout.dtype)
            for layout in layouts
        }
        try:
            with np.errstate(all="ignore"):
                tried.append(finish_frame(recipe, layouts, made, ids, chance))
        except TransformError as error:
            raise OptionError(
                f"the labels of this batch cannot be found: {error.what}",
                given="made-up values, as transforms are run once more to find the labels",
                allowed="functions that work on any values",
                remedy=_REMEDY,
            ) from error
    first, second = tried
    dims = [{name: field.dims for name, field in frame.items()} for frame in tried]
    if dims[0] != dims[1] or not _coords(first).identical(_coords(second)):
        raise OptionError(
            "a transform makes labels from values, and this batch no longer has the values from "
            "before it",
            given=", ".join(map(in_words, recipe.steps)),
            allowed="labels that follow from the labels of the samples",
            remedy=_REMEDY,
        )
    return first


def _rest(dims: tuple[Any, ...]) -> list[Any]:
    return [dim for dim in dims if dim != SAMPLE]


def _coords(frame: xr.Dataset) -> xr.Dataset:
    return frame.coords.to_dataset()
