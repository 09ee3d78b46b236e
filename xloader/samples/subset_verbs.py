"""Implementation of the `Samples` methods that choose samples.

These are `select`, `sample`, `weighted`, `random`, `slab` and `ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from xloader.core.axis import Ints
from xloader.core.counter_rng import bijection, derive_key
from xloader.core.option_checks import check_whole
from xloader.core.subset import GroupDraws, Subset
from xloader.core.window_sets import WindowBits
from xloader.errors import EmptySamplesError, OptionError, SampleIndexError
from xloader.jobs.valid.sample_mask import SampleMask
from xloader.mosaic.sample_rows import RemainingIds
from xloader.recipe import selection
from xloader.recipe.recipe import Recipe, find
from xloader.samples.single_samples import as_mask, listed_ids, normal_ids
from xloader.transforms import slabs

_MOST_DRAWS = 1 << 32
"""Largest ``num_samples``. Each drawn id takes 8 bytes, so more would not fit in memory."""

_SAMPLE = 0x5A40
"""The constant of this use of random numbers."""


def select(recipe: Recipe, ids: ArrayLike | slice | SampleMask) -> Subset:
    """The subset of the samples named, in the order given; see `Samples.select`."""
    if isinstance(ids, SampleMask):
        return _select_mask(recipe, ids)
    flags = as_mask(recipe.num_ids, ids)
    if flags is not None:
        subset = subset_of(recipe).keep(WindowBits.of_flags(flags))
    else:
        chosen = normal_ids(recipe.num_ids, listed_ids(recipe.num_ids, ids))
        subset = subset_of(recipe).select(chosen)
    if not len(subset) and isinstance(ids, RemainingIds):
        return subset.undrawn
    if not len(subset):
        raise EmptySamplesError("no sample is selected", given=repr(ids))
    return _require_weight(subset, ids)


def sample(recipe: Recipe, n: int, seed: int) -> Subset:
    """The subset of some samples at random, ascending; see `Samples.sample`."""
    size = recipe.num_ids
    n = check_whole("n", n, 1, size)
    keys = np.array(
        [derive_key(_SAMPLE, check_whole("seed", seed, -(2**63), 2**64 - 1))], np.uint64
    )
    first = np.zeros(n, np.int64)
    ids = bijection(keys, np.array([size]), np.arange(n), first)
    return _require_weight(subset_of(recipe).select(np.sort(ids)), ids)


def _select_mask(recipe: Recipe, mask: SampleMask) -> Subset:
    if len(mask) != recipe.num_ids:
        raise SampleIndexError(
            "the mask belongs to other samples",
            given=f"{mask!r}, for {recipe.num_ids} samples",
            remedy="call is_valid and select of the same samples",
        )
    if not mask.num_valid:
        raise EmptySamplesError(
            "no sample is valid", given=repr(mask), remedy="pass a smaller at_least or fewer fields"
        )
    return _require_weight(subset_of(recipe).keep(mask.bits, mask.check), mask)


def _require_weight(subset: Subset, ids: object) -> Subset:
    if subset.weights is not None and not subset.weights.any():
        raise EmptySamplesError(
            "all selected samples have weight 0",
            given=repr(ids),
            remedy="call .select before .weighted, or select other samples",
        )
    return subset


def weigh(recipe: Recipe, weights: ArrayLike, num_samples: int | None) -> Subset:
    """The subset with weights, all samples kept; see `Samples.weighted`."""
    given = np.asarray(weights)
    # Text is no number, and a cast to float would drop the imaginary part of complex numbers.
    is_real = given.dtype.kind in "biuf"
    values = given.astype(np.float64) if is_real else np.full(given.shape, np.nan)
    if values.shape != (recipe.num_ids,) or not np.isfinite(values).all():
        raise OptionError(
            "the weights do not fit the samples",
            given=f"{given.dtype} of shape {given.shape}, not finite: "
            f"{np.count_nonzero(~np.isfinite(values))}",
            remedy=f"pass one finite real number for each of {recipe.num_ids} samples",
        )
    if values.min() < 0 or not values.any():
        raise OptionError(
            "the weights are negative, or all 0", given=f"from {values.min()} to {values.max()}"
        )
    if num_samples is not None:
        num_samples = check_whole("num_samples", num_samples, 1, _MOST_DRAWS)
    return _require_one_draw(replace(subset_of(recipe), weights=values, num_draws=num_samples))


def draw_per_group(recipe: Recipe, n: int, per: str | Sequence[str] | None) -> Subset:
    """The subset of which each epoch draws some samples per group; see `Samples.random`."""
    windows = recipe.require_windows()
    names = (per,) if isinstance(per, str) else tuple(per or ())
    for dim in names:
        if dim not in windows.dims:
            raise OptionError(
                f"samples have no position along {dim!r} to group them by",
                given=f"per={per!r}, windows along {', '.join(windows.dims)}",
                remedy=f"name the dimension in window: .window({{{dim!r}: 1, ...}})",
            )
    n = check_whole("n", n, 1, _MOST_DRAWS)
    shape = windows.num_positions
    known = tuple(dim for dim in windows.dims if dim in names)
    pairs = zip(windows.dims, shape, strict=True)
    sizes = tuple(count if dim in names else 1 for dim, count in pairs)
    draws = GroupDraws(n, shape, sizes, known)
    return _require_one_draw(replace(subset_of(recipe), draws=draws))


def _require_one_draw(subset: Subset) -> Subset:
    if subset.weights is not None and subset.draws is not None:
        raise OptionError(
            "samples are drawn either by weight or as random windows, not both",
            remedy="leave .weighted or .random out",
        )
    return subset


def cut_slab(recipe: Recipe, dim: str, rank: int, size: int) -> Recipe:
    """The recipe of one rank's part of each sample; see `Samples.slab`."""
    windowed = recipe.require_windows().dims
    find(dim, recipe.dim_sizes, "dimension")
    total = recipe.dim_sizes[dim]
    span = slabs.part_of(total, rank, size)
    if span is None or dim in windowed or recipe.whole is not None:
        raise OptionError(
            f"samples cannot be cut into slabs of {dim!r} like this",
            given=f"rank={rank!r}, size={size!r}, windows along {', '.join(windowed)}"
            + ", of a slab" * (recipe.whole is not None),
            allowed="once, along a dimension without windows; whole numbers, "
            f"0 <= rank < size <= {total}",
        )
    slabs.require_in_place(recipe, dim)
    return slabs.cut(recipe, dim, span)


def ids_at(
    recipe: Recipe, labels: Mapping[str, Any], *, method: str | None, tolerance: Any
) -> Ints:
    """Ids of the samples whose windows begin at certain labels; see `Samples.ids`."""
    windows = recipe.require_windows()
    positions = selection.positions_at(recipe, labels, method=method, tolerance=tolerance)
    grid = np.meshgrid(*positions, indexing="ij")
    at = windows.ids_of(np.stack([column.reshape(-1) for column in grid], axis=-1))
    ids = subset_of(recipe).ids_of(at)
    if not len(ids):
        raise EmptySamplesError(
            "the windows at these labels are not among the selected samples",
            given=labels,
            remedy="call ids before select, or see samples.positions(range(len(samples))) for the "
            "selected windows",
        )
    return ids


def subset_of(recipe: Recipe) -> Subset:
    """The subset of a recipe. Where none was chosen, every window is a sample."""
    return recipe.subset or Subset(len(recipe.require_windows()))
