"""Labels that are the same, distances between labels, and advice where only their order differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr

from xloader.core.axis import Ints

_ROUNDING: Final = 4 * float(np.finfo(np.float32).eps)
"""Largest difference, as a share of the largest label, between equal labels in float32."""

_LARGEST_SHARE: Final = 0.01
"""Labels that differ by more than this share of the smallest step are never the same."""


def is_time_index(index: pd.Index) -> bool:
    """Whether the labels are dates, cftime dates or durations."""
    return isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex | xr.CFTimeIndex)


def label_span(index: pd.Index, tolerance: Any) -> Any:
    """A tolerance in the form that an index takes. Between times it may be text, as ``"1h"``."""
    if tolerance is not None and is_time_index(index):
        # pandas would take a number for nanoseconds.
        if np.asarray(tolerance).dtype.kind in "biuf":
            raise TypeError("the tolerance is a number, but the labels are times")
        if isinstance(index, xr.CFTimeIndex):
            return pd.Timedelta(tolerance).to_pytimedelta()
    return pd.Timedelta(tolerance) if isinstance(tolerance, str) else tolerance


def find_labels(
    index: pd.Index, labels: pd.Index, method: Any = None, tolerance: Any = None
) -> Ints:
    """The element of each label in an index; -1 for a label that it does not have.

    Without a method, numbers are the same if they differ by a rounding error of float32 and by
    less than 1 % of the smallest step: one store has a grid in float32, another in float64.
    """
    if method is not None or not _may_be_rounded(index, labels):
        span = label_span(index, tolerance)
        return np.asarray(index.get_indexer(labels, method=method, tolerance=span), np.int64)
    if index.dtype.kind == "f":
        # As xarray does: 0.1 finds the label 0.1 of a coordinate in float32.
        labels = labels.astype(index.dtype)
    numbers = index.to_numpy(np.float64)
    order = np.argsort(numbers)
    largest = np.abs(numbers).max()
    step = np.diff(numbers[order]).min() if len(numbers) > 1 else largest
    apart = min(_ROUNDING * largest, _LARGEST_SHARE * step)
    places = pd.Index(numbers[order]).get_indexer(
        labels.astype(np.float64), method="nearest", tolerance=apart
    )
    return np.where(places < 0, -1, order[places])


def _may_be_rounded(index: pd.Index, labels: pd.Index) -> bool:
    """Whether labels are numbers, and not all of them integers."""
    kinds = {getattr(values.dtype, "kind", "O") for values in (index, labels)}
    is_number = "f" in kinds and kinds <= set("iuf")
    return is_number and len(index) > 0 and bool(np.isfinite(index).all())


def are_same_labels(index: pd.Index, other: pd.Index) -> bool:
    """Whether two indexes have the same labels in the same order; see `find_labels`."""
    if len(index) != len(other) or not index.is_unique or not _may_be_rounded(index, other):
        return bool(index.equals(other))
    return np.array_equal(find_labels(index, other), np.arange(len(index)))


def order_remedy(dim: str, index: pd.Index | None, other: pd.Index | None) -> str:
    """Advice on sources that have the same labels in different orders; empty if they do not."""
    if index is None or other is None or len(index) != len(other) or are_same_labels(index, other):
        return ""
    is_unique = index.is_unique and other.is_unique
    if not is_unique or not are_same_labels(index[find_labels(index, other)], other):
        return ""
    begin = "the labels are the same in"
    if are_same_labels(index[::-1], other):
        return f"{begin} reverse order: turn one source, by .isel({dim}=slice(None, None, -1))"
    return f"{begin} another order: sort both sources, by .sortby({dim!r}) of xarray"


def order_notes(coords: xr.Dataset, dims: Iterable[Hashable]) -> list[str]:
    """Sentences on dimensions of joined sources that differ in the order of labels alone."""
    notes = []
    for first, second in combinations(map(str, dims), 2):
        dim = second.rpartition("/")[2]
        if first != second and first.rpartition("/")[2] == dim:
            remedy = order_remedy(dim, coords.indexes.get(first), coords.indexes.get(second))
            notes += [f"along {first} and {second}, {remedy}"] * bool(remedy)
    return notes
