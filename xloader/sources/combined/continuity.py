"""Coordinates of several sources that are joined along a dimension.

Checks that the labels continue from each source to the next, and joins the coordinates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.sources.base import Source
from xloader.sources.combined.joined_variables import label_of, listed
from xloader.sources.combined.label_spans import are_same_labels, order_remedy

_MOST_NAMES = 12
"""The most sources that a message lists."""


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
            allowed="each label once, in one order from the first to the last",
            remedy="open it with xarray, use .sortby and .drop_duplicates, and pass the Dataset",
        )

    def __str__(self) -> str:
        return f"{self.owner} ({self.index[0]} to {self.index[-1]})"


def check_labels(dim: str, labels: Sequence[Labels]) -> None:
    """Check that labels continue from each source to the next.

    Numbers and dates must all increase or all decrease, and no two sources may overlap. Text has
    no order, so it only must not repeat.
    """
    for before, after in itertools.pairwise(labels):
        if before.kind != after.kind:
            raise different_kinds(dim, before, after)
    if labels and labels[0].kind == "text or objects":
        _check_distinct(dim, labels)
        return
    sign = _common_direction(dim, labels)
    if all(_goes_on(sign, before, after) for before, after in itertools.pairwise(labels)):
        return
    ordered = sorted(labels, key=lambda owned: owned.index[0], reverse=sign < 0)
    for before, after in itertools.pairwise(ordered):
        if not _goes_on(sign, before, after):
            raise OptionError(
                f"two sources overlap along {dim!r}",
                given=f"{before}, {after}",
                allowed="each label once, in one source",
                remedy="leave one of them out, or cut it with xarray and pass the Dataset",
            )
    raise OptionError(
        f"the sources are not in the order of their labels along {dim!r}",
        given=listed([*map(str, labels)], _MOST_NAMES),
        allowed=listed([owned.owner for owned in ordered], _MOST_NAMES),
        remedy="pass them in this order",
    )


def _goes_on(sign: int, before: Labels, after: Labels) -> bool:
    """Whether all labels of one source come before those of the other, in a direction."""
    last, first = before.index[-1], after.index[0]
    return bool(last < first if sign > 0 else last > first)


def _common_direction(dim: str, labels: Sequence[Labels]) -> int:
    """The direction of all labels: 1 if they increase, -1 if they decrease."""
    directions = [(owned.direction, owned) for owned in labels]
    known = [(sign, owned) for sign, owned in directions if sign]
    if not known:
        # With one label in each source, only the labels of all sources show the direction.
        pairs = list(itertools.pairwise(labels))
        return -1 if pairs and all(_goes_on(-1, before, after) for before, after in pairs) else 1
    for sign, owned in known:
        if sign != known[0][0]:
            raise OptionError(
                f"labels along {dim!r} increase in one source and decrease in another",
                given=f"{known[0][1]}, {owned}",
                allowed="one order for all sources",
                remedy=f"open those with xarray, use .sortby({dim!r}), and pass the Datasets",
            )
    return known[0][0]


def _check_distinct(dim: str, labels: Sequence[Labels]) -> None:
    """Check that no label occurs twice."""
    owners: dict[object, str] = {}
    for source_labels in labels:
        for label in source_labels.index:
            if label in owners:
                raise OptionError(
                    f"a label along {dim!r} occurs twice",
                    given=f"{label!r} in {owners[label]} and in {source_labels.owner}",
                    allowed="each label once, in one source",
                    remedy="leave one of them out, or rename it with xarray",
                )
            owners[label] = source_labels.owner


def different_kinds(dim: str, first: Labels, second: Labels) -> OptionError:
    """The error for labels of two kinds."""
    is_calendar = "dates" in first.kind and "dates" in second.kind
    return OptionError(
        f"labels along {dim!r} are of two kinds",
        given=f"{first.kind} in {first.owner}, {second.kind} in {second.owner}",
        allowed="one kind, and one calendar, for all sources",
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


def check_coordinates(sources: Sequence[Source], dim: str) -> None:
    """Check that labels continue along a dimension and agree along all others."""
    indexes = [source.coordinates().indexes for source in sources]
    bare = [number for number, by_dim in enumerate(indexes) if dim not in by_dim]
    if 0 < len(bare) < len(sources):
        labelled = next(number for number, by_dim in enumerate(indexes) if dim in by_dim)
        raise OptionError(
            f"only some sources have labels along {dim!r}",
            given=f"labels in {label_of(sources, labelled)}, none in {label_of(sources, bare[0])}",
            allowed="labels in all sources, or in none",
            remedy=f"add labels with xarray's .assign_coords({dim}=...), and pass the Dataset",
        )
    if not bare:
        labels = [
            Labels(label_of(sources, number), by_dim[dim])
            for number, by_dim in enumerate(indexes)
            if len(by_dim[dim])
        ]
        check_labels(dim, labels)
    first = indexes[0]
    used = {str(d) for variable in sources[0].variables.values() for d in variable.dims}
    for other_dim in sorted((used - {dim}) & set(first)):
        for number, by_dim in enumerate(indexes):
            if other_dim in by_dim and not are_same_labels(first[other_dim], by_dim[other_dim]):
                raise OptionError(
                    f"the labels along {other_dim!r} differ between two sources",
                    given=f"{differing_labels(first[other_dim], by_dim[other_dim])} "
                    f"in {label_of(sources, 0)} and {label_of(sources, number)}",
                    allowed=f"the same labels in all sources along all dimensions except {dim!r}",
                    remedy=order_remedy(other_dim, first[other_dim], by_dim[other_dim])
                    or "regrid them with xarray, or give them the same labels with "
                    ".assign_coords, and pass the Datasets",
                )


def differing_labels(first: Any, second: Any) -> str:
    """How the labels of two sources differ, in words."""
    if len(first) != len(second):
        return f"{len(first)} and {len(second)} labels"
    for place, (label, another) in enumerate(zip(first, second, strict=True)):
        if label != another and not are_same_labels(first[[place]], second[[place]]):
            return f"{label!r} and {another!r} at position {place}"
    return "labels that are not numbers"


def join_coordinates(sources: Sequence[Source], dim: str) -> xr.Dataset:
    """Join the coordinates of sources along a dimension.

    Coordinates without the dimension are taken from the first source. A coordinate along it is
    left out if some source lacks it or has it with other dimensions.
    """
    every = [source.coordinates() for source in sources]
    first = every[0]
    of_dim = [name for name, coord in first.coords.items() if dim in coord.dims]
    shared = [
        name
        for name in of_dim
        if all(name in coords.coords and coords[name].dims == first[name].dims for coords in every)
    ]
    without_dim = first.drop_vars(of_dim)
    if not shared:
        return without_dim
    along = [_lazily(coords.drop_vars(set(coords.coords).difference(shared))) for coords in every]
    joined = xr.concat(
        along,
        dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    return without_dim.assign_coords(joined.coords)


def _lazily(coords: xr.Dataset) -> xr.Dataset:
    """Turn coordinates of several dimensions into dask arrays, to join them without reading."""
    wide = {
        name: coord.variable.chunk()
        for name, coord in coords.coords.items()
        if coord.ndim > 1 and not isinstance(coord.variable._data, np.ndarray)
    }
    return coords.assign_coords(wide)
