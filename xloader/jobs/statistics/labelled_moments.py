"""Moments of elements by a label, such as their month, with sketches of their distribution.

A chunk has elements of few labels. So labels that do not occur take no room, until parts with other
labels are merged::

    January, February  merged with  February, March  is  January, February, March
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, fields

import numpy as np

from xloader.core.axis import Ints
from xloader.core.moments import Moments
from xloader.jobs.statistics.quantile_sketch import QuantileSketch


@dataclass(frozen=True, eq=False)
class LabelledMoments:
    """Moments, and perhaps sketches, for each label that occurs.

    `rows`: numbers of the labels that occur, ascending. `sketches`: one for each number of the
    moments, in C order; none if quantiles are not asked for.
    """

    rows: Ints
    moments: Moments
    sketches: tuple[QuantileSketch, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.rows.nbytes + self.moments.nbytes + sum(own.nbytes for own in self.sketches)

    def merge(self, other: LabelledMoments) -> LabelledMoments:
        """The moments of the elements of both, by label."""
        if self.rows is other.rows or np.array_equal(self.rows, other.rows):
            rows, first, second = self.rows, self, other
        else:
            rows = np.union1d(self.rows, other.rows)
            has_sketches = bool(self.sketches or other.sketches)
            first = self.spread(rows, has_sketches=has_sketches)
            second = other.spread(rows, has_sketches=has_sketches)
        pairs = zip(first.sketches, second.sketches, strict=True)
        return LabelledMoments(
            rows,
            first.moments.merge(second.moments),
            tuple(one.merge(two) for one, two in pairs),
        )

    def spread(self, rows: Ints, *, has_sketches: bool) -> LabelledMoments:
        """The same moments among more labels, which have no elements.

        `rows`: numbers of the labels, ascending, among them those of this object.
        """
        if len(rows) == len(self.rows):
            return self
        cells = self.moments.shape[1:]
        at = np.searchsorted(rows, self.rows)
        found = Moments.empty((len(rows), *cells))
        for field in fields(found):
            getattr(found, field.name)[at] = getattr(self.moments, field.name)
        if not has_sketches:
            return LabelledMoments(rows, found)
        num = math.prod(cells)
        sketches = [QuantileSketch.empty()] * (len(rows) * num)
        for row, own in enumerate(at.tolist()):
            sketches[own * num : (own + 1) * num] = self.sketches[row * num : (row + 1) * num]
        return LabelledMoments(rows, found, tuple(sketches))

    def to_bytes(self) -> bytes:
        """The numbers as bytes, the same on every machine."""
        cells = self.moments.shape[1:]
        arrays = self.moments.arrays()
        texts = [own.to_bytes() for own in self.sketches]
        head = [len(self.rows), len(cells), *cells, len(texts), *map(len, texts)]
        parts = [
            struct.pack(f"<q{len(head)}q", len(head), *head),
            self.rows.astype("<i8").tobytes(),
        ]
        parts += [
            own.astype("<i8" if name == "count" else "<f8").tobytes()
            for name, own in arrays.items()
        ]
        return b"".join([*parts, *texts])

    @classmethod
    def from_bytes(cls, data: bytes) -> LabelledMoments:
        """The object that `to_bytes` wrote."""
        (length,) = struct.unpack_from("<q", data)
        head = struct.unpack_from(f"<{length}q", data, 8)
        cells = head[2 : 2 + head[1]]
        lengths = head[3 + head[1] :]
        shape = (head[0], *cells)
        at = 8 * (1 + length)
        rows = np.frombuffer(data, "<i8", head[0], at).astype(np.int64)
        at += rows.nbytes
        arrays = {}
        for field in fields(Moments):
            kind = np.int64 if field.name == "count" else np.float64
            little = np.dtype(kind).newbyteorder("<")
            own = np.frombuffer(data, little, math.prod(shape), at)
            arrays[field.name] = own.astype(kind).reshape(shape)
            at += own.nbytes
        sketches = []
        for nbytes in lengths:
            sketches.append(QuantileSketch.from_bytes(data[at : at + nbytes]))
            at += nbytes
        return cls(rows, Moments.of_arrays(arrays), tuple(sketches))


def side_by_side(parts: list[LabelledMoments]) -> LabelledMoments:
    """Moments of several quantities, along a new axis of cells that comes first."""
    rows = parts[0].rows
    for part in parts[1:]:
        rows = np.union1d(rows, part.rows)
    has_sketches = any(part.sketches for part in parts)
    spread = [part.spread(rows, has_sketches=has_sketches) for part in parts]
    arrays = {
        field.name: np.stack([getattr(own.moments, field.name) for own in spread], axis=1)
        for field in fields(Moments)
    }
    sketches: tuple[QuantileSketch, ...] = ()
    if has_sketches:
        num = math.prod(spread[0].moments.shape[1:])
        sketches = tuple(
            sketch
            for row in range(len(rows))
            for own in spread
            for sketch in own.sketches[row * num : (row + 1) * num]
        )
    return LabelledMoments(rows, Moments.of_arrays(arrays), sketches)
