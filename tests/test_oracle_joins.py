"""Rows of the oracle table for sources that are opened together: `join`, lists and trees.

Each row gives the sources, an expression on their samples, and the same in plain xarray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.test_oracle import Made, Row, check_row, inputs_of, named, steps
from xloader.testing import write_store

CHUNKS = {"t2m": (5, 4, 3), "oro": (4, 8), "rain": (7, 3, 5), "quality": (7,), "wind": (3, 6, 8)}
PACKED = {"rain": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -9999}}


def times(first: str, count: int, hours: int) -> np.ndarray:
    return np.datetime64(first, "ns") + np.arange(count) * np.timedelta64(hours, "h")


def analysis() -> xr.Dataset:
    """Six-hourly fields on one grid, with a coordinate along time and one of two dims."""
    rng = np.random.default_rng(3)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.random((20, 6, 8), np.float32), {"units": "K"}),
            "wind": (("time", "lat", "lon"), rng.random((20, 6, 8)), {"units": "m/s"}),
        },
        coords={
            "time": times("2000-01-01", 20, 6),
            "lat": np.linspace(60, 50, 6),
            "lon": np.arange(8) / 10,
            "area": (("lat", "lon"), rng.random((6, 8))),
            "season": ("time", np.repeat([1, 2], 10)),
            "model": 7,
        },
    )


def orography() -> xr.Dataset:
    rng = np.random.default_rng(4)
    oro = rng.random((6, 8), np.float32)
    return xr.Dataset(
        {"oro": (("lat", "lon"), oro, {"units": "m"})},
        coords={"lat": np.linspace(60, 50, 6), "lon": np.arange(8) / 10},
    )


def radar() -> xr.Dataset:
    """Hourly fields on another grid with dims of its own, without some hours."""
    rng = np.random.default_rng(5)
    rain = rng.integers(0, 400, (110, 7, 9)).astype("f4") / 4
    return xr.Dataset(
        {
            "rain": (("time", "y", "lon"), rain, {"units": "mm/h"}),
            "quality": (("time",), rng.integers(0, 9, 110).astype("i4")),
        },
        coords={
            "time": times("2000-01-01T03:00", 110, 1),
            "lon": np.linspace(0, 1, 9),
            "range": (("y", "lon"), rng.random((7, 9))),
            "season": ("time", np.arange(110)),
            "model": 8,
        },
    )


def chunks_of(data: xr.Dataset) -> dict[str, tuple[int, ...]]:
    return {name: CHUNKS[name] for name in CHUNKS if name in data}


# Ways of opening one Dataset


def as_it_is(data: xr.Dataset, path: Path) -> Any:
    return data


def zarr(data: xr.Dataset, path: Path) -> Any:
    write_store(data, chunks_of(data), path)
    return path


def zarr_v2(data: xr.Dataset, path: Path) -> Any:
    write_store(data, chunks_of(data), path, zarr_format=2)
    return path


def sharded(data: xr.Dataset, path: Path) -> Any:
    own = {"t2m": {"shards": (10, 8, 9)}, "rain": {"shards": (14, 6, 10)}}
    write_store(data, chunks_of(data), path, encoding={n: own[n] for n in own if n in data})
    return path


def packed(data: xr.Dataset, path: Path) -> Any:
    write_store(data, chunks_of(data), path, encoding={n: PACKED[n] for n in PACKED if n in data})
    return path


def netcdf(data: xr.Dataset, path: Path) -> Any:
    data.to_netcdf(path, engine="netcdf4")
    return path


def dask(data: xr.Dataset, path: Path) -> Any:
    return data.chunk({"time": 6} if "time" in data.dims else {})


def lazy_zarr(data: xr.Dataset, path: Path) -> Any:
    return xr.open_zarr(zarr(data, path), chunks=None, consolidated=False)


def dask_of_zarr(data: xr.Dataset, path: Path) -> Any:
    write_store(data, {}, path)
    return xr.open_zarr(path, consolidated=False)


Way = Callable[[xr.Dataset, Path], Any]


# The same in plain xarray


def plain_join(
    sources: Mapping[str, xr.Dataset], names: Mapping[str, Mapping[str, str]], **how: Any
) -> xr.Dataset:
    """Join along time with `reindex`, without the times for which a source has no value.

    ``names`` says which dims and coordinates of the later sources get other names.
    """
    first, *others = sources
    time = sources[first].time
    for name in others:
        if "time" in sources[name].dims:
            number = xr.DataArray(np.arange(sources[name].sizes["time"]), sources[name].time.coords)
            number = number.drop_vars([n for n in number.coords if n != "time"])
            found = number.reindex(time=time, fill_value=-1, **how)
            time = time[(found >= 0).values]
    parts = []
    for name, data in sources.items():
        part = data if "time" not in data.dims else data.reindex(time=time, **how)
        part = part.assign_coords(time=time.variable) if "time" in part.dims else part
        own = {old: f"{name}/{old}" for old in part.data_vars}
        parts.append(part.rename(own | names.get(name, {})))
    return xr.merge(parts, compat="override", join="exact")


def prefixed(name: str, names: str) -> dict[str, str]:
    return {own: f"{name}/{own}" for own in names.split()}


TAKEN = {"radar": prefixed("radar", "lon season model")}
"""What the first source has, too, and so has another name in the radar."""
TAKEN_BY_RADAR = {"era5": prefixed("era5", "lon season model"), "static": {"lon": "era5/lon"}}
"""The orography is on the grid of the analysis, so both share its longitudes."""


def join_of(
    ways: Mapping[str, Way],
    names: Mapping[str, Mapping[str, str]] = TAKEN,
    choose: Mapping[str, Callable[[Any], Any]] | None = None,
    **how: Any,
) -> Callable[[Path], Made]:
    """Sources that are joined: each by its name, and the way in which it is opened."""
    data = {"era5": analysis, "radar": radar, "static": orography}

    def make(folder: Path) -> Made:
        plain = {name: data[name]() for name in ways}
        opened = {
            name: way(plain[name], folder / f"{name}{'.nc' if way is netcdf else '.zarr'}")
            for name, way in ways.items()
        }
        for name, choice in (choose or {}).items():
            plain[name], opened[name] = choice(plain[name]), choice(xloader.open(opened[name]))
        return xloader.join(opened, **how), plain_join(plain, names, **how)

    return make


def radar_first(**how: Any) -> Callable[[Path], Made]:
    """The radar's hours rule; the analysis and the orography are on one other grid."""
    return join_of({"radar": zarr, "era5": zarr, "static": zarr}, TAKEN_BY_RADAR, **how)


def list_of(*ways: Way) -> Callable[[Path], Made]:
    """Different variables of one grid in stores of their own."""
    whole = xr.merge([analysis(), orography()], join="exact")
    parts = [whole[["t2m"]], whole[["oro"]], whole[["wind"]]]

    def make(folder: Path) -> Made:
        opened = [
            way(part, folder / f"{n}")
            for n, (way, part) in enumerate(zip(ways, parts, strict=False))
        ]
        kept = [name for part in parts[: len(ways)] for name in part.data_vars]
        return xloader.open(opened), whole[kept]

    return make


def rounded_grid(folder: Path) -> Made:
    """One store has its grid in float32."""
    coarse = orography().assign_coords(lat=analysis().lat.astype("f4"))
    coarse = coarse.assign_coords(lon=analysis().lon.astype("f4"))
    plain = xr.merge([analysis(), orography()], join="exact")
    return xloader.open([analysis(), coarse]), plain


def tree(way: Way) -> Callable[[Path], Made]:
    """A tree of the orography above the analysis and, two levels deep, the radar."""

    def make(folder: Path) -> Made:
        data = {"": orography(), "era5": analysis(), "obs/radar": radar()}
        # Groups of a tree share the dims of the root, so the radar has another name for lon.
        data["obs/radar"] = data["obs/radar"].rename(lon="x")
        opened = {
            path or "/": way(one, folder / f"{number}.zarr")
            for number, (path, one) in enumerate(data.items())
        }
        parts = [
            one.rename({name: f"{path}/{name}" if path else name for name in one.data_vars})
            for path, one in data.items()
        ]
        own = {name: f"obs/radar/{name}" for name in ("time", "season", "model")}
        parts[2] = parts[2].rename(own)
        plain = xr.merge(parts, join="exact", compat="override")
        return xr.DataTree.from_dict(opened).xloader, plain

    return make


BOTH: Mapping[str, Way] = {"era5": zarr, "radar": zarr}


ROWS = {
    "join: exact labels": Row(join_of(BOTH), lambda s: s.window(time=3, stride=1), steps(3)),
    "join: exact labels, the hourly source first": Row(
        radar_first(), lambda s: s.window(time=2), steps(2, 2)
    ),
    "join: the last label before": Row(
        radar_first(method="ffill"), lambda s: s.window(time=4, stride=1), steps(4)
    ),
    "join: the last label, within two hours": Row(
        radar_first(method="ffill", tolerance="2h"),
        lambda s: s.window(time=4, stride=3, gaps="allow"),
        steps(4, 3),
    ),
    "join: the nearest label": Row(
        radar_first(method="nearest"), lambda s: s.window(time=5, stride=2), steps(5, 2)
    ),
    "join: the nearest label, the coarse source first": Row(
        join_of(BOTH, method="nearest", tolerance=np.timedelta64(90, "m")),
        lambda s: s.window(time=3, stride=1),
        steps(3),
    ),
    "join: sharded and packed": Row(
        join_of({"era5": sharded, "radar": packed}), lambda s: s.window(time=4), steps(4, 4)
    ),
    "join: packed, sharded, repeated": Row(
        join_of({"radar": packed, "era5": sharded}, TAKEN_BY_RADAR, method="ffill"),
        lambda s: s.window(time=7, stride=5),
        steps(7, 5),
    ),
    "join: netCDF and dask": Row(
        join_of({"era5": netcdf, "radar": dask}),
        lambda s: s.window(time=3, stride=1),
        steps(3),
    ),
    "join: dask and numpy, repeated": Row(
        join_of({"radar": as_it_is, "era5": dask}, TAKEN_BY_RADAR, method="nearest"),
        lambda s: s.window(time=6, stride=4),
        steps(6, 4),
    ),
    "join: lazily opened Zarr": Row(
        join_of({"era5": lazy_zarr, "radar": dask_of_zarr}),
        lambda s: s.window(time=2, stride=1),
        steps(2),
    ),
    "join: Zarr v2, patches of the other grid": Row(
        join_of({"era5": zarr_v2, "radar": zarr_v2}),
        lambda s: s.window({"time": 2, "radar/lon": 3}),
        lambda d, i: d[["era5/t2m", "era5/wind", "radar/rain", "radar/quality"]].isel(
            {
                "time": slice(i // 3 * 2, i // 3 * 2 + 2),
                "radar/lon": slice(i % 3 * 3, i % 3 * 3 + 3),
            }
        ),
    ),
    "join: selected samples": Row(
        join_of(
            BOTH,
            {"radar": prefixed("radar", "season model"), "era5": {"lon": "era5/lon"}},
            {
                "era5": lambda s: s.isel(time=slice(1, 18, 2), lat=[0, 2, 5]).sel(lon=0.3),
                "radar": lambda s: s.isel(lon=slice(2, 7), y=3).isel(time=slice(5, None)),
            },
        ),
        lambda s: s.window(time=2, stride=1),
        steps(2),
    ),
    "join: some of the joined times": Row(
        radar_first(method="ffill"),
        lambda s: s.sel(time=slice("2000-01-02", "2000-01-03")).window(time=3),
        lambda d, i: steps(3, 3)(d.sel(time=slice("2000-01-02", "2000-01-03")), i),
    ),
    "join: a static field of the later grid": Row(
        radar_first(method="ffill"),
        lambda s: s.window(time=2).field("all", "era5/t2m", "static/oro"),
        lambda d, i: xr.Dataset(
            {
                "all": named(
                    ("era5/t2m", d["era5/t2m"][2 * i : 2 * i + 2]),
                    ("static/oro", d["static/oro"].expand_dims(time=d.time[2 * i : 2 * i + 2])),
                )
            }
        ),
    ),
    "a list: three stores": Row(
        list_of(zarr, zarr, sharded), lambda s: s.window(time=3, stride=1), steps(3)
    ),
    "a list: netCDF and dask": Row(
        list_of(netcdf, dask),
        lambda s: s.window(time=2).inputs("t2m", "oro"),
        lambda d, i: inputs_of(
            ("t2m", d.t2m[2 * i : 2 * i + 2]),
            ("oro", d.oro.expand_dims(time=d.time[2 * i : 2 * i + 2])),
        ),
    ),
    "a list: a grid in float32 and float64": Row(
        rounded_grid,
        lambda s: s.window(lat=2, lon=4),
        lambda d, i: d.isel(
            lat=slice(i // 2 * 2, i // 2 * 2 + 2), lon=slice(i % 2 * 4, i % 2 * 4 + 4)
        ),
    ),
    "a tree in memory: the analysis": Row(
        tree(as_it_is), lambda s: s.window(time=3, stride=1), steps(3)
    ),
    "a tree of lazy Zarr: the radar": Row(
        tree(lazy_zarr),
        lambda s: s.window({"obs/radar/time": 5}, stride=2),
        lambda d, i: d[["obs/radar/rain", "obs/radar/quality"]].isel(
            {"obs/radar/time": slice(2 * i, 2 * i + 5)}
        ),
    ),
}


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 18


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_joined_samples_equal_plain_xarray(row: Row, tmp_path: Path) -> None:
    check_row(row, tmp_path)
