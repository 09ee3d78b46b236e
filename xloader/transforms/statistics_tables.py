"""Statistics of a variable as tables of numbers, in which samples look up rows of their own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, XloaderError
from xloader.forcings.calendar import CLOCKS, clock_rows
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import stored
from xloader.recipe.shared_elements import used_positions
from xloader.sources.combined.labels import find_labels
from xloader.transforms.sample_elements import places_along

Key = tuple[str, str | None]
"""A dimension along which each sample has rows of its own, and the clock of the rows."""

_TIMES: Final = (pd.DatetimeIndex, xr.CFTimeIndex)

Rows = Mapping[Key, Ints | slice]
"""By dimension and clock: rows of samples, of shape ``(n, count)``, or of one as in `each_of`."""


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
        """The numbers of some samples, along samples and ``dims``."""
        by_axis = {self.dims.index(key[0]): rows[key] for key in keys}
        is_one = not isinstance(first := rows[keys[0]], np.ndarray) or first.ndim == 1
        numbers = self._of_one(by_axis) if is_one else self._of_many(by_axis)
        if self.has_gaps and not np.isfinite(numbers).all():
            pairs = enumerate(self.shape)
            used = [np.arange(size)[by_axis.get(axis, slice(None))].ravel() for axis, size in pairs]
            named = self.clock_labels(~np.isfinite(self.values), used)
            raise OptionError(
                "a sample needs statistics that are missing",
                given=f"no number for {named or f'places along {list(self.dims)}'}",
                remedy="make the statistics from samples that cover these, or record normalize "
                "after all fields, where it looks for gaps",
            )
        sizes = dict(zip(self.dims, numbers.shape[1:], strict=True))
        shape = [len(numbers), *(sizes.get(dim, 1) for dim in dims)]
        return numbers.reshape(shape).astype(dtype, copy=False)

    def _of_one(self, rows: Mapping[int, Ints | slice]) -> NDArray[np.floating]:
        """The numbers of a single sample, by axis."""
        index: list[Any] = [rows.get(axis, slice(None)) for axis in range(len(self.dims))]
        listed = {axis: r for axis, r in enumerate(index) if not isinstance(r, slice)}
        # Slices come first, since they are not copied. Not by take, which would copy all of them.
        for axis in listed:
            index[axis] = slice(None)
        numbers: NDArray[np.floating] = self.values[tuple(index)]
        for axis, axis_rows in listed.items():
            numbers = numbers[(*(slice(None),) * axis, axis_rows)]
        return numbers[None]

    def _of_many(self, rows: Mapping[int, Any]) -> NDArray[np.floating]:
        """The numbers of several samples, by axis."""
        index = []
        for axis, size in enumerate(self.shape):
            axis_rows = rows.get(axis, np.arange(size)[None])
            rest = (1,) * (len(self.dims) - axis - 1)
            index.append(axis_rows.reshape(len(axis_rows), *(1,) * axis, axis_rows.shape[1], *rest))
        return np.asarray(self.values[tuple(index)])

    def clock_labels(self, is_bad: NDArray[np.bool_], used: list[Ints]) -> str:
        """The labels by the clock where a number is bad among those used of each axis, as text."""
        is_used = np.zeros(self.shape, np.bool_)
        is_used[np.ix_(*used)] = True
        texts = []
        for dim, clock in self.clocks:
            rest = tuple(axis for axis, other in enumerate(self.dims) if other != dim)
            labels = CLOCKS[clock][(is_bad & is_used).any(axis=rest)]
            texts.append(f"{clock} {', '.join(map(str, labels))}")
        return "; ".join(texts)

    def num_looked_up(self, layout: FieldLayout) -> int:
        """Number of values that are looked up for one sample of a field."""
        counts = [
            size if (taken := layout.elements_of(dim)) is None else len(taken)
            for dim, size in zip(self.dims, self.shape, strict=True)
        ]
        return math.prod(counts)


def each_of(rows: Ints) -> list[Ints | slice]:
    """The rows of each sample: a slice if they follow each other, or of one if all are the same."""
    steps = np.diff(rows, axis=1)
    is_run = (steps == 1).all(axis=1)
    sizes = np.where(steps.any(axis=1), is_run * rows.shape[1], 1)
    return [
        slice(first, first + size) if size else sample
        for sample, first, size in zip(rows, rows[:, 0].tolist(), sizes.tolist(), strict=True)
    ]


def rows_of(
    recipe: Recipe, layout: FieldLayout, tables: tuple[Table, ...], ids: Ints
) -> dict[Key, Ints]:
    """The rows of samples in some tables, along windowed dimensions."""
    keys = dict.fromkeys(key for table in tables for key in table.keys(layout))
    if not keys:
        return {}
    windows, positions = recipe.require_windows(), recipe.positions_of(ids)
    rows = dict[Key, Ints]()
    for dim, clock in keys:
        axis, taken = windows.dims.index(dim), layout.elements_of(dim)
        assert taken is not None
        places = places_along(recipe, axis, taken, positions[:, axis])
        rows[dim, clock] = places if clock is None else clock_rows_at(recipe, dim, clock, places)
    return rows


def clock_rows_at(recipe: Recipe, dim: str, clock: str, places: Ints | None = None) -> Ints:
    """Rows of a clock for the labels at some places of a dimension's selection, or at all."""
    kept = recipe.kept_of(dim)
    if places is None or isinstance(kept, int):
        elements = np.asarray(kept, np.int64)
    else:
        elements = stored(kept, places)
    return clock_rows(recipe.source.coordinates()[dim].to_numpy()[elements], clock)


def make_table(recipe: Recipe, name: str, word: str, value: Any, clock_dim: str | None) -> Table:
    """Make the table of a variable's means or standard deviations."""
    misfit = partial(_misfit, recipe, name, word)
    if not isinstance(value, xr.DataArray):
        numbers = np.asarray(value)
        dims = recipe.channel_dims(name)[: numbers.ndim]
        if len(dims) != numbers.ndim:
            raise misfit(f"{numbers.dtype} of shape {numbers.shape}")
        value = xr.DataArray(numbers, dims=dims)
    if value.dtype.kind not in "biuf":
        raise misfit(f"dtype {value.dtype}")
    coords, given = recipe.source.coordinates(), [str(dim) for dim in value.dims]
    dims, windowed = recipe.variable(name).dims, recipe.require_windows().dims
    time_dims = [dim for dim in dims if isinstance(coords.indexes.get(dim), _TIMES)]
    clocks = dict[str, str]()
    for dim in given:
        if dim in dims:
            selected = _as_selected(recipe, name, value, dim)
            if selected is None:
                raise misfit(f"{value.sizes[dim]} values along {dim!r}, or their labels")
            value = selected
            continue
        along = time_dims[0] if len(time_dims) == 1 else clock_dim
        if dim not in CLOCKS or along not in time_dims or along in (*given, *clocks):
            raise misfit(f"dimensions {tuple(given)}, and times along {time_dims}")
        whole, clocks[along] = _by_rows(name, word, value, dim, along), dim
        if along in windowed:
            value = whole.rename({dim: along})
        else:
            # Each selected time has its row at once.
            rows = clock_rows_at(recipe, along, dim)
            value = whole.isel({dim: xr.DataArray(rows, dims=[along] * rows.ndim)})
    dims = tuple(dim for dim in dims if dim in value.dims)
    kept = tuple((dim, clocks[dim]) for dim in dims if dim in clocks and dim in windowed)
    return _checked(recipe, name, word, Table.of(dims, value.transpose(*dims).to_numpy(), kept))


def _as_selected(recipe: Recipe, name: str, value: xr.DataArray, dim: str) -> xr.DataArray | None:
    """Statistics cut to the selection, by label if both have labels, else by position.

    None if they do not fit.
    """
    kept = recipe.kept_of(dim)
    elements, coords = np.asarray(kept, np.int64), recipe.source.coordinates()
    if dim in value.indexes and dim in coords.indexes:
        index, labels = value.indexes[dim], coords.indexes[dim][np.atleast_1d(elements)]
        places = find_labels(index, labels) if index.is_unique else np.array([-1])
        return None if (places < 0).any() else value.isel({dim: places.reshape(elements.shape)})
    if value.sizes[dim] == recipe.dim_sizes.get(dim):
        return value
    stored_size = recipe.axes_of(name)[recipe.variable(name).dims.index(dim)].stored_size
    if value.sizes[dim] != stored_size:
        return None
    return value.isel({dim: kept if isinstance(kept, int) else elements})


def _by_rows(name: str, word: str, value: xr.DataArray, clock: str, along: str) -> xr.DataArray:
    """Statistics with one row for each label of a clock; NaN where there is none."""
    labels, index = CLOCKS[clock], value.indexes.get(clock)
    if index is None or not index.is_unique or not np.isin(index.to_numpy(), labels).all():
        raise OptionError(
            f"the {word} of {name!r} has a dimension {clock!r} with other labels than those of "
            "xarray",
            given="no labels" if index is None else f"labels {index.to_numpy()}",
            allowed=f"each of {labels[0]} to {labels[-1]} at most once",
            remedy=f'group as ds.groupby("{along}.{clock}") does, or assign the coordinate {clock}',
        )
    return value.reindex({clock: labels}).drop_vars(clock)


def _checked(recipe: Recipe, name: str, word: str, table: Table) -> Table:
    """The table with NaN for numbers that cannot be used, if samples need none of these."""
    lowest = -np.inf if word == "mean" else 0.0
    bad = ~(np.isfinite(table.values) & (table.values > lowest))
    if not bad.any():
        return table
    used = _used_rows(recipe, name, table)
    missed = table.values[np.ix_(*used)][bad[np.ix_(*used)]]
    if not missed.size:
        return Table.of(table.dims, np.where(bad, np.nan, table.values), table.clocks)
    labels = table.clock_labels(bad, used)
    raise OptionError(
        f"the {word} of {name!r} cannot be used to normalise",
        given=f"{missed[0]}{labels and f' for {labels}'}",
        allowed="finite numbers" if word == "mean" else "finite numbers > 0",
        remedy=f"leave {name!r} out, or pass (0, 1) for it; for a month without data, make the "
        "statistics from samples that have it; if a map has gaps, such as land, or cells that "
        "never change, pass mean.fillna(0) and std.where(std > 0, 1)",
    )


def _used_rows(recipe: Recipe, name: str, table: Table) -> list[Ints]:
    """Rows that samples use along each dimension of a table."""
    windows, clocks = recipe.require_windows(), dict(table.clocks)
    used = used_positions(recipe) if set(table.dims) & set(windows.dims) else []
    try:
        layouts = make_layouts(recipe)
    except XloaderError:
        # Fields that do not fit together are refused where they are used.
        layouts = ()
    rows = []
    for dim, size in zip(table.dims, table.shape, strict=True):
        if dim not in windows.dims:
            rows.append(np.arange(size))
            continue
        axis = windows.dims.index(dim)
        # Whole windows where no field takes the variable.
        taken = {
            elements
            for layout in layouts
            if any(part.variable == name for part in layout.parts)
            and (elements := layout.elements_of(dim)) is not None
        } or {range(0, windows.spans[axis], windows.dilations[axis])}
        pieces = [places_along(recipe, axis, some, used[axis]).reshape(-1) for some in taken]
        places = np.unique(np.concatenate(pieces))
        clock = clocks.get(dim)
        dim_rows = places if clock is None else clock_rows_at(recipe, dim, clock, places)
        rows.append(np.unique(dim_rows))
    return rows


def _misfit(recipe: Recipe, name: str, word: str, given: str) -> OptionError:
    whole, flat = list(recipe.dims_of(name)), recipe.channel_dims(name)
    kinds = ["a number"]
    kinds += [f"an array along {', '.join(map(repr, flat))}"] if flat else []
    clocks = "month, dayofyear, hour or season of its times"
    kinds += [f"a DataArray along some of {whole}, or by {clocks}"] if whole else []
    return OptionError(
        f"the {word} of {name!r} does not fit the variable",
        given=given,
        allowed=", ".join(kinds),
        remedy="choose one of several leads by stats.sel(lead=..., drop=True); average over the "
        "other dimensions, and pass a DataArray that names those that are left; for a slab too, it "
        "covers the whole dimension",
    )
