"""Weights with which each class of a label field is drawn equally often; see `Samples.weighted`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.errors import OptionError
from xloader.recipe.points import columns_by_name
from xloader.recipe.recipe import Recipe, find


def choose_weights(
    recipe: Recipe, weights: ArrayLike | None, balance: str | None, num_samples: int | None
) -> ArrayLike:
    """The weights that are given, or those that balance the classes of a column, or equal ones."""
    num_given = (weights is not None) + (balance is not None)
    if num_given == 2 or (num_given == 0 and num_samples is None):
        raise OptionError(
            "weighted takes either weights or balance",
            given="both" if num_given else "neither",
            allowed="weights=..., one for each sample, or balance=..., the name of a column; or "
            "num_samples=... alone, where all weights are equal",
            remedy="leave one of them out" if num_given else "pass one of them",
        )
    if balance is not None:
        return _balanced(recipe, balance)
    return np.ones(recipe.num_ids) if weights is None else weights


def _balanced(recipe: Recipe, name: str) -> NDArray[np.float64]:
    """One divided by the number of samples of the same class."""
    recipe.require_windows()
    columns = columns_by_name(recipe)
    find(name, columns, "column of at_points or open_classes")
    values = columns[name].values
    if values.dtype.kind == "f":
        raise OptionError(
            f"the column {name!r} holds floats, which are not classes",
            given=f"dtype {values.dtype}",
            allowed="text, categories, integers and bools",
            remedy=f"make classes before at_points, such as table.assign({name}=pd.cut(...)), or "
            "pass weights of your own",
        )
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[classes], np.float64)
