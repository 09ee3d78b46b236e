"""Conversion of the arguments of `window` and `field` to windows and offsets."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from xloader.core.windows import Windows
from xloader.errors import OptionError, UnknownNameError, WindowError
from xloader.recipe.layout import layout_of
from xloader.recipe.names import CHANNEL, SAMPLE
from xloader.recipe.recipe import Field, Offsets, Recipe, find, unknown


def make_windows(
    recipe: Recipe,
    sizes: Mapping[str, int] | int | None,
    stride: Mapping[str, int] | int | None,
    dilation: Mapping[str, int] | int,
) -> Windows:
    """Make the windows over the selected dimensions of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe to window.
    sizes : int or mapping of str to int
        Elements of a window along each dimension; an int applies to every dimension.
    stride : int or mapping of str to int, optional
        Distance in elements from one window's start to the next; by default, the window's size.
    dilation : int or mapping of str to int
        Distance in elements between neighbouring elements of a window; 1 for a dimension that a
        mapping does not name.

    Returns
    -------
    Windows
        The windows.

    Raises
    ------
    OptionError
        If no dimension is given, or a number is not whole.
    UnknownNameError
        If a dimension does not exist, or a stride or dilation is for one without windows.
    WindowError
        If a number is below 1, a window is longer than its dimension, or there are more windows
        than `xloader.core.windows.MOST_WINDOWS`.
    """
    if isinstance(sizes, Mapping):
        for dim in sizes:
            find(dim, recipe.dim_sizes, "dimension")
        dims = tuple(sizes)
    else:
        dims = () if sizes is None else tuple(recipe.dim_sizes)
    if not dims:
        raise OptionError(
            "no dimension has a window",
            allowed=f"sizes along some of {list(recipe.dim_sizes)}",
            remedy="pass the size of a dimension, for example .window(time=6)",
        )
    window_sizes = _per_dim("window", dims, sizes, (None,) * len(dims))
    return Windows(
        dims,
        tuple(recipe.dim_sizes[dim] for dim in dims),
        window_sizes,
        _per_dim("stride", dims, stride, window_sizes),
        _per_dim("dilation", dims, dilation, (1,) * len(dims)),
        default_dims=_without_stride(dims, stride),
    )


def make_field(
    recipe: Recipe, name: str, variables: tuple[str, ...], offsets: Mapping[str, Any]
) -> Field:
    """Make a field and check that the recipe can provide it.

    Parameters
    ----------
    recipe : Recipe
        The recipe that the field is for.
    name : str
        The field's name.
    variables : tuple of str
        The field's variables.
    offsets : mapping of str to (int, slice or sequence of int)
        Positions within the window along windowed dimensions.

    Returns
    -------
    Field
        The field.

    Raises
    ------
    OptionError
        If the name is empty or taken, there are no variables or no windows, or an offset does not
        fit the window.
    UnknownNameError
        If a variable or a dimension does not exist.
    StackError
        If the variables cannot share one array, or one is named twice.
    UnsupportedDataError
        If a variable holds no numbers, or has a dimension twice.
    EmptySamplesError
        If the field has no elements.
    """
    taken = {field.name for field in recipe.fields}
    taken |= {column.name for column in recipe.label_columns}
    if not name or name in {*taken, *recipe.dim_sizes, SAMPLE, CHANNEL}:
        raise OptionError(
            "this field name is already in use",
            given=repr(name),
            allowed=f"a name other than those of fields {sorted(taken)}, of dimensions "
            f"{list(recipe.dim_sizes)}, {SAMPLE!r} and {CHANNEL!r}",
            remedy="choose another name; to combine variables, pass them to one call",
        )
    for variable in variables:
        if variable not in recipe.variables:
            raise _unknown_variable(recipe, variable)
    parsed = tuple(
        (dim, _offsets(recipe, name, dim, value, variables)) for dim, value in offsets.items()
    )
    field = Field(name, variables, parsed)
    layout_of(recipe, field)
    return field


def _unknown_variable(recipe: Recipe, name: object) -> UnknownNameError:
    error = unknown(name, recipe.variables, "variable")
    if error.remedy.startswith("did you mean"):
        return error
    if name in recipe.source.coordinates().coords:
        remedy = f"{name!r} is a coordinate: call ds.reset_coords({name!r}) and open that Dataset"
    else:
        remedy = "pass one of these names; variables of text, dates or objects cannot be used, "
        remedy += "and neither can those that variables= left out"
    return UnknownNameError(error.what, given=error.given, allowed=error.allowed, remedy=remedy)


def _without_stride(
    dims: tuple[str, ...], stride: Mapping[str, int] | int | None
) -> tuple[str, ...]:
    if isinstance(stride, Mapping):
        return tuple(dim for dim in dims if dim not in stride)
    return dims if stride is None else ()


def _per_dim(
    word: str,
    dims: tuple[str, ...],
    given: Mapping[str, int] | int | None,
    defaults: tuple[int | None, ...],
) -> tuple[int, ...]:
    if isinstance(given, Mapping):
        for dim in given:
            if dim not in dims:
                raise UnknownNameError(
                    f"the {word} is given for a dimension without windows",
                    given=repr(dim),
                    allowed=list(dims),
                    remedy=f"add {dim!r} to the sizes of .window(...)",
                )
        values = [given.get(dim, default) for dim, default in zip(dims, defaults, strict=True)]
    else:
        values = list(defaults) if given is None else [given] * len(dims)
    return tuple(_whole(word, dim, value) for dim, value in zip(dims, values, strict=True))


def _whole(word: str, dim: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise OptionError(
            f"the {word} along {dim!r} is not a whole number",
            given=repr(value),
            allowed="a whole number of elements >= 1",
            remedy="pass a number of elements, not a label",
        ) from None
    if count < 1:
        raise WindowError(
            f"the {word} along {dim!r} is too small",
            given=count,
            allowed="a whole number of elements >= 1",
            remedy=f"pass 1 or more, or leave {dim!r} out to take all of it"
            if word == "window"
            else f"pass {word}={{{dim!r}: 1}} or more",
        )
    return count


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
    owned = sorted({own for variable in variables for own in recipe.dims_of(variable)})
    if dim not in owned:
        raise OptionError(
            f"the field {name!r} has offsets along a dimension that its variables do not have",
            given=f"{dim}={value!r} for {list(variables)}",
            allowed=f"dimensions from {owned}",
            remedy=f"leave {dim!r} out",
        )
    size = windows.window_sizes[windows.dims.index(dim)]
    misfit = OptionError(
        f"an offset of the field {name!r} does not fit the window along {dim!r}",
        given=repr(value),
        allowed=f"an int, a slice or an equally spaced, increasing sequence of ints in "
        f"[{-size}, {size})",
        remedy=f"use a longer window along {dim!r}, smaller offsets, or several fields",
    )
    if isinstance(value, slice):
        return _equally_spaced(range(size)[value], misfit)
    positions = np.asarray(value)
    if positions.dtype.kind not in "iu" or positions.ndim > 1:
        raise misfit
    if ((positions < -size) | (positions >= size)).any():
        raise misfit
    positions = positions % size
    if positions.ndim == 0:
        return int(positions)
    return _equally_spaced(positions.tolist(), misfit)


def _equally_spaced(positions: range | list[int], misfit: OptionError) -> range:
    if not positions:
        raise misfit
    step = positions[1] - positions[0] if len(positions) > 1 else 1
    spaced = range(positions[0], positions[-1] + 1, step) if step > 0 else range(0)
    if list(spaced) != list(positions):
        raise misfit
    return spaced
