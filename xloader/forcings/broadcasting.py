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
    """Call a formula on labels as plain arrays."""
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
