"""Expressions on lazily opened Zarr Datasets, and checks of the sources made from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from zarr.abc.store import Store

from tests.sources import kinds
from xloader.sources.base import Source
from xloader.testing import write_store

Expression = Callable[[xr.Dataset], xr.Dataset]

CHUNKS = {"t": (4, 3, 5), "p": (4, 3), "m": (3, 4), "flag": (4,), "u": (4,), "s": ()}
PACKED = {
    "p": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -9},
    "u": {"dtype": "u1", "_FillValue": 255},
}


def make_dataset() -> xr.Dataset:
    p = np.arange(77.0).reshape(11, 7) / 2
    p[2, 3] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), np.arange(385, dtype="f4").reshape(11, 7, 5)),
            "p": (("time", "lat"), p),
            "m": (("lat", "time"), np.arange(77, dtype="i4").reshape(7, 11)),
            "flag": (("time",), np.arange(11) % 3 == 0),
            "u": (("time",), np.where(np.arange(11) == 4, np.nan, np.arange(11)).astype("f4")),
            "s": ((), np.float64(2.5)),
            "when": (("time",), np.datetime64("2001-01-01", "ns") + np.arange(11)),
        },
        coords={
            "time": np.arange(11) * 10,
            "lat": np.linspace(-90, 90, 7),
            "area": (("lat", "lon"), np.arange(35.0).reshape(7, 5)),
        },
    )


def make_store(dataset: xr.Dataset, **kwargs: Any) -> Store:
    chunks = {name: sizes for name, sizes in CHUNKS.items() if name in dataset}
    return write_store(dataset, chunks, encoding=PACKED, **kwargs)


VIEWS: dict[str, Expression] = {
    "whole": lambda ds: ds,
    "slice": lambda ds: ds.isel(time=slice(2, 9)),
    "steps": lambda ds: ds.isel(time=slice(1, None, 3), lat=slice(None, None, 2)),
    "steps beyond a chunk": lambda ds: ds.isel(time=slice(0, None, 5)),
    "labels": lambda ds: ds.sel(time=slice(20, 80), lat=[-90.0, 30.0]),
    "increasing index": lambda ds: ds.isel(time=[1, 5, 6], lat=[0, 2]),
    "reversed": lambda ds: ds.isel(time=slice(None, None, -1), lat=slice(5, None, -2)),
    "sorted by labels": lambda ds: ds.isel(lat=[6, 1, 0, 2, 3]).sortby("lat", ascending=False),
    "index out of order": lambda ds: ds.isel(time=[5, 1], lon=[4, 2, 3]),
    "mask": lambda ds: ds.isel(time=ds["time"].values % 20 == 0),
    "int": lambda ds: ds.isel(time=3),
    "int and index": lambda ds: ds.isel(time=-2, lat=[1, 4]),
    "one element": lambda ds: ds.isel(time=3, lat=1, lon=2),
    "selected twice": lambda ds: ds.isel(time=slice(1, 9)).isel(time=[0, 3], lat=slice(1, 6, 2)),
    "head and tail": lambda ds: ds.head(time=7).tail(time=4).thin(time=2),
    "transposed": lambda ds: ds.transpose(),
    "selected and transposed": lambda ds: ds.isel(time=slice(1, 9, 2), lat=2).transpose(),
    "transposed and selected": lambda ds: ds.transpose("lon", "time", "lat").isel(
        time=slice(1, None, 2), lat=[1, 3], lon=0
    ),
    "one element along a dim, transposed": lambda ds: ds.isel(time=[4], lat=[2]).transpose(),
    "squeezed": lambda ds: ds.isel(time=[2]).squeeze("time"),
    "renamed": lambda ds: ds.rename(t="temperature", m="t", time="hour"),
    "renamed dims": lambda ds: ds.rename_dims(lon="x").swap_dims(x="lon"),
    "other coordinates": lambda ds: ds.assign_coords(time=np.arange(11), year=2000).set_coords("m"),
    "other attributes": lambda ds: ds.assign_attrs(a=1).assign(t=ds["t"].assign_attrs(units="K")),
    "some variables": lambda ds: ds[["m", "t"]],
    "no encoding": lambda ds: ds.drop_encoding(),
    "nothing left": lambda ds: ds.isel(time=slice(0, 0)),
}
"""Expressions that change no value: selections, transpositions and renaming."""

CHUNKED: dict[str, Expression] = {
    "chunked": lambda ds: ds.chunk(time=5),
    "rechunked": lambda ds: ds.chunk(time=5).chunk(time=11, lat=2),
    "rechunked and selected": lambda ds: (
        ds.chunk(time=3).isel(time=slice(2, 9)).chunk(time=4, lat=4).transpose()
    ),
}
"""Expressions that change no value of a dataset in dask's chunks."""

OTHERS: dict[str, Expression] = {
    "where": lambda ds: ds[["t"]].where(ds["t"] > 3),
    "astype": lambda ds: ds[["t"]].astype("f8"),
    "arithmetic": lambda ds: ds[["t", "p"]] * 2,
    "filled": lambda ds: ds[["p"]].fillna(0.0),
    "rolled": lambda ds: ds[["t"]].roll(time=2),
    "concatenated": lambda ds: xr.concat([ds[["t"]], ds[["t"]]], "time"),
    "index that comes back to a chunk": lambda ds: ds[["t", "p"]].isel(time=[9, 1, 8]),
    "index with repeats": lambda ds: ds[["t", "p"]].isel(time=[1, 1, 2]),
    "points": lambda ds: ds[["t"]].isel(
        time=xr.DataArray([1, 4], dims="at"), lat=xr.DataArray([2, 5], dims="at")
    ),
    "a table of points": lambda ds: ds[["t"]].isel(
        time=xr.DataArray([[1, 2], [3, 4]], dims=("a", "b")), lat=xr.DataArray([2, 5], dims="b")
    ),
    "a new dim": lambda ds: ds[["t"]].expand_dims(member=2),
    "stacked": lambda ds: ds[["p"]].stack(place=("time", "lat")).reset_index("place"),
    "shifted blocks": lambda ds: ds[["m"]].pad(lat=1, constant_values=0),
    "loaded": lambda ds: ds[["t", "p"]].load(),
}
"""Expressions that change values, or place them other than by selecting along each dimension."""

OPENED: dict[str, dict[str, Any]] = {
    "lazy": {"chunks": None},
    "uncached": {"chunks": None, "cache": False},
    "dask": {"chunks": {}},
    "dask-inline": {"chunks": {}, "inline_array": True},
}


def opened(store: Any, how: str) -> xr.Dataset:
    return xr.open_dataset(store, engine="zarr", consolidated=False, **OPENED[how])


def check_values(source: Source, dataset: xr.Dataset, oracle: xr.Dataset) -> None:
    for name, variable in source.variables.items():
        assert variable.dims == oracle[name].dims
        assert variable.dtype == dataset[name].dtype
        np.testing.assert_array_equal(kinds.read_all(source, name), oracle[name].to_numpy())


def is_direct(source: Source) -> list[bool]:
    return [source.path_of(name).startswith("direct: zarr") for name in source.variables]
