"""A batch taken apart into Datasets of one sample, and put together again."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import LABEL, SAMPLE
from xloader.transforms.datasets import is_same_coord, show_labels


def unstack_samples(frame: xr.Dataset) -> tuple[list[xr.Dataset], frozenset[Hashable]]:
    """A Dataset for each sample, and the names of the labels that differ between samples.

    Parameters
    ----------
    frame : xarray.Dataset
        A batch.

    Returns
    -------
    list of xarray.Dataset
        The samples, labels as indexes, each with its id as a scalar coordinate ``sample``.
    frozenset
        The coordinates that the batch has as ``<name>_label`` and a sample as ``<name>``.
    """
    rows = [frame.isel({SAMPLE: row}) for row in range(frame.sizes[SAMPLE])]
    ones = [show_labels(row).assign_coords({SAMPLE: row[SAMPLE]}) for row in rows]
    windowed = {name for one in ones[:1] for name in one.coords if name not in frame.coords}
    return ones, frozenset(windowed)


def stack_samples(samples: list[xr.Dataset], windowed: frozenset[Hashable]) -> xr.Dataset:
    """The opposite of :func:`unstack_samples`, whatever a function did in between.

    A coordinate stays as it is where all samples share it. One that differs between them, or is
    of a windowed dimension, is stacked like a field, an index under the name ``<name>_label``;
    it goes where it differs in shape.

    Parameters
    ----------
    samples : list of xarray.Dataset
        One Dataset for each sample.
    windowed : frozenset of str
        Labels that are stacked even where all samples share them.

    Returns
    -------
    xarray.Dataset
        The batch, without the ids.

    Raises
    ------
    OptionError
        If samples differ in the dimensions or sizes of a variable.
    """
    first = samples[0]
    names = dict.fromkeys(name for one in samples for name in one.data_vars)
    fields = {name: _stacked(samples, name) for name in names}
    for name, field in fields.items():
        if field is None:
            sizes = [one[name].sizes if name in one else None for one in samples]
            raise OptionError(
                f"samples differ in the dimensions of {str(name)!r} after a transform",
                given=sorted({str(size if size is None else dict(size)) for size in sizes}),
                allowed="the same dimensions and sizes for every sample",
                remedy="pad or cut in the function",
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
    """A variable of all samples, ``sample`` in front; ``None`` where they differ in shape."""
    first = samples[0].variables.get(name)
    arrays = []
    for one in samples:
        variable = one.variables.get(name)
        if first is None or variable is None or variable.sizes != first.sizes:
            return None
        arrays.append(variable.transpose(*first.dims).to_numpy())
    assert first is not None
    return xr.Variable((SAMPLE, *first.dims), np.stack(arrays), first.attrs)
