"""Splits a batch into Datasets of one sample each, and combines them to a batch again."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import LABEL, SAMPLE
from xloader.transforms.batch_datasets import is_same_coord, show_labels


def unstack_samples(frame: xr.Dataset) -> tuple[list[xr.Dataset], frozenset[Hashable]]:
    """Split a batch into a Dataset for each sample."""
    rows = [frame.isel({SAMPLE: row}) for row in range(frame.sizes[SAMPLE])]
    ones = [show_labels(row).assign_coords({SAMPLE: row.variables[SAMPLE]}) for row in rows]
    windowed = {name for one in ones[:1] for name in one.coords if name not in frame.coords}
    return ones, frozenset(windowed)


def stack_samples(samples: list[xr.Dataset], windowed: frozenset[Hashable]) -> xr.Dataset:
    """Combine samples to a batch: the reverse of :func:`unstack_samples`.

    A function may have changed the samples in between. A coordinate that all samples share stays
    as it is. One that differs between samples, or is in ``windowed``, is stacked like a field; if
    it is an index or a scalar, its name becomes ``<name>_label``.
    """
    first = samples[0]
    names = dict.fromkeys(name for one in samples for name in one.data_vars)
    fields = {name: _stacked(samples, name) for name in names}
    for name, field in fields.items():
        if field is None:
            sizes = [one[name].sizes if name in one else None for one in samples]
            raise OptionError(
                f"after a transform, samples differ in the dimensions or sizes of {str(name)!r}",
                given=sorted({str(size if size is None else dict(size)) for size in sizes}),
                allowed="the same dimensions and sizes for every sample",
                remedy="pad or cut the samples to one size in the function",
            )
    coords: dict[Hashable, xr.Variable | None] = {}
    for name in first.coords:
        label = first.variables[name]
        if name == SAMPLE:
            continue
        others = [one.variables.get(name) for one in samples]
        is_shared = all(other is not None and is_same_coord(label, other) for other in others)
        if is_shared and name not in windowed:
            coords[name] = label
        else:
            hidden = f"{name}{LABEL}" if label.dims in ((), (name,)) else name
            coords[hidden] = _stacked(samples, name)
    kept = {name: coord for name, coord in coords.items() if coord is not None}
    return xr.Dataset(fields, kept)


def _stacked(samples: list[xr.Dataset], name: Hashable) -> xr.Variable | None:
    """Stack a variable of all samples along ``sample``; ``None`` if they differ in shape."""
    first = samples[0].variables.get(name)
    arrays = []
    for one in samples:
        variable = one.variables.get(name)
        if first is None or variable is None or variable.sizes != first.sizes:
            return None
        arrays.append(variable.transpose(*first.dims).to_numpy())
    assert first is not None
    return xr.Variable((SAMPLE, *first.dims), np.stack(arrays), first.attrs)
