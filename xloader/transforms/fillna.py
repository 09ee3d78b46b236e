"""The transform that replaces NaN by a number, in place in the gathered batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe, Transform, find

BLOCK_SIZE = 2**18
"""Elements searched at a time. Masks of this size fit the cache, and need no memory budget."""


@dataclass(frozen=True)
class Fillna(Transform):
    """The transform that replaces every NaN by a number, in place."""

    is_in_place: ClassVar[bool] = True
    values: tuple[tuple[str | None, float], ...]

    def describe(self) -> str:
        """The numbers by variable, as text."""
        texts = [str(value) if name is None else f"{name}={value}" for name, value in self.values]
        return f"fillna({', '.join(texts)})"

    def apply(self, layouts: tuple[FieldLayout, ...], arrays: dict[str, NDArray[Any]]) -> None:
        """Replace the NaN in the arrays of a batch, given by field."""
        for layout in layouts:
            array = arrays[layout.name]
            if array.dtype.kind != "f":
                continue
            for name, value in self.values:
                if name is None:
                    _fill(array, value)
                for part in layout.parts:
                    if part.variable == name:
                        _fill(part.view(array), value)


def make_fillna(recipe: Recipe, value: Any) -> Fillna:
    """Make the transform for one number, or for a mapping of numbers by variable."""
    values = dict(value) if isinstance(value, Mapping) else {None: value}
    for name, number in values.items():
        if name is not None:
            find(name, recipe.variables, "variable")
        if np.ndim(number) or np.asarray(number).dtype.kind not in "biuf":
            raise OptionError(
                "a fill value is not a number",
                given=repr(number),
                allowed="a number, or a mapping of variables to numbers",
                remedy="to fill from an array, use .map(lambda ds: ds.fillna(...))",
            )
    return Fillna(tuple((name, float(number)) for name, number in values.items()))


def _fill(array: NDArray[Any], value: float) -> None:
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for begin in range(0, flat.size, BLOCK_SIZE):
            block = flat[begin : begin + BLOCK_SIZE]
            np.copyto(block, value, where=np.isnan(block))
    else:
        for row in array:
            np.copyto(row, value, where=np.isnan(row))
