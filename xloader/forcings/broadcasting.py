"""Labels of several dimensions as plain arrays that broadcast, and results as DataArrays again.

Formulas work on plain arrays, because operations of xarray cost more than the arithmetic where a
chunk is computed in small pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray


def on_arrays(
    fn: Callable[..., NDArray[Any]], attrs: Mapping[str, str], *labels: Any
) -> xr.DataArray | NDArray[Any]:
    """Call a formula on labels as plain arrays.

    Parameters
    ----------
    fn : callable
        Takes arrays that broadcast, and returns an array.
    attrs : mapping of str to str
        Attributes of the result, if it is a DataArray.
    *labels : array-like
        The labels. DataArrays are matched by the names of their dimensions.

    Returns
    -------
    xarray.DataArray or numpy.ndarray
        A DataArray if any of the labels is one. Its dimensions are in the order of the labels.

    Examples
    --------
    >>> y, x = xr.DataArray([1, 2], dims="y"), xr.DataArray([10, 20], dims="x")
    >>> on_arrays(np.add, {}, y, x).dims, on_arrays(np.add, {}, 1, 2)
    (('y', 'x'), np.int64(3))
    """
    named = [own for own in labels if isinstance(own, xr.DataArray)]
    if not named:
        return fn(*map(np.asarray, labels))
    if any(own.indexes for own in named):
        named = list(xr.align(*named, join="exact", copy=False))
    dims = list(dict.fromkeys(dim for own in named for dim in own.dims))
    rest, arrays = iter(named), []
    for own in labels:
        if not isinstance(own, xr.DataArray):
            arrays.append(np.asarray(own))
            continue
        taken = next(rest).variable
        kept = [dim for dim in dims if dim in taken.dims]
        values = np.asarray(taken.transpose(*kept).values)
        arrays.append(values[tuple(slice(None) if dim in kept else None for dim in dims)])
    coords = {name: coord for own in named for name, coord in own.coords.items()}
    return xr.DataArray(fn(*arrays), coords, dims, attrs=dict(attrs))
