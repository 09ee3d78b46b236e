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
from xloader.sources.combined.joined_variables import label_of
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

    @property
    def first(self) -> Any:
        """The first label."""
        return self.index[0]

    @property
    def last(self) -> Any:
        """The last label."""
        return self.index[-1]

    def __str__(self) -> str:
        return f"{self.owner} ({self.first} to {self.last})"


def check_labels(dim: str, labels: Sequence[Labels]) -> None:
    """Check that labels continue from each source to the next.

    Numbers and dates must all increase or all decrease, and no two sources may overlap. Text has
    no order, so it only must not repeat.
    """
    for one, other in itertools.pairwise(labels):
        if one.kind != other.kind:
            raise different_kinds(dim, one, other)
    if labels and labels[0].kind == "text or objects":
        _check_distinct(dim, labels)
        return
    sign = _common_direction(dim, labels)
    if all(_goes_on(sign, one, other) for one, other in itertools.pairwise(labels)):
        return
    ordered = sorted(labels, key=lambda one: one.first, reverse=sign < 0)
    for one, other in itertools.pairwise(ordered):
        if not _goes_on(sign, one, other):
            raise OptionError(
                f"two sources overlap along {dim!r}",
                given=f"{one}, {other}",
                allowed="each label once, in one source",
                remedy="leave one of them out, or cut it with xarray and pass the Dataset",
            )
    raise OptionError(
        f"the sources are not in the order of their labels along {dim!r}",
        given=_listed([str(one) for one in labels]),
        allowed=_listed([one.owner for one in ordered]),
        remedy="pass them in this order",
    )


def _goes_on(sign: int, one: Labels, other: Labels) -> bool:
    """Whether all labels of one source come before those of the other, in a direction."""
    return bool(one.last < other.first if sign > 0 else one.last > other.first)


def _common_direction(dim: str, labels: Sequence[Labels]) -> int:
    """The direction of all labels: 1 if they increase, -1 if they decrease."""
    turned = [(one.direction, one) for one in labels]
    known = [(sign, one) for sign, one in turned if sign]
    if not known:
        # With one label in each source, only the labels of all sources show the direction.
        pairs = list(itertools.pairwise(labels))
        return -1 if pairs and all(_goes_on(-1, one, other) for one, other in pairs) else 1
    for sign, one in known:
        if sign != known[0][0]:
            raise OptionError(
                f"labels along {dim!r} increase in one source and decrease in another",
                given=f"{known[0][1]}, {one}",
                allowed="one order for all sources",
                remedy=f"open those with xarray, use .sortby({dim!r}), and pass the Datasets",
            )
    return known[0][0]


def _check_distinct(dim: str, labels: Sequence[Labels]) -> None:
    """Check that no label occurs twice."""
    owners: dict[object, str] = {}
    for one in labels:
        for label in one.index:
            if label in owners:
                raise OptionError(
                    f"a label along {dim!r} occurs twice",
                    given=f"{label!r} in {owners[label]} and in {one.owner}",
                    allowed="each label once, in one source",
                    remedy="leave one of them out, or rename it with xarray",
                )
            owners[label] = one.owner


def different_kinds(dim: str, one: Labels, other: Labels) -> OptionError:
    """The error for labels of two kinds."""
    is_calendar = "dates" in one.kind and "dates" in other.kind
    return OptionError(
        f"labels along {dim!r} are of two kinds",
        given=f"{one.kind} in {one.owner}, {other.kind} in {other.owner}",
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


def _listed(names: list[str]) -> str:
    """Names in a row. If there are too many, the last ones are only counted."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def check_coordinates(sources: Sequence[Source], dim: str) -> None:
    """Check that labels continue along a dimension and agree along all others."""
    indexes = [source.coordinates().indexes for source in sources]
    bare = [number for number, own in enumerate(indexes) if dim not in own]
    if 0 < len(bare) < len(sources):
        labelled = next(number for number, own in enumerate(indexes) if dim in own)
        raise OptionError(
            f"only some sources have labels along {dim!r}",
            given=f"labels in {label_of(sources, labelled)}, none in {label_of(sources, bare[0])}",
            allowed="labels in all sources, or in none",
            remedy=f"add labels with xarray's .assign_coords({dim}=...), and pass the Dataset",
        )
    if not bare:
        labels = [
            Labels(label_of(sources, number), own[dim])
            for number, own in enumerate(indexes)
            if len(own[dim])
        ]
        check_labels(dim, labels)
    first = indexes[0]
    used = {str(d) for variable in sources[0].variables.values() for d in variable.dims}
    for other in sorted((used - {dim}) & set(first)):
        for number, own in enumerate(indexes):
            if other in own and not are_same_labels(first[other], own[other]):
                raise OptionError(
                    f"the labels along {other!r} differ between two sources",
                    given=f"{differing_labels(first[other], own[other])} "
                    f"in {label_of(sources, 0)} and {label_of(sources, number)}",
                    allowed=f"the same labels in all sources along all dimensions except {dim!r}",
                    remedy=order_remedy(other, first[other], own[other])
                    or "regrid them with xarray, or give them the same labels with "
                    ".assign_coords, and pass the Datasets",
                )


def differing_labels(one: Any, other: Any) -> str:
    """How the labels of two sources differ, in words."""
    if len(one) != len(other):
        return f"{len(one)} and {len(other)} labels"
    for place, (label, another) in enumerate(zip(one, other, strict=True)):
        if label != another and not are_same_labels(one[[place]], other[[place]]):
            return f"{label!r} and {another!r} at position {place}"
    return "labels that are not numbers"


def join_coordinates(parts: Sequence[Source], dim: str) -> xr.Dataset:
    """Join the coordinates of sources along a dimension.

    Coordinates without the dimension are taken from the first source. A coordinate along it is
    left out if some source lacks it or has it with other dimensions.
    """
    all_of = [part.coordinates() for part in parts]
    first = all_of[0]
    of_dim = [name for name, coord in first.coords.items() if dim in coord.dims]
    shared = [
        name
        for name in of_dim
        if all(name in one.coords and one[name].dims == first[name].dims for one in all_of)
    ]
    others = first.drop_vars(of_dim)
    if not shared:
        return others
    along = [_lazily(one.drop_vars([n for n in one.coords if n not in shared])) for one in all_of]
    joined = xr.concat(
        along,
        dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    return others.assign_coords(joined.coords)


def _lazily(coords: xr.Dataset) -> xr.Dataset:
    """Turn coordinates of several dimensions into dask arrays, to join them without reading."""
    wide = {
        name: coord.variable.chunk()
        for name, coord in coords.coords.items()
        if coord.ndim > 1 and not isinstance(coord.variable._data, np.ndarray)
    }
    return coords.assign_coords(wide)
