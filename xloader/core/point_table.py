"""Columns of a table of points, as fields of the samples around these points."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """A column of a table of points: one value for each sample, which becomes a scalar field."""

    name: str
    values: NDArray[Any]
    classes: tuple[str, ...] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self.classes is None:
            return LabelColumn, (self.name, self.values)
        # Codes are few different numbers, often in long rows, so they compress well.
        packed = zlib.compress(np.ascontiguousarray(self.values).tobytes(), 1)
        return _unpickle, (self.name, packed, self.values.dtype.str, self.classes)

    @property
    def decoded(self) -> NDArray[Any]:
        """The values, with text in place of its codes."""
        return self.values if self.classes is None else np.array(self.classes)[self.values]


def _unpickle(name: str, packed: bytes, dtype: str, classes: tuple[str, ...]) -> LabelColumn:
    values = np.frombuffer(zlib.decompress(packed), dtype)
    return LabelColumn(name, values, classes)


@dataclass(frozen=True, eq=False)
class PointTable:
    """The table of points around which samples lie: its columns, and how many points are left out.

    `num_unmatched`: number of points that were left out because the labels of a dimension have
    none for them.
    """

    columns: tuple[LabelColumn, ...] = ()
    num_points: int = 0
    num_unmatched: int = 0
    num_cut: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out cached properties.
        return PointTable, (self.columns, self.num_points, self.num_unmatched, self.num_cut)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 hash of the columns: names, dtypes, classes and values."""
        digest = hashlib.sha256()
        for column in self.columns:
            values = np.ascontiguousarray(column.values)
            little = values.astype(values.dtype.newbyteorder("<"), copy=False)
            digest.update(repr((column.name, little.dtype.str, column.classes)).encode())
            digest.update(little.data)
        return digest.digest()

    @property
    def left_out(self) -> str:
        """How many points have no sample, and why; empty if every point has one."""
        reasons = []
        if self.num_unmatched:
            reasons.append(f"{self.num_unmatched:,} match no label")
        if self.num_cut:
            reasons.append(f"the window of {self.num_cut:,} leaves the array or crosses a gap")
        if not reasons:
            return ""
        num = self.num_unmatched + self.num_cut
        return f"{num:,} of {self.num_points:,} points: {', '.join(reasons)}"

    def take(self, ids: Ints) -> PointTable:
        """The table of other samples, which are given by their ids in this one."""
        taken = tuple(replace(column, values=column.values[ids]) for column in self.columns)
        return replace(self, columns=taken)
