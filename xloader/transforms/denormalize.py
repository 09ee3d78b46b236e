"""The inverse of the recorded `normalize`, for arrays in the shape of a field such as predictions.

The mean and standard deviation of each variable are laid out along the dimensions of the field, as
`normalize` lays them out. If later transforms have changed the dimensions, labels say which number
belongs to which element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Recipe, find
from xloader.transforms.batch_datasets import dim_names, to_frame
from xloader.transforms.normalize import Normalize, Table
from xloader.transforms.outputs import frame_of_zeros

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Denormalize:
    """Multiplies by standard deviations and adds means.

    Parameters
    ----------
    field : str
        Name of the field.
    shape : tuple of int
        Shape of one sample of the field.
    tables : tuple of (numpy.ndarray, numpy.ndarray)
        Mean and standard deviation for each ``normalize``, the last one first. Each is a float64
        array with the field's dimensions, of size 1 where the numbers do not vary.
    """

    field: str
    shape: tuple[int, ...]
    tables: tuple[tuple[NDArray[Any], NDArray[Any]], ...]

    def apply(self, array: Any) -> Any:
        """Undo the normalisation of an array; see `Samples.denormalize`."""
        shape = getattr(array, "shape", None)
        if shape is None or self.shape not in (tuple(shape), tuple(shape)[1:]):
            raise OptionError(
                f"the array does not have the shape of the field {self.field!r}",
                given=type(array).__name__ if shape is None else f"shape {tuple(shape)}",
                allowed=f"shape {self.shape}, or (n, {', '.join(map(str, self.shape))})",
                remedy="pass an array with one number for each element of the field",
            )
        # NumPy's name is without the order of bytes, which netCDF 3 and GRIB turn around.
        dtype = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
        if "float" not in dtype:
            raise OptionError(
                "only floating numbers can be denormalised",
                given=f"dtype {dtype}",
                allowed="floating dtypes",
                remedy="convert the array first",
            )
        if dtype in _HALF:
            # Values in their own units may be too large for half precision.
            array = array.float() if hasattr(array, "new_tensor") else array.astype("float32")
        for mean, std in self.tables:
            array = array * _like(array, std) + _like(array, mean)
        return array


def _like(array: Any, values: NDArray[Any]) -> Any:
    """Values as an array of the same library, device and dtype as another one."""
    if hasattr(array, "new_tensor"):
        return array.new_tensor(values)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().asarray(values, dtype=array.dtype)
    return values.astype(array.dtype)


def make_denormalize(recipe: Recipe, layouts: tuple[FieldLayout, ...], field: str) -> Denormalize:
    """Make the inverse of the recorded ``normalize`` for a field.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the samples.
    layouts : tuple of FieldLayout
        The layouts of its fields.
    field : str
        Name of a field as delivered.

    Returns
    -------
    Denormalize
        The inverse.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    OptionError
        If none of the field's variables is normalised, or a later transform has removed a
        dimension along which the numbers vary.
    """
    own = {layout.name: layout for layout in layouts}
    frame = frame_of_zeros(recipe, layouts) if recipe.is_mapped else None
    find(field, list(own) if frame is None else list(map(str, frame.data_vars)), "field")
    layout = own.get(field)
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
            allowed="fields with a variable that .normalize(...) names",
            remedy="use the array as it is, or record .normalize(...) with this variable",
        )
    tables = [_lay_out(step, layout) for step in reversed(steps)]
    if frame is None:
        return Denormalize(field, layout.shape, tuple(tables))
    before = _without_transforms(recipe, layouts)
    delivered = frame[field].transpose(SAMPLE, ...)
    names = [dim_names(layouts)[field, dim] for dim in layout.dims]
    fitted = [
        (_fit(mean, names, before, delivered), _fit(std, names, before, delivered))
        for mean, std in tables
    ]
    return Denormalize(field, delivered.shape[1:], tuple(fitted))


def _lay_out(step: Normalize, layout: FieldLayout) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and standard deviation along the dimensions of a field."""
    tables: dict[str, tuple[tuple[str, ...], Table, Table]] = {
        name: (dims, mean, std) for name, dims, mean, std in step.tables
    }
    own = [part for part in layout.parts if part.variable in tables]
    varied = {dim for part in own for table in tables[part.variable][1:] for dim in table.dims}
    sizes = [
        size if dim in varied or (layout.channels is not None and axis == 0) else 1
        for axis, (dim, size) in enumerate(zip(layout.dims, layout.shape, strict=True))
    ]
    means, stds = np.zeros((1, *sizes)), np.ones((1, *sizes))
    for part in own:
        dims, mean, std = tables[part.variable]
        part.view(means)[...] = mean.along(dims, means.dtype)
        part.view(stds)[...] = std.along(dims, stds.dtype)
    return means[0], stds[0]


def _without_transforms(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> xr.Dataset:
    """A batch of one sample before all transforms, for its labels."""
    blank = {x.name: np.broadcast_to(np.zeros((), x.dtype), (1, *x.shape)) for x in layouts}
    return to_frame(recipe, layouts, blank, np.zeros(1, np.int64))


def _fit(
    values: NDArray[Any], names: list[str], before: xr.Dataset, delivered: xr.DataArray
) -> NDArray[Any]:
    """Numbers along the dimensions that a field has after all transforms."""
    varied = [axis for axis, size in enumerate(values.shape) if size > 1]
    dims = [names[axis] for axis in varied]
    plain = values.reshape([values.shape[axis] for axis in varied])
    table = xr.DataArray(plain, {dim: before[dim] for dim in dims if dim in before.indexes}, dims)
    for dim in dims:
        is_labelled = dim in before.indexes and dim in delivered.coords
        try:
            if is_labelled:
                table = table.sel({dim: delivered[dim].to_numpy()})
            elif table.sizes[dim] != delivered.sizes.get(dim):
                raise KeyError(dim)
        except KeyError as error:
            raise OptionError(
                f"a transform after normalize has changed {dim!r}, along which the mean or the "
                "standard deviation varies",
                given=f"dimensions {dict(delivered.sizes)}",
                allowed=f"{dim!r} with the labels that it had when it was normalised",
                remedy="denormalise before the transform, or with numbers of your own",
            ) from error
    rest = [str(dim) for dim in delivered.dims[1:]]
    ordered = table.transpose(*(dim for dim in rest if dim in table.dims))
    return ordered.to_numpy().reshape([table.sizes.get(dim, 1) for dim in rest])
