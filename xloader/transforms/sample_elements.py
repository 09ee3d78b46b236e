"""The elements of each sample along a dimension: within the selection, and in the store.

Windows may reach beyond the ends of a dimension. Elements there are those of the other end where
the windows wrap, and the nearest or the mirrored ones where the borders are padded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.recipe.layout import Elements, FieldLayout, window_offsets
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import stored


def elements_along(recipe: Recipe, layout: FieldLayout, dim: str, ids: Ints) -> tuple[Ints, bool]:
    """Stored elements of a field along a dimension, for some samples.

    Int64, shape ``(n, count)`` along a windowed dimension, else ``(size,)``.
    """
    kept = recipe.kept_of(dim)
    if isinstance(kept, int):
        return np.array([kept], np.int64), False
    elements = layout.elements_of(dim)
    if elements is None:
        return np.asarray(kept, np.int64), False
    axis = recipe.require_windows().dims.index(dim)
    places = places_along(recipe, axis, elements, recipe.positions_of(ids)[:, axis])
    return stored(kept, places), True


def places_along(recipe: Recipe, axis: int, elements: Elements, positions: Ints) -> Ints:
    """Places within the selection of the elements that windows take along a dimension.

    The result has shape (n, count).
    """
    windows = recipe.require_windows()
    offsets = window_offsets(windows.starts_of(axis, positions), elements)
    size, pad = windows.dim_sizes[axis], windows.pads[axis]
    if pad == "reflect":
        offsets = np.abs(offsets)
        offsets = np.minimum(offsets, 2 * (size - 1) - offsets)
    elif pad is not None:
        offsets = np.clip(offsets, 0, size - 1)
    # Where windows wrap, offsets beyond the last element count from the first one again.
    return np.asarray(offsets % size, np.int64)


def filled_along(
    recipe: Recipe, layout: FieldLayout, dim: str, ids: Ints
) -> NDArray[np.bool_] | None:
    """Whether a number stands for each element of samples along a dimension; None for none."""
    windows, elements = recipe.require_windows(), layout.elements_of(dim)
    axis = windows.dims.index(dim) if dim in windows.dims else None
    if axis is None or elements is None or not isinstance(windows.pads[axis], float):
        return None
    firsts = windows.starts_of(axis, recipe.positions_of(ids)[:, axis])
    offsets = window_offsets(firsts, elements)
    return np.asarray((offsets < 0) | (offsets >= windows.dim_sizes[axis]))
