"""Slabs: one rank's part of a dimension of each sample, in a group of ranks.

A slab is cut from the whole samples. A verb called on a slab applies to the whole samples, which
are then cut again::

    Samples.slab          the whole  ->  cut(whole, dim, part)
    any verb on a slab    the whole with the verb  ->  cut(..., dim, part)

Plan, order and state are those of the whole samples, so they are the same for all ranks of a
group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import xarray as xr

from xloader.core.option_checks import is_whole
from xloader.errors import OptionError
from xloader.recipe import selection as selecting
from xloader.recipe.recipe import Recipe, Slab, Transform
from xloader.sources.combined.labels import find_labels
from xloader.transforms.normalize import Normalize
from xloader.transforms.steps import Method

_WITH_ARRAYS: Final = frozenset({"clip", "fillna", "where"})
"""Methods whose arguments may be arrays that are combined with the fields element by element."""


def part_of(total: int, rank: object, size: object) -> range | None:
    """Positions of one rank's part of a dimension. The parts are as equal as possible."""
    if not is_whole(rank) or not is_whole(size) or not 0 <= rank < size <= total:
        return None
    return range(int(rank * total // size), int((rank + 1) * total // size))


def cut(whole: Recipe, dim: str, part: range) -> Recipe:
    """Cut samples to one rank's part of a dimension."""
    selection = selecting.isel(whole, {dim: slice(part.start, part.stop)})
    steps = tuple(_cut_step(whole, step, dim, part) for step in whole.steps)
    return replace(whole, selection=selection, steps=steps, slab=Slab(whole, dim, part))


def require_in_place(whole: Recipe, dim: str) -> None:
    """Check that no transform works on labelled batches, where it may need the whole dimension."""
    for step in whole.steps:
        if not step.is_in_place:
            raise OptionError(
                f"samples cannot be cut into slabs of {dim!r} after a transform that may need the "
                "whole dimension",
                given=f"slab after {step.describe()}",
                remedy="call .slab(...) before the transform; each rank then runs the transform "
                "on its own part only",
            )


def _cut_step(whole: Recipe, step: Transform, dim: str, part: range) -> Transform:
    if isinstance(step, Normalize):
        return step.cut(dim, part)
    if not isinstance(step, Method) or step.name not in _WITH_ARRAYS:
        return step
    args = tuple(_cut_value(whole, value, dim, part) for value in step.args)
    kwargs = {key: _cut_value(whole, value, dim, part) for key, value in step.kwargs.items()}
    return replace(step, args=args, kwargs=kwargs)


def _cut_value(whole: Recipe, value: Any, dim: str, part: range) -> Any:
    """One rank's part of an array along a dimension: by label if both have labels."""
    if isinstance(value, Mapping) and not isinstance(value, xr.Dataset):
        return {key: _cut_value(whole, element, dim, part) for key, element in value.items()}
    is_array = isinstance(value, xr.Dataset | xr.DataArray | xr.Variable)
    if not is_array or dim not in value.dims:
        return value
    index = None if isinstance(value, xr.Variable) else value.indexes.get(dim)
    coords = whole.source.coordinates()
    if index is None or dim not in coords.indexes:
        # An array of another size may already be the part; if not, xarray refuses it.
        is_whole = value.sizes[dim] == whole.dim_sizes[dim]
        return value.isel({dim: slice(part.start, part.stop)}) if is_whole else value
    kept = whole.kept_of(dim)
    assert not isinstance(kept, int)
    labels = coords.indexes[dim][selecting.stored(kept, np.asarray(part, np.int64))]
    places = find_labels(index, labels) if index.is_unique else np.array([-1])
    return value if (places < 0).any() else value.isel({dim: places})
