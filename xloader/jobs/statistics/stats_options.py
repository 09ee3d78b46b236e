"""The options of statistics, checked."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.clock_labels import CLOCKS, clock_rows
from xloader.core.option_checks import is_number
from xloader.errors import OptionError
from xloader.jobs.statistics.element_weights import ElementWeights, parse_weights
from xloader.jobs.statistics.label_pairs import (
    Lead,
    LeadPairs,
    find_pairs,
    find_time_dim,
    labels_of,
)
from xloader.jobs.statistics.stats_template import quantile_label
from xloader.recipe.durations import is_duration
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe, find

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
    weights_text: str = ""

    def to_json(self) -> str:
        """The options in short, as JSON."""
        found: dict[str, object] = {
            "dim": list(self.dim or ()),
            "by": self.by,
            "quantiles": list(self.quantiles),
            "leads": [pairs.steps for pairs in self.leads],
            "weights": self.weights_text,
        }
        return json.dumps({key: own for key, own in found.items() if own})

    def kept_dims(self, recipe: Recipe, channels: set[str], variable: str) -> tuple[str, ...]:
        """The dimensions of a variable that its statistics keep."""
        dims = recipe.dims_of(variable)
        if self.dim is None:
            return tuple(dim for dim in dims if dim in channels)
        return tuple(dim for dim in dims if dim not in self.dim)


def parse_stats_options(
    recipe: Recipe,
    variables: list[str],
    *,
    dim: Dims = None,
    by: str | None = None,
    quantiles: Iterable[float] = (),
    leads: Lead | Iterable[Lead] = (),
    weights: str | xr.DataArray | None = None,
) -> StatsOptions:
    """Check the options of `Samples.stats`."""
    reduced = _parse_dim(recipe, variables, dim)
    time_dim, rows, labels = "", None, None
    if by is not None:
        if by not in list(CLOCKS):
            raise OptionError(
                "by is no clock",
                given=repr(by),
                allowed=", ".join(map(repr, CLOCKS)),
                remedy="leave it out for statistics over all times",
            )
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
            allowed=f"dimensions with {time_dim!r} among them",
            remedy=f"add {time_dim!r} to dim",
        )
    text = "" if weights is None else weights if isinstance(weights, str) else "array"
    return StatsOptions(
        reduced,
        by or "",
        rows,
        labels,
        time_dim,
        _parse_quantiles(quantiles),
        pairs,
        parse_weights(recipe, variables, weights),
        text,
    )


def _parse_dim(recipe: Recipe, variables: list[str], dim: Dims) -> tuple[str, ...] | None:
    if dim is None:
        return None
    known = list(dict.fromkeys(own for name in variables for own in recipe.dims_of(name)))
    if dim is ...:
        return tuple(known)
    dims = [dim] if isinstance(dim, str) else list(map(str, _list_of("dim", dim, "a name")))
    for own in dims:
        find(own, known, "dimension")
    return tuple(sorted(set(dims), key=known.index))


def _parse_quantiles(quantiles: Iterable[float] | float) -> tuple[float, ...]:
    given = [quantiles] if is_number(quantiles) else _list_of("quantiles", quantiles, "a number")
    for own in given:
        if not is_number(own) or not 0 <= own <= 1:
            raise OptionError(
                "a quantile is not between 0 and 1",
                given=repr(own),
                allowed="numbers from 0 to 1, such as 0.99 for the 99th percentile",
                remedy="divide percentiles by 100",
            )
    # Numbers that have the same label, such as 0.1 and 0.1 + 1e-17, are one.
    return tuple(sorted({quantile_label(own): float(own) for own in given}.values()))


def _list_of(option: str, given: Any, single: str) -> list[Any]:
    """The list that was given for an option."""
    try:
        return list(given)
    except TypeError:
        raise OptionError(
            f"{option} is neither {single} nor several of them",
            given=repr(given),
            allowed=f"{single}, or a list",
            remedy=f"leave {option} out for its default",
        ) from None


def _parse_leads(leads: Lead | Iterable[Lead]) -> list[Lead]:
    if is_duration(leads) or is_number(leads):
        return [leads]  # type: ignore[list-item]
    given = _list_of("leads", leads, "a number of steps or a duration")
    if len(given) > _MOST_LEADS:
        raise OptionError(
            "there are too many leads", given=len(given), allowed=f"up to {_MOST_LEADS}"
        )
    return given


def channel_dims(recipe: Recipe, layouts: tuple[FieldLayout, ...], variable: str) -> set[str]:
    """The dimensions of a variable that become channels in some field."""
    if recipe.windows is None:
        return set()
    with_channels = {own.name for own in layouts if own.channels is not None}
    has_channels = any(
        part.variable == variable
        for own in layouts
        if own.name in with_channels
        for part in own.parts
    )
    return set(recipe.channel_dims(variable)) if has_channels else set()
