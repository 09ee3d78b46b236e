"""The window of a sample on the grid of chunks, drawn to scale.

::

    lat  +----+----+----+----+      cells are chunks
         |  ##|#   |    |    |      filled: the elements of a field of one sample
         |  ##|#...|..  |    |      dashed: the next windows
         +----+----+----+----+
          time

Where all chunks would be too small to see, the drawing shows those around the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.show.cards import Drawing
from xloader.show.drawings import (
    WIDTH,
    Box,
    colour_class,
    drawing_of,
    filled_boxes,
    outlined_boxes,
)

_MOST_COLUMNS: Final = 100
_MOST_ROWS: Final = 24
_FEWEST: Final = 4
"""Fewest chunks that a part of the grid shows."""
_LEAST_WINDOW: Final = 14.0
"""Pixels that a window has at least, if the part of the grid can be chosen so."""
_LEAST_CELL: Final = 4.0
"""Pixels between two lines."""
_MOST_RUNS: Final = 40
_MARGIN: Final = 1.0


@dataclass(frozen=True, eq=False)
class GridAxis:
    """One side of the grid.

    `next_start`: first element of the next window; None if there is none.
    """

    name: str
    edges: NDArray[np.int64]
    start: int
    next_start: int | None
    wraps: bool = False

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.edges) - 1


Takes = tuple[int, int, int]
"""Elements that a field takes along a side: the first, counted from the window's, step, number."""


@dataclass(frozen=True, eq=False)
class _View:
    """The part of a side that is drawn, and its scale."""

    axis: GridAxis
    first: int
    last: int
    length: float

    @property
    def scale(self) -> float:
        edges = self.axis.edges
        return self.length / max(int(edges[self.last] - edges[self.first]), 1)

    def pixels(self, elements: Any) -> NDArray[np.float64]:
        """Place of elements on the drawing, cut at its ends."""
        begin = self.axis.edges[self.first]
        places = (np.asarray(elements) - begin) * self.scale
        return np.asarray(np.clip(places, 0.0, self.length) + _MARGIN)

    def lines(self) -> NDArray[np.float64]:
        """Places of the borders between chunks, some of them left out where they are dense."""
        num = self.last - self.first
        step = next(
            size
            for power in range(20)
            for size in (10**power, 2 * 10**power, 5 * 10**power)
            if num <= size or self.length * size / num >= _LEAST_CELL
        )
        edges = self.axis.edges[self.first : self.last + 1]
        return self.pixels(np.unique(np.concatenate([edges[::step], edges[-1:]])))

    def runs(self, start: int, takes: Takes | None) -> list[tuple[float, float]]:
        """Begins and lengths of the elements that a field takes; of all elements by default."""
        size = int(self.axis.edges[-1])
        first, step, count = takes or (-start, 1, size)
        if step > 1 and count <= _MOST_RUNS:
            pieces = [(start + first + step * number, 1) for number in range(count)]
        else:
            pieces = [(start + first, (count - 1) * step + 1)]
        turns = (0, -size, size) if self.axis.wraps else (0,)
        spans = []
        for begin, length in pieces:
            for turn in turns:
                left, right = self.pixels([begin + turn, begin + turn + length]).tolist()
                if right > left:
                    spans.append((left, max(right - left, 1.5)))
        return spans

    def words(self) -> str:
        """The chunks that are drawn, in words."""
        num, name = self.axis.num_chunks, self.axis.name
        if self.last - self.first < num:
            return f"{name}: chunks {self.first + 1:,} to {self.last:,} of {num:,}"
        return f"{name}: {num:,} chunk{'s' * (num != 1)}"


def draw_chunk_grid(
    columns: GridAxis, rows: GridAxis | None, fields: Sequence[tuple[str, Takes, Takes | None]]
) -> Drawing:
    """Draw the window of a sample on the grid of chunks."""
    takes_down = [takes for *_, takes in fields if takes is not None]
    whole = _hull([takes for _, takes, _ in fields]), _hull(takes_down) if takes_down else None
    across = _view_of(columns, whole[0], WIDTH - 2 * _MARGIN, _MOST_COLUMNS)
    down = None
    if rows is not None:
        num = min(rows.num_chunks, _MOST_ROWS)
        span = whole[1] or (0, 1, int(rows.edges[-1]))
        down = _view_of(rows, span, float(np.clip(num * 16, 48, 150)), _MOST_ROWS)
    height = down.length if down else 24.0
    shapes = [_grid_lines(across, down, height)]
    start = columns.start, 0 if rows is None else rows.start
    for number, (_, takes_across, along) in enumerate(fields):
        boxes = _boxes(across, down, start, (takes_across, along))
        shapes.append(filled_boxes(colour_class(number), boxes, 0.75))
    nexts: list[Box] = []
    if columns.next_start is not None:
        nexts += _boxes(across, down, (columns.next_start, start[1]), whole)
    if rows is not None and rows.next_start is not None:
        nexts += _boxes(across, down, (start[0], rows.next_start), whole)
    shapes.append(outlined_boxes("xloader-ink", nexts, "3 2"))
    words = [f"Across: {across.words()}"] + ([f"down: {down.words()}"] if down else [])
    caption = "; ".join(words) + "."
    if nexts:
        caption += " Dashed: the next windows." if len(nexts) > 1 else " Dashed: the next window."
    legend = [(colour_class(number), name) for number, (name, *_) in enumerate(fields)]
    label = f"The window of a sample on the grid of chunks. {caption}"
    return Drawing(drawing_of(label, height + 2 * _MARGIN, shapes), caption, legend)


def _hull(every: Sequence[Takes]) -> Takes:
    """All elements from the first to the last that some field takes."""
    first = min(first for first, _, _ in every)
    return first, 1, max(begin + (num - 1) * step + 1 for begin, step, num in every) - first


def _view_of(axis: GridAxis, span: Takes, length: float, most: int) -> _View:
    """Choose the chunks that are drawn: all, or those around the window."""
    first, _, window = span
    starts = [axis.start] if axis.next_start is None else [axis.start, axis.next_start]
    size = int(axis.edges[-1])
    begin, end = max(min(starts) + first, 0), min(max(starts) + first + window, size)
    num = axis.num_chunks
    if num <= most and window / size * length >= _LEAST_WINDOW:
        return _View(axis, 0, num, length)
    low = max(int(np.searchsorted(axis.edges, begin, "right")) - 1, 0)
    high = max(int(np.searchsorted(axis.edges, end, "left")), low + 1)
    low = max(low - 1, 0)
    counts = np.arange(max(_FEWEST, high - low), max(most, high - low) + 1)
    ends = np.minimum(low + counts, num)
    shares = window * length / np.maximum(axis.edges[ends] - axis.edges[low], 1)
    fits = np.flatnonzero(shares >= _LEAST_WINDOW)
    high = int(ends[fits[-1] if len(fits) else 0])
    return _View(axis, min(low, max(high - _FEWEST, 0)), high, length)


def _grid_lines(across: _View, down: _View | None, height: float) -> str:
    tops = down.lines() if down else np.array([_MARGIN, _MARGIN + height])
    width = across.length
    path = "".join(f"M{x:.1f} {_MARGIN:g}v{height:g}" for x in across.lines().tolist())
    path += "".join(f"M{_MARGIN:g} {y:.1f}h{width:g}" for y in tops.tolist())
    return f'<path class="xloader-cell" fill="none" stroke="#bbb" d="{path}"/>'


def _boxes(
    across: _View, down: _View | None, start: tuple[int, int], takes: tuple[Takes, Takes | None]
) -> list[Box]:
    """The elements that a window takes, which begins at a place of both sides."""
    columns = across.runs(start[0], takes[0])
    rows = [(_MARGIN, 24.0)] if down is None else down.runs(start[1], takes[1])
    return [(x, y, w, h) for x, w in columns for y, h in rows]


_MOST_FIELDS: Final = 4
_MOST_NAMED: Final = 4
_MOST_EDGES: Final = 2_000_000
"""Chunks along a dimension whose borders are listed for a drawing."""


def draw_window(recipe: Recipe, layouts: Sequence[FieldLayout]) -> Drawing | None:
    """Draw the window of the first sample on the chunks of the variable with the most bytes.

    From left to right is the windowed dimension with the most chunks, from the top down the
    dimension with the most chunks among the others.
    """
    windows, variable = recipe.require_windows(), _main_variable(recipe, layouts)
    if variable is None or not recipe.num_ids:
        return None
    axes = dict(zip(recipe.variable(variable).dims, recipe.axes_of(variable), strict=True))
    across = max((d for d in windows.dims if d in axes), key=lambda d: axes[d].num_blocks)
    # Dimensions of one chunk are drawn only where windows take a part of them.
    others = [
        dim
        for dim in axes
        if dim != across
        and (axes[dim].num_blocks > 1 or (dim in windows.dims and axes[dim].size > 1))
    ]
    down = max(others, key=lambda dim: axes[dim].num_blocks) if others else None
    if max(axes[dim].num_blocks for dim in (across, down or across)) > _MOST_EDGES:
        return None
    positions = recipe.positions_of(np.zeros(1, np.int64))[0].tolist()
    sides = [
        _grid_axis(recipe, dim, axes[dim], positions) for dim in (across, down) if dim is not None
    ]
    fields = _drawn_fields(recipe, layouts, (across,) if down is None else (across, down), axes)
    rest = len(fields) - _MOST_FIELDS
    drawn = draw_chunk_grid(sides[0], sides[1] if down else None, fields[:_MOST_FIELDS])
    words = f"{drawn.caption} Chunks of {variable}."
    if rest > 0:
        words += f" {rest:,} more field{'s are' if rest > 1 else ' is'} not drawn."
    return Drawing(drawn.svg, words, drawn.legend)


def _main_variable(recipe: Recipe, layouts: Sequence[FieldLayout]) -> str | None:
    """The stored variable with the most bytes of those with a windowed dimension."""
    sizes = {}
    for name in dict.fromkeys(part.variable for layout in layouts for part in layout.parts):
        variable = recipe.variable(name)
        if not variable.is_computed and set(variable.dims) & set(recipe.require_windows().dims):
            elements = np.prod([axis.size for axis in recipe.axes_of(name)], dtype=float)
            sizes[name] = float(elements) * variable.stored_dtype.itemsize
    return max(sizes, key=lambda name: sizes[name]) if sizes else None


def _grid_axis(recipe: Recipe, dim: str, axis: Axis, positions: Sequence[int]) -> GridAxis:
    windows = recipe.require_windows()
    if dim not in windows.dims:
        return GridAxis(dim, axis.edges, 0, None)
    number = windows.dims.index(dim)
    place = positions[number]
    window_places = np.arange(place, min(place + 2, windows.num_positions[number]))
    starts = windows.starts_of(number, window_places).tolist()
    return GridAxis(
        dim,
        axis.edges,
        starts[0],
        starts[1] if len(starts) > 1 else None,
        windows.ends[number] == "wrap",
    )


def _drawn_fields(
    recipe: Recipe, layouts: Sequence[FieldLayout], dims: Sequence[str], axes: Mapping[str, Axis]
) -> list[tuple[str, Takes, Takes | None]]:
    """The fields whose variables have these chunks, and the elements that they take.

    Fields that take the same elements come together.
    """
    names: dict[tuple[Takes, Takes | None], list[str]] = {}
    for layout in layouts:
        for part in layout.parts:
            known = dict(
                zip(recipe.variable(part.variable).dims, recipe.axes_of(part.variable), strict=True)
            )
            if all(known.get(dim) == axes[dim] for dim in dims):
                dim_takes = [_takes(recipe, dim, axes[dim], part.accesses) for dim in dims]
                takes = dim_takes[0], dim_takes[1] if len(dim_takes) > 1 else None
                named = names.setdefault(takes, [])
                named += [layout.name] * (layout.name not in named)
    return [(_listed(named), *takes) for takes, named in names.items()]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _takes(
    recipe: Recipe, dim: str, axis: Axis, access: Sequence[tuple[int, int, int] | None]
) -> Takes:
    windows = recipe.require_windows()
    takes = access[windows.dims.index(dim)] if dim in windows.dims else None
    return takes or (0, 1, axis.size)
