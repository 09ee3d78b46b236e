"""Windows around the points of a table, found by label; its other columns, and weights.

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
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from xloader.core.axis import Ints
from xloader.core.messages import closest
from xloader.core.option_checks import check_choice
from xloader.core.point_table import LabelColumn, PointTable
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.errors import EmptySamplesError, OptionError, UnknownNameError, UnsupportedDataError
from xloader.recipe.label_lookup import elements_at, plain_dtype
from xloader.recipe.names import CHANNEL, LABEL, SAMPLE
from xloader.recipe.parse_windows import no_windows
from xloader.recipe.recipe import Recipe, find

_MOST_BYTES = 8
"""Bytes of the widest number of a label field: PyTorch has no wider ones."""


def read_columns(table: Any) -> dict[str, pd.Series]:
    """The columns of a table, by name."""
    if isinstance(table, xr.Dataset):
        return _of_dataset(table)
    if isinstance(table, pd.DataFrame):
        levels = [name for name in table.index.names if name is not None]
        index = table.index.to_frame(index=False)
        pairs = [(name, index[name]) for name in levels]
        pairs += [(name, table.iloc[:, place]) for place, name in enumerate(table.columns)]
    elif isinstance(table, Mapping):
        pairs = [(name, _as_series(name, values)) for name, values in table.items()]
    else:
        raise UnsupportedDataError(
            "this is not a table of points",
            given=f"{type(table).__module__}.{type(table).__qualname__}",
            remedy='pass a DataFrame, a Dataset of one dimension, or {"lat": lats, ...}',
        )
    return _checked(pairs)


def _of_dataset(table: xr.Dataset) -> dict[str, pd.Series]:
    if len(table.dims) != 1:
        raise OptionError(
            "the table of points does not have exactly one dimension",
            given=f"a Dataset with the dimensions {dict(table.sizes)}",
            remedy="pass ds.to_dataframe(), or ds.stack(point=[...]).reset_index('point')",
        )
    (dim,) = table.dims
    # A coordinate such as a fixed height holds for every point. Such columns come last.
    variables = sorted(table.variables.items(), key=lambda item: -item[1].ndim)
    return _checked(
        [
            (name, pd.Series(np.broadcast_to(variable.to_numpy(), table.sizes[dim])))
            for name, variable in variables
        ]
    )


def _as_series(name: object, values: Any) -> pd.Series:
    """A column of a mapping, without its own index: a mapping's columns match by place."""
    if isinstance(values, xr.DataArray | xr.Variable):
        values = values.to_numpy()
    if np.ndim(values) != 1:
        raise OptionError(
            f"the column {name!r} of the table is not 1-d",
            given=f"{type(values).__name__} with {np.ndim(values)} dimensions",
            remedy="pass a 1-d array; repeat a single value with np.full(num_points, value)",
        )
    return pd.Series(values)


def _checked(pairs: list[tuple[Any, pd.Series]]) -> dict[str, pd.Series]:
    names = [name for name, _ in pairs]
    wrong = [name for name in names if not isinstance(name, str)]
    repeated = sorted({name for name in names if names.count(name) > 1}, key=str)
    if wrong or repeated:
        raise OptionError(
            "the columns of the table have no names of their own"
            if wrong
            else "two columns of the table have one name",
            given=f"columns {names}",
            remedy="call table.rename(columns={...}), or table.reset_index(drop=True)",
        )
    lengths = {name: len(column) for name, column in pairs}
    if len(set(lengths.values())) > 1:
        raise OptionError(
            "the columns of the table differ in length",
            given=lengths,
            remedy="give each point a value in every column",
        )
    return {name: column.reset_index(drop=True) for name, column in pairs}


def label_column(name: str, column: pd.Series) -> LabelColumn:
    """A column as a label field: numbers and bools as they are, text as codes."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        _require_all(name, column)
        classes = tuple(map(str, dtype.categories))
        return LabelColumn(name, column.cat.codes.to_numpy().astype(np.int64), classes)
    content = pd.api.types.infer_dtype(column, skipna=True)
    if content == "string" or (content == "empty" and dtype.kind not in "biuf"):
        _require_all(name, column)
        codes, texts = pd.factorize(column.astype(object), sort=True)
        return LabelColumn(name, codes.astype(np.int64), tuple(map(str, texts)))
    numbers = _numbers(name, column, content)
    if numbers is None or numbers.dtype.kind not in "biuf" or numbers.itemsize > _MOST_BYTES:
        is_time = dtype.kind in "mM" or "date" in content or "time" in content
        raise UnsupportedDataError(
            f"the column {name!r} cannot become a field",
            given=f"dtype {dtype}, holding {content} values",
            remedy=(
                f"convert it to numbers, such as table[{name!r}].dt.dayofyear, rename it to the "
                "dimension whose labels it holds, or drop it"
                if is_time
                else f"convert it to numbers, bools, text or categories, or drop it: "
                f"table.drop(columns={name!r})"
            ),
        )
    return LabelColumn(name, numbers)


def _numbers(name: str, column: pd.Series, content: str) -> NDArray[Any] | None:
    """The numbers or bools of a column, in native byte order; None if it holds none."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        values: NDArray[Any] = column.to_numpy()
        # A copy, as the user may change the table later.
        return values.astype(values.dtype.newbyteorder("="), copy=True)
    if content == "floating" or content == "mixed-integer-float":
        return np.array(column.to_numpy(np.float64, na_value=np.nan))
    if content in ("integer", "boolean"):
        _require_all(name, column)
        wide = np.dtype(np.bool_ if content == "boolean" else np.int64)
        plain = plain_dtype(column)
        return np.array(column.to_numpy(wide if plain is None else plain))
    return None


def _require_all(name: str, column: pd.Series) -> None:
    missing = np.flatnonzero(pd.isna(column).to_numpy())
    if len(missing):
        raise OptionError(
            f"values are missing in the column {name!r}",
            given=f"{len(missing)} of {len(column)} rows, first row {missing[0]}",
            remedy=f'fill them, as with table[{name!r}].fillna("unknown"), or drop these rows: '
            f"table.dropna(subset=[{name!r}])",
        )


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
    remedy = 'pass outside="drop" to leave out the points that have no sample'
    check_choice("outside", rules.outside, ("raise", "drop"), remedy)
    if recipe.subset is not None:
        raise OptionError(
            "at_points comes too late: samples are chosen already",
            given=recipe.subset.describe(),
            remedy="call .at_points(...) right after the windows and fields, then .select",
        )
    # The same windows, but beginning at every element, gaps left out as before.
    windows = recipe.require_windows()
    windows = replace(windows, strides=(1,) * len(windows.dims), default_dims=())
    columns = read_columns(table)
    labels, field_columns = _labels_and_fields(recipe, windows, columns)
    num_points = len(next(iter(columns.values())))
    if not num_points:
        raise EmptySamplesError(
            "the table has no points",
            given=f"columns {list(columns)} without rows",
            remedy="check how the table was filtered",
        )
    fields = tuple(label_column(name, column) for name, column in field_columns.items())
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
            remedy='pass outside="raise" to see why, or a smaller window',
        )
    chosen = windows.ids_of(positions[kept])
    points = points if len(kept) == num_points else points.take(kept)
    return windows, Subset(len(windows), chosen, points=points)


def _labels_and_fields(
    recipe: Recipe, windows: Windows, columns: Mapping[str, pd.Series]
) -> tuple[dict[str, pd.Series], dict[str, pd.Series]]:
    """The columns that are labels of windowed dimensions, and those that become fields."""
    for dim in windows.dims:
        if dim not in columns:
            raise _no_column(recipe, windows, dim, columns)
    field_columns = {name: column for name, column in columns.items() if name not in windows.dims}
    dims = {dim for name in recipe.variables for dim in recipe.source.variables[name].dims}
    fields = {field.name for field in recipe.fields}
    coords = map(str, recipe.source.coordinates().coords)
    reserved = {SAMPLE, CHANNEL, *(dim + LABEL for dim in dims), *coords}
    for name in field_columns:
        if name in dims:
            raise OptionError(
                f"the column {name!r} names a dimension that has no windows",
                given=f"columns {list(columns)}, windows along {list(windows.dims)}",
                remedy=f"add {name!r} to .window(...), or rename or drop the column",
            )
        if not name or name in fields | reserved:
            raise OptionError(
                "a column of the table has a name that is already in use",
                given=repr(name),
                remedy=f'rename it: table.rename(columns={{{name!r}: "{name}_at_point"}})',
            )
    return {dim: columns[dim] for dim in windows.dims}, field_columns


def _no_column(
    recipe: Recipe, windows: Windows, dim: str, columns: Mapping[str, pd.Series]
) -> UnknownNameError:
    free = [name for name in columns if name not in recipe.dim_sizes]
    close = closest(dim, free) or next((n for n in free if n.lower().startswith(dim.lower())), None)
    renamed = f"rename the column {close!r}: table.rename(columns={{{close!r}: {dim!r}}}); or "
    return UnknownNameError(
        f"the table has no column for the windowed dimension {dim!r}",
        given=f"columns {list(columns)}",
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
        hits = elements_at(
            recipe, dim, labels[dim], methods[dim], tolerances[dim], is_circle=windows.wraps[axis]
        )
        if rules.outside == "raise":
            hits.require_all()
        elements[:, axis] = hits.elements
        is_matched &= hits.elements >= 0
    return elements, is_matched


def _by_dim(windows: Windows, word: str, given: Any, default: Any) -> dict[str, Any]:
    """An argument for each windowed dimension: the same for all, or from a mapping by name."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(windows.dims, given)
    for dim in given:
        if dim not in windows.dims:
            raise no_windows(word, dim, windows.dims)
    return {dim: given.get(dim, default) for dim in windows.dims}


def _begins_before(windows: Windows, at: Any) -> Ints:
    """How many elements before its point a window begins, along each dimension."""
    before = []
    chosen = _by_dim(windows, "at", at, "center")
    for dim, size, dilation in zip(
        windows.dims, windows.window_sizes, windows.dilations, strict=True
    ):
        places = {"center": size // 2, "start": 0, "end": size - 1}
        remedy = 'pass for example at={"time": "end"}: other dimensions stay centred'
        check_choice(f"at along {dim!r}", chosen[dim], tuple(places), remedy)
        before.append(places[chosen[dim]] * dilation)
    return np.array(before, np.int64)


def _positions(windows: Windows, starts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The position of each window along each dimension, and whether there is such a window.

    There is none where it would leave the array, or cross a gap.
    """
    positions = np.empty_like(starts)
    is_inside = np.ones(len(starts), np.bool_)
    for dim, count in enumerate(windows.num_positions):
        begins = starts[:, dim] % windows.dim_sizes[dim] if windows.wraps[dim] else starts[:, dim]
        nearest = np.minimum(windows.num_before(dim, begins), count - 1)
        is_inside &= windows.starts_of(dim, nearest) == begins
        positions[:, dim] = nearest
    return positions, is_inside


def _leaves_array(
    windows: Windows, labels: Mapping[str, pd.Series], elements: Ints, is_inside: NDArray[np.bool_]
) -> OptionError:
    row = int(np.flatnonzero(~is_inside)[0])
    named = ", ".join(f"{dim}={labels[dim].iloc[row]}" for dim in windows.dims)
    places = dict(zip(windows.dims, elements[row].tolist(), strict=True))
    extents = dict(zip(windows.dims, windows.extents, strict=True))
    return OptionError(
        "the windows of some points leave the array, or cross a gap",
        given=f"{np.count_nonzero(~is_inside)} of {len(labels[windows.dims[0]])} points, first row "
        f"{row}: {named}, at the elements {places}",
        allowed=f"windows that span {extents} elements, without a gap, in an array of "
        f"{dict(zip(windows.dims, windows.dim_sizes, strict=True))}",
        remedy='pass outside="drop" to leave them out, a smaller window, or at={"time": "end"}',
    )


def columns_by_name(recipe: Recipe) -> dict[str, LabelColumn]:
    """The label columns of a recipe's samples, by name."""
    return {column.name: column for column in recipe.label_columns}


def choose_weights(
    recipe: Recipe, weights: ArrayLike | None, balance: str | None, num_samples: int | None
) -> ArrayLike:
    """The weights that are given, or those that balance the classes of a column, or equal ones."""
    num_given = (weights is not None) + (balance is not None)
    if num_given == 2 or (num_given == 0 and num_samples is None):
        raise OptionError(
            "weighted takes either weights or balance",
            given="both" if num_given else "neither",
            remedy="leave one of them out"
            if num_given
            else "pass weights=, balance=, or num_samples= alone, where all weights are equal",
        )
    if balance is not None:
        return _balanced(recipe, balance)
    return np.ones(recipe.num_ids) if weights is None else weights


def _balanced(recipe: Recipe, name: str) -> NDArray[np.float64]:
    """One divided by the number of samples of the same class."""
    recipe.require_windows()
    columns = columns_by_name(recipe)
    find(name, columns, "column of at_points or open_classes")
    values = columns[name].values
    if values.dtype.kind == "f":
        raise OptionError(
            f"the column {name!r} holds floats, which are not classes",
            given=f"dtype {values.dtype}",
            remedy=f"make classes first: table.assign({name}=pd.cut(...)); or pass weights=",
        )
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[classes], np.float64)
