"""Selections along each dimension of an array: how to combine them and how to read them off."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Kept = int | range | NDArray[np.int64]
"""The part of a dimension that is kept: one element, a range, or elements in any order."""


@dataclass(frozen=True)
class IndexedArray:
    """A selection of an array's elements, and the order of its dimensions."""

    kept: tuple[Any, ...]
    order: tuple[int, ...]

    def select(self, keys: Sequence[Any]) -> Self:
        """Select along each dimension shown."""
        kept = list(self.kept)
        for dim, key in zip(self.order, keys, strict=True):
            kept[dim] = cut(kept[dim], key)
        order = tuple(dim for dim in self.order if not isinstance(kept[dim], int))
        return replace(self, kept=tuple(kept), order=order)

    def transpose(self, axes: Sequence[int]) -> Self:
        """Reorder the dimensions shown."""
        return replace(self, order=tuple(self.order[axis] for axis in axes))


def cut(kept: range | NDArray[np.int64], key: Any) -> Kept:
    """Select from elements that are kept already, as NumPy indexes one dimension."""
    if isinstance(key, slice):
        return kept[key]
    if np.ndim(key) == 0:
        return int(kept[operator.index(key)])
    offsets = np.asarray(key)
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1:
        raise IndexError(f"an index of dtype {offsets.dtype} in {offsets.ndim} dimensions")
    offsets = offsets.astype(np.int64)
    size = len(kept)
    if np.any((offsets < -size) | (offsets >= size)):
        raise IndexError(f"an index beyond {size} elements")
    offsets = np.where(offsets < 0, offsets + size, offsets)
    if isinstance(kept, range):
        return np.asarray(kept.start + kept.step * offsets, np.int64)
    return np.asarray(kept[offsets], np.int64)


def join(selections: Sequence[range | NDArray[np.int64]]) -> range | NDArray[np.int64]:
    """Concatenate selections of one dimension."""
    selections = [kept for kept in selections if len(kept)]
    if not selections:
        return range(0)
    if whole_range := _joined_range(selections):
        return whole_range
    whole = np.concatenate([np.asarray(kept, np.int64) for kept in selections])
    if len(whole) == 1:
        return range(int(whole[0]), int(whole[0]) + 1)
    step = int(whole[1] - whole[0])
    if step and np.all(np.diff(whole) == step):
        return range(int(whole[0]), int(whole[-1]) + step, step)
    return whole


def _joined_range(selections: Sequence[range | NDArray[np.int64]]) -> range | None:
    """The range that consecutive ranges make, found without listing their elements, or None."""
    steps = {kept.step for kept in selections if isinstance(kept, range) and len(kept) > 1}
    if len(steps) != 1 or not all(isinstance(kept, range) for kept in selections):
        return None
    (step,) = steps
    if any(after[0] != before[-1] + step for before, after in itertools.pairwise(selections)):
        return None
    return range(int(selections[0][0]), int(selections[-1][-1]) + step, step)


def separate(keys: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """Separate paired index arrays into one selection for each dimension.

    None if the result is not the product of one selection for each dimension.
    """
    arrays = [np.asarray(key) for key in keys]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    axes = [_varying(array) for array in arrays]
    # For each dimension of the result, the stored one.
    owners: dict[int, int] = {}
    for dim, varying in enumerate(axes):
        if len(varying) > 1 or (varying and varying[0] + len(shape) - arrays[dim].ndim in owners):
            return None
        if varying:
            owners[varying[0] + len(shape) - arrays[dim].ndim] = dim
    free = [dim for dim, varying in enumerate(axes) if not varying]
    for axis, size in enumerate(shape):
        if axis not in owners:
            # A result's dimension of size 1 may come from any stored one that does not vary.
            if size != 1 or not free:
                return None
            owners[axis] = free.pop(0)
    selections: list[Any] = [int(array.flat[0]) if array.size else 0 for array in arrays]
    for axis, dim in owners.items():
        array = arrays[dim].reshape((1,) * (len(shape) - arrays[dim].ndim) + arrays[dim].shape)
        along = tuple(slice(None) if number == axis else 0 for number in range(len(shape)))
        selections[dim] = array[along].reshape(-1)
    shown = [dim for dim in range(len(arrays)) if dim in owners.values()]
    return selections, [shown.index(owners[axis]) for axis in range(len(shape))]


def _varying(array: NDArray[Any]) -> list[int]:
    """The axes along which an array is not constant."""
    return [
        axis
        for axis, size in enumerate(array.shape)
        if size > 1 and np.any(array != array[(slice(None),) * axis + (slice(0, 1),)])
    ]
