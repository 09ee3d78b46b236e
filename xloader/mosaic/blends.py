"""Blends: how the values that several windows give for a cell become one.

The windows of a box of cells are added in ascending order of their ids, so the result has the same
bits whatever the order in which predictions were made. NaN spreads to all cells that it touches.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.mosaic.records import Shape, Slices
from xloader.mosaic.target_grid import PlacedAxis

CELL_NBYTES: Final = 20
"""Bytes of a cell while its box is blended: a value, a weight or a distance, a count."""

_FAR: Final = np.iinfo(np.int64).max


class MeanBlend:
    """The weighted mean of all windows of a cell, in float64.

    It is kept as a mean, ``mean += (value - mean) * weight / weight_so_far``, and not as a sum:
    then windows that agree on a value give exactly this value.
    """

    def __init__(self, shape: Shape, is_linear: bool) -> None:
        self.values = np.full(shape, np.nan)
        self.counts = np.zeros(shape, np.int32)
        self._totals = np.zeros(shape)
        self._is_linear = is_linear

    def weights(self, axis: PlacedAxis, elements: slice) -> NDArray[Any]:
        """The weights of some elements of a window along a dimension, 1-d."""
        own = np.arange(elements.start, elements.stop, dtype=np.float64)
        return np.minimum(own + 1, axis.count - own) if self._is_linear else np.ones(len(own))

    @staticmethod
    def combine(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        """The weights of two dimensions together."""
        return np.asarray(first * second)

    def add(self, cells: Slices, values: NDArray[Any], weight: NDArray[Any]) -> None:
        """Add values of one window, with weights of a shape that broadcasts to theirs."""
        means, counts, totals = self.values[cells], self.counts[cells], self._totals[cells]
        totals += weight
        is_first = counts == 0
        counts += 1
        if is_first.all():
            means[...] = values
            return
        values = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            mixed = means + (values - means) * (weight / totals)
        # Equal values are kept, and so is the sign of a zero. Infinity outweighs all numbers.
        is_kept = (values == means) | (np.isinf(means) & np.isfinite(values))
        np.copyto(mixed, means, where=is_kept & ~is_first)
        np.copyto(mixed, values, where=is_first)
        means[...] = mixed


class CropBlend:
    """The value of the window whose centre is nearest; of several, that with the lowest id."""

    def __init__(self, shape: Shape) -> None:
        self.values = np.full(shape, np.nan)
        self.counts = np.zeros(shape, np.int32)
        self._distances = np.full(shape, _FAR)

    def weights(self, axis: PlacedAxis, elements: slice) -> NDArray[Any]:
        """The squared distances of some elements from the window's centre, in half cells, 1-d."""
        own = np.arange(elements.start, elements.stop, dtype=np.int64)
        squared: NDArray[Any] = ((2 * own - (axis.count - 1)) * axis.step) ** 2
        return squared

    @staticmethod
    def combine(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        """The squared distances along two dimensions together."""
        return np.asarray(first + second)

    def add(self, cells: Slices, values: NDArray[Any], weight: NDArray[Any]) -> None:
        """Add values of one window, with squared distances of a shape that broadcasts to theirs."""
        own, distances = self.values[cells], self._distances[cells]
        self.counts[cells] += 1
        is_nearer = weight < distances
        np.copyto(own, values, where=is_nearer)
        np.copyto(distances, weight, where=is_nearer)


def make_blend(name: str, shape: Shape) -> MeanBlend | CropBlend:
    """The blend of that name, for a box of cells."""
    return CropBlend(shape) if name == "crop" else MeanBlend(shape, name == "linear")
