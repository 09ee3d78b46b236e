"""A kind of source that concatenates pieces of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from xloader.sources.base import Source
from xloader.sources.combined.concat_source import concat_sources
from xloader.sources.open.open_source import open_source
from xloader.testing import write_store

if TYPE_CHECKING:
    from tests.sources.kinds import Opened

CHUNKS = {"t": (4, 3, 5), "m": (7, 3), "flag": (5,), "s": ()}


def pieces(folder: Path, dataset: xr.Dataset) -> list[object]:
    """Write a Zarr store of 6 times and a netCDF file of 1; leave the rest as a chunked Dataset."""
    store, file = folder / "first.zarr", folder / "second.nc"
    write_store(dataset.isel(time=slice(6)), CHUNKS, store)
    encoding = {"t": {"chunksizes": (1, 3, 5)}, "m": {"chunksizes": (7, 1)}}
    dataset.isel(time=[6]).to_netcdf(file, engine="netcdf4", encoding=encoding)
    rest = dataset.isel(time=slice(7, None)).chunk({"time": 3, "lat": 3})
    # A store allows each variable its own chunks; dask needs one chunk size per dimension.
    rest["m"] = rest["m"].chunk({"lat": 7})
    return [store, file, rest]


def concat_kind(folder: Path, dataset: xr.Dataset) -> Opened:
    from tests.sources.kinds import Opened

    numbers = dataset.drop_vars("label")
    items = pieces(folder, numbers)

    def reopen() -> Source:
        return concat_sources([open_source(item) for item in items], "time")

    return Opened(reopen(), numbers, reopen)
