"""The samples that a batch was made of, from which its labels are found when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError, TransformError
from xloader.recipe.layout import make_layouts
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Recipe, recall
from xloader.transforms.batch_datasets import to_frame
from xloader.transforms.normalize import in_words
from xloader.transforms.outputs import finish_frame
from xloader.transforms.rng import NO_EPOCH, Chance
from xloader.transforms.steps import Map

_REMEDY = "call samples.to_xarray(batch.ids), which reads the samples and runs the transforms"


def label_batch(
    recipe: Recipe, arrays: Mapping[str, NDArray[Any]], ids: Ints, chance: Chance = NO_EPOCH
) -> xr.Dataset:
    """Make a Dataset of a finished batch, as :meth:`xloader.Samples.to_xarray` gives it."""
    frame = blank_batch(recipe, ids, chance)
    shapes = {str(name): field.transpose(SAMPLE, ...).shape for name, field in frame.items()}
    given = {name: array.shape for name, array in arrays.items()}
    if given != shapes:
        raise OptionError(
            "the fields of this batch are not those of its samples",
            given=", ".join(f"{name} {shape}" for name, shape in given.items()),
            allowed=", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            remedy="a function that is called on single samples or on the device, or a "
            "collate_fn, has changed them, and has no labels to change: record it with "
            "samples.map(fn), or build a Dataset with the labels of batch.coords",
        )
    values = {}
    for name, field in frame.items():
        variable = xr.Variable(field.transpose(SAMPLE, ...).dims, arrays[str(name)])
        values[name] = variable.transpose(*field.dims).data
    return frame.copy(data=values)


def blank_batch(recipe: Recipe, ids: Ints, chance: Chance = NO_EPOCH) -> xr.Dataset:
    """Make a Dataset of a batch with its labels and with made-up values."""
    layouts = make_layouts(recipe)
    shapes = {layout.name: (len(ids), *layout.shape) for layout in layouts}
    if not recipe.is_mapped:
        blank = {
            layout.name: np.broadcast_to(np.zeros((), layout.dtype), shapes[layout.name])
            for layout in layouts
        }
        return to_frame(recipe, layouts, blank, ids)
    tried = []
    for largest in (1, 7):
        made = {
            layout.name: np.resize(np.arange(largest), shapes[layout.name]).astype(layout.dtype)
            for layout in layouts
        }
        try:
            with np.errstate(all="ignore"):
                tried.append(finish_frame(recipe, layouts, made, ids, chance))
        except TransformError as error:
            raise OptionError(
                f"the labels of this batch cannot be found: {error.what}",
                given="made-up values, as transforms are run once more to find the labels",
                remedy=_REMEDY,
            ) from error
    dims = [{name: field.dims for name, field in frame.items()} for frame in tried]
    first, second = (frame.coords.to_dataset() for frame in tried)
    if dims[0] != dims[1] or not first.identical(second):
        raise OptionError(
            "a transform makes labels from values, and this batch no longer has the values from "
            "before it",
            given=", ".join(map(in_words, recipe.steps)),
            remedy=_REMEDY,
        )
    return tried[0]


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
    def of(cls, recipe: Recipe, chance: Chance) -> BatchOrigin:
        """The origin of a batch of an epoch. It keeps the random numbers only if they are used."""
        is_random = any(isinstance(step, Map) and step.random for step in recipe.steps)
        return cls(recipe, chance if is_random else NO_EPOCH)

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
    values = np.asarray(array)
    return values if values.dtype.kind in "biufcmMOSU" else values.astype(np.float32)
