"""The options of statistics, checked: the weights of elements, labels of time, pairs by lead."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Any, Final, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.option_checks import check_choice, is_number
from xloader.errors import OptionError, UnknownNameError
from xloader.forcings.calendar import CLOCKS, clock_rows
from xloader.forcings.coordinates import ROLES, find_coordinate, holds_times, is_in_radians
from xloader.jobs.statistics.quantile_sketch import not_a_quantile, quantile_label
from xloader.jobs.wanted_elements import check_fits, cut_along
from xloader.recipe.label_steps import (
    Duration,
    LabelSteps,
    find_steps,
    is_duration,
    months_of,
    num_elements,
)
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe, find

Lead = int | Duration

_TOLERANCE: Final = 1e-3
"""The part of a step by which a label may lie beside the common step, as rounded labels do."""


@dataclass(frozen=True, eq=False)
class LeadPairs:
    """For each element along a dimension, the element that comes a lead later."""

    steps: int
    label: int | np.timedelta64
    partner: Ints


def find_time_dim(recipe: Recipe, option: str, *, only_times: bool = True) -> str:
    """The dimension of the samples whose labels are times."""
    coords = recipe.source.coordinates(is_indexed=False)
    dims = [dim for dim in recipe.dim_sizes if dim in coords.coords and _are_times(coords[dim])]
    if not dims and not only_times:
        dims = [dim for dim in recipe.dim_sizes if dim.lower() in ROLES["time"].names]
    if len(dims) > 1:
        raise OptionError(
            f"several dimensions have times as labels, so {option} is not clear",
            given=", ".join(map(repr, dims)),
            remedy="take the variables of one of them at a time",
        )
    if not dims:
        raise UnknownNameError(
            f"no dimension has times as labels, which {option} needs",
            given=f"dimensions {list(recipe.dim_sizes)}",
            remedy=f"open the data with its time coordinate decoded, or leave {option} out",
        )
    return dims[0]


def selected(recipe: Recipe, coord: xr.DataArray) -> xr.Variable:
    """The selected part of a coordinate."""
    places = {dim: np.asarray(recipe.kept_of(str(dim)), np.int64) for dim in coord.dims}
    return coord.variable.isel(places)


def labels_of(recipe: Recipe, dim: str) -> NDArray[Any] | None:
    """The selected labels of a dimension; None without any."""
    coords = recipe.source.coordinates(is_indexed=False)
    return np.asarray(selected(recipe, coords[dim]).values) if dim in coords.coords else None


def find_pairs(recipe: Recipe, dim: str, leads: Sequence[Lead]) -> tuple[LeadPairs, ...]:
    """Find the pairs of elements whose labels differ by each of several leads.

    The labels are read once.
    """
    counts = [num_elements(recipe, "lead", dim, lead, least=0) for lead in leads]
    if len(set(counts)) < len(counts):
        raise OptionError("a lead comes twice", given=list(leads), remedy="leave out the second")
    size = recipe.dim_sizes[dim]
    labels = labels_of(recipe, dim)
    steps = find_steps(recipe, dim) if labels is not None else None
    span = np.nan
    if labels is None or size < 2:
        since = np.arange(size, dtype=np.float64)
    elif steps is None or not steps.is_regular:
        raise OptionError(
            f"the labels of {dim!r} have no common step, so a lead in steps is not clear",
            given=", ".join(map(repr, leads)),
            remedy="select the part of the labels that does",
        )
    else:
        since = _steps_since_first(labels, steps)
        span = abs(steps.span) if steps.is_time else np.nan
    order = np.argsort(since, kind="stable")
    ordered = since[order]
    pairs = []
    for lead, count in zip(leads, counts, strict=True):
        partner = np.arange(size)
        if count:
            at = np.minimum(np.searchsorted(ordered, since + (count - _TOLERANCE)), size - 1)
            partner = np.where(np.abs(ordered[at] - since - count) < _TOLERANCE, order[at], -1)
        if not (partner >= 0).any():
            raise OptionError(
                f"no two labels of {dim!r} differ by a lead",
                given=repr(lead),
                remedy="pass a shorter lead, or select more of the dimension",
            )
        label: int | np.timedelta64 = count
        if not np.isnan(span):
            label = np.timedelta64(round(span * count), "us").astype("m8[ns]")
        pairs.append(LeadPairs(count, label, partner))
    return tuple(pairs)


def _steps_since_first(labels: NDArray[Any], steps: LabelSteps) -> NDArray[np.float64]:
    """How many common steps each label is later than the first one."""
    if steps.months and np.isnan(steps.span):
        months = months_of(labels)
        return np.asarray((months - months[0]) / steps.months, np.float64)
    if steps.is_time:
        spans = labels - labels[0]
        if labels.dtype == object:
            spans = spans.astype("m8[us]")
        since = spans / np.timedelta64(1, "us")
    else:
        since = labels.astype(np.float64) - float(labels[0])
    return np.asarray(since / abs(steps.span), np.float64)


def _are_times(coord: Any) -> bool:
    return coord.dims == (coord.name,) and coord.size > 0 and holds_times(coord)


@dataclass(frozen=True, eq=False)
class ElementWeights:
    """A weight for each selected element along some dimensions. `text`: "area" or "array"."""

    dims: tuple[str, ...]
    values: NDArray[np.float64]
    text: str

    def along(self, dims: tuple[str, ...], parts: dict[str, slice]) -> NDArray[np.float64] | None:
        """The weights of a box of elements, to be broadcast; None if the dimensions lack some."""
        if not set(self.dims) <= set(dims):
            return None
        return cut_along(self.values, self.dims, dims, parts)

    @cached_property
    def digest(self) -> str:
        """Text that is equal for equal weights."""
        digest = hashlib.sha256(repr((self.dims, self.values.shape)).encode())
        digest.update(np.ascontiguousarray(self.values, "<f8").tobytes())
        return digest.hexdigest()[:16]


def parse_weights(recipe: Recipe, variables: list[str], weights: Any) -> ElementWeights | None:
    """Check the option ``weights``."""
    if weights is None:
        return None
    if isinstance(weights, str) and weights == "area":
        parsed = _areas(recipe)
    elif isinstance(weights, xr.DataArray) and weights.dtype.kind in "biuf":
        check_fits(recipe, weights, "weights")
        dims = tuple(map(str, weights.dims))
        parsed = ElementWeights(dims, np.asarray(weights.values, np.float64), "array")
    else:
        raise OptionError(
            "weights are neither 'area' nor an array of numbers",
            given=repr(weights) if isinstance(weights, str) else type(weights).__name__,
            remedy="pass weights='area' for the cosine of the latitude, or a DataArray of numbers",
        )
    if not (np.isfinite(parsed.values) & (parsed.values >= 0)).all():
        raise OptionError(
            "a weight is negative or not finite",
            given=f"weights from {np.min(parsed.values)} to {np.max(parsed.values)}",
            remedy="replace them by 0 to leave out their elements",
        )
    if not any(set(parsed.dims) <= set(recipe.dims_of(name)) for name in variables):
        raise OptionError(
            "no variable has all dimensions of the weights",
            given=f"weights along {', '.join(parsed.dims)}",
            allowed=f"dimensions of one of { {name: recipe.dims_of(name) for name in variables} }",
            remedy="pass weights along fewer dimensions",
        )
    return parsed


def _areas(recipe: Recipe) -> ElementWeights:
    coords = recipe.source.coordinates(is_indexed=False)
    lat = coords[find_coordinate(coords, "lat")]
    part = selected(recipe, lat)
    values = np.asarray(part.values, np.float64)
    angles = values if is_in_radians(lat) else np.deg2rad(values)
    # Rounded latitudes of the poles may lie a little beyond them.
    return ElementWeights(tuple(map(str, part.dims)), np.maximum(np.cos(angles), 0.0), "area")


Dims = str | Iterable[Hashable] | EllipsisType | None
"""Dimensions to reduce, as in xarray: one, several, or ``...`` for all."""

Clock = Literal["month", "dayofyear", "hour", "season"]

_MOST_LEADS: Final = 1000


@dataclass(frozen=True, eq=False)
class StatsOptions:
    """The options of statistics.

    `dim`: the dimensions that are reduced; None for all that do not become channels. `labels`: the
    labels of the clock that occur, ascending.
    """

    dim: tuple[str, ...] | None = None
    by: str = ""
    rows: Ints | None = None
    labels: NDArray[Any] | None = None
    time_dim: str = ""
    quantiles: tuple[float, ...] = ()
    leads: tuple[LeadPairs, ...] = ()
    weights: ElementWeights | None = None

    @property
    def settings(self) -> tuple[Any, ...]:
        """Arguments of `parse_stats_options` for the same options, in few bytes."""
        weights: Any = self.weights
        if weights is not None:
            is_area = weights.text == "area"
            weights = "area" if is_area else xr.DataArray(weights.values, dims=weights.dims)
        leads = [pairs.steps for pairs in self.leads]
        return self.dim, self.by or None, self.quantiles, leads, weights

    def to_json(self) -> str:
        """The options in short, as JSON."""
        names = ("dim", "by", "quantiles", "leads", "weights")
        options = dict(zip(names, self.settings, strict=True))
        options["weights"] = self.weights and self.weights.text
        return json.dumps({name: value for name, value in options.items() if value})

    def kept_dims(
        self, recipe: Recipe, layouts: tuple[FieldLayout, ...], variable: str
    ) -> tuple[str, ...]:
        """The dimensions of a variable that its statistics keep: by default, its channels."""
        dims = recipe.dims_of(variable)
        if self.dim is not None:
            return tuple(dim for dim in dims if dim not in self.dim)
        has_channels = any(
            part.variable == variable
            for layout in layouts
            if layout.channels is not None
            for part in layout.parts
        )
        channels = recipe.channel_dims(variable) if has_channels else ()
        return tuple(dim for dim in dims if dim in channels)


def parse_stats_options(
    recipe: Recipe,
    variables: list[str],
    dim: Dims,
    by: str | None,
    quantiles: Iterable[float],
    leads: Lead | Iterable[Lead],
    weights: str | xr.DataArray | None,
) -> StatsOptions:
    """Check the options of `Samples.stats`."""
    reduced = _parse_dim(recipe, variables, dim)
    time_dim, rows, labels = "", None, None
    if by is not None:
        check_choice("by", by, list(CLOCKS), "leave it out for statistics over all times")
        time_dim = find_time_dim(recipe, f"by={by!r}")
        numbers = clock_rows(labels_of(recipe, time_dim), by)
        occurring, rows = np.unique(numbers, return_inverse=True)
        rows, labels = rows.astype(np.int64), CLOCKS[by][occurring]
    pairs: tuple[LeadPairs, ...] = ()
    given = _parse_leads(leads)
    if given:
        time_dim = find_time_dim(recipe, "leads", only_times=False)
        pairs = find_pairs(recipe, time_dim, given)
    if time_dim and reduced is not None and time_dim not in reduced:
        raise OptionError(
            f"{'by' if by else 'leads'} needs statistics over the dimension {time_dim!r}",
            given=f"dim={list(reduced)}",
            remedy=f"add {time_dim!r} to dim",
        )
    return StatsOptions(
        reduced,
        by or "",
        rows,
        labels,
        time_dim,
        _parse_quantiles(quantiles),
        pairs,
        parse_weights(recipe, variables, weights),
    )


def _parse_dim(recipe: Recipe, variables: list[str], dim: Dims) -> tuple[str, ...] | None:
    if dim is None:
        return None
    known = list(dict.fromkeys(d for name in variables for d in recipe.dims_of(name)))
    if dim is ...:
        return tuple(known)
    dims = [dim] if isinstance(dim, str) else list(map(str, _list_of("dim", dim, "a name")))
    for name in dims:
        find(name, known, "dimension")
    return tuple(sorted(set(dims), key=known.index))


def _parse_quantiles(quantiles: Iterable[float] | float) -> tuple[float, ...]:
    given = [quantiles] if is_number(quantiles) else _list_of("quantiles", quantiles, "a number")
    for quantile in given:
        if not is_number(quantile) or not 0 <= quantile <= 1:
            raise not_a_quantile(repr(quantile))
    # Numbers that have the same label, such as 0.1 and 0.1 + 1e-17, are one.
    return tuple(sorted({quantile_label(quantile): float(quantile) for quantile in given}.values()))


def _list_of(option: str, given: Any, single: str) -> list[Any]:
    """The list that was given for an option."""
    try:
        return list(given)
    except TypeError:
        raise OptionError(
            f"{option} is neither {single} nor several of them",
            given=repr(given),
            remedy=f"leave {option} out for its default",
        ) from None


def _parse_leads(leads: Lead | Iterable[Lead]) -> list[Lead]:
    if is_duration(leads) or is_number(leads):
        return [leads]  # type: ignore[list-item]
    given = _list_of("leads", leads, "a number of steps or a duration")
    if len(given) > _MOST_LEADS:
        raise OptionError("too many leads", given=len(given), allowed=f"up to {_MOST_LEADS}")
    return given
