"""The samples that the rows of a batch are of, checked against those of the mosaic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.axis import Ints
from xloader.core.subset import Subset
from xloader.errors import MosaicError
from xloader.loader.batches.batch import Batch
from xloader.loader.ranks.fingerprint import describe_samples
from xloader.mosaic.prediction_arrays import as_ids
from xloader.recipe.recipe import Recipe


class SampleRows:
    """Finds the ids of rows among the samples of a mosaic."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._subset = _unweighted(recipe)
        # The samples of the batches before, which need not be compared again.
        self._known: tuple[Recipe, Ints | None] | None = None

    def of(
        self, ids: Batch | ArrayLike, selected: ArrayLike | None = None
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The ids of rows, and which rows are padding."""
        num_ids = self._recipe.num_ids
        among = None if selected is None else as_ids(selected, num_ids)
        if isinstance(ids, Batch):
            self._check_batch(ids, among)
        own = as_ids(
            ids.require_ids() if isinstance(ids, Batch) else ids,
            num_ids if among is None else len(among),
        )
        is_padding = ids.is_padding if isinstance(ids, Batch) else np.zeros(len(own), bool)
        return own if among is None else among[own], is_padding

    def _check_batch(self, batch: Batch, among: Ints | None) -> None:
        """Check that the ids of a batch mean the samples of the mosaic, as far as it knows them."""
        if batch.source is not None:
            raise MosaicError(
                "the rows of this batch are of several sets, each with ids of its own",
                given=f"rows of {', '.join(dict.fromkeys(batch.source.tolist()))}",
                allowed="batches of the samples of the mosaic",
                remedy="make a mosaic for each set, and write its rows: out.write("
                "batch.ids[batch.source == name], prediction[batch.source == name])",
            )
        recipe = None if batch.origin is None else batch.origin.recipe
        if recipe is None:
            # Made by hand or in another process. Only the ids are known.
            return
        if self._known is not None:
            known, chosen = self._known
            if known is recipe and _is_same(chosen, among):
                return
        subset = self._subset if among is None else self._subset.select(among)
        is_placed_alike = _places(recipe.planned) == _places(self._recipe)
        if not is_placed_alike or _unweighted(recipe) != subset:
            raise MosaicError(
                "the batch is of other samples than the mosaic, so its ids mean other places",
                given=f"a batch of {recipe.num_ids:,} samples"
                + " of another selection, or with other windows" * (not is_placed_alike),
                allowed=f"batches of the {len(subset):,} samples "
                + ("of the mosaic" if among is None else "that selected= names"),
                remedy="for batches of samples.select(ids), pass selected=ids, or write("
                "ids[batch.ids], prediction); otherwise make the mosaic with the samples that the "
                "loader has",
            )
        self._known = recipe, among


def _places(recipe: Recipe) -> tuple[Any, ...]:
    """The elements that windows have, apart from the choice of windows."""
    windows = recipe.require_windows()
    kept = tuple(recipe.kept_of(dim) for dim in windows.dims)
    return windows, kept, describe_samples(recipe)["labels"]


def _unweighted(recipe: Recipe) -> Subset:
    """The subset of a recipe without weights, which change no id."""
    subset = recipe.subset or Subset(len(recipe.require_windows()))
    return replace(subset, weights=None, num_draws=None)


def _is_same(first: Ints | None, second: Ints | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)
