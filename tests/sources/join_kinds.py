"""Kinds of sources that offer other sources beside each other, cut down or repeated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from xloader.core.axis import ElementList
from xloader.sources.base import Source
from xloader.sources.combined.join_sources import merge_sources
from xloader.sources.combined.mixed_source import SourceView, one_source
from xloader.sources.open.open_source import open_source
from xloader.testing import write_store

if TYPE_CHECKING:
    from tests.sources.kinds import Opened

CHUNKS = {"t": (4, 3, 5), "m": (7, 3), "flag": (5,), "s": ()}


def merged_kind(folder: Path, dataset: xr.Dataset) -> Opened:
    """Merge a Zarr store, a netCDF file and a Dataset in memory."""
    from tests.sources.kinds import Opened

    numbers = dataset.drop_vars("label")
    store, file = folder / "t.zarr", folder / "m.nc"
    write_store(numbers[["t"]], {"t": CHUNKS["t"]}, store)
    numbers[["m", "s"]].to_netcdf(file, engine="netcdf4")

    def reopen() -> Source:
        return merge_sources([open_source(one) for one in (store, file, numbers[["flag"]])])

    return Opened(reopen(), numbers, reopen)


def viewed_kind(folder: Path, dataset: xr.Dataset) -> Opened:
    """Offer some elements of a Zarr store, with other names for a dimension and a coordinate."""
    return _view(folder, dataset, {"time": range(1, dataset.sizes["time"], 2), "lon": range(1, 4)})


def repeated_kind(folder: Path, dataset: xr.Dataset) -> Opened:
    """Offer elements of a Zarr store, of which some are left out and others occur often."""
    every = np.arange(dataset.sizes["time"])
    often = np.sort(np.concatenate([every[::2], every[1:], every[3:5], every[3:5]]))
    return _view(folder, dataset, {"time": ElementList(often), "lat": ElementList([0, 2, 3, 6])})


def _view(folder: Path, dataset: xr.Dataset, kept: dict[str, range | ElementList]) -> Opened:
    from tests.sources.kinds import Opened

    numbers = dataset.drop_vars("label")
    # The names are those of the contract's test once they are offered.
    stored = numbers.rename(lon="x", area="size")
    write_store(stored, CHUNKS, folder / "a.zarr")
    own = {{"lon": "x"}.get(dim, dim): some for dim, some in kept.items()}

    def reopen() -> Source:
        source = open_source(folder / "a.zarr")
        names = {"x": "lon", "size": "area"}
        return one_source([SourceView(source, {v: v for v in source.variables}, own, names)])

    cut = {dim: np.asarray(some) for dim, some in kept.items()}
    return Opened(reopen(), numbers.isel(cut), reopen)
