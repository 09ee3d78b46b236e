"""Labels that are the same, distances between labels, and advice where only their order differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr

from xloader.core.axis import Ints
from xloader.errors import OptionError
from xloader.sources.base import Source

MERGED: Final = "xloader.open([a, b])"
"""Code, for messages, that makes one source of stores with different variables."""

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


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of one source along the dimension of the join."""

    owner: str
    index: Any

    @property
    def kind(self) -> str:
        """Kind of the labels, in words. Labels of different kinds cannot be ordered."""
        if isinstance(self.index, xr.CFTimeIndex):
            return f"cftime dates of the calendar {self.index.calendar!r}"
        dtype = self.index.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
            return "numbers"
        if isinstance(dtype, np.dtype) and dtype.kind in "mM":
            return "datetime64 dates" if dtype.kind == "M" else "timedelta64 durations"
        return "text or objects"

    @property
    def direction(self) -> int:
        """1 if the labels increase, -1 if they decrease, 0 for a single label."""
        if len(self.index) == 1 and not self.index.hasnans:
            return 0
        if self.index.is_unique and not self.index.hasnans:
            if self.index.is_monotonic_increasing:
                return 1
            if self.index.is_monotonic_decreasing:
                return -1
        raise OptionError(
            f"the labels of {self.owner} neither increase nor decrease",
            given=_first_turn(self.index),
            remedy=by_xarray(".sortby and .drop_duplicates"),
        )

    def __str__(self) -> str:
        return f"{self.owner} ({self.index[0]} to {self.index[-1]})"


def different_kinds(dim: str, first: Labels, second: Labels) -> OptionError:
    """The error for labels of two kinds."""
    is_calendar = "dates" in first.kind and "dates" in second.kind
    return OptionError(
        f"labels along {dim!r} are of two kinds",
        given=f"{first.kind} in {first.owner}, {second.kind} in {second.owner}",
        remedy="open them with xarray, use .convert_calendar, and pass the Datasets"
        if is_calendar
        else f"open them with xarray, give {dim!r} the same kind of labels, and pass the Datasets",
    )


def _first_turn(index: Any) -> str:
    """The first three neighbouring labels that change direction, as text."""
    values = list(index)
    for before, label, after in zip(values, values[1:], values[2:], strict=False):
        if not (before < label < after or before > label > after):
            return f"{before}, {label}, {after}"
    return ", ".join(str(label) for label in values[:3])


def differing_labels(first: Any, second: Any) -> str:
    """How the labels of two sources differ, in words."""
    if len(first) != len(second):
        return f"{len(first)} and {len(second)} labels"
    for place, (label, another) in enumerate(zip(first, second, strict=True)):
        if label != another and not are_same_labels(first[[place]], second[[place]]):
            return f"{label!r} and {another!r} at position {place}"
    return "labels that are not numbers"


def by_xarray(calls: str) -> str:
    """Advice to change a source with xarray."""
    return f"open it with xarray, use {calls}, and pass the Dataset"


def listed(names: Sequence[str], most: int) -> str:
    """Names in a row. If there are too many, the last ones are only counted."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def label_of(sources: Sequence[Source], number: int) -> str:
    """Name of a source, with its number if several have the same name."""
    name = sources[number].name
    if sum(source.name == name for source in sources) == 1:
        return name
    return f"{name} (number {number + 1} of {len(sources)})"
