"""The grid of a mosaic: its variables, and which of their cells a window covers.

Everything that merging needs is here, in plain numbers that fit into JSON: a mosaic is merged
without the samples that it was predicted from. Along a *placed* dimension, the window that starts
at cell ``s`` covers the cells ``s, s + step, ...``. Cells outside are cut off, or, where the
dimension wraps, counted from the other end::

    cell       0  1  2  3  4  5
    s = 4      x  .  .  .  x  x      count 3, step 1, wraps
    s = -1     x  x                  count 3, step 1, padded: one element is cut off
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self, get_args

import numpy as np
import xarray as xr
import zarr

from xloader.errors import TargetError
from xloader.jobs.kept_result import JobForm
from xloader.sources.stores.write_places import check_stored_names

Blend = Literal["mean", "linear", "crop"]
"""The ways in which the values of overlapping windows become one."""

BLENDS: Final = get_args(Blend)

COVERAGE: Final = "_coverage"
"""The group of a stored mosaic with the number of windows of each cell."""

Box = tuple[tuple[int, int], ...]
"""The cells ``[begin, end)`` along each dimension of a variable."""


@dataclass(frozen=True)
class PlacedAxis:
    """A dimension along which windows have places."""

    dim: str
    size: int
    count: int
    step: int = 1
    wraps: bool = False

    @property
    def reach(self) -> int:
        """Number of cells from the first to the last element of a prediction."""
        return (self.count - 1) * self.step + 1

    def pieces(self, start: int, begin: int, end: int) -> Iterator[tuple[slice, slice]]:
        """The elements of a window that lie among the cells ``[begin, end)``, and their cells."""
        for turn in (0, self.size) if self.wraps else (0,):
            lo = max(-(-(begin + turn - start) // self.step), 0)
            hi = min(-(-(end + turn - start) // self.step), self.count)
            if lo < hi:
                first = start + lo * self.step - turn - begin
                last = first + (hi - lo - 1) * self.step
                yield slice(lo, hi), slice(first, last + 1, self.step)


@dataclass(frozen=True)
class GridVariable:
    """A variable of the mosaic."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    attrs: Mapping[str, Any]

    @property
    def num_cells(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TargetGrid(JobForm):
    """The variables of a mosaic, and the dimensions along which windows are placed."""

    name = "mosaic"
    noun = "predictions"
    mark = "xloader_mosaic"
    version = 2
    suffixes = ()
    nested = MappingProxyType({"axes": PlacedAxis, "variables": GridVariable})
    refusal = TargetError

    field: str
    blend: Blend
    num_ids: int
    axes: tuple[PlacedAxis, ...]
    variables: tuple[GridVariable, ...]

    @cached_property
    def axis_numbers(self) -> Mapping[str, int]:
        """The number of each placed dimension among `axes`."""
        return {axis.dim: number for number, axis in enumerate(self.axes)}

    def axis_of(self, dim: str) -> PlacedAxis | None:
        """The placed dimension of that name; None if each prediction takes all of it."""
        number = self.axis_numbers.get(dim)
        return None if number is None else self.axes[number]

    def row_shape(self, variable: GridVariable) -> tuple[int, ...]:
        """Shape of the prediction of one sample for a variable, along its dimensions."""
        axes = map(self.axis_of, variable.dims)
        return tuple(
            size if axis is None else axis.count
            for size, axis in zip(variable.shape, axes, strict=True)
        )

    @property
    def key(self) -> str:
        """Text that differs for other data, samples or options."""
        text = json.dumps(json.loads(self.to_json()), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def stamp(self) -> object:
        """The mark by which a mosaic tells its samples from others."""
        return dict(self.fingerprint)

    @classmethod
    def stored(cls, target: Path) -> tuple[object, Any] | None:
        """The stamp of the mosaic at a target, and its counts; None if it is none."""
        try:
            attrs = zarr.open_group(str(target / COVERAGE), mode="r").attrs.asdict()
            return attrs[cls.mark], attrs
        except (OSError, ValueError, KeyError):
            return None

    @classmethod
    def read(cls, text: str, labels: Path) -> Self:
        """The grid whose JSON is a text. The labels stay where they are."""
        return cls.from_json(text, xr.Dataset())

    def write_labels(self, path: Path) -> None:
        """Write a store that has the coordinates only, also those of the coverage."""
        check_stored_names([*(v.name for v in self.variables), *map(str, self.labels.coords)])
        zarr.create_group(str(path), zarr_format=3)
        zarr.create_group(str(path / COVERAGE), zarr_format=3)
        for group, coords in label_groups(self, self.labels):
            indexes = coords.drop_vars(set(coords.coords) - set(coords.xindexes))
            for name, part in ((group, coords), (f"{COVERAGE}/{group}", indexes)):
                inner = name.strip("/") or None
                part.to_zarr(path, group=inner, mode="a", zarr_format=3, consolidated=False)


def group_of(name: str) -> str:
    """The group in which something of that name is stored; empty for the root."""
    return name.rpartition("/")[0]


def name_within(group: str, name: str) -> str:
    """The name that something has in a group."""
    return name.removeprefix(f"{group}/") if group else name


def groups_of(grid: TargetGrid) -> dict[str, list[GridVariable]]:
    """The variables of each group, in their order."""
    groups: dict[str, list[GridVariable]] = {}
    for variable in grid.variables:
        groups.setdefault(group_of(variable.name), []).append(variable)
    return groups


def label_groups(grid: TargetGrid, labels: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """The coordinates of each group, as Zarr can hold them."""
    stored = _storable(labels)
    groups = groups_of(grid)
    for group, variables in groups.items():
        dims = {dim for variable in variables for dim in variable.dims}
        coords = {
            name: coord
            for name, coord in stored.coords.items()
            if set(coord.dims) <= dims and group_of(str(name)) in ("", group)
        }
        part = xr.Dataset(coords=coords)
        names = [str(name) for name in {*part.coords, *part.dims}]
        renamed = {name: name_within(group, name) for name in names}
        yield group, part.rename({old: new for old, new in renamed.items() if old != new})


def _storable(labels: xr.Dataset) -> xr.Dataset:
    """Coordinates as Zarr can hold them: text of any length, and levels of an index one by one."""
    several = [dim for dim in labels.dims if getattr(labels.indexes.get(dim), "nlevels", 1) > 1]
    plain = labels.reset_index(several)
    texts = {
        name: coord.astype(object)
        for name, coord in plain.coords.items()
        # Categories and other dtypes of pandas are none of NumPy's.
        if not isinstance(coord.dtype, np.dtype) or coord.dtype.kind == "U"
    }
    return plain.assign_coords(texts)
