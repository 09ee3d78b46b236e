"""Copying rows of decoded blocks into the arrays of a batch.

Along one dimension, the window of a row against a block::

    block        |. . . . . . . . . . . .|
    window             x     x     x     |    x         access (first, step, count)
    taken              0     1     2                    0 <= k < 3 of the window
    source             3     6     9                    elements of the block
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.engine.blocks import Stored
from xloader.footprint import Access, Group
from xloader.grid import Ints
from xloader.layout import FieldLayout, Part
from xloader.packing import Packing
from xloader.windows import Windows

_SMALL_NBYTES = 1 << 14
_MANY_ROWS = 24
"""Rows of fewer bytes are gathered by fancy indexing where there are so many of them: its second
copy then costs less than a call for each row. Fewer rows are cheaper as plain integers."""


class _Hit(NamedTuple):
    """What one row takes of a block: per windowed dimension, where from and where to."""

    row: int
    source: list[slice]
    place: list[slice]


@dataclass(frozen=True)
class _Hits:
    """As `_Hit` for many rows that take the same part of their windows.

    Parameters
    ----------
    rows : numpy.ndarray of int64, shape (n,)
    begins : list of numpy.ndarray of int64
        Per windowed dimension, each row's first element in the block.
    steps : list of int
    place : list of slice
    """

    rows: Ints
    begins: list[Ints]
    steps: list[int]
    place: list[slice]


@dataclass(frozen=True)
class _Target:
    """One variable's place in one field."""

    field: str
    part: Part
    windowed: tuple[int | None, ...]
    packing: Packing | None

    def unpack(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values as the field has them."""
        return values if self.packing is None else self.packing.unpack(values)

    def write(self, values: NDArray[Any], place: NDArray[Any]) -> None:
        """Write values as the field has them to their place."""
        if self.packing is not None and values.shape == place.shape:
            self.packing.unpack_into(values, place)
        else:
            # Along dimensions that the variable lacks, one value goes to many places.
            place[...] = self.unpack(values)


Views = Mapping[str, list[tuple[_Target, NDArray[Any]]]]
"""Per variable, where it goes, with the view of the batch's field that it is written to."""


class Gatherer:
    """Knows where every variable goes.

    Parameters
    ----------
    windows : Windows
    layouts : tuple of FieldLayout
    stored : mapping of str to Stored
        Per variable, how it is stored.
    """

    def __init__(
        self,
        windows: Windows,
        layouts: tuple[FieldLayout, ...],
        stored: Mapping[str, Stored],
    ) -> None:
        self._strides = np.asarray(windows.strides)
        self._targets: dict[str, list[_Target]] = {}
        for layout in layouts:
            for part in layout.parts:
                windowed = tuple(
                    windows.dims.index(dim) if dim in windows.dims else None
                    for dim in stored[part.variable].dims
                )
                packing = stored[part.variable].packing
                target = _Target(layout.name, part, windowed, packing)
                self._targets.setdefault(part.variable, []).append(target)

    def views(self, arrays: Mapping[str, NDArray[Any]]) -> Views:
        """Per variable, its places in a batch's fields, made once for all blocks."""
        return {
            name: [(target, target.part.view(arrays[target.field])) for target in targets]
            for name, targets in self._targets.items()
        }

    def gather(
        self,
        group: Group,
        block: tuple[int, ...],
        values: Mapping[str, NDArray[Any]],
        views: Views,
        rows: Ints,
        positions: Ints,
    ) -> None:
        """Copy what some rows need of one block.

        Parameters
        ----------
        group : Group
        block : tuple of int
            Index of the block along each windowed dimension.
        values : mapping of str to numpy.ndarray
            The decoded block of each of the group's variables, in stored dimensions.
        views : mapping
            What `views` made of the batch's fields.
        rows : numpy.ndarray of int64, shape (n,)
            Rows of the batch.
        positions : numpy.ndarray of int64, shape (n, num_dims)
            Their positions.
        """
        bounds = [
            None if axis is None else (int(axis.edges[index]), int(axis.edges[index + 1]))
            for axis, index in zip(group.axes, block, strict=True)
        ]
        firsts = positions * self._strides
        found: dict[Access, list[_Hit] | _Hits] = {}
        for demand in group.demands:
            source = values[demand.variable]
            for target, view in views[demand.variable]:
                access = target.part.accesses
                if access not in found:
                    found[access] = _find_hits(access, bounds, rows, firsts)
                hits = found[access]
                if isinstance(hits, _Hits):
                    if _row_nbytes(source, target, hits) < _SMALL_NBYTES:
                        _copy_many(source, view, target, hits)
                        continue
                    hits = found[access] = _one_by_one(hits)
                _copy(source, view, target, hits)


def _find_hits(
    access: Access, bounds: list[tuple[int, int] | None], rows: Ints, firsts: Ints
) -> list[_Hit] | _Hits:
    if len(rows) >= _MANY_ROWS:
        return _find_many(access, bounds, rows, firsts)
    hits = []
    spans = list(zip(access, bounds, strict=True))
    for row, first in zip(rows.tolist(), firsts.tolist(), strict=True):
        source, place = [], []
        for (span, bound), base in zip(spans, first, strict=True):
            if span is None or bound is None:
                source.append(slice(None))
                place.append(slice(None))
                continue
            offset, step, count = span
            begin = base + offset - bound[0]
            lo = max(-(begin // step), 0)
            hi = min(-((begin - bound[1] + bound[0]) // step), count)
            if hi <= lo:
                break
            begin += lo * step
            source.append(slice(begin, begin + (hi - lo - 1) * step + 1, step))
            place.append(slice(lo, hi))
        else:
            hits.append(_Hit(row, source, place))
    return hits


def _find_many(
    access: Access, bounds: list[tuple[int, int] | None], rows: Ints, firsts: Ints
) -> list[_Hit] | _Hits:
    """The hits of many rows; as one if all take the same part of their windows."""
    is_hit = np.ones(len(rows), np.bool_)
    columns = []
    for dim, (span, bound) in enumerate(zip(access, bounds, strict=True)):
        if span is None or bound is None:
            zeros = np.zeros(len(rows), np.int64)
            columns.append((zeros, zeros, zeros, 0))
            continue
        offset, step, count = span
        begin = firsts[:, dim] + (offset - bound[0])
        lo = np.maximum(-(begin // step), 0)
        hi = np.minimum(-((begin - (bound[1] - bound[0])) // step), count)
        is_hit &= hi > lo
        columns.append((lo, hi, begin + lo * step, step))
    if not is_hit.any():
        return []
    columns = [(lo[is_hit], hi[is_hit], begin[is_hit], step) for lo, hi, begin, step in columns]
    rows = rows[is_hit]
    if all((lo == lo[0]).all() and (hi == hi[0]).all() for lo, hi, _, _ in columns):
        place = [slice(int(lo[0]), int(hi[0])) if s else slice(None) for lo, hi, _, s in columns]
        return _Hits(rows, [begin for _, _, begin, _ in columns], [c[3] for c in columns], place)
    lists = [(lo.tolist(), hi.tolist(), begin.tolist(), step) for lo, hi, begin, step in columns]
    return [
        _Hit(
            row,
            [_run(b[i], h[i] - lo[i], step) for lo, h, b, step in lists],
            [slice(lo[i], h[i]) if step else slice(None) for lo, h, _, step in lists],
        )
        for i, row in enumerate(rows.tolist())
    ]


def _one_by_one(hits: _Hits) -> list[_Hit]:
    sizes = [(p.stop or 0) - (p.start or 0) for p in hits.place]
    begins = [begin.tolist() for begin in hits.begins]
    return [
        _Hit(
            row,
            [_run(b[i], n, step) for b, n, step in zip(begins, sizes, hits.steps, strict=True)],
            hits.place,
        )
        for i, row in enumerate(hits.rows.tolist())
    ]


def _run(begin: int, count: int, step: int) -> slice:
    """``count`` elements from ``begin`` on; all of them where the step is 0."""
    return slice(begin, begin + (count - 1) * step + 1, step) if step else slice(None)


def _copy(values: NDArray[Any], view: NDArray[Any], target: _Target, hits: list[_Hit]) -> None:
    whole = slice(None)
    for row, source, place in hits:
        taken = tuple(whole if d is None else source[d] for d in target.windowed)
        given = (whole if d is None else place[d] for d in target.windowed)
        index: Any = (row, ..., *given)
        target.write(values[taken], view[index])


def _row_nbytes(values: NDArray[Any], target: _Target, hits: _Hits) -> int:
    nbytes: int = values.itemsize
    for dim, size in zip(target.windowed, values.shape, strict=True):
        if dim is None or not hits.steps[dim]:
            nbytes *= size
        else:
            nbytes *= hits.place[dim].stop - hits.place[dim].start
    return nbytes


def _copy_many(values: NDArray[Any], view: NDArray[Any], target: _Target, hits: _Hits) -> None:
    """Copy rows that take the same part of their windows, in one call."""
    num_dims = values.ndim
    index: list[Ints] = []
    place: list[slice] = []
    for axis, (dim, size) in enumerate(zip(target.windowed, values.shape, strict=True)):
        shape = [1] * (num_dims + 1)
        if dim is None or not hits.steps[dim]:
            shape[axis + 1] = size
            index.append(np.arange(size).reshape(shape))
            place.append(slice(None))
            continue
        count = hits.place[dim].stop - hits.place[dim].start
        shape[axis + 1] = count
        along = (np.arange(count) * hits.steps[dim]).reshape(shape)
        index.append(hits.begins[dim].reshape(-1, *[1] * num_dims) + along)
        place.append(hits.place[dim])
    # A variable without dimensions is the same for all rows.
    found = target.unpack(values[tuple(index)] if index else values.reshape(1))
    num_missing = view.ndim - found.ndim
    found = found.reshape(len(found), *[1] * num_missing, *found.shape[1:])
    index_of_rows: Any = (hits.rows, ..., *place)
    view[index_of_rows] = found
