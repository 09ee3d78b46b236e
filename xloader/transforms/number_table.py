"""Numbers along some dimensions of a variable, looked up for the elements of samples.

Along a dimension without windows, a table has a number for each selected element, and all samples
share them. Along a windowed dimension, each sample has elements of its own. Their rows are places
in the selection or, with a *clock*, the months (days of the year, hours, seasons) of their labels::

    table  (time: 12 months, lat: 3)            sample 7: times Jan 31, Feb 1; all lat

        time   row 0   1   2   ...  11          rows along time   0, 1
        lat        *   *                        rows along lat    all, as lat has no windows
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.clock_labels import CLOCKS, clock_rows
from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import stored
from xloader.transforms.sample_elements import places_along

Key = tuple[str, str | None]
"""A dimension along which each sample has rows of its own, and the clock of the rows."""

_Slices = list[slice | None]


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of samples along one dimension.

    `lines` has shape (n, count).
    """

    lines: Ints
    known: _Slices | None = None

    @cached_property
    def slices(self) -> _Slices:
        """For each sample, its rows as a slice; None if they do not follow each other.

        If all rows of a sample are the same, it is the slice of this one, which then broadcasts.
        """
        if self.known is not None:
            return self.known
        steps = np.diff(self.lines, axis=1)
        num = self.lines.shape[1]
        sizes = np.where(steps.any(axis=1), np.where((steps == 1).all(axis=1), num, 0), 1)
        return [
            slice(first, first + size) if size else None
            for first, size in zip(self.lines[:, 0].tolist(), sizes.tolist(), strict=True)
        ]

    def some(self, samples: slice, places: slice | None = None) -> TableRows:
        """The rows of some samples, at some places of each."""
        if places is not None:
            return TableRows(self.lines[samples, places])
        return TableRows(self.lines[samples], self.slices[samples])


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
        own = {self.dims.index(key[0]): rows[key] for key in keys}
        num_samples = len(rows[keys[0]].lines)
        if num_samples == 1:
            found = self._of_one(own)
        elif len(own) == 1:
            ((axis, only),) = own.items()
            found = np.moveaxis(self.values.take(only.lines, axis), axis, 0)
        else:
            found = self._of_many(own)
        if self.has_gaps and not np.isfinite(found).all():
            raise self._gap_error(own)
        sizes = dict(zip(self.dims, found.shape[1:], strict=True))
        shape = [num_samples, *(sizes.get(dim, 1) for dim in dims)]
        return found.reshape(shape).astype(dtype, copy=False)

    def _of_one(self, rows: Mapping[int, TableRows]) -> NDArray[np.floating]:
        """The numbers of a single sample, by axis."""
        index = [slice(None)] * len(self.dims)
        others = {}
        for axis, own in rows.items():
            piece = own.slices[0]
            if piece is None:
                others[axis] = own.lines[0]
            else:
                index[axis] = piece
        # Slices come first, since they are not copied.
        found = self.values[tuple(index)]
        for axis, line in others.items():
            # Not by take, which would copy all of an array that is a part of another.
            found = found[(*(slice(None),) * axis, line)]
        return found[None]

    def _of_many(self, rows: Mapping[int, TableRows]) -> NDArray[np.floating]:
        """The numbers of many samples that have rows along several dimensions, by axis."""
        index = []
        for axis, size in enumerate(self.shape):
            own = rows[axis].lines if axis in rows else np.arange(size)[None]
            rest = (1,) * (len(self.dims) - axis - 1)
            index.append(own.reshape(len(own), *(1,) * axis, own.shape[1], *rest))
        return np.asarray(self.values[tuple(index)])

    def _gap_error(self, rows: Mapping[int, TableRows]) -> OptionError:
        bad = ~np.isfinite(self.values)
        clocks, named = dict(self.clocks), []
        for axis, own in rows.items():
            others = tuple(other for other in range(len(self.dims)) if other != axis)
            lacks = np.intersect1d(np.flatnonzero(bad.any(axis=others)), own.lines)
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
    found: Rows = {}
    for dim, clock in keys:
        axis, taken = windows.dims.index(dim), layout.elements_of(dim)
        assert taken is not None
        places = places_along(recipe, axis, taken, positions[:, axis])
        lines = places if clock is None else clock_rows_at(recipe, dim, clock, places)
        found[dim, clock] = TableRows(lines)
    return found


def clock_rows_at(recipe: Recipe, dim: str, clock: str, places: Ints) -> Ints:
    """Rows of a clock for the labels at some places of a dimension's selection."""
    kept = recipe.kept_of(dim)
    elements = np.asarray(kept) if isinstance(kept, int) else stored(kept, places)
    return clock_rows(recipe.source.coordinates()[dim].to_numpy()[elements], clock)
