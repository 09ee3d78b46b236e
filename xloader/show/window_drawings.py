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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.core.messages import show_count
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
_LEAST_WINDOW: Final = 14.0
"""Pixels that a window has at least, if the part of the grid can be chosen so."""
_LEAST_CELL: Final = 4.0
"""Pixels between two lines."""
_MOST_RUNS: Final = 40
_MARGIN: Final = 1.0


Takes = tuple[int, int, int]
"""Elements that a field takes along a side: the first, counted from the window's, step, number."""

Field = tuple[str, Takes, Takes]
"""Names of fields, and the elements that they take across and down."""


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


_ONE_ROW: Final = GridAxis("", np.array([0, 1]), 0, None)
"""The other side where there is only one."""


@dataclass(frozen=True, eq=False)
class _View:
    """The part of a side that is drawn, and its length in pixels."""

    axis: GridAxis
    first: int
    last: int
    length: float

    @classmethod
    def of(cls, axis: GridAxis, window: Takes, length: float, most: int) -> _View:
        """Choose the chunks that are drawn: all, or those around this window and the next one."""
        first, _, count = window
        num, size = axis.num_chunks, int(axis.edges[-1])
        if num <= most and count / size * length >= _LEAST_WINDOW:
            return cls(axis, 0, num, length)
        starts = [axis.start] if axis.next_start is None else [axis.start, axis.next_start]
        ends = np.clip([min(starts) + first, max(starts) + first + count - 1], 0, size - 1)
        low, high = (np.searchsorted(axis.edges, ends, "right") - 1).tolist()
        return cls(axis, max(low - 1, 0), min(high + 3, num), length)

    def pixels(self, elements: Any) -> NDArray[np.float64]:
        """Place of elements on the drawing, cut at its ends."""
        begin, end = self.axis.edges[[self.first, self.last]]
        places = (np.asarray(elements) - begin) * (self.length / max(end - begin, 1))
        return np.asarray(np.clip(places, 0.0, self.length) + _MARGIN)

    def lines(self) -> list[float]:
        """Places of the borders between chunks, some of them left out where they are dense."""
        edges = self.axis.edges[self.first : self.last + 1]
        step = math.ceil(len(edges) * _LEAST_CELL / self.length)
        places: list[float] = self.pixels([*edges[:-1:step], edges[-1]]).tolist()
        return places

    def runs(self, start: int, takes: Takes) -> list[tuple[float, float]]:
        """Begins and lengths of the elements that a field takes."""
        first, step, count = takes
        if step > 1 and count <= _MOST_RUNS:
            pieces = [(start + first + step * number, 1) for number in range(count)]
        else:
            pieces = [(start + first, (count - 1) * step + 1)]
        size = int(self.axis.edges[-1])
        spans = []
        for begin, length in pieces:
            for turn in (0, -size, size) if self.axis.wraps else (0,):
                left, right = self.pixels([begin + turn, begin + turn + length]).tolist()
                if right > left:
                    spans.append((left, max(right - left, 1.5)))
        return spans

    def words(self) -> str:
        """The chunks that are drawn, in words."""
        num, name = self.axis.num_chunks, self.axis.name
        if self.last - self.first < num:
            return f"{name}: chunks {self.first + 1:,} to {self.last:,} of {num:,}"
        return f"{name}: {show_count(num, 'chunk')}"


def draw_chunk_grid(columns: GridAxis, rows: GridAxis | None, fields: Sequence[Field]) -> Drawing:
    """Draw the window of a sample on the grid of chunks.

    `rows`: None where the window lies along one dimension only.
    """
    hull = _hull([takes for _, takes, _ in fields]), _hull([takes for *_, takes in fields])
    across = _View.of(columns, hull[0], WIDTH - 2 * _MARGIN, _MOST_COLUMNS)
    height = 24.0 if rows is None else float(np.clip(16 * rows.num_chunks, 48, 150))
    rows = rows or _ONE_ROW
    down = _View.of(rows, hull[1], height, _MOST_ROWS)
    borders = "".join(f"M{x:.1f} {_MARGIN:g}v{height:g}" for x in across.lines())
    borders += "".join(f"M{_MARGIN:g} {y:.1f}h{across.length:g}" for y in down.lines())
    shapes = [f'<path class="xloader-cell" fill="none" stroke="#bbb" d="{borders}"/>']

    def boxes(start: tuple[int, int], takes: tuple[Takes, Takes]) -> list[Box]:
        lefts, tops = across.runs(start[0], takes[0]), down.runs(start[1], takes[1])
        return [(x, y, w, h) for x, w in lefts for y, h in tops]

    for number, (_, *takes) in enumerate(fields):
        places = boxes((columns.start, rows.start), (takes[0], takes[1]))
        shapes.append(filled_boxes(colour_class(number), places, 0.75))
    nexts: list[Box] = []
    if columns.next_start is not None:
        nexts += boxes((columns.next_start, rows.start), hull)
    if rows.next_start is not None:
        nexts += boxes((columns.start, rows.next_start), hull)
    shapes.append(outlined_boxes("xloader-ink", nexts, "3 2"))
    caption = f"Across: {across.words()}" + (f"; down: {down.words()}" if rows.name else "") + "."
    if nexts:
        caption += f" Dashed: the next window{'s' * (len(nexts) > 1)}."
    legend = [(colour_class(number), name) for number, (name, *_) in enumerate(fields)]
    label = f"The window of a sample on the grid of chunks. {caption}"
    return Drawing(drawing_of(label, height + 2 * _MARGIN, shapes), caption, legend)


def _hull(every: Sequence[Takes]) -> Takes:
    """All elements from the first to the last that some field takes."""
    first = min(first for first, _, _ in every)
    return first, 1, max(begin + (num - 1) * step + 1 for begin, step, num in every) - first


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
    columns = _grid_axis(recipe, across, axes[across], positions)
    rows = None if down is None else _grid_axis(recipe, down, axes[down], positions)
    fields = _drawn_fields(recipe, layouts, (across, down), axes)
    rest = len(fields) - _MOST_FIELDS
    drawn = draw_chunk_grid(columns, rows, fields[:_MOST_FIELDS])
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
    recipe: Recipe,
    layouts: Sequence[FieldLayout],
    dims: tuple[str, str | None],
    axes: Mapping[str, Axis],
) -> list[Field]:
    """The fields whose variables have these chunks, and the elements that they take.

    Fields that take the same elements come together.
    """
    names: dict[tuple[Takes, Takes], list[str]] = {}
    for layout in layouts:
        for part in layout.parts:
            known = dict(
                zip(recipe.variable(part.variable).dims, recipe.axes_of(part.variable), strict=True)
            )
            if all(dim is None or known.get(dim) == axes[dim] for dim in dims):
                across, down = (
                    (0, 1, 1) if dim is None else _takes(recipe, dim, axes[dim], part.accesses)
                    for dim in dims
                )
                named = names.setdefault((across, down), [])
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
