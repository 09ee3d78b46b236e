"""The place of each variable in the stacked array of a field, as a view of that array.

A field of two variables, windows along ``time``, two levels of ``z``::

    t2m (time, lat, lon)            field  (channel, time, lat, lon)
    z   (time, level, lat, lon)             |
                                            0  t2m          part 0: channels [0, 1)
                                            1  z_500        part 1: channels [1, 3), seen as
                                            2  z_850                (time, level, lat, lon)

A part is one variable of a field; where a field takes unequal steps of a window, a variable has a
part for each stretch of equal ones. The *view* of a part in a batch has the variable's axes in
stored order. Copying a decoded chunk into the view by plain indexing therefore also transposes,
stacks, broadcasts and reorders it. This file only computes shapes: it reads no chunks.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.footprint import Access
from xloader.core.point_table import LabelColumn
from xloader.errors import EmptySamplesError, OptionError, UnsupportedDataError
from xloader.recipe.names import CHANNEL, channel_names
from xloader.recipe.recipe import Field, Recipe
from xloader.sources.combined.labels import order_notes

Elements = range | tuple[int, ...]
"""The elements that a field takes along a dimension, counted from the window's first one."""


@dataclass(frozen=True)
class FieldPart:
    """Equally spaced elements of one variable of a field, and their place in the field's array."""

    variable: str
    accesses: Access
    channels: tuple[int, int] | None
    flat_sizes: tuple[int, ...]
    axes: tuple[int | None, ...]
    box: tuple[slice, ...]

    def view(self, array: NDArray[Any]) -> NDArray[Any]:
        """A view of a stacked field array with this variable's stored dimensions."""
        unfolded = array[(slice(None), *self.box)]
        if self.channels is not None:
            unfolded = unfolded.reshape(len(array), *self.flat_sizes, *unfolded.shape[2:])
        kept = [0, *(axis for axis in self.axes if axis is not None)]
        index = [slice(None), *(None if axis is None else slice(None) for axis in self.axes)]
        return unfolded.transpose(kept)[tuple(index)]


@dataclass(frozen=True)
class FieldLayout:
    """A field's array: the dimensions, shape and dtype of one sample, and the parts of the array.

    `parts`: one for each variable, or several where elements are not equally spaced; none for a
    label field, whose values come from a table.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    channels: tuple[str, ...] | None
    windowed: tuple[str, ...]
    elements: tuple[Elements | None, ...]
    dropped: tuple[str, ...]
    parts: tuple[FieldPart, ...]

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def variables(self) -> tuple[FieldPart, ...]:
        """One part for each variable, whose view has all its elements; it has no accesses."""
        whole = tuple(slice(0, size) for size in self.shape)
        return tuple(
            replace(part, accesses=(), box=(*part.box[:1], *whole[1:]) if part.channels else whole)
            for part in {part.variable: part for part in self.parts}.values()
        )

    def elements_of(self, dim: str) -> Elements | None:
        """The elements along a dimension; ``None`` if it is not windowed or the field lacks it."""
        return dict(zip(self.windowed, self.elements, strict=True)).get(dim)


def make_layouts(recipe: Recipe) -> tuple[FieldLayout, ...]:
    """Lay out every field of a recipe."""
    layouts = tuple(layout_of(recipe, field) for field in recipe.gathered_fields)
    if not any(any(layout.elements) for layout in layouts):
        raise EmptySamplesError(
            "no field has a variable along a windowed dimension",
            given=f"fields {[layout.name for layout in layouts]}, windows along "
            f"{recipe.require_windows().dims}",
            remedy="pass a dimension of the variables to .window(...), or add a field that has one",
        )
    names = {layout.name for layout in layouts}
    return *layouts, *(_label_layout(recipe, column, names) for column in recipe.label_columns)


def _label_layout(recipe: Recipe, column: LabelColumn, taken: Collection[str]) -> FieldLayout:
    """Lay out a label field. It has no parts, because no variable fills it."""
    if column.name in taken:
        raise OptionError(
            f"two fields are called {column.name!r}: a column of the table, and one of variables",
            given=f"fields {sorted(taken)}",
            remedy=f"name fields with .inputs or .targets, or rename the column: "
            f'table.rename(columns={{{column.name!r}: "{column.name}_at_point"}})',
        )
    windowed = recipe.require_windows().dims
    none = (None,) * len(windowed)
    return FieldLayout(column.name, (), (), column.values.dtype, None, windowed, none, (), ())


def layout_of(recipe: Recipe, field: Field) -> FieldLayout:
    """Lay out one field."""
    if not field.variables:
        raise OptionError(
            f"the field {field.name!r} has no variables",
            remedy=f"pass some of {list(recipe.variables)}",
        )
    if len(set(field.variables)) < len(field.variables):
        raise OptionError(
            f"the field {field.name!r} names a variable twice",
            given=field.variables,
            remedy="leave out the second one, or use it in a second field",
        )
    _refuse_repeats(recipe, field)
    elements = _window_elements(recipe, field)
    windowed = recipe.require_windows().dims
    offsets = dict(field.offsets)
    dropped = tuple(dim for dim in windowed if isinstance(offsets.get(dim), int))
    kept = {}
    for name in field.variables:
        flat = recipe.channel_dims(name) if field.has_channels else ()
        kept[name] = tuple(d for d in recipe.dims_of(name) if d not in (*flat, *dropped))
    dims = _common_dims(recipe, field, kept)
    counts = dict(zip(windowed, map(len, elements), strict=True))
    sizes = {dim: counts.get(dim, recipe.dim_sizes[dim]) for dim in dims}
    parts, channels = _make_parts(recipe, field, sizes, elements)
    shape = tuple(sizes.values())
    owned = {dim for name in field.variables for dim in recipe.dims_of(name)}
    if field.has_channels:
        dims, shape = (CHANNEL, *dims), (len(channels), *shape)
    dtype = _dtype_of(recipe, field)
    _check_pads(recipe, field, dims, elements, dtype)
    if 0 in shape:
        raise EmptySamplesError(
            f"the field {field.name!r} has no elements",
            given=dict(zip(dims, shape, strict=True)),
            remedy="leave the variable out, or select more of it",
        )
    return FieldLayout(
        name=field.name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        channels=channels if field.has_channels else None,
        windowed=windowed,
        elements=tuple(e if d in owned else None for d, e in zip(windowed, elements, strict=True)),
        dropped=tuple(dim for dim in dropped if dim in owned),
        parts=parts,
    )


def _refuse_repeats(recipe: Recipe, field: Field) -> None:
    for name in field.variables:
        dims = recipe.dims_of(name)
        if len(set(dims)) < len(dims):
            raise UnsupportedDataError(
                f"the variable {name!r} has a dimension twice",
                given=dims,
                remedy=f"leave {name!r} out, or rename one of them where it is stored",
            )


def _window_elements(recipe: Recipe, field: Field) -> tuple[Elements, ...]:
    windows = recipe.require_windows()
    offsets = dict(field.offsets)
    all_elements: list[Elements] = []
    for dim, size, dilation, reach in zip(
        windows.dims, windows.window_sizes, windows.dilations, windows.extents, strict=True
    ):
        taken = offsets.pop(dim, range(size))
        positions = range(taken, taken + 1) if isinstance(taken, int) else taken
        # A long range is not searched.
        ends = positions if isinstance(positions, tuple) else [*positions[:1], *positions[-1:]]
        if not ends or min(ends) < 0 or max(ends) * dilation >= reach:
            raise OptionError(
                f"an offset of the field {field.name!r} lies outside the window along {dim!r}",
                given=taken,
                allowed=f"[0, {size})",
                remedy=f"take a longer window along {dim!r}, or a smaller offset",
            )
        if isinstance(positions, tuple):
            all_elements.append(tuple(position * dilation for position in positions))
        else:
            # A single element has a step of one.
            step = (positions.step if len(positions) > 1 else 1) * dilation
            first, last = positions[0] * dilation, positions[-1] * dilation
            all_elements.append(range(first, last + 1, step))
    if offsets:
        raise OptionError(
            f"the field {field.name!r} has offsets along a dimension without windows",
            given=next(iter(offsets)),
            allowed=list(windows.dims),
            remedy="add the dimension to .window(...), or select along it with .isel(...)",
        )
    return tuple(all_elements)


def _check_pads(
    recipe: Recipe,
    field: Field,
    dims: tuple[str, ...],
    elements: tuple[Elements, ...],
    dtype: np.dtype,
) -> None:
    """Check that a field can be filled where windows lie outside padded borders."""
    windows = recipe.require_windows()
    for number, (dim, pad) in enumerate(zip(windows.dims, windows.pads, strict=True)):
        if pad is None:
            continue
        if elements[number] != range(windows.window_sizes[number]):
            raise OptionError(
                f"the field {field.name!r} takes a part of the window along the padded {dim!r}",
                given=f"{dim}={dict(field.offsets)[dim]}",
                remedy=f"leave the offsets of {dim!r} out, or leave {dim!r} out of pad=",
            )
        if isinstance(pad, float) and dim in dims and not _holds(dtype, pad):
            raise OptionError(
                f"the field {field.name!r} cannot hold the number that pads {dim!r}",
                given=f"{pad:g} for numbers of the dtype {dtype}",
                remedy='choose another number, pad with "edge", or convert the variable to floats',
            )


def _holds(dtype: np.dtype, number: float) -> bool:
    """Whether a dtype has a number. Floats are rounded, but must not become infinite."""
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            return bool(np.isfinite(dtype.type(number))) or not math.isfinite(number)
        if dtype.kind == "b":
            return number in (0.0, 1.0)
        info = np.iinfo(dtype)
        return math.isfinite(number) and number == int(number) and info.min <= number <= info.max


def _common_dims(recipe: Recipe, field: Field, kept: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    longest = max(kept, key=lambda name: len(kept[name]))
    dims = kept[longest]
    for name, kept_dims in kept.items():
        # This also refuses a dimension that one variable keeps and another turns into channels.
        if tuple(dim for dim in dims if dim in recipe.dims_of(name)) != kept_dims:
            raise OptionError(
                f"the variables of the field {field.name!r} cannot share one array",
                given=f"{longest!r} with {recipe.dims_of(longest)} and "
                f"{name!r} with {recipe.dims_of(name)}",
                remedy=(
                    "; ".join(order_notes(recipe.source.coordinates(), (*dims, *kept_dims)))
                    or "make a field for each variable, or select along the dimension that differs"
                ),
            )
    if field.has_channels and CHANNEL in dims:
        raise OptionError(
            f"the field {field.name!r} would have two dimensions called {CHANNEL!r}",
            given=f"{longest!r} with {recipe.dims_of(longest)}",
            remedy="rename the dimension with xarray, and open that Dataset",
        )
    return dims


def _make_parts(
    recipe: Recipe, field: Field, sizes: dict[str, int], elements: tuple[Elements, ...]
) -> tuple[tuple[FieldPart, ...], tuple[str, ...]]:
    parts: list[FieldPart] = []
    channels: list[str] = []
    windowed = recipe.require_windows().dims
    for name in field.variables:
        flat = recipe.channel_dims(name) if field.has_channels else ()
        stored_dims = recipe.variable(name).dims
        # Axes of the array with its channel axis unfolded: n, the flattened dims, the field's dims.
        place = {dim: axis for axis, dim in enumerate((*flat, *sizes), start=1)}
        missing = [place[dim] for dim in sizes if dim not in stored_dims]
        begin = len(channels)
        channels += channel_names(recipe, name, flat)
        span = (begin, len(channels)) if field.has_channels else None
        stretches = [
            _stretches(taken) if dim in stored_dims else [(None, slice(0, len(taken)))]
            for dim, taken in zip(windowed, elements, strict=True)
        ]
        for along in product(*stretches):
            places = dict(zip(windowed, (place_along for _, place_along in along), strict=True))
            box = [places.get(dim, slice(0, size)) for dim, size in sizes.items()]
            parts.append(
                FieldPart(
                    variable=name,
                    accesses=tuple(access for access, _ in along),
                    channels=span,
                    flat_sizes=tuple(recipe.dim_sizes[dim] for dim in flat),
                    axes=(*missing, *(place.get(dim) for dim in stored_dims)),
                    box=tuple(box) if span is None else (slice(*span), *box),
                )
            )
    return tuple(parts), tuple(channels)


def _stretches(elements: Elements) -> list[tuple[tuple[int, int, int] | None, slice]]:
    """Cut elements to equally spaced, ascending ones, each with its place among all of them."""
    if isinstance(elements, range):
        return [((elements.start, elements.step, len(elements)), slice(0, len(elements)))]
    stretches: list[tuple[tuple[int, int, int] | None, slice]] = []
    begin = 0
    while begin < len(elements):
        end = begin + 1
        step = elements[end] - elements[begin] if end < len(elements) else 1
        while step > 0 and end < len(elements) and elements[end] - elements[end - 1] == step:
            end += 1
        stretches.append(((elements[begin], max(step, 1), end - begin), slice(begin, end)))
        begin = end
    return stretches


def _dtype_of(recipe: Recipe, field: Field) -> np.dtype:
    dtypes = [recipe.variable(name).dtype for name in field.variables]
    for name, dtype in zip(field.variables, dtypes, strict=True):
        if dtype.kind not in "biuf":
            raise UnsupportedDataError(
                f"the variable {name!r} does not hold real numbers",
                given=f"dtype {dtype}",
                remedy="convert it with xarray and open the Dataset",
            )
    dtype = np.result_type(*dtypes)
    for step in recipe.steps:
        if not step.is_in_place:
            break
        dtype = step.promote(field.variables, dtype)
    return dtype


def window_offsets(first: Ints | int, elements: Elements) -> Ints:
    """Offsets of the elements that a field takes of windows."""
    if isinstance(elements, range):
        # Much faster than from the range itself.
        taken = np.arange(elements.start, elements.stop, elements.step, dtype=np.int64)
    else:
        taken = np.array(elements, np.int64)
    return np.asarray(first, np.int64)[..., None] + taken
