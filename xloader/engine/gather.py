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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.footprint import Group
from xloader.grid import Ints
from xloader.layout import FieldLayout, Part
from xloader.windows import Windows

_SMALL_NBYTES = 1 << 14
"""Below so many bytes a row, rows are gathered many at a time by fancy indexing: its second
copy then costs less than a call for each row."""


@dataclass(frozen=True)
class _Target:
    """One variable's place in one field."""

    field: str
    part: Part
    windowed: tuple[int | None, ...]


class Gatherer:
    """Knows where every variable goes.

    Parameters
    ----------
    windows : Windows
    layouts : tuple of FieldLayout
    dims_of : mapping of str to tuple of str
        Per variable, its stored dimensions.
    """

    def __init__(
        self,
        windows: Windows,
        layouts: tuple[FieldLayout, ...],
        dims_of: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._windows = windows
        self._targets: dict[str, list[_Target]] = {}
        for layout in layouts:
            for part in layout.parts:
                windowed = tuple(
                    windows.dims.index(dim) if dim in windows.dims else None
                    for dim in dims_of[part.variable]
                )
                target = _Target(layout.name, part, windowed)
                self._targets.setdefault(part.variable, []).append(target)

    def gather(
        self,
        group: Group,
        block: tuple[int, ...],
        values: Mapping[str, NDArray[Any]],
        arrays: Mapping[str, NDArray[Any]],
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
        arrays : mapping of str to numpy.ndarray
            The batch's fields.
        rows : numpy.ndarray of int64, shape (n,)
            Rows of the batch.
        positions : numpy.ndarray of int64, shape (n, num_dims)
            Their positions.
        """
        bounds = [
            None if axis is None else (int(axis.edges[index]), int(axis.edges[index + 1]))
            for axis, index in zip(group.axes, block, strict=True)
        ]
        firsts = positions * np.asarray(self._windows.strides)
        for demand in group.demands:
            for target in self._targets[demand.variable]:
                spans = _overlaps(target.part, bounds, firsts)
                view = target.part.view(arrays[target.field])
                _copy(values[demand.variable], view, rows, spans, target)


_Span = tuple[Ints, Ints, Ints, int]
"""Per row: first taken k, one past the last, and its element in the block; and the step."""


def _overlaps(part: Part, bounds: list[tuple[int, int] | None], firsts: Ints) -> list[_Span | None]:
    spans: list[_Span | None] = []
    for dim, (access, bound) in enumerate(zip(part.accesses, bounds, strict=True)):
        if access is None or bound is None:
            spans.append(None)
            continue
        first, step, count = access
        base = firsts[:, dim] + first
        lo = np.clip(-((base - bound[0]) // step), 0, count)
        hi = np.clip(-((base - bound[1]) // step), 0, count)
        spans.append((lo, hi, base + lo * step - bound[0], step))
    return spans


def _copy(
    values: NDArray[Any],
    view: NDArray[Any],
    rows: Ints,
    spans: list[_Span | None],
    target: _Target,
) -> None:
    is_hit = np.ones(len(rows), np.bool_)
    for span in spans:
        if span is not None:
            is_hit &= span[1] > span[0]
    hits = np.flatnonzero(is_hit)
    if not len(hits):
        return
    per_dim = [None if dim is None else spans[dim] for dim in target.windowed]
    taken = [span for span in per_dim if span is not None]
    row_nbytes = values.itemsize * _row_size(values, per_dim, int(hits[0]))
    if len(hits) > 1 and row_nbytes < _SMALL_NBYTES and _is_uniform(taken, hits):
        _copy_many(values, view, rows[hits], per_dim, hits)
        return
    for hit in hits.tolist():
        source: list[slice] = []
        place: list[slice] = []
        for span in per_dim:
            if span is None:
                source.append(slice(None))
                place.append(slice(None))
            else:
                lo, hi, begin = int(span[0][hit]), int(span[1][hit]), int(span[2][hit])
                source.append(slice(begin, begin + (hi - lo - 1) * span[3] + 1, span[3]))
                place.append(slice(lo, hi))
        view[(int(rows[hit]), ..., *place)] = values[tuple(source)]


def _row_size(values: NDArray[Any], per_dim: list[_Span | None], hit: int) -> int:
    size = 1
    for span, whole in zip(per_dim, values.shape, strict=True):
        size *= whole if span is None else int(span[1][hit] - span[0][hit])
    return size


def _is_uniform(spans: list[_Span], hits: Ints) -> bool:
    """Whether all rows take the same part of their windows."""
    return all(
        bool((part[hits] == part[hits[0]]).all()) for span in spans for part in (span[0], span[1])
    )


def _copy_many(
    values: NDArray[Any],
    view: NDArray[Any],
    rows: Ints,
    per_dim: list[_Span | None],
    hits: Ints,
) -> None:
    """Copy rows that take the same part of their windows, in one call."""
    num_dims = values.ndim
    index: list[Ints] = []
    place: list[slice] = []
    for axis, (span, whole) in enumerate(zip(per_dim, values.shape, strict=True)):
        shape = [1] * (num_dims + 1)
        if span is None:
            shape[axis + 1] = whole
            index.append(np.arange(whole).reshape(shape))
            place.append(slice(None))
            continue
        lo, hi, begin = int(span[0][hits[0]]), int(span[1][hits[0]]), span[2][hits]
        shape[axis + 1] = hi - lo
        along = (np.arange(hi - lo) * span[3]).reshape(shape)
        index.append(begin.reshape(-1, *[1] * num_dims) + along)
        place.append(slice(lo, hi))
    found = values[tuple(index)]
    num_missing = view.ndim - found.ndim
    found = found.reshape(len(rows), *[1] * num_missing, *found.shape[1:])
    view[(rows, ..., *place)] = found
