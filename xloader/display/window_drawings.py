"""The window of the first sample on the grid of chunks, for cards of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from xloader.core.axis import Axis
from xloader.html.cards import Drawing
from xloader.html.chunk_grid import GridAxis, Takes, draw_chunk_grid
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe

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
    for name in dict.fromkeys(part.variable for own in layouts for part in own.parts):
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
    own = np.arange(place, min(place + 2, windows.num_positions[number]))
    starts = windows.starts_of(number, own).tolist()
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
    dims: Sequence[str],
    axes: Mapping[str, Axis],
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
                own = [_takes(recipe, dim, axes[dim], part.accesses) for dim in dims]
                takes = own[0], own[1] if len(own) > 1 else None
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
    own = access[windows.dims.index(dim)] if dim in windows.dims else None
    return own or (0, 1, axis.size)
