"""A check for irregular steps between the labels of windowed dimensions.

Windows run across irregular steps, such as gaps in time, so an explanation names them. Labels are
numbers, times or time spans, of NumPy or of cftime. A step is regular if it differs from the
median step by no more than 1 %, as the steps of rounded or Gaussian latitudes do. Steps of
calendar months or years also count as equal.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.recipe.recipe import Kept, Recipe

_TOLERANCE = 0.01
"""The relative difference from the median step up to which a step is regular."""

_LEAST_MONTH = 27.5 * 86_400e6
"""The shortest step that may be a calendar month, in microseconds."""

_UNITS = (
    ("day", 86_400e6),
    ("hour", 3_600e6),
    ("minute", 60e6),
    ("second", 1e6),
    ("millisecond", 1e3),
    ("microsecond", 1.0),
)

_known: weakref.WeakKeyDictionary[Any, dict[tuple[str, Hashable], str]] = (
    weakref.WeakKeyDictionary()
)
"""Descriptions that were found, per source, for a dimension and the elements kept of it."""


def irregular_steps(recipe: Recipe) -> dict[str, str]:
    """Describe the irregular steps of each windowed dimension that has any.

    The labels of a dimension are read once for each source and selection. A dimension is left out
    if its windows have one element, if fewer than three labels are kept, or if it has no labels
    that are numbers or times.

    Parameters
    ----------
    recipe : Recipe
        The samples, with windows.

    Returns
    -------
    dict of str to str
        The number of irregular steps and the place of the first one, by dimension, such as
        ``"3 of 364 are not 1 day (first after 2001-03-05)"``.

    Examples
    --------
    >>> import xarray as xr
    >>> series = xr.DataArray(np.zeros(5), {"time": [0, 1, 2, 7, 8]}, name="sst")
    >>> irregular_steps(series.to_dataset().xloader.window(time=2).recipe)
    {'time': '1 of 4 are not 1 (first after 2)'}
    """
    windows = recipe.require_windows()
    known = _known.setdefault(recipe.source, {})
    found = {}
    for dim, size in zip(windows.dims, windows.window_sizes, strict=True):
        kept = recipe.kept_of(dim)
        if size > 1:
            if (dim, kept) not in known:
                known[dim, kept] = _describe(_labels(recipe, dim, kept))
            found[dim] = known[dim, kept]
    return {dim: text for dim, text in found.items() if text}


def _labels(recipe: Recipe, dim: str, kept: Kept) -> NDArray[Any] | None:
    """The labels that are kept of a dimension, read without an index; ``None`` without any."""
    assert not isinstance(kept, int)
    coordinates = recipe.source.coordinates(is_indexed=False)
    if dim not in coordinates.coords or not len(kept):
        return None
    labels = coordinates[dim].variable.to_base_variable()
    if labels.dims != (dim,):
        return None
    try:
        stored = labels[kept[0] : kept[-1] + 1].values
    except Exception:
        # Training needs no labels, so labels that cannot be read are no error here.
        return None
    return stored[:: kept.step] if isinstance(kept, range) else stored[np.array(kept) - kept[0]]


def _describe(labels: NDArray[Any] | None) -> str:
    """Describe the irregular steps of labels in words; an empty text if there are none."""
    if labels is None or len(labels) < 3:
        return ""
    is_time = labels.dtype.kind in "mMO"
    steps = _time_steps(labels) if is_time else _number_steps(labels)
    if steps is None:
        return ""
    step, is_odd = _odd_ones(steps)
    text = _show_span(step) if is_time else f"{step:g}"
    if is_odd.any() and labels.dtype.kind != "m" and is_time and step >= _LEAST_MONTH:
        months, is_odd_month = _odd_ones(np.diff(_months(labels)).astype(np.float64))
        if months > 0 and is_odd_month.sum() <= is_odd.sum():
            is_odd = is_odd_month
            text = _count(months / 12, "year") if months % 12 == 0 else _count(months, "month")
    if not is_odd.any() or np.isnan(step):
        return ""
    first = _show_label(labels[int(np.argmax(is_odd))])
    return f"{is_odd.sum():,} of {len(is_odd):,} are not {text} (first after {first})"


def _number_steps(labels: NDArray[Any]) -> NDArray[np.float64] | None:
    return np.diff(labels.astype(np.float64)) if labels.dtype.kind in "iuf" else None


def _time_steps(labels: NDArray[Any]) -> NDArray[np.float64] | None:
    """The steps in microseconds, NaN beside a missing time; ``None`` if labels are not times."""
    if labels.dtype.kind in "mM":
        # NumPy cannot convert a difference in months to microseconds, so times are converted first.
        fine = labels.astype(f"{labels.dtype.kind}8[us]") if _is_coarse(labels) else labels
        return np.asarray(np.diff(fine) / np.timedelta64(1, "us"), np.float64)
    if not hasattr(labels[0], "calendar"):
        return None
    try:
        spans = (labels[1:] - labels[:-1]).astype("m8[us]")
    except (TypeError, ValueError):
        # Some of the objects are not cftime times.
        return None
    return np.asarray(spans / np.timedelta64(1, "us"), np.float64)


def _is_coarse(labels: NDArray[Any]) -> bool:
    return np.datetime_data(labels.dtype)[0] in ("Y", "M")


def _months(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The month of each time, counted through all years."""
    if labels.dtype.kind == "M":
        return labels.astype("M8[M]").astype(np.int64)
    return np.array([12 * label.year + label.month for label in labels], np.int64)


def _odd_ones(steps: NDArray[np.float64]) -> tuple[float, NDArray[np.bool_]]:
    """The lower median of the steps, and which steps differ from it."""
    # The lower median is a step that occurs; the mean of the two middle ones may not be.
    step = float(np.partition(steps, (len(steps) - 1) // 2)[(len(steps) - 1) // 2])
    # Negated, so that NaN counts as different.
    return step, ~(np.abs(steps - step) <= _TOLERANCE * abs(step))


def _show_span(span: float) -> str:
    for unit, size in _UNITS:
        count = round(span / size, 3)
        if abs(count) >= 1 and count == int(count):
            return _count(count, unit)
    return f"{span / 1e6:g} seconds"


def _count(count: float, unit: str) -> str:
    return f"{count:g} {unit}{'s' * (count != 1)}"


def _show_label(label: Any) -> str:
    if isinstance(label, np.timedelta64):
        return _show_span(float(label / np.timedelta64(1, "us")))
    if isinstance(label, np.datetime64):
        return str(label.astype("M8[s]")).removesuffix(":00").removesuffix("T00:00")
    if hasattr(label, "isoformat"):
        return str(label.isoformat(timespec="seconds")).removesuffix(":00").removesuffix("T00:00")
    return f"{label:g}" if isinstance(label, np.floating) else str(label)
