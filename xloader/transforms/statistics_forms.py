"""The forms in which users give means and standard deviations, and whose they are.

A Dataset that xloader has made says in its attributes which data and which variables it is of.
Statistics of other variables are refused, and those of other data give a warning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

import xarray as xr

from xloader.core.messages import warn_caller
from xloader.errors import OptionError, StatisticsWarning
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Source
from xloader.sources.combined.mixed_source import MixedSource

FINGERPRINT: Final = "xloader_fingerprint"
"""Attribute of statistics: the fingerprint of the source that they were made of."""

ORIGIN_FINGERPRINT: Final = "xloader_origin_fingerprint"
"""Attribute of a store that xloader has written: the fingerprint of the source of its values."""

CLOCK_DIM: Final = "xloader_clock_dim"
"""Attribute of statistics by month and so on: the dimension of the times."""

OPTIONS: Final = "xloader_stats"
"""Attribute of statistics: their options, as JSON. With "variables", what they were made of."""

FORMS: Final = (
    "{variable: (mean, std)}, {variable: {'mean': ..., 'std': ...}}, a Dataset with a dimension "
    "or coordinate 'stat', or one with variables '<variable>_mean' and '<variable>_std'"
)


def mean_and_std(
    recipe: Recipe, stats: Any, mean: Any, std: Any
) -> tuple[dict[str, tuple[Any, Any]], str | None]:
    """Means and standard deviations by variable, from any of the forms.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the samples, with windows.
    stats, mean, std : mapping or xarray.Dataset or None
        As for `make_normalize`.

    Returns
    -------
    pairs : dict of str to (object, object)
        Mean and standard deviation of each variable, unchecked.
    clock_dim : str or None
        The dimension of times, if the statistics name it.

    Raises
    ------
    OptionError
        If a mean or standard deviation is missing, or the statistics are of other variables.
    """
    given = [own for own in (stats, mean, std) if isinstance(own, xr.Dataset)]
    if isinstance(stats, xr.Dataset):
        _check_variables(recipe, stats)
    for dataset in given:
        _check_data(recipe, dataset)
    named = [str(own.attrs[CLOCK_DIM]) for own in given if CLOCK_DIM in own.attrs]
    clock_dim = named[0] if named else None
    if stats is None:
        return _apart(mean, std), clock_dim
    if isinstance(stats, xr.Dataset):
        pairs = _pairs_of_dataset(stats)
        if OPTIONS in stats.attrs:
            # Those of a whole store may have more variables than the samples of some of them.
            pairs = {name: pair for name, pair in pairs.items() if name in recipe.variables}
        return pairs, clock_dim
    pairs = {}
    for name, entry in _by_name(stats).items():
        try:
            if isinstance(entry, Mapping):
                pairs[name] = (entry["mean"], entry["std"])
            else:
                centre, scale = entry
                pairs[name] = (centre, scale)
        except (KeyError, TypeError, ValueError) as error:
            raise _not_a_pair(name, entry) from error
    return pairs, clock_dim


def _apart(mean: Any, std: Any) -> dict[str, tuple[Any, Any]]:
    means, stds = _by_name(mean), _by_name(std)
    if set(means) != set(stds):
        raise OptionError(
            "mean and std do not name the same variables",
            given=f"mean for {sorted(means)}, std for {sorted(stds)}",
            allowed="two mappings or Datasets with the same variables",
            remedy="pass both for each variable that you want to normalise",
        )
    return {name: (means[name], stds[name]) for name in means}


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


def _pairs_of_dataset(stats: xr.Dataset) -> dict[str, tuple[Any, Any]]:
    if "stat" in stats.indexes and {"mean", "std"} <= set(stats.indexes["stat"]):
        return {
            str(name): (value.sel(stat="mean"), value.sel(stat="std"))
            for name, value in stats.data_vars.items()
            if "stat" in value.dims
        }
    names = [str(name)[: -len("_mean")] for name in stats if str(name).endswith("_mean")]
    pairs = {
        name: (stats[f"{name}_mean"], stats[f"{name}_std"])
        for name in names
        if f"{name}_std" in stats
    }
    if not pairs:
        raise OptionError(
            "the Dataset does not hold a mean and a standard deviation of any variable",
            given=f"variables {[str(name) for name in stats]}",
            allowed=FORMS,
            remedy="if the means and standard deviations are in two Datasets, call "
            "normalize(mean=means, std=stds)",
        )
    return pairs


def _not_a_pair(name: str, entry: object) -> OptionError:
    return OptionError(
        f"the statistics of {name!r} are not a pair of mean and std",
        given=repr(entry),
        allowed="(mean, std), or a mapping with 'mean' and 'std'",
        remedy=f'pass {{"{name}": (mean, std)}}',
    )


def _check_variables(recipe: Recipe, stats: xr.Dataset) -> None:
    """Refuse statistics that xloader has made of other variables than those of the samples."""
    if OPTIONS not in stats.attrs:
        return
    held = {str(name) for name in stats.data_vars}
    lacking = sorted(_variables_in_use(recipe) - held)
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
            allowed="statistics of all variables in the fields, besides those that forcing adds",
            remedy="make the statistics of these samples, with samples.stats(). To leave "
            f"{', '.join(lacking)} as stored, call normalize(mean=stats.sel(stat='mean'), "
            "std=stats.sel(stat='std'))",
        )


def _variables_in_use(recipe: Recipe) -> set[str]:
    """The stored variables along windows that fields take. Masks and orography are no part."""
    windowed = set(recipe.require_windows().dims)
    names = {name for field in recipe.gathered_fields for name in field.variables}
    own = {name: recipe.variable(name) for name in names}
    return {
        name
        for name, variable in own.items()
        if not variable.is_computed and windowed & set(variable.dims)
    }


def _made_of(stats: xr.Dataset) -> set[str] | None:
    """The variables that statistics were made of; None if they do not say so."""
    try:
        named = json.loads(stats.attrs[OPTIONS])["variables"]
    except (TypeError, ValueError, KeyError):
        return None
    return {str(name) for name in named} if isinstance(named, list) else None


def _check_data(recipe: Recipe, stats: xr.Dataset) -> None:
    """Warn if statistics were made of other data than the samples."""
    made_of = stats.attrs.get(FINGERPRINT)
    if made_of is None or made_of in _fingerprints(recipe.source):
        return
    warn_caller(
        "the statistics were made of other data than these samples, or of the same data opened in "
        f"another way: their fingerprint is {str(made_of)[:8]}, and that of {recipe.source.name} "
        f"is {recipe.source.fingerprint[:8]}. Make them of these samples, with samples.stats(); "
        f"if they are right as they are, remove the attribute: stats.attrs.pop({FINGERPRINT!r})",
        StatisticsWarning,
    )


def _fingerprints(source: Source) -> set[str]:
    """The fingerprints of a source, of those that it is made of, and of what it is a copy of."""
    found = {source.fingerprint}
    # Without indexes, so that no labels are read for it.
    origin = source.coordinates(is_indexed=False).attrs.get(ORIGIN_FINGERPRINT)
    found |= {str(origin)} if origin else set()
    if isinstance(source, MixedSource):
        found |= {part.fingerprint for part in source.parts}
    return found
