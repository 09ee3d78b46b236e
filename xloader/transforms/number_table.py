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

Rows = dict[tuple[str, str | None], Ints]
"""By dimension and clock: the rows of samples, shape ``(n, count)``."""


@dataclass(frozen=True, repr=False)
class Table:
    """Numbers along some dimensions of a variable, immutable and comparable.

    Parameters
    ----------
    dims : tuple of str
        Dimensions, in the variable's order.
    shape : tuple of int
        Number of rows along each of them: its selected elements, or the labels of its clock.
    data : bytes
        The values as float64 in native byte order; NaN in rows that no sample needs.
    clocks : tuple of (str, str)
        Dimensions whose rows are those of a clock, with the clock.
    """

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

    def keys(self, layout: FieldLayout) -> list[tuple[str, str | None]]:
        """The dimensions along which samples of a field have rows of their own, with clocks."""
        clocks = dict(self.clocks)
        return [(dim, clocks.get(dim)) for dim in self.dims if layout.access_of(dim) is not None]

    def at(
        self, dims: tuple[str, ...], layout: FieldLayout, rows: Rows, dtype: np.dtype
    ) -> NDArray[np.floating]:
        """The numbers of some samples.

        Parameters
        ----------
        dims : tuple of str
            Dimensions of the variable.
        layout : FieldLayout
            The layout of the field.
        rows : dict of (str, str or None) to numpy.ndarray of int64
            The samples' rows, from `rows_of`, at least for all of `keys`.
        dtype : numpy.dtype
            Dtype of the result.

        Returns
        -------
        numpy.ndarray
            With one axis for the samples and one for each of ``dims``, of size 1 where the numbers
            do not vary.

        Raises
        ------
        OptionError
            If a row has no number.
        """
        own = {key[0]: rows[key] for key in self.keys(layout)}
        if not own:
            return self.along(dims, dtype)[None]
        if len(own) == 1 or len(next(iter(own.values()))) == 1:
            found = self._taken(own)
        else:
            found = self._indexed(own)
        if self.has_gaps and not np.isfinite(found).all():
            raise self._gap_error(own)
        sizes = dict(zip(self.dims, found.shape[1:], strict=True))
        shape = [len(found), *(sizes.get(dim, 1) for dim in dims)]
        return found.reshape(shape).astype(dtype, copy=False)

    def _taken(self, rows: Mapping[str, Ints]) -> NDArray[np.floating]:
        """The rows along one dimension, or along several for a single sample."""
        found, num_samples = self.values[None], 1
        for dim, own in rows.items():
            axis = 1 + self.dims.index(dim)
            if len(own) == 1:
                line = own[0]
                is_run = bool((np.diff(line) == 1).all())
                taken = slice(line[0], line[-1] + 1) if is_run else line
                found = found[(slice(None),) * axis + (taken,)]
            else:
                num_samples = len(own)
                found = np.moveaxis(found[0].take(own, axis - 1), axis - 1, 0)
        assert len(found) == num_samples
        return found

    def _indexed(self, rows: Mapping[str, Ints]) -> NDArray[np.floating]:
        """The rows along several dimensions, for many samples."""
        index = []
        for axis, (dim, size) in enumerate(zip(self.dims, self.shape, strict=True)):
            own = rows.get(dim, np.arange(size)[None])
            rest = (1,) * (len(self.dims) - axis - 1)
            index.append(own.reshape(len(own), *(1,) * axis, own.shape[1], *rest))
        return np.asarray(self.values[tuple(index)])

    def _gap_error(self, rows: Mapping[str, Ints]) -> OptionError:
        bad = ~np.isfinite(self.values)
        clocks, named = dict(self.clocks), []
        for dim, own in rows.items():
            others = tuple(axis for axis, name in enumerate(self.dims) if name != dim)
            lacks = np.intersect1d(np.flatnonzero(bad.any(axis=others)), own)
            if clock := clocks.get(dim):
                named.append(f"{clock} {', '.join(map(str, CLOCKS[clock][lacks]))}")
        return OptionError(
            "a sample needs statistics that are missing",
            given=f"no number for {'; '.join(named) or f'places along {list(rows)}'}",
            allowed="statistics of all elements that samples need",
            remedy="make the statistics from samples that cover these, or record normalize after "
            "all fields, where it looks for gaps",
        )

    def num_looked_up(self, layout: FieldLayout) -> int:
        """Number of values that are looked up for one sample of a field."""
        sizes = dict(zip(self.dims, self.shape, strict=True))
        for dim in self.dims:
            access = layout.access_of(dim)
            sizes[dim] = sizes[dim] if access is None else access[2]
        return math.prod(sizes.values())


def rows_of(recipe: Recipe, layout: FieldLayout, tables: tuple[Table, ...], ids: Ints) -> Rows:
    """The rows of samples in some tables, along windowed dimensions.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the samples.
    layout : FieldLayout
        The layout of a field.
    tables : tuple of Table
        The tables.
    ids : numpy.ndarray of int64, shape (n,)
        Ids of the samples.

    Returns
    -------
    dict of (str, str or None) to numpy.ndarray of int64, shape (n, count)
        By dimension and clock.
    """
    keys = dict.fromkeys(key for table in tables for key in table.keys(layout))
    if not keys:
        return {}
    windows, positions = recipe.require_windows(), recipe.positions_of(ids)
    found: Rows = {}
    for dim, clock in keys:
        axis, access = windows.dims.index(dim), layout.access_of(dim)
        assert access is not None
        places = places_along(recipe, axis, access, positions[:, axis])
        found[dim, clock] = places if clock is None else clock_rows_at(recipe, dim, clock, places)
    return found


def clock_rows_at(recipe: Recipe, dim: str, clock: str, places: Ints) -> Ints:
    """Rows of a clock for the labels at some places of a dimension's selection."""
    kept = recipe.kept_of(dim)
    elements = np.asarray(kept) if isinstance(kept, int) else stored(kept, places)
    return clock_rows(recipe.source.coordinates()[dim].to_numpy()[elements], clock)
