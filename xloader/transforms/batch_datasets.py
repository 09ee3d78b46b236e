"""Batches as xarray Datasets, so that a user's function can refer to dimensions by name.

The dimensions are ``sample`` and those of the fields. If a dimension has different sizes in two
fields, or stands for different positions, it is called ``<field>_<dim>`` in each of them. Labels
that all samples share are indexes. Labels of windowed dimensions differ from sample to sample: in
a batch they are coordinates ``<dim>_label`` without an index, which xarray keeps but never aligns
by. In a Dataset of one sample they are indexes. The ids are a coordinate ``sample`` without an
index, so that one sample can be combined with another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import EmptySamplesError, OptionError, UnsupportedDataError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import CHANNEL, LABEL, SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.sample_elements import elements_along, filled_along

Names = Mapping[tuple[str, str], str]
"""By (field, dimension), the name of the dimension in a Dataset of all fields."""


def to_frame(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], arrays: Mapping[str, NDArray[Any]], ids: Ints
) -> xr.Dataset:
    """Make a Dataset of a batch. It shares the memory of the arrays."""
    names = dim_names(layouts)
    dims = {(name, dim) for (_, dim), name in names.items()}
    taken = [*(layout.name for layout in layouts), *(name for name, _ in dims)]
    refuse_clashes(taken)
    labels = _labels(recipe, layouts, names, ids)
    refuse_clashes([*taken, *(name for name, label in labels if label.dims != (name,))])
    variables = {
        layout.name: xr.Variable(
            (SAMPLE, *(names[layout.name, dim] for dim in layout.dims)),
            arrays[layout.name],
            attrs_of(recipe, layout),
        )
        for layout in layouts
    }
    return with_ids(xr.Dataset(variables, dict(labels)), ids)


def refuse_clashes(names: Iterable[str]) -> None:
    """Check that no two things in a Dataset of samples have the same name, nor that of the ids."""
    name, count = Counter([*names, SAMPLE]).most_common(1)[0]
    if count > 1:
        raise OptionError(
            f"two parts of a labelled batch would be called {name!r}",
            remedy=f"rename it with xarray, and open that Dataset: ds.rename({{{name!r}: "
            f'"my_{name}"}}); or, if it is a variable, .field("my_{name}", {name!r})',
        )


def with_ids(frame: xr.Dataset, ids: Ints) -> xr.Dataset:
    """Set the ids of a Dataset of samples, as a coordinate that xarray does not align by."""
    coord = xr.Coordinates({SAMPLE: (SAMPLE, ids)}, indexes={})
    return frame.drop_vars(SAMPLE, errors="ignore").assign_coords(coord)


def from_frame(frame: xr.Dataset, num_samples: int) -> dict[str, NDArray[Any]]:
    """The arrays of a Dataset of samples, with ``sample`` as the first axis."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, variable in frame.data_vars.items():
        if variable.sizes.get(SAMPLE) != num_samples:
            raise OptionError(
                f"a transform changed the samples of {str(name)!r}",
                given=f"dimensions {dict(variable.sizes)}",
                remedy=f'keep {SAMPLE!r} of size {num_samples}, or use .map(fn, per="sample")',
            )
        if 0 in [size for dim, size in variable.sizes.items() if dim != SAMPLE]:
            raise EmptySamplesError(
                f"a transform left no elements in {str(name)!r}",
                given=f"dimensions {dict(variable.sizes)}",
                remedy="xarray matches arrays by label: give the arrays that you combine the same "
                "labels, or remove their labels with .drop_vars(dim)",
            )
        array = variable.transpose(SAMPLE, ...).to_numpy()
        if array.dtype.kind not in "biuf":
            raise UnsupportedDataError(
                f"a transform left no real numbers in {str(name)!r}",
                given=f"dtype {array.dtype}",
                remedy="convert or drop the variable in the transform",
            )
        arrays[str(name)] = np.ascontiguousarray(array)
    if not arrays:
        raise OptionError("a transform left no fields", remedy="return the fields as variables")
    return arrays


def show_labels(frame: xr.Dataset) -> xr.Dataset:
    """Rename the labels of one sample to their dimensions, so that they become indexes.

    The coordinate ``time_label (time)`` becomes ``time``, for example. The id is dropped.
    """
    renamed: dict[Hashable, xr.Variable] = {}
    for name, label in frame.coords.items():
        plain = str(name).removesuffix(LABEL)
        is_free = label.dims == (plain,) or (not label.dims and plain not in frame.dims)
        if plain != name and is_free and plain not in frame.variables:
            renamed[plain] = label.variable
    dropped = [SAMPLE, *(f"{name}{LABEL}" for name in renamed)]
    return frame.drop_vars(dropped, errors="ignore").assign_coords(renamed)


def auxiliary_coords(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], sample_id: int
) -> dict[str, xr.Variable]:
    """Coordinates of one sample that are not indexes, such as a 2-d latitude or a scalar."""
    names = dim_names(layouts)
    coords = recipe.source.coordinates()
    dropped = {dim for dim, kept in recipe.selection if isinstance(kept, int)}
    auxiliary: dict[str, xr.Variable] = {}
    for name, coord in coords.coords.items():
        if name in coords.indexes:
            continue
        of_field = {
            layout.name: _cut_coord(recipe, layout, names, coord.variable, sample_id)
            for layout in layouts
            if set(coord.dims) <= {*layout.dims, *layout.dropped, *dropped}
        }
        variants = list(of_field.values())
        is_shared = all(is_same_coord(variant, variants[0]) for variant in variants)
        for field, variable in of_field.items():
            auxiliary[str(name) if is_shared else f"{field}_{name}"] = variable
    return auxiliary


def _cut_coord(
    recipe: Recipe, layout: FieldLayout, names: Names, coord: xr.Variable, sample_id: int
) -> xr.Variable:
    indexers: dict[Hashable, Any] = {}
    ids, filled = np.array([sample_id], np.int64), []
    for dim in map(str, coord.dims):
        elements, _ = elements_along(recipe, layout, dim, ids)
        is_kept = dim in layout.dims
        indexers[dim] = elements.reshape(-1) if is_kept else int(elements.flat[0])
        if (is_filled := filled_along(recipe, layout, dim, ids)) is not None:
            filled.append(xr.Variable(dim, ~is_filled[0]))
    cut = coord.to_base_variable().isel(indexers)
    for is_inside in filled:
        cut = cut.where(is_inside)  # type: ignore[no-untyped-call]
    dims = [names[layout.name, str(dim)] for dim in cut.dims]
    return xr.Variable(dims, cut.to_numpy(), cut.attrs)


def is_same_coord(left: xr.Variable, right: xr.Variable) -> bool:
    """Whether two coordinates have the same dimensions and values (NaN equals NaN)."""
    return xr.DataArray(left).equals(xr.DataArray(right))


def dim_names(layouts: tuple[FieldLayout, ...]) -> dict[tuple[str, str], str]:
    """The name of each dimension of each field in a Dataset of all fields."""
    meanings: dict[str, set[object]] = {}
    for layout in layouts:
        for dim in layout.dims:
            meanings.setdefault(dim, set()).add(_meaning(layout, dim))
    return {
        (layout.name, dim): dim if len(meanings[dim]) == 1 else f"{layout.name}_{dim}"
        for layout in layouts
        for dim in layout.dims
    }


def attrs_of(recipe: Recipe, layout: FieldLayout) -> dict[str, object]:
    """Attributes that all variables of a field share."""
    if not layout.parts:
        return {}
    first, *further = [recipe.variable(part.variable).attrs for part in layout.parts]
    shared = {
        key: value
        for key, value in first.items()
        if all(key in attrs and _is_same(attrs[key], value) for attrs in further)
    }
    variables = tuple(part.variable for part in layout.parts)
    if any(step.changes_units(variables) for step in recipe.steps):
        shared.pop("units", None)
    return shared


def _is_same(left: object, right: object) -> bool:
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


def _meaning(layout: FieldLayout, dim: str) -> object:
    if dim == CHANNEL and layout.channels is not None:
        return layout.channels
    return layout.shape[layout.dims.index(dim)], layout.elements_of(dim)


def _labels(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], names: Names, ids: Ints
) -> list[tuple[str, xr.Variable]]:
    """Labels by coordinate name: the dimension's own if all samples share them, else ``_label``."""
    labels: list[tuple[str, xr.Variable]] = []
    coords = recipe.source.coordinates()
    # Fields that share the name of a dimension share its labels.
    of_name = {names[layout.name, dim]: (layout, dim) for layout in layouts for dim in layout.dims}
    for name, (layout, dim) in of_name.items():
        if dim == CHANNEL and layout.channels is not None:
            labels.append((name, xr.Variable(name, np.asarray(layout.channels))))
        elif dim in coords.indexes:
            label = _labels_along(recipe, layout, dim, name, ids)
            labels.append((name + LABEL if SAMPLE in label.dims else name, label))
    dropped = _labels_of_dropped(recipe, layouts, set(names.values()), ids)
    labels += [(name + LABEL, label) for name, label in dropped.items()]
    taken = {SAMPLE, *of_name, *(layout.name for layout in layouts)}
    for dim, kept in recipe.selection:
        if isinstance(kept, int) and dim in coords.indexes:
            # For one sample, the suffix is taken off again.
            name = dim + LABEL if dim in taken or dim.endswith(LABEL) else dim
            labels.append((name, coords[dim].variable.to_base_variable()[kept]))
    return labels


def _labels_along(
    recipe: Recipe, layout: FieldLayout, dim: str, name: str, ids: Ints
) -> xr.Variable:
    """Labels of a dimension of a field: along (name,), or (sample, name) where it is windowed."""
    elements, is_windowed = elements_along(recipe, layout, dim, ids)
    index = xr.Variable((SAMPLE, name) if is_windowed else (name,), elements)
    labels = recipe.source.coordinates()[dim].variable.to_base_variable()[index]
    is_filled = filled_along(recipe, layout, dim, ids)
    if is_filled is None:
        return labels
    return labels.where(xr.Variable(index.dims, ~is_filled))  # type: ignore[no-any-return,no-untyped-call]


def _labels_of_dropped(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], taken: set[str], ids: Ints
) -> dict[str, xr.Variable]:
    """Labels of windowed dimensions that an int offset dropped, one for each sample.

    They have the dimension's own name if all fields with this dimension take the same element and
    no dimension of the Dataset has the name. Otherwise the name is ``<field>_<dim>``.
    """
    labels: dict[str, xr.Variable] = {}
    coords = recipe.source.coordinates()
    for layout in layouts:
        for dim in layout.dropped:
            if dim not in coords.indexes:
                continue
            elements, _ = elements_along(recipe, layout, dim, ids)
            rivals = {rival.elements_of(dim) for rival in layouts} - {None}
            is_free = len(rivals) == 1 and dim not in taken
            label = coords[dim].variable.to_base_variable()[xr.Variable(SAMPLE, elements[:, 0])]
            labels[dim if is_free else f"{layout.name}_{dim}"] = label
    return labels
