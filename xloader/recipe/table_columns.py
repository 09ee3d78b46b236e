"""Columns of a user's table: read from several kinds of tables, and turned into label fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
from numpy.typing import NDArray

from xloader.core.point_table import LabelColumn
from xloader.errors import OptionError, StackError, UnsupportedDataError

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
            allowed="a pandas DataFrame, an xarray Dataset with one dimension, or a mapping of "
            "names to 1-d arrays",
            remedy='pass, for example, {"time": times, "lat": lats, "lon": lons}',
        )
    return _checked(pairs)


def _of_dataset(table: xr.Dataset) -> dict[str, pd.Series]:
    if len(table.dims) != 1:
        raise StackError(
            "the table of points does not have exactly one dimension",
            given=f"a Dataset with the dimensions {dict(table.sizes)}",
            allowed="variables and coordinates along one dimension, one element for each point",
            remedy="pass ds.to_dataframe(), or ds.stack(point=[...]).reset_index('point')",
        )
    (dim,) = table.dims
    along = {name: own for name, own in table.variables.items() if own.dims == (dim,)}
    scalars = {name: own for name, own in table.variables.items() if own.dims == ()}
    size = table.sizes[dim]
    pairs = [(name, pd.Series(own.to_numpy())) for name, own in along.items()]
    # A coordinate such as a fixed height holds for every point.
    pairs += [(name, pd.Series(np.full(size, own.to_numpy()))) for name, own in scalars.items()]
    return _checked(pairs)


def _as_series(name: object, values: Any) -> pd.Series:
    """A column of a mapping, without its own index: a mapping's columns match by place."""
    if isinstance(values, xr.DataArray | xr.Variable):
        values = values.to_numpy()
    if np.ndim(values) != 1:
        raise StackError(
            f"the column {name!r} of the table is not 1-d",
            given=f"{type(values).__name__} with {np.ndim(values)} dimensions",
            allowed="one value for each point",
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
            allowed="names that are text, each once; named levels of the index are columns too",
            remedy="rename them with table.rename(columns={...}), or drop the index with "
            "table.reset_index(drop=True)",
        )
    lengths = {name: len(column) for name, column in pairs}
    if len(set(lengths.values())) > 1:
        raise StackError(
            "the columns of the table differ in length",
            given=lengths,
            allowed="one length for all columns",
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
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind == "string" or (kind == "empty" and dtype.kind not in "biuf"):
        _require_all(name, column)
        codes, texts = pd.factorize(column.astype(object), sort=True)
        return LabelColumn(name, codes.astype(np.int64), tuple(map(str, texts)))
    numbers = _numbers(name, column, kind)
    if numbers is None or numbers.dtype.kind not in "biuf" or numbers.itemsize > _MOST_BYTES:
        is_time = dtype.kind in "mM" or "date" in kind or "time" in kind
        raise UnsupportedDataError(
            f"the column {name!r} cannot become a field",
            given=f"dtype {dtype}, holding {kind} values",
            allowed="numbers, bools, text and categories, or the labels of a windowed dimension",
            remedy=f"convert it to numbers, such as table[{name!r}].dt.dayofyear, rename it to the "
            "dimension whose labels it holds, or drop it"
            if is_time
            else f"convert it, or drop it: table.drop(columns={name!r})",
        )
    return LabelColumn(name, numbers)


def _numbers(name: str, column: pd.Series, kind: str) -> NDArray[Any] | None:
    """The numbers or bools of a column, in native byte order; None if it holds none."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        values: NDArray[Any] = column.to_numpy()
        # A copy, as the user may change the table later.
        return values.astype(values.dtype.newbyteorder("="), copy=True)
    if kind == "floating" or kind == "mixed-integer-float":
        return np.array(column.to_numpy(np.float64, na_value=np.nan))
    if kind in ("integer", "boolean"):
        _require_all(name, column)
        # Dtypes of pandas, such as Int16, know NumPy's dtype of the same width.
        plain = getattr(column.dtype, "numpy_dtype", None)
        wide = np.dtype(np.bool_ if kind == "boolean" else np.int64)
        is_known = isinstance(plain, np.dtype) and plain.kind in "biuf"
        return np.array(column.to_numpy(plain if is_known else wide))
    return None


def _require_all(name: str, column: pd.Series) -> None:
    missing = np.flatnonzero(pd.isna(column).to_numpy())
    if len(missing):
        raise OptionError(
            f"values are missing in the column {name!r}",
            given=f"{len(missing)} of {len(column)} rows, first row {missing[0]}",
            allowed="a value in every row; only floating numbers may be NaN",
            remedy=f'fill them, as with table[{name!r}].fillna("unknown"), or drop these rows: '
            f"table.dropna(subset=[{name!r}])",
        )
