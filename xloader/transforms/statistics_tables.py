"""Statistics of a variable as tables for the samples: checked, selected, by label or by clock."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.clock_labels import CLOCKS, clock_rows
from xloader.errors import OptionError, XloaderError
from xloader.recipe.layout import Elements, FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import stored
from xloader.recipe.shared_elements import used_positions
from xloader.sources.combined.labels import find_labels
from xloader.transforms.sample_elements import places_along

Key = tuple[str, str | None]
"""A dimension along which each sample has rows of its own, and the clock of the rows."""

_Slices = list[slice | None]


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of samples along one dimension, of shape ``(n, count)``."""

    rows: Ints
    known: _Slices | None = None

    @cached_property
    def slices(self) -> _Slices:
        """For each sample, its rows as a slice; None if they do not follow each other.

        If all rows of a sample are the same, it is the slice of this one, which then broadcasts.
        """
        if self.known is not None:
            return self.known
        steps = np.diff(self.rows, axis=1)
        num = self.rows.shape[1]
        sizes = np.where(steps.any(axis=1), np.where((steps == 1).all(axis=1), num, 0), 1)
        return [
            slice(first, first + size) if size else None
            for first, size in zip(self.rows[:, 0].tolist(), sizes.tolist(), strict=True)
        ]

    def some(self, samples: slice, places: slice | None = None) -> TableRows:
        """The rows of some samples, at some places of each."""
        if places is not None:
            return TableRows(self.rows[samples, places])
        return TableRows(self.rows[samples], self.slices[samples])


Rows = dict[Key, TableRows]
"""By dimension and clock: the rows of samples."""


@dataclass(frozen=True, repr=False)
class Table:
    """Numbers along some dimensions of a variable, immutable and comparable."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    data: bytes
    clocks: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        dims: tuple[str, ...],
        values: NDArray[np.generic],
        clocks: tuple[tuple[str, str], ...] = (),
    ) -> Table:
        """Make a table from an array with the dimensions ``dims``."""
        values = np.asarray(values, np.float64, order="C")
        return cls(dims, values.shape, values.tobytes(), clocks)

    def __repr__(self) -> str:
        # Fingerprints are made from it: without a clock they are those of earlier releases.
        if not self.clocks:
            return f"Table(dims={self.dims!r}, shape={self.shape!r}, data={self.data!r})"
        digest = hashlib.sha256(self.data).hexdigest()
        return f"Table({self.dims!r}, {self.shape!r}, {self.clocks!r}, {digest})"

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The numbers, one axis for each of ``dims``; not writable."""
        return np.frombuffer(self.data, np.float64).reshape(self.shape)

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are rows without numbers."""
        return not np.isfinite(self.values).all()

    def __reduce__(self) -> tuple[object, ...]:
        # Cached values are left out.
        return Table, (self.dims, self.shape, self.data, self.clocks)

    def cut(self, dim: str, part: range) -> Table:
        """The numbers at some positions along a dimension; all if they do not vary along it."""
        if dim not in self.dims:
            return self
        values = self.values.take(part, axis=self.dims.index(dim))
        return Table.of(self.dims, values, self.clocks)

    def along(self, dims: tuple[str, ...], dtype: np.dtype) -> NDArray[np.floating]:
        """The values with one axis for each of ``dims``: of size 1 if they do not vary along it."""
        sizes = dict(zip(self.dims, self.shape, strict=True))
        return self.values.reshape([sizes.get(dim, 1) for dim in dims]).astype(dtype)

    def keys(self, layout: FieldLayout) -> list[Key]:
        """The dimensions along which samples of a field have rows of their own, with clocks."""
        clocks = dict(self.clocks)
        return [(dim, clocks.get(dim)) for dim in self.dims if layout.elements_of(dim) is not None]

    def at(
        self, dims: tuple[str, ...], keys: list[Key], rows: Rows, dtype: np.dtype
    ) -> NDArray[np.floating]:
        """The numbers of some samples."""
        rows_by_axis = {self.dims.index(key[0]): rows[key] for key in keys}
        num_samples = len(rows[keys[0]].rows)
        if num_samples == 1:
            numbers = self._of_one(rows_by_axis)
        elif len(rows_by_axis) == 1:
            ((axis, only),) = rows_by_axis.items()
            numbers = np.moveaxis(self.values.take(only.rows, axis), axis, 0)
        else:
            numbers = self._of_many(rows_by_axis)
        if self.has_gaps and not np.isfinite(numbers).all():
            raise self._gap_error(rows_by_axis)
        sizes = dict(zip(self.dims, numbers.shape[1:], strict=True))
        shape = [num_samples, *(sizes.get(dim, 1) for dim in dims)]
        return numbers.reshape(shape).astype(dtype, copy=False)

    def _of_one(self, rows: Mapping[int, TableRows]) -> NDArray[np.floating]:
        """The numbers of a single sample, by axis."""
        index = [slice(None)] * len(self.dims)
        listed = {}
        for axis, axis_rows in rows.items():
            piece = axis_rows.slices[0]
            if piece is None:
                listed[axis] = axis_rows.rows[0]
            else:
                index[axis] = piece
        # Slices come first, since they are not copied.
        numbers = self.values[tuple(index)]
        for axis, numbers_of_rows in listed.items():
            # Not by take, which would copy all of an array that is a part of another.
            numbers = numbers[(*(slice(None),) * axis, numbers_of_rows)]
        return numbers[None]

    def _of_many(self, rows: Mapping[int, TableRows]) -> NDArray[np.floating]:
        """The numbers of many samples that have rows along several dimensions, by axis."""
        index = []
        for axis, size in enumerate(self.shape):
            axis_rows = rows[axis].rows if axis in rows else np.arange(size)[None]
            rest = (1,) * (len(self.dims) - axis - 1)
            index.append(axis_rows.reshape(len(axis_rows), *(1,) * axis, axis_rows.shape[1], *rest))
        return np.asarray(self.values[tuple(index)])

    def _gap_error(self, rows: Mapping[int, TableRows]) -> OptionError:
        bad = ~np.isfinite(self.values)
        clocks, named = dict(self.clocks), []
        for axis, axis_rows in rows.items():
            rest = tuple(d for d in range(len(self.dims)) if d != axis)
            lacks = np.intersect1d(np.flatnonzero(bad.any(axis=rest)), axis_rows.rows)
            if clock := clocks.get(self.dims[axis]):
                named.append(f"{clock} {', '.join(map(str, CLOCKS[clock][lacks]))}")
        return OptionError(
            "a sample needs statistics that are missing",
            given=f"no number for {'; '.join(named) or f'places along {list(self.dims)}'}",
            allowed="statistics of all elements that samples need",
            remedy="make the statistics from samples that cover these, or record normalize after "
            "all fields, where it looks for gaps",
        )

    def num_looked_up(self, layout: FieldLayout) -> int:
        """Number of values that are looked up for one sample of a field."""
        sizes = dict(zip(self.dims, self.shape, strict=True))
        for dim in self.dims:
            taken = layout.elements_of(dim)
            sizes[dim] = sizes[dim] if taken is None else len(taken)
        return math.prod(sizes.values())


def rows_of(recipe: Recipe, layout: FieldLayout, tables: tuple[Table, ...], ids: Ints) -> Rows:
    """The rows of samples in some tables, along windowed dimensions."""
    keys = dict.fromkeys(key for table in tables for key in table.keys(layout))
    if not keys:
        return {}
    windows, positions = recipe.require_windows(), recipe.positions_of(ids)
    rows: Rows = {}
    for dim, clock in keys:
        axis, taken = windows.dims.index(dim), layout.elements_of(dim)
        assert taken is not None
        places = places_along(recipe, axis, taken, positions[:, axis])
        numbers = places if clock is None else clock_rows_at(recipe, dim, clock, places)
        rows[dim, clock] = TableRows(numbers)
    return rows


def clock_rows_at(recipe: Recipe, dim: str, clock: str, places: Ints) -> Ints:
    """Rows of a clock for the labels at some places of a dimension's selection."""
    kept = recipe.kept_of(dim)
    elements = np.asarray(kept) if isinstance(kept, int) else stored(kept, places)
    return clock_rows(recipe.source.coordinates()[dim].to_numpy()[elements], clock)


def make_table(recipe: Recipe, name: str, word: str, value: Any, clock_dim: str | None) -> Table:
    """Make the table of a variable's means or standard deviations."""
    if not isinstance(value, xr.DataArray):
        values = np.asarray(value)
        dims = recipe.channel_dims(name)[: values.ndim] if values.ndim else ()
        if values.dtype.kind not in "biuf" or len(dims) != values.ndim:
            raise _misfit(recipe, name, word, f"{values.dtype} of shape {values.shape}")
        value = xr.DataArray(values, dims=dims)
    stored_dims, given = recipe.variable(name).dims, [str(dim) for dim in value.dims]
    clocks: dict[str, str] = {}
    for dim in given:
        if dim in stored_dims:
            value = _as_selected(recipe, name, word, value, dim)
        elif dim in CLOCKS:
            along = _clock_dim(recipe, name, word, value, clock_dim)
            if along in given or along in clocks:
                raise _misfit(recipe, name, word, f"dimensions {value.dims}")
            value = _as_clock(recipe, name, word, value, dim, along)
            if along in value.dims and along in recipe.require_windows().dims:
                clocks[along] = dim
        else:
            raise _misfit(recipe, name, word, f"dimensions {value.dims}")
    dims = tuple(dim for dim in stored_dims if dim in value.dims)
    numbers = value.transpose(*dims).to_numpy()
    if numbers.dtype.kind not in "biuf":
        raise _misfit(recipe, name, word, f"dtype {numbers.dtype}")
    kept = tuple((dim, clocks[dim]) for dim in dims if dim in clocks)
    return _checked(recipe, name, word, Table.of(dims, numbers, kept))


def _as_selected(
    recipe: Recipe, name: str, word: str, value: xr.DataArray, dim: str
) -> xr.DataArray:
    """Statistics cut to the selection: by label if both have labels, else by position."""
    kept = recipe.kept_of(dim)
    elements: Any = kept if isinstance(kept, int) else np.asarray(kept, np.int64)
    coords = recipe.source.coordinates()
    if dim in value.indexes and dim in coords.indexes:
        index, labels = value.indexes[dim], coords.indexes[dim][np.atleast_1d(elements)]
        places = find_labels(index, labels) if index.is_unique else np.array([-1])
        if (places < 0).any():
            raise _misfit(recipe, name, word, f"labels {value[dim].to_numpy()}")
        return value.isel({dim: places.reshape(np.shape(elements))})
    if value.sizes[dim] == recipe.dim_sizes.get(dim):
        return value
    stored_size = recipe.axes_of(name)[recipe.variable(name).dims.index(dim)].stored_size
    if value.sizes[dim] != stored_size:
        raise _misfit(recipe, name, word, f"{value.sizes[dim]} values along {dim!r}")
    return value.isel({dim: elements})


def _clock_dim(
    recipe: Recipe, name: str, word: str, value: xr.DataArray, clock_dim: str | None
) -> str:
    """The dimension of times that a variable has."""
    coords = recipe.source.coordinates()
    time_dims = [
        dim
        for dim in recipe.variable(name).dims
        if dim in coords.indexes
        and isinstance(coords.indexes[dim], pd.DatetimeIndex | xr.CFTimeIndex)
    ]
    if clock_dim in time_dims:
        return str(clock_dim)
    if len(time_dims) != 1:
        named = f", of which none is {clock_dim!r}" if clock_dim else ""
        raise _misfit(
            recipe, name, word, f"dimensions {value.dims}, and times along {time_dims}{named}"
        )
    return time_dims[0]


def _as_clock(
    recipe: Recipe, name: str, word: str, value: xr.DataArray, clock: str, along: str
) -> xr.DataArray:
    """Statistics by month and so on, along the dimension of times.

    With windows along it, there is one row for each label of the clock; NaN where there is none.
    Otherwise there is one row for each selected time.
    """
    labels = CLOCKS[clock]
    index = value.indexes.get(clock)
    if index is None or not index.is_unique or not np.isin(index.to_numpy(), labels).all():
        listed = "no labels" if index is None else f"labels {index.to_numpy()}"
        raise OptionError(
            f"the {word} of {name!r} has a dimension {clock!r} with other labels than those of "
            "xarray",
            given=listed,
            allowed=f"each of {labels[0]} to {labels[-1]} at most once",
            remedy=f'group as ds.groupby("{along}.{clock}") does, or assign the coordinate {clock}',
        )
    whole = value.reindex({clock: labels}).drop_vars(clock)
    kept = recipe.kept_of(along)
    if along in recipe.require_windows().dims:
        return whole.rename({clock: along})
    if isinstance(kept, int):
        return whole.isel({clock: int(clock_rows_at(recipe, along, clock, np.array(0)))})
    rows = clock_rows_at(recipe, along, clock, np.arange(len(kept), dtype=np.int64))
    return whole.isel({clock: xr.DataArray(rows, dims=along)})


def _checked(recipe: Recipe, name: str, word: str, table: Table) -> Table:
    """The table with NaN for numbers that cannot be used, if samples need none of these."""
    lowest = -np.inf if word == "mean" else 0.0
    bad = ~(np.isfinite(table.values) & (table.values > lowest))
    if not bad.any():
        return table
    needed = _needed_rows(recipe, name, table)
    missed = bad[np.ix_(*needed)] if needed else bad
    if not missed.any():
        values = np.where(bad, np.nan, table.values)
        return Table.of(table.dims, values, table.clocks)
    misses = np.argwhere(missed).T
    places = [rows[rows_missed] for rows, rows_missed in zip(needed, misses, strict=True)]
    number = float(table.values[tuple(rows_missed[0] for rows_missed in places)])
    raise OptionError(
        f"the {word} of {name!r} cannot be used to normalise",
        given=f"{number}{_where(table, places)}",
        allowed="finite numbers" if word == "mean" else "finite numbers > 0",
        remedy=f"leave {name!r} out, or pass (0, 1) for it; for a month without data, make the "
        "statistics from samples that have it; if a map has gaps, such as land, or cells that "
        "never change, pass mean.fillna(0) and std.where(std > 0, 1)",
    )


def _needed_rows(recipe: Recipe, name: str, table: Table) -> list[Ints]:
    """Rows that samples need along each dimension of a table."""
    windows, clocks = recipe.require_windows(), dict(table.clocks)
    used = used_positions(recipe) if set(table.dims) & set(windows.dims) else []
    needed = []
    for dim, size in zip(table.dims, table.shape, strict=True):
        if dim not in windows.dims:
            needed.append(np.arange(size))
            continue
        axis = windows.dims.index(dim)
        pieces = [
            places_along(recipe, axis, elements, used[axis]).reshape(-1)
            for elements in _elements(recipe, name, dim)
        ]
        places = np.unique(np.concatenate(pieces))
        clock = clocks.get(dim)
        rows = places if clock is None else clock_rows_at(recipe, dim, clock, places)
        needed.append(np.unique(rows))
    return needed


def _elements(recipe: Recipe, name: str, dim: str) -> set[Elements]:
    """The elements of windows that fields take of a variable; whole windows without fields."""
    windows = recipe.require_windows()
    axis = windows.dims.index(dim)
    try:
        layouts = make_layouts(recipe)
    except XloaderError:
        # Fields that do not fit together are refused where they are used.
        layouts = ()
    taken = {
        elements
        for layout in layouts
        if any(part.variable == name for part in layout.parts)
        and (elements := layout.elements_of(dim)) is not None
    }
    return taken or {range(0, windows.spans[axis], windows.dilations[axis])}


def _where(table: Table, places: list[Ints]) -> str:
    """The clock labels of unusable numbers, for an error."""
    texts = [
        f"{clock} {', '.join(map(str, CLOCKS[clock][np.unique(places[table.dims.index(dim)])]))}"
        for dim, clock in table.clocks
    ]
    return f" for {'; '.join(texts)}" if texts else ""


def _that_fit(recipe: Recipe, name: str) -> str:
    whole, flat = list(recipe.dims_of(name)), recipe.channel_dims(name)
    kinds = ["a number"]
    kinds += [f"an array along {', '.join(map(repr, flat))}"] if flat else []
    clocks = "month, dayofyear, hour or season of its times"
    kinds += [f"a DataArray along some of {whole}, or by {clocks}"] if whole else []
    return ", ".join(kinds)


def _misfit(recipe: Recipe, name: str, word: str, given: str) -> OptionError:
    return OptionError(
        f"the {word} of {name!r} does not fit the variable",
        given=given,
        allowed=_that_fit(recipe, name),
        remedy="choose one of several leads by stats.sel(lead=..., drop=True); average over the "
        "other dimensions, and pass a DataArray that names those that are left; for a slab too, it "
        "covers the whole dimension",
    )
