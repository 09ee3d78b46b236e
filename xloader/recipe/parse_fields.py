"""Conversion of the arguments of `field` to a field, and to windows that reach its leads."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xloader.core.messages import unknown
from xloader.core.windows import Windows
from xloader.errors import OptionError, UnknownNameError
from xloader.recipe.label_steps import is_duration, num_steps
from xloader.recipe.layout import layout_of
from xloader.recipe.names import CHANNEL, SAMPLE
from xloader.recipe.recipe import Field, Offsets, Recipe, find
from xloader.recipe.selection import as_selection


def make_field(
    recipe: Recipe, name: str, variables: tuple[str, ...], offsets: Mapping[str, Any]
) -> tuple[Field, Windows]:
    """Make a field, and the windows that reach its leads. Check that the recipe can provide it."""
    taken = {field.name for field in recipe.fields}
    taken |= {column.name for column in recipe.label_columns}
    if not name or name in {*taken, *recipe.dim_sizes, SAMPLE, CHANNEL}:
        raise OptionError(
            "this field name is already in use",
            given=repr(name),
            remedy="choose another name; to combine variables, pass them to one call",
        )
    for variable in variables:
        if variable not in recipe.variables:
            raise _unknown_variable(recipe, variable)
    parsed = tuple(
        (dim, _offsets(recipe, name, dim, value, variables)) for dim, value in offsets.items()
    )
    field = Field(name, variables, parsed)
    windows = _reaching(recipe, field)
    layout_of(replace(recipe, windows=windows), field)
    return field, windows


def _reaching(recipe: Recipe, field: Field) -> Windows:
    """The windows of a recipe, with samples that reach up to the leads of a field."""
    windows, offsets = recipe.require_windows(), dict(field.offsets)
    extents = []
    for dim, dilation, reach in zip(windows.dims, windows.dilations, windows.extents, strict=True):
        taken = offsets.get(dim, 0)
        last = taken[-1] if isinstance(taken, range) else max(np.atleast_1d(taken).tolist())
        extents.append(max(reach, last * dilation + 1))
    if tuple(extents) == windows.extents:
        return windows
    if recipe.subset is not None:
        raise OptionError(
            f"the field {field.name!r} has a lead beyond the window, which changes what ids mean",
            given=f"leads of {[dict(field.offsets)[dim] for dim in offsets]} after select",
            remedy="call .field, .inputs or .targets first, then .select",
        )
    return replace(windows, extents=tuple(extents))


def _unknown_variable(recipe: Recipe, name: object) -> UnknownNameError:
    if name in recipe.source.coordinates().coords:
        remedy = f"{name!r} is a coordinate: call ds.reset_coords({name!r}) and open that Dataset"
    else:
        remedy = "pass one of these names; variables of text, dates or objects cannot be used, "
        remedy += "and neither can those that variables= left out"
    return unknown(name, recipe.variables, "variable", remedy=remedy)


def _offsets(
    recipe: Recipe, name: str, dim: str, value: Any, variables: tuple[str, ...]
) -> Offsets:
    windows = recipe.require_windows()
    if dim not in windows.dims:
        find(dim, recipe.dim_sizes, "dimension")
        raise OptionError(
            f"the field {name!r} has offsets along a dimension without windows",
            given=dim,
            allowed=list(windows.dims),
            remedy=f"add {dim!r} to .window(...), or select along it with .isel({dim}=...)",
        )
    owned = sorted({owned_dim for variable in variables for owned_dim in recipe.dims_of(variable)})
    if dim not in owned:
        raise OptionError(
            f"the field {name!r} has offsets along a dimension that its variables do not have",
            given=f"{dim}={value!r} for {list(variables)}",
            allowed=f"dimensions from {owned}",
            remedy=f"leave {dim!r} out",
        )
    axis = windows.dims.index(dim)
    size, dilation = windows.window_sizes[axis], windows.dilations[axis]
    misfit = OptionError(
        f"an offset of the field {name!r} does not fit the window along {dim!r}",
        given=repr(value),
        allowed=f"an int, a slice or a sequence of different ints in [{-size}, {size}), or leads",
        remedy=f"use a longer window along {dim!r}, smaller offsets, several fields, or a lead "
        f'such as {dim}="+{size}" (steps after the start of the window) or "+10D"',
    )
    leads = _leads(recipe, dim, size, dilation, value)
    if isinstance(leads, int):
        return leads
    if leads is not None:
        return _spaced(list(leads), misfit)
    if isinstance(value, slice):
        # Python clips slices, so that a field would have fewer elements than asked for.
        ends = [end for end in (value.start, value.stop) if end is not None]
        try:
            is_inside = all(-size <= operator.index(end) <= size for end in ends)
            taken = list(range(size)[value])
        except (TypeError, ValueError):
            raise misfit from None
        if not is_inside:
            raise misfit
        return _spaced(taken, misfit)
    positions = np.asarray(value)
    if positions.dtype.kind not in "iu" or positions.ndim > 1:
        raise misfit
    if ((positions < -size) | (positions >= size)).any():
        raise misfit
    positions = positions % size
    if positions.ndim == 0:
        return int(positions)
    return _spaced(positions.tolist(), misfit)


def _leads(recipe: Recipe, dim: str, size: int, dilation: int, value: Any) -> Any:
    """Positions where an offset names durations; None where it names none."""

    def position(given: Any) -> int:
        return _position(recipe, dim, dilation, given)

    if is_duration(value):
        return position(value)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        if not any(map(is_duration, parts)):
            return None
        start, stop, step = (
            default if part is None else position(part)
            for part, default in zip(parts, (0, size, 1), strict=True)
        )
        return range(start, stop, max(step, 1))
    is_listed = isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return list(map(position, value)) if is_listed and any(map(is_duration, value)) else None


def _position(recipe: Recipe, dim: str, dilation: int, given: Any) -> int:
    """The position, in elements of the window, of a duration after its start."""
    if not is_duration(given):
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
            raise OptionError(
                f"beside durations, an offset along {dim!r} is no number of steps",
                given=repr(given),
                remedy='pass durations for both ends, as in slice("6h", "1D"), or numbers >= 0',
            )
        return int(given)
    lead = num_steps(recipe, "lead", dim, given)
    if lead % dilation:
        raise OptionError(
            f"the lead along {dim!r} falls between two elements of the window",
            given=f"{given}, which is {lead} steps, with a dilation of {dilation}",
            remedy=f"choose a multiple of {dilation} steps, or another dilation",
        )
    return lead // dilation


def _spaced(positions: list[int], misfit: OptionError) -> range | tuple[int, ...]:
    """Positions as a range where they are equally spaced and ascend."""
    if not positions or len(set(positions)) < len(positions):
        raise misfit
    return as_selection(np.array(positions, np.int64))
