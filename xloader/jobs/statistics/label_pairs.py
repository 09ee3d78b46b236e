"""The labels of the time dimension: its clock, and pairs of elements that differ by a lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, UnknownNameError
from xloader.forcings.coordinates import ROLES, holds_times
from xloader.recipe.label_steps import Duration, LabelSteps, find_steps, months_of, num_elements
from xloader.recipe.recipe import Recipe

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


def labels_of(recipe: Recipe, dim: str) -> NDArray[Any] | None:
    """The selected labels of a dimension; None without any."""
    coords = recipe.source.coordinates(is_indexed=False)
    if dim not in coords.coords:
        return None
    return np.asarray(coords[dim].values)[np.asarray(recipe.kept_of(dim), np.int64)]


def find_pairs(recipe: Recipe, dim: str, leads: Sequence[Lead]) -> tuple[LeadPairs, ...]:
    """Find the pairs of elements whose labels differ by each of several leads.

    The labels are read once.
    """
    counts = [num_elements(recipe, "lead", dim, lead, least=0) for lead in leads]
    if len(set(counts)) < len(counts):
        raise OptionError(
            "a lead comes twice", given=list(leads), remedy="leave out the second one"
        )
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
