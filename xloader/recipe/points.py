"""Windows around the points of a table, found by label.

Along each windowed dimension, a point's label gives an element, and the window lies around it::

    element      0  1  2  3  4  5  6  7
    point                 *                  the element that the label names: 3
    window of 4     x  x  x  x               at="center": begins 4 // 2 = 2 elements before
                          x  x  x  x         at="start"
              x  x  x  x                     at="end"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import closest
from xloader.core.point_table import LabelColumn, PointTable
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.errors import (
    EmptySamplesError,
    OptionError,
    UnknownNameError,
    WindowError,
)
from xloader.recipe.label_lookup import elements_at
from xloader.recipe.names import CHANNEL, LABEL, SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.recipe.table_columns import label_column, read_columns

At = Literal["center", "start", "end"]
"""Where in its window a point lies."""


@dataclass(frozen=True)
class PointRules:
    """The arguments of `Samples.at_points` beside the table; each may be a mapping by dimension."""

    method: Any = None
    tolerance: Any = None
    at: Any = "center"
    outside: Any = "raise"


def place_points(recipe: Recipe, table: Any, rules: PointRules) -> tuple[Windows, Subset]:
    """The windows around the points of a table, and which of them are samples."""
    if rules.outside not in ("raise", "drop"):
        raise OptionError(
            "outside is not one of the choices",
            given=f"outside={rules.outside!r}",
            allowed='"raise" or "drop"',
            remedy='pass outside="drop" to leave out the points that have no sample',
        )
    if recipe.subset is not None:
        raise OptionError(
            "at_points comes too late: samples are chosen already",
            given=recipe.subset.describe(),
            allowed="at_points once, before select and weighted",
            remedy="call .at_points(...) right after the windows and fields, then .select",
        )
    windows = _everywhere(recipe.require_windows())
    columns = read_columns(table)
    labels, others = _told_apart(recipe, windows, columns)
    num_points = len(next(iter(columns.values())))
    if not num_points:
        raise EmptySamplesError(
            "the table has no points",
            given=f"columns {list(columns)} without rows",
            allowed="at least one row",
            remedy="check how the table was filtered",
        )
    fields = tuple(label_column(name, column) for name, column in others.items())
    elements, is_matched = _look_up(recipe, windows, labels, rules)
    starts = elements - _begins_before(windows, rules.at)
    positions, is_inside = _positions(windows, starts)
    if rules.outside == "raise" and not is_inside.all():
        raise _leaves_array(windows, labels, elements, is_inside)
    kept = np.flatnonzero(is_matched & is_inside)
    points = PointTable(
        fields,
        num_points,
        num_unmatched=int(np.count_nonzero(~is_matched)),
        num_cut=int(np.count_nonzero(is_matched & ~is_inside)),
    )
    if not len(kept):
        raise EmptySamplesError(
            "no point of the table has a sample",
            given=f"left out: {points.left_out}",
            allowed="at least one point whose window lies in the array",
            remedy='pass outside="raise" to see why, or a smaller window',
        )
    chosen = windows.ids_of(positions[kept])
    return windows, Subset(len(windows), chosen, points=_taken(points, kept))


def _taken(points: PointTable, kept: Ints) -> PointTable:
    return points if len(kept) == points.num_points else points.take(kept)


def _everywhere(windows: Windows) -> Windows:
    """The same windows, but beginning at every element, gaps left out as before."""
    return replace(windows, strides=(1,) * len(windows.dims), default_dims=())


def _told_apart(
    recipe: Recipe, windows: Windows, columns: Mapping[str, pd.Series]
) -> tuple[dict[str, pd.Series], dict[str, pd.Series]]:
    """The columns that are labels of windowed dimensions, and those that become fields."""
    for dim in windows.dims:
        if dim not in columns:
            raise _no_column(recipe, windows, dim, columns)
    others = {name: column for name, column in columns.items() if name not in windows.dims}
    dims = {dim for name in recipe.variables for dim in recipe.source.variables[name].dims}
    fields = {field.name for field in recipe.fields}
    coords = map(str, recipe.source.coordinates().coords)
    reserved = {SAMPLE, CHANNEL, *(dim + LABEL for dim in dims), *coords}
    for name in others:
        if name in dims:
            raise OptionError(
                f"the column {name!r} names a dimension that has no windows",
                given=f"columns {list(columns)}, windows along {list(windows.dims)}",
                allowed="columns of windowed dimensions, and names that are no dimension",
                remedy=f"add {name!r} to .window(...), or drop or rename the column: "
                f"table.drop(columns={name!r})",
            )
        if not name or name in fields | reserved:
            raise OptionError(
                "a column of the table has a name that is already in use",
                given=repr(name),
                allowed=f"a name other than those of the fields {sorted(fields)}, of coordinates "
                f"of the data, {SAMPLE!r}, {CHANNEL!r} and '<dimension>{LABEL}'",
                remedy=f'rename it: table.rename(columns={{{name!r}: "{name}_at_point"}})',
            )
    return {dim: columns[dim] for dim in windows.dims}, others


def _no_column(
    recipe: Recipe, windows: Windows, dim: str, columns: Mapping[str, pd.Series]
) -> UnknownNameError:
    free = [name for name in columns if name not in recipe.dim_sizes]
    close = closest(dim, free) or next((n for n in free if n.lower().startswith(dim.lower())), None)
    renamed = f"rename the column {close!r}: table.rename(columns={{{close!r}: {dim!r}}}); or "
    return UnknownNameError(
        f"the table has no column for the windowed dimension {dim!r}",
        given=f"columns {list(columns)}",
        allowed=f"a column of labels for each of {list(windows.dims)}",
        remedy=f"{renamed if close else ''}add the column; or, to take all of {dim!r} for each "
        f"point, leave {dim!r} out of .window(...)",
    )


def _look_up(
    recipe: Recipe, windows: Windows, labels: Mapping[str, pd.Series], rules: PointRules
) -> tuple[Ints, NDArray[np.bool_]]:
    """Element of each point along each dimension, shape (n, num_dims), and whether there is one."""
    methods = _by_dim(windows, "method", rules.method, None)
    tolerances = _by_dim(windows, "tolerance", rules.tolerance, None)
    if not isinstance(rules.tolerance, Mapping) and any(methods.values()):
        # One tolerance for all holds where a method asks for the closest label.
        tolerances = {dim: tolerances[dim] if methods[dim] else None for dim in windows.dims}
    elements = np.empty((len(next(iter(labels.values()))), len(windows.dims)), np.int64)
    is_matched = np.ones(len(elements), np.bool_)
    for axis, dim in enumerate(windows.dims):
        found = elements_at(
            recipe, dim, labels[dim], methods[dim], tolerances[dim], is_circle=windows.wraps[axis]
        )
        if rules.outside == "raise":
            found.require_all()
        elements[:, axis] = found.elements
        is_matched &= found.elements >= 0
    return elements, is_matched


def _by_dim(windows: Windows, word: str, given: Any, default: Any) -> dict[str, Any]:
    """An argument for each windowed dimension: the same for all, or from a mapping by name."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(windows.dims, given)
    for dim in given:
        if dim not in windows.dims:
            raise UnknownNameError(
                f"{word} is given for a dimension without windows",
                given=repr(dim),
                allowed=list(windows.dims),
                remedy=f"leave {dim!r} out, or add it to .window(...)",
            )
    return {dim: given.get(dim, default) for dim in windows.dims}


def _begins_before(windows: Windows, at: Any) -> Ints:
    """How many elements before its point a window begins, along each dimension."""
    before = []
    chosen = _by_dim(windows, "at", at, "center")
    for dim, size, dilation in zip(
        windows.dims, windows.window_sizes, windows.dilations, strict=True
    ):
        places = {"center": size // 2, "start": 0, "end": size - 1}
        if not isinstance(chosen[dim], str) or chosen[dim] not in places:
            raise OptionError(
                f"at is not one of the choices along {dim!r}",
                given=f"at={at!r}",
                allowed='"center", "start" or "end", or a mapping of dimensions to these',
                remedy='pass, for example, at={"time": "end"}: other dimensions stay centred',
            )
        before.append(places[chosen[dim]] * dilation)
    return np.array(before, np.int64)


def _positions(windows: Windows, starts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The position of each window along each dimension, and whether there is such a window.

    There is none where it would leave the array, or cross a gap.
    """
    positions = np.empty_like(starts)
    is_inside = np.ones(len(starts), np.bool_)
    for dim, count in enumerate(windows.num_positions):
        own = starts[:, dim] % windows.dim_sizes[dim] if windows.wraps[dim] else starts[:, dim]
        found = np.minimum(windows.num_before(dim, own), count - 1)
        is_inside &= windows.starts_of(dim, found) == own
        positions[:, dim] = found
    return positions, is_inside


def _leaves_array(
    windows: Windows, labels: Mapping[str, pd.Series], elements: Ints, is_inside: NDArray[np.bool_]
) -> WindowError:
    row = int(np.flatnonzero(~is_inside)[0])
    named = ", ".join(f"{dim}={labels[dim].iloc[row]}" for dim in windows.dims)
    places = dict(zip(windows.dims, elements[row].tolist(), strict=True))
    extents = dict(zip(windows.dims, windows.extents, strict=True))
    return WindowError(
        "the windows of some points leave the array, or cross a gap",
        given=f"{np.count_nonzero(~is_inside)} of {len(labels[windows.dims[0]])} points, first row "
        f"{row}: {named}, at the elements {places}",
        allowed=f"windows that span {extents} elements, without a gap, in an array of "
        f"{dict(zip(windows.dims, windows.dim_sizes, strict=True))}",
        remedy='pass outside="drop" to leave these points out, a smaller window, or another place '
        'of the point in it, such as at={"time": "end"}',
    )


def columns_by_name(recipe: Recipe) -> dict[str, LabelColumn]:
    """The label columns of a recipe's samples, by name."""
    return {column.name: column for column in recipe.label_columns}
