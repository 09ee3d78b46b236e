"""Look up many labels along a dimension, as xarray's ``sel`` does, and say which are not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, UnknownNameError, UnsupportedDataError
from xloader.recipe.label_steps import FULL_TURN, OPEN_SHARE
from xloader.recipe.recipe import Recipe
from xloader.sources.combined.labels import find_labels, is_time_index

_DROP = (
    'drop the rows: table = table[...], or pass outside="drop" to leave out and count the points '
    "that have no sample"
)
"""Advice on points without a sample."""


@dataclass(frozen=True, eq=False)
class LabelHits:
    """The elements that labels of points name along one dimension."""

    dim: str
    labels: pd.Series
    elements: Ints
    allowed: str
    remedy: str

    def require_all(self) -> None:
        """Refuse labels that name no element."""
        rows = np.flatnonzero(self.elements < 0)
        if len(rows):
            raise UnknownNameError(
                f"some points lie off the grid along {self.dim!r}",
                given=f"{len(rows)} of {len(self.labels)} points, first row {rows[0]}: "
                f"{self.dim}={self.labels.iloc[rows[0]]}",
                allowed=self.allowed,
                remedy=self.remedy,
            )


def elements_at(
    recipe: Recipe,
    dim: str,
    labels: pd.Series,
    method: Any,
    tolerance: Any,
    *,
    is_circle: bool = False,
) -> LabelHits:
    """The selected elements that labels name along a dimension.

    `is_circle`: if its labels go once round a circle of 360 degrees, labels are then looked for on
    the circle: 359.6 lies 0.4 from 0.
    """
    _check_method(dim, method, tolerance)
    is_missing = pd.isna(labels).to_numpy()
    if is_missing.any():
        rows = np.flatnonzero(is_missing)
        raise OptionError(
            f"labels of points are missing in the column {dim!r}",
            given=f"{len(rows)} of {len(labels)} rows are NaN, first row {rows[0]}",
            remedy=f"drop these rows: table.dropna(subset=[{dim!r}])",
        )
    plain = plain_dtype(labels)
    labels = labels if plain is None else labels.astype(plain)
    coords = recipe.source.coordinates()
    if dim not in coords.indexes:
        return _at_positions(dim, labels, recipe.dim_sizes[dim])
    index = selected_index(recipe, coords, dim)
    _check_index(dim, index, method)
    wanted = _as_labels_of(dim, index, labels, coords[dim].dtype)
    size = len(index)
    if is_circle and is_closed(index):
        # The labels with the first one at the end again, and those wanted counted from it.
        index, first = index.astype(np.float64), float(index[0])
        turn = FULL_TURN if index[-1] > first else -FULL_TURN
        # The remainder has the sign of the turn.
        wanted = pd.Index(first + np.mod(wanted.to_numpy(np.float64) - first, turn))
        index = index.append(pd.Index([first + turn]))
    try:
        elements = find_labels(index, wanted, method, tolerance)
        if method is not None and tolerance is None:
            elements = np.where(_is_beyond(index, wanted), -1, elements)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise OptionError(
            f"these labels of {dim!r} cannot be looked up: {error}",
            given=f"labels of {labels.dtype}, method={method!r}, tolerance={tolerance!r}",
            allowed=f"labels like those of {dim!r}, {_known(index)}, and a distance between them",
            remedy='pass a tolerance for each dimension, such as {"lat": 0.5, "time": "1h"}',
        ) from error
    missed = wanted[elements < 0]
    # The first label stands at the end of a circle again.
    places = np.where(elements < 0, -1, elements % size)
    return LabelHits(dim, labels, places, _known(index), _remedy(dim, index, missed, method))


def plain_dtype(labels: pd.Series) -> np.dtype | None:
    """NumPy's dtype that equals one of pandas' own, such as Int64; None for any other dtype."""
    plain = getattr(labels.dtype, "numpy_dtype", None)
    return plain if isinstance(plain, np.dtype) and plain.kind in "biuf" else None


def selected_index(recipe: Recipe, coords: xr.Dataset, dim: str) -> pd.Index:
    """The selected labels of a dimension. They are in memory, so looking them up is cheap."""
    kept = recipe.kept_of(dim)
    assert not isinstance(kept, int)
    where = slice(kept.start, kept.stop, kept.step) if isinstance(kept, range) else list(kept)
    return coords.indexes[dim][where]


def _check_method(dim: str, method: Any, tolerance: Any) -> None:
    if method not in (None, "nearest") or (method is None and tolerance is not None):
        raise OptionError(
            f"method and tolerance do not fit along {dim!r}",
            given=f"method={method!r}, tolerance={tolerance!r}",
            remedy='pass method="nearest", with a tolerance or without; or neither of them',
        )


def _at_positions(dim: str, labels: pd.Series, size: int) -> LabelHits:
    """Along a dimension without labels, whole numbers count its selected elements."""
    numbers = labels.to_numpy()
    if numbers.dtype.kind not in "iuf" or (numbers != np.floor(numbers)).any():
        raise UnsupportedDataError(
            f"the dimension {dim!r} has no labels, and the column {dim!r} no positions",
            given=f"values of {labels.dtype}, such as {labels.iloc[0]}",
            remedy=f"pass whole numbers in [0, {size}), or ds.assign_coords({dim}=...)",
        )
    elements = np.where((numbers >= 0) & (numbers < size), numbers, -1).astype(np.int64)
    allowed = f"positions in [0, {size}), as {dim!r} has no labels"
    return LabelHits(dim, labels, elements, allowed, _DROP)


def _check_index(dim: str, index: pd.Index, method: Any) -> None:
    """Refuse labels that name several elements, or whose neighbours are not neighbours."""
    if method is not None and _is_text(index):
        raise OptionError(
            f"the labels of the dimension {dim!r} are text, of which none is the nearest",
            given=f"method={method!r}, labels such as {index[0]!r}",
            remedy='pass the method by dimension, such as {"time": "nearest"}',
        )
    if not index.is_unique:
        repeated = index[index.duplicated()]
        raise OptionError(
            f"labels of the dimension {dim!r} occur more than once, so a point has no one place",
            given=f"{len(repeated)} repeated labels, first {repeated[0]}",
            remedy=f"drop them, as with ds.drop_duplicates({dim!r}).xloader, or by .isel",
        )
    is_sorted = index.is_monotonic_increasing or index.is_monotonic_decreasing
    # Names of stations have no order that means a distance.
    if not is_sorted and not _is_text(index):
        steps = np.sign(np.diff(np.argsort(index.argsort())))
        first = int(np.flatnonzero(steps != steps[0])[0]) + 1
        raise OptionError(
            f"the labels of the dimension {dim!r} are not sorted, so neighbours in a window would "
            "not be neighbours of the point",
            given=f"{index[first - 1]}, {index[first]}, {index[first + 1]} at the elements "
            f"{first - 1} to {first + 1}",
            remedy=f"sort the xarray Dataset first: ds.sortby({dim!r}).xloader",
        )


def _as_labels_of(dim: str, index: pd.Index, labels: pd.Series, dtype: np.dtype) -> Any:
    """The labels in the type in which xarray looks them up in the index."""
    misfit = UnsupportedDataError(
        f"the labels of points are of another kind than those of the dimension {dim!r}",
        given=f"{labels.dtype}, such as {labels.iloc[0]}",
        allowed=f"labels like {index[0]} "
        f"({type(index[0]).__name__ if _is_text(index) or index.dtype == object else index.dtype})",
        remedy=_conversion(dim, index, labels),
    )
    if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        return _as_times(index, labels, misfit)
    if index.dtype.kind in "biuf":
        if labels.dtype.kind not in "iuf":
            raise misfit
        values = labels.to_numpy()
        # As xarray does: 0.1 finds the label 0.1 of a coordinate in float32.
        return pd.Index(values.astype(dtype) if dtype.kind == "f" else values)
    wanted = pd.Index(labels.astype(object))
    if isinstance(index, xr.CFTimeIndex):
        is_fine = {getattr(date, "calendar", None) for date in wanted} == {index.calendar}
    else:
        is_fine = all(isinstance(name, str) for name in wanted)
    if not is_fine:
        raise misfit
    return wanted


def _as_times(index: pd.Index, labels: pd.Series, misfit: UnsupportedDataError) -> pd.Index:
    """Times, or time spans; text is read as ISO 8601."""
    if labels.dtype.kind in "biuf":
        raise misfit
    try:
        if isinstance(index, pd.TimedeltaIndex):
            wanted = pd.Index(pd.to_timedelta(labels))
        elif pd.api.types.infer_dtype(labels) == "string":
            wanted = pd.Index(pd.to_datetime(labels, format="ISO8601"))
        else:
            wanted = pd.Index(pd.to_datetime(labels))
    except (TypeError, ValueError) as error:
        raise misfit from error
    if wanted.dtype.kind != index.dtype.kind or getattr(wanted, "tz", None) is not None:
        raise misfit
    return wanted


def _conversion(dim: str, index: pd.Index, labels: pd.Series) -> str:
    column = f"table[{dim!r}]"
    if isinstance(index, xr.CFTimeIndex):
        calendar = index.calendar
        return (
            f"convert the column to cftime dates of the calendar {calendar!r}, or the Dataset to "
            'NumPy dates: ds.convert_calendar("standard", use_cftime=False).xloader'
        )
    if isinstance(index, pd.DatetimeIndex):
        if getattr(labels.dtype, "tz", None) is not None:
            return f'remove the time zone: {column}.dt.tz_convert("UTC").dt.tz_localize(None)'
        return f"convert the column: pd.to_datetime({column})"
    if index.dtype.kind in "biuf":
        return f"convert the column: pd.to_numeric({column})"
    return f"convert the column, as with {column}.astype(str)"


def _is_text(index: pd.Index) -> bool:
    return not isinstance(index, xr.CFTimeIndex) and index.dtype.kind not in "biufmM"


def is_closed(index: pd.Index) -> bool:
    """Whether labels go once round a circle of 360 degrees."""
    if index.dtype.kind not in "iuf" or len(index) < 2:
        return False
    step = abs(float(index[-1]) - float(index[0])) / (len(index) - 1)
    return abs(step * len(index) - FULL_TURN) <= OPEN_SHARE * FULL_TURN


def _is_beyond(index: pd.Index, wanted: pd.Index) -> NDArray[np.bool_]:
    """Whether labels lie beyond the first or the last one by more than half a step."""
    if len(index) < 2 or _is_text(index):
        return np.zeros(len(wanted), np.bool_)
    if not is_time_index(index):
        # Differences of unsigned integers would wrap.
        index, wanted = index.astype(np.float64), wanted.astype(np.float64)
    if index[0] > index[-1]:
        index = index[::-1]
    # A little more than half: 0.1 is not an exact number.
    half = 0.5 * (1 + 1e-6)
    is_below = index[0] - wanted > (index[1] - index[0]) * half
    is_above = wanted - index[-1] > (index[-1] - index[-2]) * half
    return np.asarray(is_below | is_above, np.bool_)


def _remedy(dim: str, index: pd.Index, missed: Any, method: Any) -> str:
    """Advice on labels that name no element."""
    if index.dtype.kind in "iuf" and len(missed):
        low, high = float(index.min()), float(index.max())
        values = np.asarray(missed, np.float64)
        east = np.mod(values, FULL_TURN)
        west = np.mod(values + FULL_TURN / 2, FULL_TURN) - FULL_TURN / 2
        for turned, text in ((east, "% 360"), (west, "+ 180) % 360 - 180")):
            is_other = np.abs(turned - values) > FULL_TURN / 2
            if (is_other & (turned >= low) & (turned <= high)).any():
                opened = "(" if text.startswith("+") else ""
                return (
                    f"if {dim!r} is a longitude, count it as the grid does: "
                    f"table[{dim!r}] = {opened}table[{dim!r}] {text}; or {_DROP}"
                )
        if is_closed(index) and ((values < low) | (values > high)).any():
            return f"pass wrap={dim!r} to .window(...), as its labels close a circle; or {_DROP}"
    if method is None and not _is_text(index):
        return f'pass method="nearest" to take the closest label; or {_DROP}'
    if method is None:
        return f"check the spelling; or {_DROP}"
    return f"pass a larger tolerance, in the unit of {dim!r}; or {_DROP}"


def _known(index: pd.Index) -> str:
    """The labels that exist, in words."""
    if _is_text(index):
        return f"{len(index)} labels such as {', '.join(map(repr, index[:3]))}"
    return f"labels from {index[0]} to {index[-1]}"
