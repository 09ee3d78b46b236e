"""Weights with which each class of a label field is drawn equally often; see `Samples.weighted`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.errors import OptionError
from xloader.recipe.points import columns_by_name
from xloader.recipe.recipe import Recipe, find


def choose_weights(recipe: Recipe, weights: ArrayLike | None, balance: str | None) -> ArrayLike:
    """The weights that are given, or those that balance the classes of a column.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    weights : array-like, optional
        One weight for each sample id.
    balance : str, optional
        Name of a label column; exactly one of the two must be given.

    Raises
    ------
    OptionError
        If both or neither are given, or the column holds floats.
    UnknownNameError
        If there is no such column.
    """
    if (weights is None) == (balance is None):
        raise OptionError(
            "weighted takes either weights or balance",
            given="neither" if weights is None else "both",
            allowed="weights=..., one for each sample, or balance=..., the name of a column",
            remedy="leave one of them out" if weights is not None else "pass one of them",
        )
    return weights if balance is None else _balanced(recipe, balance)  # type: ignore[return-value]


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
