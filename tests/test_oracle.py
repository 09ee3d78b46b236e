"""One table of sources and expressions, each with the same expression in plain xarray.

Every row must give the same values, dtypes, dims and coordinates, sample by sample. Its loader must
give the same values by id.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec

import xloader
from xloader import Samples
from xloader.samples.join import concat
from xloader.testing import write_store

CHUNKS = {"t2m": (5, 4, 3), "z": (4, 1, 6, 8), "co2": (7,), "oro": (6, 8)}
EVEN = {"t2m": (4, 6, 4), "z": (4, 3, 6, 4), "co2": (4,), "oro": (6, 4)}


def weather() -> xr.Dataset:
    rng = np.random.default_rng(7)
    t2m = rng.integers(-400, 400, (20, 6, 8)).astype("f4") / 4
    t2m[::3, 1, 2] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "degC"}),
            "z": (("time", "level", "lat", "lon"), rng.random((20, 3, 6, 8)), {"units": "m"}),
            "co2": (("time",), np.arange(20, dtype="i4"), {"units": "ppm"}),
            "oro": (("lat", "lon"), rng.random((6, 8), np.float32), {"units": "m"}),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(20) * np.timedelta64(1, "D"),
            "level": ("level", [500, 850, 1000]),
            "lat": np.linspace(75, -75, 6),
            "area": (("lat", "lon"), rng.random((6, 8))),
            "season": ("time", np.repeat([1, 2], 10)),
            "model": 7,
        },
    )


# Sources, and the Datasets that xarray makes of them

Made = tuple[Samples, xr.Dataset]


def of_zarr(path: Path, **kwargs: Any) -> Made:
    with xr.open_dataset(path, engine="zarr", chunks=None, consolidated=False) as plain:
        return xloader.open(path, **kwargs), plain.load()


def zarr_v3(folder: Path) -> Made:
    write_store(weather(), CHUNKS, folder / "a.zarr")
    return of_zarr(folder / "a.zarr")


def zarr_in_memory(folder: Path) -> Made:
    return xloader.open(write_store(weather(), CHUNKS)), weather()


def zarr_v2(folder: Path) -> Made:
    write_store(weather(), CHUNKS, folder / "a.zarr", zarr_format=2)
    return of_zarr(folder / "a.zarr")


def zarr_v2_consolidated(folder: Path) -> Made:
    encoding = {name: {"chunks": chunks} for name, chunks in EVEN.items()}
    weather().to_zarr(folder / "a.zarr", zarr_format=2, consolidated=True, encoding=encoding)
    return xloader.open(folder / "a.zarr"), weather()


def sharded(folder: Path) -> Made:
    shards = {"t2m": {"shards": (10, 8, 9)}, "z": {"shards": (8, 3, 6, 8)}}
    write_store(weather(), CHUNKS, folder / "a.zarr", encoding=shards)
    return of_zarr(folder / "a.zarr")


def packed(folder: Path) -> Made:
    encoding = {
        "t2m": {"dtype": "i2", "scale_factor": 0.25, "add_offset": 3.0, "_FillValue": -9999},
        "z": {"dtype": "u1", "scale_factor": 1 / 255, "_FillValue": 255},
    }
    write_store(weather(), CHUNKS, folder / "a.zarr", encoding=encoding)
    return of_zarr(folder / "a.zarr", dtype=None)


def big_endian_transposed(folder: Path) -> Made:
    encoding = {
        "t2m": {
            "filters": [TransposeCodec(order=(2, 0, 1))],
            "serializer": BytesCodec(endian="big"),
            "compressors": [GzipCodec()],
        }
    }
    write_store(weather(), CHUNKS, folder / "a.zarr", encoding=encoding)
    return of_zarr(folder / "a.zarr")


def zipped(folder: Path) -> Made:
    write_store(weather(), CHUNKS, folder / "a.zarr")
    archive = shutil.make_archive(str(folder / "a.zarr"), "zip", folder / "a.zarr")
    return xloader.open(zarr.storage.ZipStore(archive, mode="r")), weather()


def group_within(folder: Path) -> Made:
    store = zarr.storage.MemoryStore()
    weather().to_zarr(store, group="deep/er", zarr_format=3, consolidated=False)
    return xloader.open(store, group="deep/er"), weather()


def numpy_backed(folder: Path) -> Made:
    return weather().xloader, weather()


def dask_backed(folder: Path) -> Made:
    return weather().chunk({"time": (3, 7, 10), "lat": 4}).xloader, weather()


def lazy_zarr(folder: Path) -> Made:
    write_store(weather(), CHUNKS, folder / "a.zarr")
    lazy = xr.open_zarr(folder / "a.zarr", chunks=None, consolidated=False)
    return lazy.isel(time=slice(1, None)).xloader, weather().isel(time=slice(1, None))


def dask_of_zarr(folder: Path) -> Made:
    write_store(weather(), EVEN, folder / "a.zarr")
    return xr.open_zarr(folder / "a.zarr", chunks={}, consolidated=False).xloader, weather()


def netcdf(folder: Path) -> Made:
    encoding = {"t2m": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -9999}}
    encoding["z"] = {"chunksizes": (4, 1, 6, 8), "zlib": True}
    weather().to_netcdf(folder / "a.nc", engine="netcdf4", encoding=encoding)
    with xr.open_dataset(folder / "a.nc") as plain:
        return xloader.open(folder / "a.nc", dtype=None), plain.load()


def data_array(folder: Path) -> Made:
    return weather()["t2m"].xloader, weather()[["t2m"]]


def concat_mixed(folder: Path) -> Made:
    kept = weather().drop_vars("z")
    write_store(kept.isel(time=slice(7)), {n: CHUNKS[n] for n in kept}, folder / "a.zarr")
    chunks = {"t2m": {"chunksizes": (2, 4, 3)}}
    kept.isel(time=slice(7, 9)).to_netcdf(folder / "b.nc", encoding=chunks)
    rest = kept.isel(time=slice(9, None)).chunk({"time": 4, "lat": 4, "lon": 3})
    return concat([folder / "a.zarr", folder / "b.nc", rest], variables="t2m"), kept


def concat_of_years(folder: Path) -> Made:
    for number, part in enumerate([slice(0, 6), slice(6, 13), slice(13, 20)]):
        write_store(weather().isel(time=part), CHUNKS, folder / f"{number}.zarr")
    return concat(str(folder / "*.zarr")), weather()


def concat_packed_each_its_own(folder: Path) -> Made:
    opened = []
    for number, scale in enumerate([0.25, 0.5]):
        path, part = folder / f"{number}.zarr", slice(10 * number, 10 * number + 10)
        encoding = {"t2m": {"dtype": "i2", "scale_factor": scale, "_FillValue": -9999}}
        write_store(weather().isel(time=part), CHUNKS, path, encoding=encoding)
        opened.append(xr.open_dataset(path, engine="zarr", consolidated=False).load())
    plain = xr.concat(opened, "time", data_vars="minimal", coords="minimal", compat="override")
    return concat([folder / "0.zarr", folder / "1.zarr"], dtype=None), plain


# Expressions


def named(*arrays: tuple[str, xr.DataArray], rename: str = "channel") -> xr.DataArray:
    """Join arrays along channels with the given names."""
    bare = [array.drop_vars("level", errors="ignore") for _, array in arrays]
    joined = xr.concat(bare, dim="channel", coords="minimal", compat="override", join="override")
    return joined.assign_coords(channel=[name for name, _ in arrays]).rename(channel=rename)


def inputs_of(*arrays: tuple[str, xr.DataArray]) -> xr.Dataset:
    """One field of the given channels."""
    return xr.Dataset({"inputs": named(*arrays)})


def forecast_of(inputs: xr.DataArray, targets: xr.DataArray) -> xr.Dataset:
    """Two fields, of which the second one is a single time beyond the first."""
    return xr.Dataset(
        {
            "inputs": after(inputs, season="inputs_season"),
            "targets": after(targets, time="targets_time", season="targets_season"),
        }
    )


def levels(z: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    return [(f"z_{level}", z.sel(level=level)) for level in z["level"].values]


def after(array: xr.DataArray, **names: str) -> xr.DataArray:
    """Rename those dims and coordinates that the array has."""
    return array.rename({old: new for old, new in names.items() if old in array.coords})


def labels_only(frame: xr.Dataset) -> xr.Dataset:
    """Keep the labels only, as a transform gets them, and drop all other coordinates."""
    return frame.drop_vars([name for name in frame.coords if name not in frame.indexes])


STATIONS = pd.DataFrame(
    {
        "lat": [44.0, -16.0, 47.0, 44.0, -46.0],
        "lon": [3, 5, 2, 3, 6],
        "time": pd.to_datetime(
            ["2000-01-15", "2000-01-04", "2000-01-09", "2000-01-15", "2000-01-18"]
        ),
        "snow": [0.5, 2.0, np.nan, 0.25, 1.0],
        "is_wet": [True, False, False, True, True],
        "sky": ["low", "clear", "low", "high", "clear"],
    }
)
"""Points in no order, one place twice. The latitudes of the data descend; lon has no labels."""
NEAREST: dict[str, Any] = {"method": {"lat": "nearest"}, "tolerance": {"lat": 3.0}}


def around(d: xr.Dataset, i: int, before: dict[str, int], size: dict[str, int]) -> xr.Dataset:
    """The elements around station ``i``, which plain xarray finds by label."""
    point = STATIONS.iloc[i]
    # xarray looks up the element itself: a variable of element numbers is selected by label.
    numbers = {dim: xr.DataArray(np.arange(d.sizes[dim]), {dim: d[dim]}) for dim in ("time", "lat")}
    at = {
        "time": int(numbers["time"].sel(time=point.time)),
        "lat": int(numbers["lat"].sel(lat=point.lat, method="nearest", tolerance=3.0)),
        "lon": int(point.lon),
    }
    return d.isel(
        {dim: slice(at[dim] - before[dim], at[dim] - before[dim] + size[dim]) for dim in size}
    )


def stations(
    before: dict[str, int], size: dict[str, int], *columns: str
) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Patches of t2m around the stations, with columns of the table as variables."""

    def plain(d: xr.Dataset, i: int) -> xr.Dataset:
        patch = inputs_of(("t2m", around(d, i, before, size).t2m))
        codes = {"sky": ["clear", "high", "low"].index(STATIONS.sky[i])}
        row = {**STATIONS.iloc[i].to_dict(), **codes}
        return patch.assign({name: np.asarray(row[name]) for name in columns})

    return plain


CENTRED = {"time": 1, "lat": 1, "lon": 2}, {"time": 2, "lat": 3, "lon": 4}
LEADING = {"time": 2, "lat": 0, "lon": 0}, {"time": 3, "lat": 1, "lon": 2}


@dataclass(frozen=True)
class Row:
    """A source, an expression on its samples, and sample ``i`` in plain xarray."""

    source: Callable[[Path], Made]
    make: Callable[[Samples], Samples]
    plain: Callable[[xr.Dataset, int], xr.Dataset]


def steps(size: int, stride: int = 1) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return the windowed variables over ``size`` time steps."""
    return lambda d, i: d[[n for n in d if "time" in d[n].dims]].isel(
        time=slice(i * stride, i * stride + size)
    )


def across(d: xr.Dataset, first: int, size: int) -> xr.Dataset:
    """Return ``size`` longitudes from ``first`` on, put together from two parts of the circle."""
    beyond = max(first + size - d.sizes["lon"], 0)
    halves = [d.isel(lon=slice(first, first + size)), d.isel(lon=slice(0, beyond))]
    return xr.concat(halves, "lon", data_vars="minimal", coords="minimal", compat="override")


def patches_across(lat: int, lon: int, stride: int) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return patches of all variables with both dimensions, at every ``stride`` longitudes."""

    def plain(d: xr.Dataset, i: int) -> xr.Dataset:
        row, column = divmod(i, -(-d.sizes["lon"] // stride))
        own = d[[name for name in d if {"lat", "lon"} & set(d[name].dims)]]
        return across(own, column * stride, lon).isel(lat=slice(row * lat, row * lat + lat))

    return plain


def slopes_across(d: xr.Dataset, i: int) -> xr.Dataset:
    """Return the own forcing and t2m of a part of the data, on both sides of the date line."""
    part = across(d.isel(lat=slice(1, 5), time=slice(3, 18, 3)), i % 8, 6)
    part = part.isel(time=slice(i // 8, i // 8 + 2))
    made = over(tilt(part.time, part.lat), part.t2m)
    return inputs_of(("tilt", made), ("t2m", part.t2m))


def doubled(batch: xr.Dataset) -> xr.Dataset:
    return xr.Dataset({"mean": batch["inputs"].mean("lon"), "inputs": batch["inputs"] * 2})


def lead(d: xr.Dataset, i: int) -> xr.Dataset:
    """Two steps as input and the sixth as target."""
    return forecast_of(named(("t2m", d.t2m[i : i + 2])), named(("t2m", d.t2m[i + 5])))


def unequal_leads(d: xr.Dataset, i: int) -> xr.Dataset:
    """All levels as input, and the temperature of one, two and four days later."""
    inputs = named(*levels(d.z[i]), rename="inputs_channel")
    later = d.isel(time=[i + 1, i + 2, i + 4])
    oro = later.oro.expand_dims(time=later.time).assign_coords(season=later.season)
    targets = named(("t2m", later.t2m), ("oro", oro), rename="targets_channel")
    return xr.Dataset(
        {
            "inputs": after(inputs, time="inputs_time", season="inputs_season"),
            "targets": after(targets, season="targets_season"),
        }
    )


def some_steps(d: xr.Dataset, time: int, lat: int, lon: int) -> xr.Dataset:
    """Four of six steps of a patch, and two of its three latitudes, in orders of their own."""
    own = d.isel(time=[time + 5, time, time + 1, time + 3], lat=[lat + 2, lat])
    own = own.isel(lon=slice(lon, lon + 4)).fillna(-1.0)
    co2 = own.co2.broadcast_like(own.t2m).assign_coords(area=own.area)
    return inputs_of(("t2m", own.t2m), ("co2", co2))


def lead_of_levels(d: xr.Dataset, i: int) -> xr.Dataset:
    inputs = named(*levels(d.z[i : i + 2]), ("t2m", d.t2m[i : i + 2]), rename="inputs_channel")
    return forecast_of(inputs, named(("t2m", d.t2m[i + 3]), rename="targets_channel"))


def holes(samples: Samples) -> Samples:
    """Select all times but two, so that they have gaps."""
    return samples.isel(time=np.delete(np.arange(20), [11]))


def unbroken(d: xr.Dataset, reach: int, stride: int = 1) -> tuple[xr.Dataset, list[int]]:
    """Return the times of `holes`, and the starts of windows that cross no gap."""
    d = d.isel(time=np.delete(np.arange(20), [11]))
    steps = np.diff(d.time.values)
    return d, [
        first
        for first in range(0, d.sizes["time"] - reach + 1, stride)
        if (steps[first : first + reach - 1] == np.timedelta64(1, "D")).all()
    ]


def between_gaps(size: int, stride: int = 1) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return the windowed variables over ``size`` time steps of a window that crosses no gap."""

    def plain(d: xr.Dataset, i: int) -> xr.Dataset:
        d, starts = unbroken(d, size, stride)
        return steps(size)(d, starts[i])

    return plain


def far_lead(after_start: int) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return two steps as input and one beyond the window as target, across no gap."""

    def plain(d: xr.Dataset, i: int) -> xr.Dataset:
        d, starts = unbroken(d, after_start + 1)
        inputs = d.t2m[starts[i] : starts[i] + 2]
        return forecast_of(named(("t2m", inputs)), named(("t2m", d.t2m[starts[i] + after_start])))

    return plain


def day_after(batch_time: xr.DataArray) -> xr.DataArray:
    """Return the part of the leap year 2000 that has passed, as an angle."""
    return 2 * np.pi * ((batch_time.dt.dayofyear - 1) / 366)


def over(values: xr.DataArray, like: xr.DataArray) -> xr.DataArray:
    """Repeat values along the dims that they lack, in float32."""
    return values.astype("f4").broadcast_like(like).transpose(*like.dims)


def tilt(time: xr.DataArray, lat: xr.DataArray) -> xr.DataArray:
    return lat * time.dt.day


def beside_t2m(size: int, *names: str) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return t2m, and forcings in plain xarray, as channels of one field."""

    def plain(d: xr.Dataset, i: int) -> xr.Dataset:
        t2m = d.t2m[i : i + size]
        known = {
            "cos_day_of_year": np.cos(day_after(t2m.time)),
            "sin_day_of_year": np.sin(day_after(t2m.time)),
            "latitude": t2m.lat,
            "tilt": tilt(t2m.time, t2m.lat),
            "light": xloader.forcings.insolation(d.time, d.lat, 30.0)[i : i + size],
        }
        made = [(name, over(known[name], t2m)) for name in names]
        return inputs_of(("t2m", t2m), *made)

    return plain


def fluent(
    call: Callable[[Any], Any], size: int, stride: int = 1
) -> Callable[[xr.Dataset, int], xr.Dataset]:
    """Return what a chain of xarray's methods makes of the windowed variables."""
    return lambda d, i: call(labels_only(steps(size, stride)(d, i)))


FLUENT: dict[str, tuple[Callable[[Path], Made], Callable[[Any], Any], int, int]] = {
    "zarr v3: a rolling mean": (
        zarr_v3, lambda x: x.rolling(time=3, center=True, min_periods=1).mean(), 4, 1
    ),
    "dask: blocks of the grid": (
        dask_backed, lambda x: x.coarsen(lat=4, lon=2, boundary="trim").max(), 2, 2
    ),
    "zarr v2: pairs of days": (
        zarr_v2, lambda x: x.coarsen(time=2, coord_func="min").mean(), 4, 3
    ),
    "packed: between latitudes": (packed, lambda x: x.interp(lat=[60.0, 12.5, -75.0]), 2, 2),
    "netCDF: the nearest level": (
        netcdf, lambda x: x.interp(level=[600.0], method="nearest").squeeze("level"), 3, 2
    ),
    "concat of years: sorted and reindexed": (
        concat_of_years, lambda x: x.sortby("lat").reindex(lat=[-75.0, -45.0, 0.0]), 3, 1
    ),
    "sharded: a slope around the globe": (
        sharded, lambda x: x.differentiate("lat").pad(lon=1, mode="wrap"), 2, 1
    ),
    "zarr in memory: holes closed along time": (
        zarr_in_memory,
        lambda x: x.interpolate_na("time", use_coordinate=False).integrate("level"), 5, 2,
    ),
    "a lazy selection of zarr: lags": (
        lazy_zarr, lambda x: x.rolling(time=2).construct("lag", stride=2), 4, 2
    ),
    # A sum of one step, so that no level is all NaN: xarray hides NumPy's warning of that on one
    # thread at a time only.
    "numpy: a running sum from the border on": (
        numpy_backed,
        lambda x: x.pad(time=(2, 0), mode="edge").rolling(time=2, min_periods=1).sum().max("level"),
        3, 3,
    ),
}  # fmt: skip


def part(name: str, **options: Any) -> Callable[[Samples], Samples]:
    """Return three steps that lie in one part of a split."""
    return lambda s: s.window(time=3, stride=1).split(**options)[name]


ROWS: dict[str, Row] = {
    "zarr v3: seasons and latitudes beside t2m": Row(
        zarr_v3,
        lambda s: (
            s.forcing("cos_day_of_year", "sin_day_of_year", "latitude")
            .window(time=4, stride=1)
            .inputs("t2m", "cos_day_of_year", "sin_day_of_year", "latitude")
        ),
        beside_t2m(4, "cos_day_of_year", "sin_day_of_year", "latitude"),
    ),
    "packed: a forcing of one's own": Row(
        packed,
        lambda s: s.forcing(tilt).window(time=3, stride=1).inputs("t2m", "tilt"),
        beside_t2m(3, "tilt"),
    ),
    "concat of years: sunlight": Row(
        concat_of_years,
        lambda s: (
            s.forcing(light=partial(xloader.forcings.insolation, lon=30.0))
            .window(time=5, stride=1)
            .inputs("t2m", "light")
        ),
        beside_t2m(5, "light"),
    ),
    "netCDF: a forcing is a field of its own": Row(
        netcdf,
        lambda s: s.forcing(tilt).window(time=3, stride=1),
        lambda d, i: steps(3)(
            d.assign(tilt=tilt(d.time, d.lat).astype("f4").transpose("time", "lat")), i
        ),
    ),
    "dask: forcings of a part, across the date line": Row(
        dask_backed,
        lambda s: (
            s.isel(lat=slice(1, 5), time=slice(None, None, 3))
            .forcing(tilt)
            .isel(time=slice(1, 6))
            .window(time=2, lon=6, stride=1, wrap="lon")
            .inputs("tilt", "t2m")
        ),
        slopes_across,
    ),
    "sharded: a lead of a forcing": Row(
        sharded,
        lambda s: (
            s.forcing("sin_day_of_year")
            .window(time=2, stride=1)
            .inputs("sin_day_of_year", time="+4")
        ),
        lambda d, i: inputs_of(("sin_day_of_year", np.sin(day_after(d.time[i + 4])).astype("f4"))),
    ),
    **{
        name: Row(
            source,
            lambda s, call=call, size=size, stride=stride: call(s.window(time=size, stride=stride)),
            fluent(call, size, stride),
        )
        for name, (source, call, size, stride) in FLUENT.items()
    },
    **{
        f"{source.__name__}: windows between gaps": Row(
            source, lambda s: holes(s).window(time=4, stride=1), between_gaps(4)
        )
        for source in (zarr_v2, numpy_backed, netcdf)
    },
    **{
        f"{source.__name__}: a lead beyond the window": Row(
            source,
            lambda s: (
                holes(s).window(time="2D", stride="1D").inputs("t2m").targets("t2m", time="+5D")
            ),
            far_lead(5),
        )
        for source in (zarr_v3, sharded, dask_backed)
    },
    "concat of years: between gaps": Row(
        concat_of_years, lambda s: holes(s).window(time=4, stride=1), between_gaps(4)
    ),
    "zarr v3: gaps are allowed": Row(
        zarr_v3,
        lambda s: holes(s).window(time=4, stride=1, gaps="allow"),
        lambda d, i: steps(4)(d.isel(time=np.delete(np.arange(20), [11])), i),
    ),
    "sharded: the first part of a split": Row(
        sharded, part("a", time={"a": 0.5, "b": 0.5}), steps(3)
    ),
    "netCDF: the second part of a split": Row(
        netcdf, part("b", time={"a": 0.5, "b": 0.5}, gap="2D"), lambda d, i: steps(3)(d, i + 12)
    ),
    "dask: a part by labels": Row(
        dask_backed,
        part("b", time={"a": slice(None, "2000-01-04"), "b": slice("2000-01-09", "2000-01-15")}),
        lambda d, i: steps(3)(d, i + 8),
    ),
    "zarr v2: a part by groups": Row(
        zarr_v2,
        part("b", parts={"a": [1], "b": [2]}, groups="season"),
        lambda d, i: steps(3)(d, i + 10),
    ),
    "zarr v3: windows that straddle": Row(zarr_v3, lambda s: s.window(time=4, stride=1), steps(4)),
    "zarr v3: levels as channels": Row(
        zarr_v3,
        lambda s: (
            s.window(time=4, stride=1).inputs("z", "t2m", time=slice(0, 2)).targets("t2m", time=3)
        ),
        lead_of_levels,
    ),
    "zarr in memory: dilation and stride": Row(
        zarr_in_memory,
        lambda s: s.window(time=3, stride=2, dilation=3),
        lambda d, i: d.drop_vars("oro").isel(time=slice(2 * i, 2 * i + 7, 3)),
    ),
    "zarr in memory: patches": Row(
        zarr_in_memory,
        lambda s: s.window(time=2, lat=3, lon=4, stride={"time": 6}).inputs("t2m"),
        lambda d, i: inputs_of(
            ("t2m", d.t2m[i // 4 * 6 :, i // 2 % 2 * 3 :, i % 2 * 4 :][:2, :3, :4])
        ),
    ),
    "zarr v2: a season by label": Row(
        zarr_v2,
        lambda s: s.sel(time=slice("2000-01-04", "2000-01-12"), lat=slice(50, -50)).window(time=2),
        lambda d, i: (
            d[["t2m", "z", "co2"]]
            .sel(time=slice("2000-01-04", "2000-01-12"), lat=slice(50, -50))
            .isel(time=slice(2 * i, 2 * i + 2))
        ),
    ),
    "zarr v2: the nearest level": Row(
        zarr_v2,
        lambda s: s.sel(level=800, method="nearest").window(time=3),
        lambda d, i: steps(3, 3)(d.sel(level=800, method="nearest"), i),
    ),
    "zarr v2 consolidated: unequal positions": Row(
        zarr_v2_consolidated,
        lambda s: s.isel(time=[0, 1, 5, 6, 13, 19], lon=[1, 4, 5]).window(time=2, stride=1),
        lambda d, i: steps(2)(d.isel(time=[0, 1, 5, 6, 13, 19], lon=[1, 4, 5]), i),
    ),
    "zarr v2 consolidated: every third": Row(
        zarr_v2_consolidated,
        lambda s: s.isel(time=slice(1, None, 3), lat=-1).window(time=2, stride=1),
        lambda d, i: steps(2)(d.isel(time=slice(1, None, 3), lat=-1), i),
    ),
    "sharded: windows that straddle": Row(
        sharded, lambda s: s.window(time=4, stride=3), steps(4, 3)
    ),
    "sharded: two levels of three": Row(
        sharded,
        lambda s: s.sel(level=[500, 1000]).window(time=1, stride=2).inputs("z", time=0),
        lambda d, i: inputs_of(*levels(d.z[2 * i, [0, 2]])),
    ),
    "packed: NaN filled": Row(
        packed,
        lambda s: s.window(time=2, stride=1).inputs("t2m").fillna(-1.0),
        lambda d, i: inputs_of(("t2m", d.t2m[i : i + 2].fillna(-1.0))),
    ),
    "packed: by recorded methods": Row(
        packed,
        lambda s: s.window(time=3).clip(0, 50).fillna(0.5),
        lambda d, i: labels_only(steps(3, 3)(d, i)).clip(0, 50).fillna(0.5),
    ),
    "big-endian, transposed: patches in another order": Row(
        big_endian_transposed,
        lambda s: s.window(lon=4, time=5),
        lambda d, i: d.isel(
            lon=slice(i // 4 * 4, i // 4 * 4 + 4), time=slice(i % 4 * 5, i % 4 * 5 + 5)
        ),
    ),
    "zip: statics beside": Row(
        zipped,
        lambda s: s.window(time=2).inputs("t2m", "oro"),
        lambda d, i: inputs_of(
            ("t2m", d.t2m[2 * i : 2 * i + 2]),
            ("oro", d.oro.expand_dims(time=d.time[2 * i : 2 * i + 2])),
        ),
    ),
    "zip: positions within a dilated window": Row(
        zipped,
        lambda s: s.window(time=4, dilation=3, stride=1).inputs("t2m", time=[1, 3]),
        lambda d, i: inputs_of(("t2m", d.t2m[i + 3 : i + 10 : 6])),
    ),
    "a group: integers": Row(
        group_within,
        lambda s: s.window(time=5, stride=2).inputs("co2").targets("co2", time=-1),
        lambda d, i: forecast_of(
            named(("co2", d.co2[2 * i : 2 * i + 5])), named(("co2", d.co2[2 * i + 4]))
        ),
    ),
    "numpy: normalised": Row(
        numpy_backed,
        lambda s: s.window(time=2).inputs("t2m").normalize({"t2m": (4.0, 8.0)}),
        lambda d, i: inputs_of(("t2m", (d.t2m[2 * i : 2 * i + 2] - 4) / np.float32(8))),
    ),
    "numpy: two spans": Row(
        numpy_backed,
        lambda s: s.window(time=4).inputs("t2m", time=slice(0, 2)).targets("t2m", time=slice(2, 4)),
        lambda d, i: xr.Dataset(
            {
                name: after(
                    named(("t2m", d.t2m[4 * i + k : 4 * i + k + 2])).rename(time=f"{name}_time"),
                    season=f"{name}_season",
                )
                for name, k in [("inputs", 0), ("targets", 2)]
            }
        ),
    ),
    "a DataArray: patches of one step": Row(
        data_array,
        lambda s: s.window(time=1, lat=2, stride={"time": 5}),
        lambda d, i: d.isel(time=[i // 3 * 5], lat=slice(i % 3 * 2, i % 3 * 2 + 2)),
    ),
    "dask: a function of batches": Row(
        dask_backed,
        lambda s: s.window(time=2).inputs("t2m").map(doubled),
        lambda d, i: doubled(labels_only(inputs_of(("t2m", d.t2m[2 * i : 2 * i + 2])))),
    ),
    "a lazy selection of zarr: a lead": Row(
        lazy_zarr,
        lambda s: s.window(time=6, stride=1).inputs("t2m", time=slice(0, 2)).targets("t2m", time=5),
        lead,
    ),
    "dask of zarr: a label that drops its dim": Row(
        dask_of_zarr,
        lambda s: s.sel(level=850, lat=45.0).window(time=2),
        lambda d, i: steps(2, 2)(d.sel(level=850, lat=45.0), i),
    ),
    "netCDF: packed and chunked": Row(netcdf, lambda s: s.window(time=3, stride=2), steps(3, 2)),
    "netCDF: a function of one sample": Row(
        netcdf,
        lambda s: (
            s.window(time=4).inputs("t2m").map(lambda d: d.diff("time").fillna(0), per="sample")
        ),
        lambda d, i: (
            labels_only(inputs_of(("t2m", d.t2m[4 * i : 4 * i + 4]))).diff("time").fillna(0)
        ),
    ),
    "concat of zarr, netCDF and dask: across borders": Row(
        concat_mixed,
        lambda s: s.window(time=5, stride=1),
        lambda d, i: d[["t2m"]].isel(time=slice(i, i + 5)),
    ),
    "concat of packings: across the border": Row(
        concat_packed_each_its_own, lambda s: s.window(time=3, stride=1), steps(3)
    ),
    "zarr v3: some samples, in an order of their own": Row(
        zarr_v3,
        lambda s: s.window(time=3, stride=1).select([5, 17, 0, 5, 9]),
        lambda d, i: steps(3)(d, [5, 17, 0, 5, 9][i]),
    ),
    "concat of years: a mask, then a lead": Row(
        concat_of_years,
        lambda s: (
            s.window(time=6, stride=1)
            .select(np.arange(15) % 4 == 1)
            .inputs("t2m", time=slice(0, 2))
            .targets("t2m", time=5)
        ),
        lambda d, i: lead(d, 4 * i + 1),
    ),
    "zarr v3: patches across the date line": Row(
        zarr_v3,
        lambda s: s.window(lat=3, lon=5, stride={"lon": 1}, wrap=("lon",)),
        patches_across(3, 5, 1),
    ),
    "sharded: the whole circle from each longitude": Row(
        sharded,
        lambda s: s.window(lat=2, lon=8, stride={"lon": 3}, wrap="lon"),
        patches_across(2, 8, 3),
    ),
    "netCDF: every second longitude across the date line": Row(
        netcdf,
        lambda s: s.window(time=4, lon=4, dilation={"lon": 2}, stride={"lon": 1}, wrap="lon"),
        lambda d, i: across(d[["t2m", "z", "co2", "oro"]], i % 8, 7).isel(
            time=slice(i // 8 * 4, i // 8 * 4 + 4), lon=slice(None, None, 2)
        ),
    ),
    "packed: a lead across the date line": Row(
        packed,
        lambda s: (
            s.window(time=2, lon=2, stride={"lon": 1}, wrap="lon")
            .inputs("t2m", lon="+5")
            .fillna(-1)
        ),
        lambda d, i: inputs_of(
            ("t2m", d.t2m[i // 8 * 2 : i // 8 * 2 + 2, :, (i % 8 + 5) % 8].fillna(-1))
        ),
    ),
    "packed: weighted": Row(
        packed, lambda s: s.window(time=2).weighted([0, 1, 2, 0, 1, 0, 0, 0, 1, 5]), steps(2, 2)
    ),
    "zarr v3: around stations": Row(
        zarr_v3,
        lambda s: s.window(CENTRED[1]).inputs("t2m").at_points(STATIONS, **NEAREST),
        stations(*CENTRED, "snow", "is_wet", "sky"),
    ),
    "zarr v2: up to the time of stations": Row(
        zarr_v2,
        lambda s: (
            s.window(LEADING[1])
            .at_points(STATIONS.drop(columns="sky"), at={"time": "end", "lon": "start"}, **NEAREST)
            .inputs("t2m")
        ),
        stations(*LEADING, "snow", "is_wet"),
    ),
    "sharded: around stations, some of them": Row(
        sharded,
        lambda s: (
            s.window(CENTRED[1])
            .inputs("t2m")
            .at_points(STATIONS.set_index(["time", "lat"]), **NEAREST)
            .select([3, 0, 3])
        ),
        lambda d, i: stations(*CENTRED, "snow", "is_wet", "sky")(d, [3, 0, 3][i]),
    ),
    "dask: around stations, balanced": Row(
        dask_backed,
        lambda s: (
            s.window(CENTRED[1])
            .inputs("t2m")
            .at_points(xr.Dataset.from_dataframe(STATIONS).drop_vars("index"), **NEAREST)
            .weighted(balance="sky", num_samples=9)
        ),
        stations(*CENTRED, "snow", "is_wet", "sky"),
    ),
    "numpy: a function of patches and labels": Row(
        numpy_backed,
        lambda s: (
            s.window(CENTRED[1])
            .inputs("t2m")
            .at_points(STATIONS[["time", "lat", "lon", "snow"]], **NEAREST)
            .map(lambda batch: batch.assign(inputs=batch.inputs + batch.snow))
        ),
        lambda d, i: (p := labels_only(stations(*CENTRED, "snow")(d, i))).assign(
            inputs=p.inputs + p.snow
        ),
    ),
    "zarr v3: unequal leads": Row(
        zarr_v3,
        lambda s: (
            s.window(time=1, stride=1)
            .inputs("z", time=0)
            .targets("t2m", "oro", time=["+1D", "+2D", "+4D"])
        ),
        unequal_leads,
    ),
    "packed: some steps of patches, the last one first": Row(
        packed,
        lambda s: (
            s.window(time=6, lat=3, lon=4, stride={"time": 7})
            .inputs("t2m", "co2", time=[5, 0, 1, 3], lat=[2, 0])
            .fillna(-1.0)
        ),
        lambda d, i: some_steps(d, time=i // 4 * 7, lat=i // 2 % 2 * 3, lon=i % 2 * 4),
    ),
    "sharded: levels in another order, latitudes from the other end": Row(
        sharded,
        lambda s: s.isel(level=[2, 0, 1], lat=slice(None, None, -1)).window(time=3, stride=2),
        lambda d, i: steps(3, 2)(d.isel(level=[2, 0, 1], lat=slice(None, None, -1)), i),
    ),
    "netCDF: times from the last one on, levels by label": Row(
        netcdf,
        lambda s: s.isel(time=slice(None, None, -1)).sel(level=[1000, 500]).window(time=3),
        lambda d, i: steps(3, 3)(d.isel(time=slice(None, None, -1)).sel(level=[1000, 500]), i),
    ),
    "concat of zarr, netCDF and dask: latitudes from the other end": Row(
        concat_mixed,
        lambda s: s.isel(lat=slice(None, None, -1)).window(time=5, stride=1),
        lambda d, i: d[["t2m"]].isel(lat=slice(None, None, -1), time=slice(i, i + 5)),
    ),
    "concat of years: around stations": Row(
        concat_of_years,
        lambda s: s.window(CENTRED[1]).inputs("t2m").at_points(STATIONS, **NEAREST),
        stations(*CENTRED, "snow", "is_wet", "sky"),
    ),
}


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 30


@pytest.mark.ends(every=2)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_samples_equal_plain_xarray(row: Row, tmp_path: Path) -> None:
    check_row(row, tmp_path)


def check_row(row: Row, tmp_path: Path) -> None:
    """Check single samples and an epoch of a row against plain xarray."""
    opened, dataset = row.source(tmp_path)
    samples = row.make(opened)
    expected = [row.plain(dataset, index) for index in range(len(samples))]
    for index in {0, len(samples) // 2, len(samples) - 1}:
        actual = samples.to_xarray(index)
        xr.testing.assert_equal(actual, expected[index])
        for name, array in actual.data_vars.items():
            assert array.dtype == expected[index][name].dtype
            assert array.dims == expected[index][name].dims
    seen: Counter[int] = Counter()
    options = {"memory": "4MiB", "output": "numpy", "on_nan": "ignore"}
    with samples.loader(batch_size=4, seed=3, **options) as loader:
        for batch in loader:
            seen.update(batch.ids.tolist())
            for name, array in zip(samples.fields, batch, strict=True):
                wanted = np.stack([expected[index][name].values for index in batch.ids])
                np.testing.assert_array_equal(array, wanted, strict=True)
        # The labels of a batch are those that are read with the samples.
        xr.testing.assert_identical(batch.to_xarray(), samples.to_xarray(batch.ids))
        assert seen.total() == loader.num_samples
    if samples.recipe.subset is None or samples.recipe.subset.weights is None:
        assert set(seen.values()) == {1}
        assert len(seen) == len(samples)
