"""The samples of a store that is not written yet: the same ones, in other chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from xloader.planning.chunk_shapes import ChunkedDim, ChunkedPart, ChunkedVariable
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable
from xloader.sources.views.rechunked_source import RechunkedSource


def taken_variables(recipe: Recipe) -> list[Variable]:
    """The variables that some field takes, in the order of the recipe."""
    taken = {name for field in recipe.gathered_fields for name in field.variables}
    return [recipe.variable(name) for name in recipe.variables if name in taken]


def recipe_in_chunks(
    recipe: Recipe, chunks: Mapping[str, int], shards: Mapping[str, int] | None = None
) -> Recipe:
    """The samples of a store that holds the variables of a recipe, over the part that it selects.

    Ids, fields, transforms and subset are the same. Forcings are computed again.
    """
    if recipe.slab is not None:
        # The store is that of the whole samples, of which the slab's ranks share one copy.
        whole = recipe_in_chunks(recipe.slab.whole, chunks, shards)
        return dataclasses.replace(
            recipe,
            source=whole.source,
            variables=whole.variables,
            selection=((recipe.slab.dim, recipe.slab.part),),
            slab=dataclasses.replace(recipe.slab, whole=whole),
        )
    names = tuple(variable.name for variable in taken_variables(recipe))
    source = RechunkedSource(recipe.source, names, dict(recipe.selection), chunks, shards)
    return dataclasses.replace(recipe, source=source, variables=names, selection=())


def chunked_part(
    recipe: Recipe, num_samples: int, batch_size: int, pool_nbytes: int
) -> ChunkedPart:
    """The variables that a copy would store, and what samples take of them."""
    recipe = recipe.planned
    windows = recipe.require_windows()
    stored = [variable for variable in taken_variables(recipe) if not variable.is_computed]
    dims_of = {variable.name: recipe.dims_of(variable.name) for variable in stored}
    dims = []
    # Dimensions come in the order of the variable that has the most of them.
    for name in dict.fromkeys(d for own in sorted(dims_of.values(), key=len)[::-1] for d in own):
        size = max(recipe.dim_sizes[name], 1)
        if name not in windows.dims:
            dims.append(ChunkedDim(name, size))
            continue
        axis = windows.dims.index(name)
        extent, stride = min(windows.extents[axis], size), windows.strides[axis]
        dims.append(ChunkedDim(name, size, extent, stride, windows.num_positions[axis]))
    return ChunkedPart(
        tuple(dims),
        tuple(ChunkedVariable(dims_of[v.name], v.stored_dtype.itemsize) for v in stored),
        num_samples,
        batch_size,
        pool_nbytes,
    )
