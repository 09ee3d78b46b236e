"""Adds computed variables to a recipe: which labels a function takes, along which dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import DTypeLike

from xloader import forcings
from xloader.errors import OptionError, UnsupportedDataError
from xloader.forcings.coordinates import ROLES, find_coordinate, is_in_radians, require_coordinate
from xloader.recipe.recipe import Recipe, find
from xloader.sources.arrays.catalog import READABLE_KINDS
from xloader.sources.base import Source, Variable
from xloader.sources.chunk_sizes import Sizes
from xloader.sources.combined.computed_source import (
    ComputedSource,
    Formula,
    LabelArgument,
    compute,
    plain_labels,
)
from xloader.sources.combined.mixed_source import MixedSource
from xloader.transforms.steps import text_of

Function = Callable[..., Any]


def add_computed(
    recipe: Recipe,
    names: Sequence[str | Function],
    functions: Mapping[str, str | Function],
    coords: Mapping[str, str],
    dtype: DTypeLike,
) -> Recipe:
    """A recipe with more variables; the arguments and errors are those of `Samples.forcing`."""
    source = recipe.source
    labels = source.coordinates(is_indexed=False)
    by_name = _named(names, functions)
    _check_coords(by_name, coords)
    number_dtype = _number_dtype(dtype)
    variables, formulas = [], {}
    for name, fn in by_name.items():
        _check_name(name, source, labels)
        arguments = _arguments(name, fn, labels, coords)
        formula = Formula(fn, arguments, text_of(fn))
        variables.append(_describe(name, formula, source, labels, number_dtype))
        formulas[name] = formula
    computed = ComputedSource(source, variables, formulas)
    computed.read_labels()
    owners = {**dict.fromkeys(source.variables, source), **dict.fromkeys(formulas, computed)}
    mixed = MixedSource(owners, source)
    return replace(recipe, source=mixed, variables=(*recipe.variables, *formulas))


def _named(
    names: Sequence[str | Function], functions: Mapping[str, str | Function]
) -> dict[str, Function]:
    """The functions, by the names of their variables."""
    given: list[tuple[str, str | Function]] = []
    for forcing in names:
        name = forcing if isinstance(forcing, str) else getattr(forcing, "__name__", "")
        if not name.isidentifier():
            raise OptionError(
                "a function without a name cannot name its variable",
                given=repr(forcing),
                remedy="pass it with a name, as in forcing(name=function)",
            )
        given.append((name, forcing))
    given += functions.items()
    if not given:
        raise OptionError(
            "no forcing is named",
            allowed=", ".join(forcings.__all__),
            remedy='pass names, as in forcing("insolation"), or functions of your own',
        )
    by_name: dict[str, Function] = {}
    for name, forcing in given:
        if name in by_name:
            raise OptionError(
                f"two forcings have the name {name!r}", remedy="rename one, as in forcing(name=...)"
            )
        if isinstance(forcing, str):
            find(forcing, forcings.__all__, "forcing")
            forcing = getattr(forcings, forcing)
        if not callable(forcing):
            raise OptionError(
                f"the forcing {name!r} is no function",
                given=repr(forcing),
                remedy="pass a name in xloader.forcings, or a function of coordinates",
            )
        by_name[name] = forcing
    return by_name


def _number_dtype(dtype: DTypeLike) -> np.dtype:
    try:
        parsed = np.dtype(dtype)
    except TypeError:
        parsed = np.dtype("V1")
    if parsed.kind not in READABLE_KINDS:
        raise UnsupportedDataError(
            "forcings cannot have this dtype",
            given=f"dtype={dtype!r}",
            remedy="pass a dtype of bool, integers or floats, or leave it out for float32",
        )
    return parsed.newbyteorder("=")


def _check_name(name: str, source: Source, labels: xr.Dataset) -> None:
    taken = "a variable" if name in source.variables else ""
    if name in labels.coords or name in labels.dims:
        taken = "a coordinate or dimension"
    if taken:
        raise OptionError(
            f"the data already has {taken} named {name!r}",
            remedy=f"choose another one, as in forcing({name}_forcing={name!r})",
        )


def _check_coords(functions: Mapping[str, Function], coords: Mapping[str, str]) -> None:
    """Refuse a parameter that no function has: it is a slip."""
    if not isinstance(coords, Mapping):
        raise OptionError(
            "coords does not say which coordinate each parameter gets",
            given=f"coords={coords!r}",
            remedy='pass it like coords={"lat": "latitude"}',
        )
    known = [p for name, fn in functions.items() for p in _parameters(name, fn)]
    for parameter in coords:
        find(parameter, list(dict.fromkeys(known)), "parameter")


def _parameters(name: str, fn: Function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError) as problem:
        raise OptionError(
            f"the parameters of the function of {name!r} are not known",
            given=text_of(fn),
            remedy="call it in a function of your own, as in lambda time, lat: ...",
        ) from problem


def _arguments(
    name: str, fn: Function, labels: xr.Dataset, coords: Mapping[str, str]
) -> tuple[LabelArgument, ...]:
    """The coordinates whose labels a function takes."""
    arguments = []
    for parameter in _parameters(name, fn).values():
        label = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if label in coords:
            coordinate = require_coordinate(labels, coords[label], label)
        elif parameter.default is not parameter.empty:
            continue
        elif label in ROLES:
            coordinate = find_coordinate(labels, label)
        else:
            coordinate = require_coordinate(labels, label, label)
        is_angle = label in ("lat", "lon")
        in_radians = is_angle and is_in_radians(labels[coordinate])
        if label == "lat":
            _check_latitudes(labels[coordinate], in_radians)
        arguments.append(LabelArgument(label, coordinate, in_radians))
    if not arguments:
        raise OptionError(
            f"the function of {name!r} takes no labels",
            given=text_of(fn),
            remedy="name the parameters after coordinates, as in lambda time, lat: ...",
        )
    return tuple(arguments)


def _check_latitudes(coord: xr.DataArray, in_radians: bool) -> None:
    most = float(np.nanmax(np.abs(coord.values), initial=0.0))
    if most > (np.pi / 2 if in_radians else 90.0) * 1.001:
        raise OptionError(
            f"the labels of {coord.name!r} are no latitudes",
            given=f"up to {most:g} {'radians' if in_radians else 'degrees'}",
            allowed="degrees from -90 to 90, or radians with that unit",
            remedy='name the coordinate of latitudes, as in forcing(..., coords={"lat": "..."})',
        )


def _describe(
    name: str, formula: Formula, source: Source, labels: xr.Dataset, dtype: np.dtype
) -> Variable:
    """The variable that a function computes, chunked like the stored ones."""
    sizes: dict[str, int] = {}
    for argument in formula.arguments:
        sizes.update({str(dim): n for dim, n in labels[argument.coordinate].sizes.items()})
    grid = chunks_of_dims(source.variables.values())
    dims = sorted(sizes, key=lambda dim: list(grid).index(dim) if dim in grid else len(grid))
    variable = Variable(
        name,
        tuple(dims),
        tuple(sizes[dim] for dim in dims),
        dtype,
        tuple(grid.get(dim, max(sizes[dim], 1)) for dim in dims),
        is_computed=True,
    )
    # A call on the first two labels of each dimension finds most mistakes before the first batch.
    first = {
        argument.parameter: plain_labels(
            labels[argument.coordinate][{d: slice(2) for d in labels[argument.coordinate].dims}]
        )
        for argument in formula.arguments
    }
    return replace(variable, attrs=dict(compute(formula, variable, first).attrs))


def chunks_of_dims(variables: Iterable[Variable]) -> dict[str, Sizes]:
    """The chunks along each dimension, in the stored variable with most bytes that has it.

    Dimensions come in the order in which these variables have them.
    """
    stored = [variable for variable in variables if not variable.is_computed]
    stored.sort(key=lambda v: -int(np.prod(v.shape, dtype=np.float64)) * v.stored_dtype.itemsize)
    grid: dict[str, Sizes] = {}
    for variable in stored:
        for dim, chunks in zip(variable.dims, variable.chunks, strict=True):
            grid.setdefault(dim, chunks)
    return grid
