"""The samples that a batch was made of, from which its labels are found when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError
from xloader.recipe.recipe import Recipe
from xloader.recipe.recipe_tokens import recall
from xloader.transforms.batch_labels import blank_batch, label_batch
from xloader.transforms.rng import NO_EPOCH, Chance
from xloader.transforms.steps import Map


@dataclass(frozen=True, eq=False)
class BatchOrigin:
    """The recipe of a batch's samples, and the random numbers that the batch was made with.

    It pickles as the token of the recipe, in about 200 bytes. In a process that does not hold the
    samples, the recipe is None.
    """

    recipe: Recipe | None
    chance: Chance = NO_EPOCH
    token: str | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, seed: int, epoch: int, occurrences: Ints | None = None
    ) -> BatchOrigin:
        """The origin of a batch of an epoch."""
        if any(isinstance(step, Map) and step.random for step in recipe.steps):
            return cls(recipe, Chance(seed, epoch, occurrences))
        return cls(recipe)

    def to_xarray(self, fields: Mapping[str, Any], ids: Ints) -> xr.Dataset:
        """Make a Dataset of a batch; see `Batch.to_xarray`."""
        arrays = {name: as_numpy(array) for name, array in fields.items()}
        return label_batch(self._found(), arrays, ids, self.chance)

    def coords(self, ids: Ints) -> xr.Coordinates:
        """The labels of a batch; see `Batch.coords`."""
        frame = blank_batch(self._found(), ids, self.chance)
        return frame.drop_vars(list(frame.data_vars)).coords

    def __reduce__(self) -> tuple[object, ...]:
        token = self.token if self.recipe is None else self.recipe.token
        chance = self.chance
        return _found_again, (token, chance.seed, chance.epoch, chance.occurrences)

    def _found(self) -> Recipe:
        if self.recipe is None:
            raise OptionError(
                "the samples of this batch are not in this process",
                given="a batch that another process has pickled",
                allowed="batches of this process, or of workers of its own",
                remedy="call samples.to_xarray(batch.ids), with the samples opened here",
            )
        return self.recipe


def _found_again(token: str, seed: int, epoch: int, occurrences: Ints | None) -> BatchOrigin:
    recipe: Recipe | None = recall(token)
    chance = Chance(seed, epoch, occurrences)
    return BatchOrigin(recipe, chance, token if recipe is None else None)


def as_numpy(array: Any) -> NDArray[Any]:
    """A NumPy array of an array or tensor, on any device."""
    # By name, because PyTorch and CuPy are not imported in this room.
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()
        return np.asarray(array.numpy())
    if hasattr(array, "get") and hasattr(array, "device"):
        array = array.get()
    found = np.asarray(array)
    return found if found.dtype.kind in "biufcmMOSU" else found.astype(np.float32)
