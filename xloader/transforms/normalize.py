"""The transform ``(x - mean) / std`` for each variable, in place in the gathered batches.

The statistics may be numbers, arrays along channels, or xarray objects. They are checked, cut to
the selection, and stored as tables that can be compared and pickled. Where they vary along
windowed dimensions, or by the month of a time, each sample looks up its own::

    statistics (month, lat, lon)         batch (n, time, lat, lon)
              |                                    |
        Table, rows by clock  --rows of n samples--> means, stds (n, time, lat, lon) --> change
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout, FieldPart
from xloader.recipe.recipe import Recipe, Transform, find
from xloader.transforms.statistics_tables import Key, Rows, Table, each_of, make_table, rows_of

_MOST_AT_ONCE: Final = 1 << 18
"""Numbers that are looked up at a time. Arrays of this size fit the cache, and need no budget."""

_FEW: Final = 1 << 12
"""Numbers of a sample up to which several samples are looked up together."""


@dataclass(frozen=True)
class PartNumbers:
    """The means and standard deviations of one variable in a field."""

    layout: FieldLayout
    part: FieldPart
    dims: tuple[str, ...]
    mean: Table
    std: Table
    dtype: np.dtype

    @cached_property
    def _keys(self) -> tuple[list[Key], list[Key]]:
        return self.mean.keys(self.layout), self.std.keys(self.layout)

    @property
    def varies(self) -> bool:
        """Whether each sample has numbers of its own."""
        return any(self._keys)

    def rows(self, recipe: Recipe, ids: Ints) -> dict[Key, Ints]:
        """The rows of samples in both tables."""
        return rows_of(recipe, self.layout, (self.mean, self.std), ids)

    def at(self, rows: Rows, num_axes: int) -> list[NDArray[Any]]:
        """Mean and standard deviation, as arrays that broadcast with the field's batch."""
        lacks = tuple(range(1, num_axes - len(self.dims)))
        tables = zip((self.mean, self.std), self._keys, self._shared, strict=True)
        return [
            np.expand_dims(table.at(self.dims, keys, rows, self.dtype) if keys else shared, lacks)
            for table, keys, shared in tables
        ]

    @cached_property
    def _shared(self) -> list[NDArray[Any]]:
        """Mean and standard deviation, if all samples share them; else empty arrays."""
        return [
            np.empty(0) if keys else table.along(self.dims, self.dtype)[None]
            for table, keys in zip((self.mean, self.std), self._keys, strict=True)
        ]

    def pieces(
        self, view: NDArray[Any], rows: dict[Key, Ints]
    ) -> Iterator[tuple[NDArray[Any], Rows]]:
        """The view of a batch in pieces for which few numbers are looked up, with their rows."""
        if not self.varies:
            yield view, {}
            return
        num = max(table.num_looked_up(self.layout) for table in (self.mean, self.std))
        if num <= _FEW:
            most = _MOST_AT_ONCE // num
            for begin in range(0, len(view), most):
                some = slice(begin, begin + most)
                yield view[some], {key: numbers[some] for key, numbers in rows.items()}
            return
        dim = next(iter(rows))[0]
        axis = view.ndim - len(self.dims) + self.dims.index(dim)
        step = max(_MOST_AT_ONCE * view.shape[axis] // num, 1)
        for place in range(0, view.shape[axis], step):
            index = [slice(None)] * view.ndim
            index[axis] = places = slice(place, place + step)
            samples = {
                key: each_of(numbers[:, places] if key[0] == dim else numbers)
                for key, numbers in rows.items()
            }
            for number, piece in enumerate(view[tuple(index)]):
                yield piece[None], {key: each[number] for key, each in samples.items()}


@dataclass(frozen=True)
class Normalize(Transform):
    """The transform that subtracts a mean and divides by a standard deviation."""

    is_in_place: ClassVar[bool] = True
    tables: tuple[tuple[str, tuple[str, ...], Table, Table], ...]

    def __reduce__(self) -> tuple[object, ...]:
        # Cached values are left out.
        return Normalize, (self.tables,)

    def describe(self) -> str:
        """The variables, what their numbers vary along by a clock, and a hash of the numbers."""
        return self._description

    @cached_property
    def _description(self) -> str:
        digest = hashlib.sha256(repr(self.tables).encode()).hexdigest()[:16]
        named = []
        for name, _, *tables in self.tables:
            clocks = dict.fromkeys(clock for table in tables for _, clock in table.clocks)
            named.append(f"{name} by {' and '.join(clocks)}" if clocks else name)
        return f"normalize({', '.join(named)}; {digest})"

    def promote(self, variables: tuple[str, ...], dtype: np.dtype) -> np.dtype:
        """The dtype for normalised integers: float64 from 32 bits on, else float32. Others stay."""
        if not self.changes_units(variables) or dtype.kind == "f":
            return dtype
        return np.dtype(np.float64 if dtype.itemsize >= 4 else np.float32)

    def changes_units(self, variables: tuple[str, ...]) -> bool:
        """Whether any of the variables is normalised."""
        return any(name in variables for name, *_ in self.tables)

    def cut(self, dim: str, part: range) -> Normalize:
        """The transform for samples that keep only some positions along a dimension."""
        return Normalize(
            tuple(
                (name, dims, mean.cut(dim, part), std.cut(dim, part))
                for name, dims, mean, std in self.tables
            )
        )

    def apply(
        self,
        recipe: Recipe,
        layouts: tuple[FieldLayout, ...],
        arrays: Mapping[str, NDArray[Any]],
        ids: Ints,
    ) -> None:
        """Normalise the arrays of a batch, given by field, in place and in their own dtype."""
        for layout in layouts:
            array = arrays[layout.name]
            for numbers in self.numbers_of(layout, array.dtype):
                rows = numbers.rows(recipe, ids)
                for piece, piece_rows in numbers.pieces(numbers.part.view(array), rows):
                    mean, std = numbers.at(piece_rows, piece.ndim)
                    _change(piece, mean, std)

    def numbers_of(self, layout: FieldLayout, dtype: np.dtype) -> list[PartNumbers]:
        """The numbers of the parts of a field that are normalised, in a dtype."""
        tables = {name: (dims, mean, std) for name, dims, mean, std in self.tables}
        return [
            PartNumbers(layout, part, *tables[part.variable], dtype)
            for part in layout.variables
            if part.variable in tables
        ]

    def change_of(self, variable: str, dtype: np.dtype) -> Callable[[NDArray[Any]], None] | None:
        """The change that `apply` makes to values of a variable, if it changes all of them alike.

        None if the variable is not normalised, or if its numbers vary along a dimension.
        """
        for name, _, mean, std in self.tables:
            if name == variable and not mean.dims and not std.dims:
                return partial(_change, mean=mean.along((), dtype), std=std.along((), dtype))
        return None

    def without(self, variables: Collection[str]) -> Normalize:
        """The transform that leaves some variables as they are."""
        return Normalize(tuple(table for table in self.tables if table[0] not in variables))


def _change(values: NDArray[Any], mean: NDArray[Any], std: NDArray[Any]) -> None:
    np.subtract(values, mean, out=values)
    np.divide(values, std, out=values)


def in_words(step: Transform) -> str:
    """A transform in one line for readers: with means and deviations in place of a hash."""
    if not isinstance(step, Normalize):
        return step.describe()
    texts = []
    for name, _, *tables in step.tables:
        places = {dict(table.clocks).get(dim, dim): None for table in tables for dim in table.dims}
        mean, std = (table.values for table in tables)
        numbers = f"by {', '.join(places)}" if places else f"(mean {mean:g}, std {std:g})"
        texts.append(f"{name} {numbers}")
    return f"normalize({'; '.join(texts)})"


def make_normalize(recipe: Recipe, stats: Any, mean: Any, std: Any) -> Normalize:
    """Make the transform from statistics as :meth:`xloader.Samples.normalize` takes them."""
    from xloader.transforms.statistics_forms import FORMS, means_and_stds

    if stats is not None and std is not None and mean is None:
        stats, mean = None, stats
    if (stats is None) == (mean is None and std is None):
        raise OptionError(
            "the statistics are missing or given twice",
            given=f"stats={stats is not None}, mean={mean is not None}, std={std is not None}",
            allowed=f"stats, or mean and std. stats is {FORMS}",
            remedy='pass for example stats={"t2m": (280.0, 20.0)}',
        )
    means, stds, clock_dim = means_and_stds(recipe, stats, mean, std)
    tables = []
    for name in means:
        find(name, recipe.variables, "variable")
        centres = make_table(recipe, name, "mean", means[name], clock_dim)
        scales = make_table(recipe, name, "std", stds[name], clock_dim)
        tables.append((name, recipe.variable(name).dims, centres, scales))
    return Normalize(tuple(tables))
