"""Bytes and objects of the part of a store that samples cover, as far as the store tells them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Axis
from xloader.jobs.advice.target_recipe import taken_variables
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import as_selection
from xloader.sources.base import Variable
from xloader.sources.stores.stored_objects import StoredObjects, stored_objects_of


@dataclass(frozen=True)
class StoredSizes:
    """How the variables of some samples are stored today.

    `stored_share`: stored bytes for each decoded byte; None if not known of some variable.
    `num_objects`: objects that hold this part; None if not known.
    """

    stored_share: float | None
    nbytes: int | None
    num_objects: int | None
    shards: dict[str, int] | None


def stored_sizes(recipe: Recipe) -> StoredSizes:
    """Look up how the variables of some samples are stored. No chunk is read."""
    recipe = recipe.planned
    stored = [variable for variable in taken_variables(recipe) if not variable.is_computed]
    objects_by_name = {v.name: stored_objects_of(recipe.source, v.name) for v in stored}
    decoded = {v.name: _covered(recipe, v) * v.stored_dtype.itemsize for v in stored}
    nbytes = 0.0
    num_objects = 0
    has_sizes = has_objects = True
    for variable in stored:
        objects = objects_by_name[variable.name]
        if objects is None or objects.stored_share is None:
            has_sizes = False
        else:
            nbytes += objects.stored_share * decoded[variable.name]
        if objects is None:
            has_objects = False
        else:
            num_objects += _num_objects(recipe, variable, objects)
    total = sum(decoded.values())
    largest = max(stored, key=lambda v: decoded[v.name])
    objects = objects_by_name[largest.name]
    return StoredSizes(
        nbytes / total if has_sizes and total else None,
        round(nbytes) if has_sizes else None,
        num_objects if has_objects else None,
        None if objects is None or objects.shards is None else _shards(recipe, largest, objects),
    )


def _covered(recipe: Recipe, variable: Variable) -> int:
    """Elements of a variable that are selected."""
    return math.prod(axis.size for axis in recipe.axes_of(variable.name))


def _num_objects(recipe: Recipe, variable: Variable, objects: StoredObjects) -> int:
    axes = recipe.axes_of(variable.name)
    if objects.shards is None:
        return math.prod(axis.num_blocks for axis in axes)
    # The last shard may reach beyond the array.
    wholes = (size if isinstance(size, int) else max(size) for size in objects.shards)
    # In stored order, as an order of chunks may come back to a shard that it has left.
    return math.prod(
        Axis(axis.stored_size, size, as_selection(np.sort(axis.selection))).num_blocks
        for axis, size in zip(axes, wholes, strict=True)
    )


def _shards(recipe: Recipe, variable: Variable, objects: StoredObjects) -> dict[str, int]:
    assert objects.shards is not None
    return {
        dim: size if isinstance(size, int) else max(size)
        for dim, size in zip(variable.dims, objects.shards, strict=True)
        if dim in recipe.dims_of(variable.name)
    }
