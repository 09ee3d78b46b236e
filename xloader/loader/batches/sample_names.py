"""The ids that the samples of a part have among all samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints
from xloader.recipe.recipe import Recipe


@dataclass(frozen=True, eq=False)
class SampleNames:
    """All samples, of which a loader has a part, and the ids that it gives to those of its part.

    Batches, transforms and random numbers see these ids, as if the loader had all samples. `ids`:
    id among all samples of each sample of the part, ascending.
    """

    recipe: Recipe
    ids: Ints

    def of(self, rows: Ints) -> Ints:
        """The ids of some samples of the part, given their numbers in it."""
        return self.ids[rows]

    def rows_of(self, ids: Ints) -> Ints:
        """The numbers in the part of some of its samples, given their ids."""
        return np.asarray(np.searchsorted(self.ids, ids), np.int64)
