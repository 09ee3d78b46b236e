"""The forms in which users give means and standard deviations, and whose they are.

A Dataset that xloader has made says in its attributes which data and which variables it is of.
Statistics of other variables are refused. Those of other data give a warning if units or the grid
differ: statistics of the training years are right for other years.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr

from xloader.core.messages import warn_caller
from xloader.errors import OptionError, StatisticsWarning
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable
from xloader.sources.combined.labels import are_same_labels

FINGERPRINT: Final = "xloader_fingerprint"
"""Attribute of statistics: the fingerprint of the source that they were made of."""

ORIGIN_FINGERPRINT: Final = "xloader_origin_fingerprint"
"""Attribute of a store that xloader has written: the fingerprint of the source of its values."""

GRID: Final = "xloader_grid"
"""Attribute of statistics: the grids of what they were made of, from `grids_of`."""

CLOCK_DIM: Final = "xloader_clock_dim"
"""Attribute of statistics by month and so on: the dimension of the times."""

OPTIONS: Final = "xloader_stats"
"""Attribute of statistics: their options, as JSON. With "variables", what they were made of."""

_SHARES: Final = ("1", "(0 - 1)", "0-1", "fraction", "dimensionless")
"""Units of masks, shares and cosines, which need no statistics."""

FORMS: Final = (
    "{variable: (mean, std)}, {variable: {'mean': ..., 'std': ...}}, a Dataset with a dimension "
    "or coordinate 'stat', or one with variables '<variable>_mean' and '<variable>_std'"
)


def means_and_stds(
    recipe: Recipe, stats: Any, mean: Any, std: Any
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Means and standard deviations by variable from any of the forms, and the dimension of times.

    The latter is None where no Dataset of ours names it.
    """
    given = [dataset for dataset in (stats, mean, std) if isinstance(dataset, xr.Dataset)]
    if isinstance(stats, xr.Dataset):
        _check_variables(recipe, stats)
    for dataset in given:
        _check_data(recipe, dataset)
    if isinstance(stats, xr.Dataset):
        mean, std = _split(stats)
        if OPTIONS in stats.attrs:
            # Those of a whole store may have more variables than the samples of some of them.
            named = [name for name in recipe.variables if name in mean]
            mean, std = mean[named], std[named]
    elif stats is not None:
        pairs = {name: _pair(name, entry) for name, entry in _by_name(stats).items()}
        mean, std = ({name: pair[place] for name, pair in pairs.items()} for place in (0, 1))
    means, stds = _by_name(mean), _by_name(std)
    if set(means) != set(stds):
        raise OptionError(
            "mean and std do not name the same variables",
            given=f"mean for {sorted(means)}, std for {sorted(stds)}",
            remedy="pass both for each variable that you want to normalise",
        )
    clock_dims = [str(dataset.attrs[CLOCK_DIM]) for dataset in given if CLOCK_DIM in dataset.attrs]
    return means, stds, next(iter(clock_dims), None)


def _by_name(values: Any) -> dict[str, Any]:
    if isinstance(values, xr.Dataset):
        return {str(name): value for name, value in values.data_vars.items()}
    if isinstance(values, Mapping):
        return dict(values)
    raise OptionError(
        "the statistics do not say which variable they belong to",
        given=repr(values),
        allowed=f"a mapping or an xarray Dataset: {FORMS}",
        remedy="open the file first: normalize(xarray.open_dataset(path))"
        if isinstance(values, str | os.PathLike)
        else 'pass for example {"t2m": (280.0, 20.0)}',
    )


def _pair(name: str, entry: Any) -> tuple[Any, Any]:
    try:
        centre, scale = (entry["mean"], entry["std"]) if isinstance(entry, Mapping) else entry
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"the statistics of {name!r} are not a pair of mean and std",
            given=repr(entry),
            remedy=f'pass {{"{name}": (mean, std)}}, or a mapping with "mean" and "std"',
        ) from error
    return centre, scale


def _split(stats: xr.Dataset) -> list[xr.Dataset]:
    """The means and the standard deviations of a Dataset, as two of them."""
    if "stat" in stats.indexes and {"mean", "std"} <= set(stats.indexes["stat"]):
        held = [name for name in stats.data_vars if "stat" in stats[name].dims]
        return [stats.sel(stat=word)[held] for word in ("mean", "std")]
    names = [str(name)[: -len("_mean")] for name in stats if str(name).endswith("_mean")]
    kept = [name for name in names if f"{name}_std" in stats]
    if not kept:
        raise OptionError(
            "the Dataset does not hold a mean and a standard deviation of any variable",
            given=f"variables {[str(name) for name in stats]}",
            allowed=FORMS,
            remedy="if the means and standard deviations are in two Datasets, call "
            "normalize(mean=means, std=stds)",
        )
    return [xr.Dataset({name: stats[name + word] for name in kept}) for word in ("_mean", "_std")]


def _check_variables(recipe: Recipe, stats: xr.Dataset) -> None:
    """Refuse statistics that xloader has made of other variables than those of the samples."""
    if OPTIONS not in stats.attrs:
        return
    held = {str(name) for name in stats.data_vars}
    windowed = set(recipe.require_windows().dims)
    without = map(recipe.variable, fields_without(recipe, held))
    # Orography is noted, but not refused.
    lacking = [x.name for x in without if windowed & set(x.dims) and not x.is_computed]
    if not held & set(recipe.variables):
        raise OptionError(
            "the statistics are of other variables than the samples",
            given=f"statistics of {', '.join(map(repr, sorted(held)))}",
            allowed=f"statistics of some of {', '.join(map(repr, recipe.variables))}",
            remedy="make the statistics of these samples, with samples.stats()",
        )
    # Someone who has chosen some of the variables knows that the others stay as they are.
    made_of = _made_of(stats)
    if lacking and made_of is not None and held >= made_of:
        raise OptionError(
            "the statistics lack variables that the samples use, which would stay as they are",
            given=f"no statistics of {', '.join(map(repr, lacking))}",
            remedy="make the statistics of these samples, with samples.stats(). To leave "
            f"{', '.join(lacking)} as stored, call normalize(mean=stats.sel(stat='mean'), "
            "std=stats.sel(stat='std'))",
        )


def fields_without(recipe: Recipe, held: Collection[str]) -> dict[str, list[str]]:
    """The variables that should have statistics and are not held, with their fields."""
    fields_of: dict[str, list[str]] = {}
    for field in recipe.gathered_fields:
        variables = [recipe.variable(name) for name in field.variables]
        is_float = any(
            variable.dtype.kind == "f" or variable.name in held for variable in variables
        )
        for variable in variables:
            if variable.name not in held and _has_scale(recipe, variable, is_float):
                fields_of.setdefault(variable.name, []).append(field.name)
    return fields_of


def _has_scale(recipe: Recipe, variable: Variable, is_float: bool) -> bool:
    """Whether a variable should have statistics: classes, flags, masks and cosines should not."""
    units = str(variable.attrs.get("units", ""))
    if any(key.startswith("flag_") for key in variable.attrs):
        return False
    if variable.dtype.kind != "f":
        # Integers in a field of their own are classes, and those of a byte beside floats masks.
        return is_float and variable.dtype.itemsize > 1
    if variable.is_computed:
        return units not in ("", *_SHARES)
    is_static = not set(variable.dims) & set(recipe.require_windows().dims)
    return not is_static or units not in _SHARES


def _made_of(stats: xr.Dataset) -> set[str] | None:
    """The variables that statistics were made of; None if they do not say so."""
    try:
        named = json.loads(stats.attrs[OPTIONS])["variables"]
    except (TypeError, ValueError, KeyError):
        return None
    return {str(name) for name in named} if isinstance(named, list) else None


def _check_data(recipe: Recipe, stats: xr.Dataset) -> None:
    """Warn if statistics were made of data in other units, or on another grid, than the samples."""
    # Without indexes, so that no labels are read for it.
    origin = recipe.source.coordinates(is_indexed=False).attrs.get(ORIGIN_FINGERPRINT)
    if stats.attrs.get(FINGERPRINT) in (None, origin):
        return
    texts, along = [], dict[str, None]()
    for name in (name for name in recipe.variables if name in stats.data_vars):
        units = [
            str(variable.attrs.get("units", ""))
            for variable in (stats[name], recipe.variable(name))
        ]
        if all(units) and len(set(map(_plain_units, units))) > 1:
            texts.append(f"{name} was in {units[0]!r}, and is in {units[1]!r}")
        # Labels of dimensions that the statistics have are looked up.
        along |= {dim: None for dim in recipe.dims_of(name) if dim not in stats[name].dims}
    grids = json.loads(stats.attrs.get(GRID, "[]")), json.loads(grids_of(recipe))
    for dim in along:
        pairs = [(a[dim], b[dim]) for a, b in product(*grids) if dim in a and dim in b]
        if pairs and not any(_is_same(*pair) for pair in pairs):
            texts.append(f"the grid along {dim} was another one")
    if texts:
        warn_caller(
            f"the statistics were made of other data than these samples: {'; '.join(texts)}. Make "
            "them of samples like these, with samples.stats(); if they are right as they are, "
            f"remove the attribute: stats.attrs.pop({FINGERPRINT!r})",
            StatisticsWarning,
        )


def _plain_units(text: str) -> str:
    """Units in one spelling: some write m s**-1, others m s-1, m s^-1 or m/s."""
    powers = re.sub(
        r"/\s*([A-Za-z]+)[\^*]*(\d*)", lambda match: f"{match[1]}-{match[2] or 1}", text
    )
    return re.sub(r"[\s*^.]", "", powers)


def grids_of(recipe: Recipe) -> str:
    """As JSON, the selected grid and the whole one: by dimension its size and some labels."""
    return json.dumps([_grid_of(recipe), _grid_of(replace(recipe, selection=()))])


def _grid_of(recipe: Recipe) -> dict[str, list[float]]:
    windowed = () if recipe.windows is None else recipe.windows.dims
    coords = recipe.source.coordinates(is_indexed=False).coords
    grid: dict[str, list[float]] = {}
    for dim, size in recipe.dim_sizes.items():
        if dim not in windowed and (dim not in coords or coords[dim].dtype.kind in "iuf"):
            grid[dim] = [size]
            if dim in coords:
                # Ascending, as north comes first in some files and last in others.
                labels = np.sort(coords[dim].values[np.asarray(recipe.kept_of(dim))])
                grid[dim] += labels[:: size // 8 + 1].tolist()
    return grid


def _is_same(first: list[float], second: list[float]) -> bool:
    """Whether two dimensions have one size, and the same labels if both have some."""
    if first[0] != second[0] or 1 in (len(first), len(second)):
        return first[0] == second[0]
    return are_same_labels(pd.Index(first[1:]), pd.Index(second[1:]))
