"""The fields as delivered: their names, shapes and dtypes after all transforms.

They are found by running the transforms on one sample of zeros, as functions may change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError, TransformError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import CHANNEL, LABEL, SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.apply_steps import finish_frame
from xloader.transforms.batch_datasets import from_frame


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
