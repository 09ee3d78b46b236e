"""Recipes of which an epoch takes another number of samples than there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xloader.core.subset import Subset
from xloader.recipe.recipe import Recipe, Slab


def num_samples_of(recipe: Recipe) -> int:
    """Number of samples of an epoch of a recipe."""
    if recipe.num_taken is not None:
        return recipe.num_taken
    return len(recipe.require_windows()) if recipe.subset is None else recipe.subset.num_samples


def taking(recipe: Recipe, num_samples: int) -> Recipe:
    """The recipe of which an epoch takes so many samples.

    Fewer than there are become successive parts of one pass, as in `xloader.planning.epoch_parts`:
    nothing is listed, so this costs no memory. More than there are are drawn: each sample occurs
    ``floor`` or ``ceil`` of its share.
    """
    if recipe.slab is not None:
        # The changes are not of the selection nor of transforms, so the cut is the same.
        whole = taking(recipe.slab.whole, num_samples)
        slab = Slab(whole, recipe.slab.dim, recipe.slab.part)
        return replace(recipe, subset=whole.subset, num_taken=whole.num_taken, slab=slab)
    num_own = num_samples_of(recipe)
    if num_samples == num_own:
        return recipe
    subset = recipe.subset or Subset(len(recipe.require_windows()))
    if subset.weights is not None:
        return replace(recipe, subset=replace(subset, num_draws=num_samples))
    if num_samples < num_own:
        return replace(recipe, num_taken=num_samples)
    weights = np.ones(len(subset))
    return replace(recipe, subset=replace(subset, weights=weights, num_draws=num_samples))
