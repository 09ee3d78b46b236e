"""Slabs: one rank's part of a dimension of each sample, in a group of ranks.

A slab is cut from the whole samples. A verb called on a slab applies to the whole samples, which
are then cut again::

    Samples.slab          the whole  ->  cut(whole, dim, part)
    any verb on a slab    the whole with the verb  ->  cut(..., dim, part)

Plan, order and state are those of the whole samples, so they are the same for all ranks of a
group. Transforms recorded before the slab must give the same on parts as on the whole, which is
checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np
import xarray as xr

from xloader.core.option_checks import is_whole
from xloader.errors import OptionError
from xloader.recipe import selection as selecting
from xloader.recipe.names import CHANNEL
from xloader.recipe.recipe import Recipe, Slab, Transform
from xloader.sources.combined.labels import find_labels
from xloader.transforms.normalize import Normalize
from xloader.transforms.steps import Method
from xloader.transforms.xarray_methods import RECORDED

_WITH_ARRAYS: Final = frozenset({"clip", "fillna", "where"})
"""Methods whose arguments may be arrays that are combined with the fields element by element."""

_WITHOUT_PLACES: Final = frozenset(
    {"astype", "drop_vars", "expand_dims", "isin", "isnull", "notnull", "round", "transpose"}
)
"""Methods that treat every element alike, wherever it lies and whatever their arguments."""

_KNOWN: Final = frozenset({*RECORDED, "fillna"}) - {"assign"}
"""Methods that can be judged by their arguments; ``assign`` mostly takes functions."""


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


def require_apart(whole: Recipe, dim: str) -> None:
    """Check that the transforms give the same on parts of a dimension as on the whole."""
    names = _names_of(whole, dim)
    for step in whole.steps:
        if not _works_apart(step, dim, names):
            raise OptionError(
                f"samples cannot be cut into slabs of {dim!r} after a transform that may need the "
                "whole dimension",
                given=f"slab after {step.describe()}",
                remedy="call .slab(...) before the transform; each rank then runs the transform "
                "on its own part only",
            )


def _names_of(recipe: Recipe, dim: str) -> frozenset[str]:
    """Names that a dimension may have in a Dataset of the fields: its own, or of channels."""
    fields = [field for field in recipe.gathered_fields if field.has_channels]
    flat = {
        name for f in fields for variable in f.variables for name in recipe.channel_dims(variable)
    }
    channels = {CHANNEL, *(f"{field.name}_{CHANNEL}" for field in fields)}
    return frozenset({dim, *(channels if dim in flat else ())})


def _works_apart(step: Transform, dim: str, names: frozenset[str]) -> bool:
    if step.is_in_place:
        return True
    if not isinstance(step, Method) or step.over_rest or step.name not in _KNOWN:
        return False
    if step.name in _WITHOUT_PLACES:
        return True
    if step.name == "where" and (any(step.args[2:]) or step.kwargs.get("drop")):
        return False
    takes_arrays = step.name in _WITH_ARRAYS
    beside = names - {dim} if takes_arrays else names
    given = [*step.args, step.kwargs]
    if step.then is not None:
        given += [*step.then.args, step.then.kwargs]
    return not any(_speaks_of(value, names, beside, takes_arrays) for value in given)


def _speaks_of(
    value: object, names: frozenset[str], beside: frozenset[str], takes_arrays: bool
) -> bool:
    """Whether an argument names the dimension, is an array along it, or may do either."""
    if isinstance(value, xr.Dataset | xr.DataArray | xr.Variable):
        # Arrays along the dimension itself are cut like the fields.
        return not beside.isdisjoint(map(str, value.dims))
    if isinstance(value, Mapping):
        held = chain(value, value.values())
        return any(_speaks_of(x, names, beside, takes_arrays) for x in held)
    if isinstance(value, list | tuple | set | frozenset):
        if takes_arrays and any(isinstance(x, int | float | np.number) for x in value):
            return True
        return any(_speaks_of(x, names, beside, takes_arrays) for x in value)
    if isinstance(value, np.ndarray):
        return takes_arrays and value.ndim > 0
    return callable(value) or (isinstance(value, str) and value in names)


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
