"""One window over everything, so that each chunk of a variable is a block of its own to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xloader.core.footprint import Group
from xloader.core.windows import Windows
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import layout_of
from xloader.recipe.recipe import Field, Recipe


def whole_recipe(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """The recipe with one window over everything that is selected of some variables."""
    dims = tuple(dict.fromkeys(dim for name in names for dim in recipe.dims_of(name)))
    sizes = tuple(recipe.dim_sizes[dim] for dim in dims)
    windows = Windows(dims, sizes, sizes, sizes, (1,) * len(sizes))
    return replace(
        recipe, windows=windows, fields=(), steps=(), subset=None, slab=None, num_taken=None
    )


def group_of(whole: Recipe, name: str) -> Group:
    """The chunks of one variable, as a group of its own."""
    layout = layout_of(whole, Field(name, (name,), has_channels=False))
    return make_footprint(whole, (layout,)).groups[0]
