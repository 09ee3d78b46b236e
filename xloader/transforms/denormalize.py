"""The inverse of the recorded `normalize`, for arrays in the shape of a field such as predictions.

The mean and standard deviation of each variable are laid out along the dimensions of the field, as
`normalize` lays them out. If later transforms have changed the dimensions, labels say which number
belongs to which element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import Recipe, find
from xloader.transforms.batch_datasets import dim_names, is_same_coord, to_frame
from xloader.transforms.normalize import Normalize, PartNumbers
from xloader.transforms.outputs import frame_of_zeros

_HALF = ("float16", "bfloat16")


Numbers = tuple[NDArray[Any], NDArray[Any]]
"""Means and standard deviations, with an axis for samples and those of a field."""


@dataclass(frozen=True, eq=False)
class Denormalize:
    """Multiplies by standard deviations and adds means."""

    field: str
    shape: tuple[int, ...]
    numbers_of: Callable[[Ints], list[Numbers]]
    shared: tuple[Numbers, ...] | None

    def apply(self, array: Any, ids: Any = None) -> Any:
        """Undo the normalisation of an array; see `Samples.denormalize`."""
        shape = getattr(array, "shape", None)
        if shape is None or self.shape not in (tuple(shape), tuple(shape)[1:]):
            raise OptionError(
                f"the array does not have the shape of the field {self.field!r}",
                given=type(array).__name__ if shape is None else f"shape {tuple(shape)}",
                remedy=f"pass shape {self.shape}, or (n, {', '.join(map(str, self.shape))})",
            )
        # NumPy's name is without the order of bytes, which netCDF 3 and GRIB turn around.
        dtype = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
        if "float" not in dtype:
            raise OptionError(
                "only floating numbers can be denormalised",
                given=f"dtype {dtype}",
                remedy="convert the array first",
            )
        if dtype in _HALF:
            # Values in their own units may be too large for half precision.
            array = array.float() if hasattr(array, "new_tensor") else array.astype("float32")
        numbers = self.shared
        if numbers is None:
            numbers = self._numbers(ids, None if tuple(shape) == self.shape else shape[0])
        for mean, std in numbers:
            array = array * _like(array, std) + _like(array, mean)
        return array

    def _numbers(self, ids: Any, num_samples: int | None) -> tuple[Numbers, ...]:
        """The numbers of samples; of a single one, without the axis of samples, for None."""
        given = None if ids is None else np.atleast_1d(np.asarray(ids))
        if given is None or given.dtype.kind not in "iu" or given.shape != (num_samples or 1,):
            raise OptionError(
                f"the statistics of the field {self.field!r} vary from sample to sample",
                given="no ids" if given is None else f"ids of shape {given.shape}",
                remedy=f"pass denormalize(prediction, {self.field!r}, ids=batch.ids), with the "
                f"ids of the {num_samples or 1} samples of the array",
            )
        numbers = self.numbers_of(given.astype(np.int64))
        if num_samples is None:
            return tuple((mean[0], std[0]) for mean, std in numbers)
        return tuple(numbers)


def _like(array: Any, values: NDArray[Any]) -> Any:
    """Values as an array of the same library, device and dtype as another one."""
    if hasattr(array, "new_tensor"):
        return array.new_tensor(values)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().asarray(values, dtype=array.dtype)
    return values.astype(array.dtype)


def make_denormalize(recipe: Recipe, layouts: tuple[FieldLayout, ...], field: str) -> Denormalize:
    """Make the inverse of the recorded ``normalize`` for a field."""
    by_name = {layout.name: layout for layout in layouts}
    frame = frame_of_zeros(recipe, layouts) if recipe.is_mapped else None
    find(field, list(by_name) if frame is None else list(map(str, frame.data_vars)), "field")
    layout = by_name.get(field)
    variables = () if layout is None else tuple(part.variable for part in layout.parts)
    steps = [
        step
        for step in recipe.steps
        if isinstance(step, Normalize) and step.changes_units(variables)
    ]
    if layout is None or not steps:
        raise OptionError(
            f"the field {field!r} is not normalised",
            given=f"variables {list(variables)}" if layout else "a field that a transform has made",
            remedy="use the array as it is, or record .normalize(...) with this variable",
        )
    parts = [step.numbers_of(layout, np.dtype(np.float64)) for step in reversed(steps)]
    fit: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    shape = layout.shape
    if frame is not None:
        delivered = frame[field].transpose(SAMPLE, ...)
        shape, names = delivered.shape[1:], dim_names(layouts)
        # A batch of one sample before all transforms, for its labels.
        blank = {x.name: np.broadcast_to(np.zeros((), x.dtype), (1, *x.shape)) for x in layouts}
        before = to_frame(recipe, layouts, blank, np.zeros(1, np.int64))
        fit = partial(_fitted, [names[field, dim] for dim in layout.dims], before, delivered)

    def numbers_of(ids: Ints) -> list[Numbers]:
        numbers = [_lay_out(recipe, layout, step_parts, ids) for step_parts in parts]
        return numbers if fit is None else [(fit(mean), fit(std)) for mean, std in numbers]

    # Made at once even if not needed, so that an error comes before training.
    first = numbers_of(np.zeros(1, np.int64))
    if any(numbers.varies for step_parts in parts for numbers in step_parts):
        return Denormalize(field, shape, numbers_of, None)
    shared = tuple((mean[0], std[0]) for mean, std in first)
    return Denormalize(field, shape, numbers_of, shared)


def _lay_out(recipe: Recipe, layout: FieldLayout, parts: list[PartNumbers], ids: Ints) -> Numbers:
    """Means and standard deviations along samples and the dimensions of a field."""
    varied = {
        dim for numbers in parts for table in (numbers.mean, numbers.std) for dim in table.dims
    }
    sizes = [
        size if dim in varied or (layout.channels is not None and axis == 0) else 1
        for axis, (dim, size) in enumerate(zip(layout.dims, layout.shape, strict=True))
    ]
    num_samples = len(ids) if any(numbers.varies for numbers in parts) else 1
    means, stds = np.zeros((num_samples, *sizes)), np.ones((num_samples, *sizes))
    for numbers in parts:
        into = numbers.part.view(means), numbers.part.view(stds)
        rows = numbers.rows(recipe, ids)
        for target, values in zip(into, numbers.at(rows, into[0].ndim), strict=True):
            target[...] = values
    return means, stds


def _fitted(
    names: list[str], before: xr.Dataset, delivered: xr.DataArray, values: NDArray[Any]
) -> NDArray[Any]:
    """Numbers along the dimensions of a field, along those that it has after all transforms.

    `names`: of the dimensions in ``before``, a batch of one sample before the transforms.
    """
    varied = [axis for axis, size in enumerate(values.shape[1:]) if size > 1]
    dims = [names[axis] for axis in varied]
    plain = values.reshape([len(values), *(values.shape[1 + axis] for axis in varied)])
    labels = {dim: before[dim] for dim in dims if dim in before.indexes}
    table = xr.DataArray(plain, labels, (SAMPLE, *dims))
    for dim in dims:
        try:
            if dim in before.indexes and dim in delivered.coords:
                table = table.sel({dim: delivered[dim].to_numpy()})
            elif not _is_as_it_was(before, delivered, dim):
                raise KeyError(dim)
        except KeyError as error:
            raise OptionError(
                f"a transform after normalize has changed {dim!r}, along which the mean or the "
                "standard deviation varies",
                given=f"dimensions {dict(delivered.sizes)}",
                remedy="denormalise before the transform, or with numbers of your own",
            ) from error
    rest = [str(dim) for dim in delivered.dims[1:]]
    ordered = table.transpose(SAMPLE, *(dim for dim in rest if dim in table.dims))
    return ordered.to_numpy().reshape([len(values), *(table.sizes.get(dim, 1) for dim in rest)])


def _is_as_it_was(before: xr.Dataset, delivered: xr.DataArray, dim: str) -> bool:
    """Whether a dimension without an index has the same elements as before the transforms."""
    if delivered.sizes.get(dim) != before.sizes[dim]:
        return False
    label = dim + LABEL
    if label not in before.coords or label not in delivered.coords:
        return True
    return is_same_coord(before[label].variable, delivered[label].variable)
