"""The series of a stream of batches: the values of one variable in one field, for statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.moments import Moments
from xloader.recipe.layout import FieldPart, make_layouts
from xloader.recipe.names import CHANNEL
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import Output, make_outputs


@dataclass(frozen=True, eq=False)
class StreamSeries:
    """The values of one variable in one field, or all values of a field.

    `part`: the variable's part of the field; None for the whole array.
    """

    field: str
    variable: str = ""
    dims: tuple[str, ...] = ()
    labels: tuple[NDArray[Any] | None, ...] = ()
    part: FieldPart | None = None
    kept: tuple[int, ...] = ()
    attrs: Mapping[str, object] | None = None

    @property
    def key(self) -> str:
        """Name of the series in a state."""
        return f"{self.field}/{self.variable}"

    def moments(self, array: NDArray[Any]) -> Moments:
        """The moments of a batch of the field."""
        view = array if self.part is None else self.part.view(np.ascontiguousarray(array))
        reduced = tuple(axis for axis in range(view.ndim) if axis not in self.kept)
        return Moments.of(view, reduced)


def series_of(recipe: Recipe) -> dict[str, list[StreamSeries]]:
    """The series of all fields of samples."""
    if recipe.is_mapped:
        outputs = make_outputs(recipe, make_layouts(recipe))
        return {output.name: [_of_output(output)] for output in outputs}
    return _by_variable(recipe)


def _of_output(output: Output) -> StreamSeries:
    for dim in (CHANNEL, f"{output.name}_{CHANNEL}"):
        if dim in output.dims:
            labels = None if output.channels is None else np.array(output.channels, object)
            return _of_channels(output.name, 1 + output.dims.index(dim), labels)
    return StreamSeries(output.name)


def series_of_array(name: str, channel_axis: int | None, num_axes: int) -> StreamSeries:
    """The series of a field of unknown samples."""
    if channel_axis is None or channel_axis >= num_axes:
        return StreamSeries(name)
    return _of_channels(name, channel_axis, None)


def series_of_labelled(name: str, field: xr.DataArray) -> StreamSeries:
    """The series of a field in a Dataset of a batch, whose first dimension is that of samples."""
    for axis, dim in enumerate(field.dims):
        if dim in (CHANNEL, f"{name}_{CHANNEL}"):
            return _of_channels(name, axis, field[dim].to_numpy() if dim in field.indexes else None)
    return StreamSeries(name)


def _of_channels(name: str, axis: int, labels: NDArray[Any] | None) -> StreamSeries:
    return StreamSeries(name, dims=(f"{name}_{CHANNEL}",), labels=(labels,), kept=(axis,))


def _by_variable(recipe: Recipe) -> dict[str, list[StreamSeries]]:
    """The series of all fields of a recipe without transforms that change fields."""
    layouts = make_layouts(recipe)
    coords = recipe.source.coordinates()
    found: dict[str, list[StreamSeries]] = {}
    for layout in layouts:
        found[layout.name] = [] if layout.parts else [StreamSeries(layout.name)]
        for part in layout.variables:
            variable = recipe.variable(part.variable)
            dims = recipe.channel_dims(variable.name) if layout.channels is not None else ()
            kept = [np.asarray(recipe.kept_of(dim), np.int64) for dim in dims]
            # A view has an axis for samples, those of missing dimensions, and then its own.
            before = 1 + len(part.axes) - len(variable.dims)
            changes = any(step.changes_units((variable.name,)) for step in recipe.steps)
            wanted = ("long_name",) if changes else ("units", "long_name")
            found[layout.name].append(
                StreamSeries(
                    layout.name,
                    variable.name,
                    dims,
                    tuple(
                        coords[dim].to_numpy()[own] if dim in coords.indexes else None
                        for dim, own in zip(dims, kept, strict=True)
                    ),
                    part,
                    tuple(before + variable.dims.index(dim) for dim in dims),
                    {key: variable.attrs[key] for key in wanted if key in variable.attrs},
                )
            )
    return found
