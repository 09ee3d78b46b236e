"""Mosaics by a plain loop over cells, for comparison.

The data of `numbered` are the numbers of the cells, so a sample itself says where its elements lie:
no arithmetic of windows is repeated here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

OUTSIDE = -1.0
"""The number that pads borders."""


def numbered(*sizes: int, labels: bool = True) -> xr.Dataset:
    """Return a dataset whose variable ``cell`` holds the number of each cell."""
    dims = ("time", "lat", "lon")[: len(sizes)]
    values = np.arange(np.prod(sizes), dtype="f8").reshape(sizes)
    coords: dict[str, Any] = {}
    if labels:
        coords["time"] = np.datetime64("2001-01-01", "ns") + np.arange(sizes[0]) * np.timedelta64(
            6, "h"
        )
    return xr.Dataset({"cell": (dims, values)}, coords)


def blended(
    cells: NDArray[Any], predictions: NDArray[Any], size: int, blend: str, step: int = 1
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Blend predictions of shape ``(n, *window)``, given the cell of each element.

    Returns the value and the number of windows of each cell.
    """
    shape = predictions.shape[1:]
    weights, distances = np.ones(shape), np.zeros(shape)
    for index in np.ndindex(*shape):
        for j, count in zip(index, shape, strict=True):
            weights[index] *= min(j + 1, count - j)
            distances[index] += (step * (j - (count - 1) / 2)) ** 2
    if blend == "mean":
        weights[...] = 1
    values, counts = np.full(size, np.nan), np.zeros(size, int)
    for cell in range(size):
        rows = [(i, at) for i in range(len(cells)) for at in np.argwhere(cells[i] == cell)]
        counts[cell] = len(rows)
        if not rows:
            continue
        found = [(predictions[i][tuple(at)], tuple(at)) for i, at in rows]
        if blend == "crop":
            nearest = min(range(len(found)), key=lambda k: (distances[found[k][1]], rows[k][0]))
            values[cell] = found[nearest][0]
        else:
            total = sum(weights[at] for _, at in found)
            values[cell] = sum(value * weights[at] for value, at in found) / total
    return values, counts
