"""What the fields of a recipe ask of each variable."""

from __future__ import annotations

from xloader.footprint import Access, Demand, Footprint
from xloader.layout import FieldLayout
from xloader.recipe import Recipe


def make_footprint(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> Footprint:
    """The chunks that samples need, for planning.

    Parameters
    ----------
    recipe : Recipe
        A recipe with windows.
    layouts : tuple of FieldLayout
        Its layouts.
    """
    accesses: dict[str, set[Access]] = {}
    for layout in layouts:
        for part in layout.parts:
            accesses.setdefault(part.variable, set()).add(part.accesses)
    windows = recipe.require_windows()
    demands = []
    for name, taken in accesses.items():
        variable = recipe.variable(name)
        axes = dict(zip(variable.dims, recipe.axes_of(name), strict=True))
        demands.append(
            Demand(
                variable=name,
                axes=tuple(axes.get(dim) for dim in windows.dims),
                whole_axes=tuple(axis for dim, axis in axes.items() if dim not in windows.dims),
                itemsize=variable.stored_dtype.itemsize,
                accesses=frozenset(taken),
                index_nbytes=variable.index_nbytes,
                thinning=variable.thinning,
            )
        )
    return Footprint.of(windows, tuple(demands), recipe.subset)
