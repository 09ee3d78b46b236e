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

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, Literal, get_args

from xloader.errors import TargetError

Blend = Literal["mean", "linear", "crop"]
"""The ways in which the values of overlapping windows become one."""

BLENDS: Final = get_args(Blend)

COVERAGE: Final = "_coverage"
"""The group of a stored mosaic with the number of windows of each cell."""

Box = tuple[tuple[int, int], ...]
"""The cells ``[begin, end)`` along each dimension of a variable."""

_VERSION: Final = 2


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
class TargetGrid:
    """The variables of a mosaic, and the dimensions along which windows are placed."""

    field: str
    blend: Blend
    num_ids: int
    axes: tuple[PlacedAxis, ...]
    variables: tuple[GridVariable, ...]
    fingerprint: Mapping[str, str]

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

    def to_json(self) -> str:
        """The grid as JSON text."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TargetGrid:
        """The grid that `to_json` wrote."""
        try:
            parts = json.loads(text)
            version = parts.pop("version")
            if version != _VERSION:
                raise ValueError(f"version {version}")
            parts["axes"] = tuple(PlacedAxis(**axis) for axis in parts["axes"])
            parts["variables"] = tuple(map(_variable_of, parts["variables"]))
            return cls(**parts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TargetError(
                "the description of the mosaic cannot be read by this release",
                given=f"{type(error).__name__}: {error}",
                remedy="remove the folder of parts, and write the predictions again",
            ) from error


def _variable_of(parts: dict[str, Any]) -> GridVariable:
    sized = {name: tuple(parts[name]) for name in ("dims", "shape", "chunks")}
    return GridVariable(**{**parts, **sized})
