"""Runs the transforms of a recipe on a gathered batch, and finds the fields as delivered.

Their names, shapes and dtypes are found by running the transforms on one sample of zeros, as
functions may change them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import names_function
from xloader.errors import OptionError, TransformError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import CHANNEL, LABEL, SAMPLE
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


@dataclass(frozen=True)
class Output:
    """A field as delivered, after all transforms."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    channels: tuple[str, ...] | None

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize


def make_outputs(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> tuple[Output, ...]:
    """Find the fields as delivered, by running the transforms on one sample of zeros.

    Nothing is run if no transform can change names and shapes.
    """
    if not recipe.is_mapped:
        return tuple(Output(x.name, x.dims, x.shape, x.dtype, x.channels) for x in layouts)
    frame = frame_of_zeros(recipe, layouts)
    arrays = from_frame(frame, 1)
    return tuple(_output(frame, name, array) for name, array in arrays.items())


def frame_of_zeros(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> xr.Dataset:
    """Run the transforms on one sample of zeros."""
    zeros = {layout.name: np.zeros((1, *layout.shape), layout.dtype) for layout in layouts}
    try:
        return finish_frame(recipe, layouts, zeros, np.zeros(1, np.int64))
    except TransformError as error:
        raise OptionError(
            f"a transform failed on a sample of zeros: {error.what}",
            remedy="correct the function: to try it, call it on samples.to_xarray(0), with the "
            "samples as they were before the transform",
        ) from error.__cause__


def _output(frame: xr.Dataset, name: str, array: NDArray[Any]) -> Output:
    dims = tuple(str(dim) for dim in frame[name].transpose(SAMPLE, ...).dims[1:])
    channels = None
    for dim in dims:
        coord = dim if dim in frame.coords else dim + LABEL
        if dim.removeprefix(f"{name}_") == CHANNEL and coord in frame.coords:
            labels = frame[coord].isel({SAMPLE: 0}, missing_dims="ignore")
            channels = tuple(str(label) for label in labels.to_numpy())
    return Output(name, dims, array.shape[1:], array.dtype, channels)
