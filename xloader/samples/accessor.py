"""The accessor ``ds.xloader``: samples of an open xarray Dataset, DataArray or DataTree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from xloader.samples.samples import Samples

_REGISTRIES: tuple[Callable[[str], Callable[[Any], Any]], ...] = (
    xr.register_dataset_accessor,
    xr.register_dataarray_accessor,
    xr.register_datatree_accessor,
)


def samples_of(source: xr.Dataset | xr.DataArray | xr.DataTree) -> Samples:
    """Samples of an open Dataset, DataArray or DataTree, with no windows yet.

    Parameters
    ----------
    source : xarray.Dataset, xarray.DataArray or xarray.DataTree
        The open object, as :func:`xloader.open` takes it.

    Returns
    -------
    Samples
        Everything that the object offers.
    """
    from xloader.samples.samples import open

    return open(source)


for _register in _REGISTRIES:
    _register("xloader")(samples_of)
