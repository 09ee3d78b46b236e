"""The chunks of each variable that the fields of a recipe need."""

from __future__ import annotations

import math

from xloader.core.axis import MOST_BLOCKS, Axis
from xloader.core.footprint import Access, Demand, Footprint
from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe


def make_footprint(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> Footprint:
    """Find the chunks that samples need, for planning."""
    accesses: dict[str, set[Access]] = {}
    for layout in layouts:
        for part in layout.parts:
            accesses.setdefault(part.variable, set()).add(part.accesses)
    windows = recipe.require_windows()
    demands = []
    for name, taken in accesses.items():
        variable = recipe.variable(name)
        axes = dict(zip(variable.dims, recipe.axes_of(name), strict=True))
        _check_num_chunks(name, {dim: axes[dim] for dim in windows.dims if dim in axes})
        _check_num_chunks(name, {dim: axes[dim] for dim in axes if dim not in windows.dims})
        demands.append(
            Demand(
                variable=name,
                axes=tuple(axes.get(dim) for dim in windows.dims),
                whole_axes=tuple(axis for dim, axis in axes.items() if dim not in windows.dims),
                itemsize=variable.stored_dtype.itemsize,
                accesses=frozenset(taken),
                index_nbytes=variable.index_nbytes,
                thinning=variable.thinning,
                is_computed=variable.is_computed,
            )
        )
    return Footprint.of(windows, tuple(demands), recipe.subset)


def _check_num_chunks(variable: str, axes: dict[str, Axis]) -> None:
    """Refuse more chunks than can be listed, before they are listed."""
    num_chunks = math.prod(axis.num_blocks for axis in axes.values())
    if num_chunks <= MOST_BLOCKS:
        return
    chunks = {
        dim: axis.chunks if isinstance(axis.chunks, int) else max(axis.chunks)
        for dim, axis in axes.items()
    }
    while True:
        counts = {dim: _num_chunks(axes[dim], chunks[dim]) for dim in axes}
        if math.prod(counts.values()) <= MOST_BLOCKS:
            break
        chunks[max(counts, key=lambda dim: counts[dim])] *= 2
    raise OptionError(
        f"the variable {variable!r} has too many chunks to plan for",
        given=f"{num_chunks} chunks along {', '.join(map(repr, axes))}",
        allowed=f"up to {MOST_BLOCKS} along windowed dimensions, and along the others together",
        remedy=f"store it in larger chunks, such as {chunks}, or select less of it with .isel",
    )


def _num_chunks(axis: Axis, chunks: int) -> int:
    """Most chunks that the selection could touch if the chunks were of size ``chunks``."""
    extent = abs(axis.selection[-1] - axis.selection[0]) + 1
    return min(axis.size, -(-extent // chunks) + 1)
