"""What `samples.stats` makes, `normalize` takes: each group has mean 0 and standard deviation 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.test_normalize_clocks import CHUNKS, weather
from xloader import RunningStats, Samples
from xloader.errors import OptionError, StatisticsWarning
from xloader.testing import write_store


def windows(opened: Samples) -> Samples:
    return opened.window(time=5, lat=3).inputs("t", "r")


def whole(samples: Samples, ds: xr.Dataset) -> xr.Dataset:
    """All values of samples that tile the Dataset, put back in place."""
    t, r = np.empty(ds.t.shape), np.empty(ds.r.shape)
    for number, (inputs,) in enumerate(zip(samples[:].inputs, strict=True)):
        time, lat = divmod(number, 2)
        box = slice(5 * time, 5 * time + 5), slice(3 * lat, 3 * lat + 3)
        t[box[0], :, box[1]] = inputs[:2].transpose(1, 0, 2, 3)
        r[box] = inputs[2]
    return ds.assign(t=(ds.t.dims, t), r=(ds.r.dims, r))


def statistics_of_batches(samples: Samples) -> xr.Dataset:
    running = RunningStats(samples)
    running.update(samples[:])
    return running.to_dataset()


KINDS: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "all": ({}, None, ["time", "lat", "lon"]),
    "quantiles too": ({"quantiles": [0.01, 0.5]}, None, ["time", "lat", "lon"]),
    "month": ({"by": "month"}, "time.month", ["time", "lat", "lon"]),
    "season": ({"by": "season"}, "time.season", ["time", "lat", "lon"]),
    "cell": ({"dim": "time"}, None, ["time"]),
    "month and cell": ({"by": "month", "dim": "time"}, "time.month", ["time"]),
    "dayofyear and latitude": (
        {"by": "dayofyear", "dim": ["time", "lon"]},
        "time.dayofyear",
        ["time", "lon"],
    ),
}


@pytest.mark.parametrize(
    ("kind", "ending"),
    [*((kind, "memory") for kind in KINDS), ("month and cell", "nc"), ("quantiles too", "zarr")],
)
def test_each_group_is_normalised(kind: str, ending: str, tmp_path: Path) -> None:
    options, group, dims = KINDS[kind]
    ds = weather()
    samples = windows(xloader.open(write_store(ds, CHUNKS)))
    stats = samples.stats(**options, progress=False)
    if ending == "nc":
        stats.to_netcdf(tmp_path / "stats.nc")
        stats = xr.load_dataset(tmp_path / "stats.nc")
    elif ending == "zarr":
        stats.to_zarr(tmp_path / "stats.zarr", consolidated=False)
        stats = xr.open_zarr(tmp_path / "stats.zarr", consolidated=False)
    found = whole(samples.normalize(stats), ds)[["t", "r"]]
    for name in ("t", "r"):
        own = found[name] if group is None else found[name].groupby(group)
        reduced = [dim for dim in dims if dim in ds[name].dims]
        np.testing.assert_allclose(own.mean(reduced), 0, atol=1e-10)
        np.testing.assert_allclose(own.std(reduced), 1, rtol=1e-10)


def test_it_looks_whose_statistics_they_are() -> None:
    ds = weather()
    stats = windows(ds.xloader).stats(progress=False)
    more = ds.assign(q=ds.r + 1)
    with pytest.raises(OptionError, match=r"lack variables that the samples use.*'q'"):
        more.xloader.window(time=5).inputs("q", "t").normalize(stats)
    apart = {"mean": stats.sel(stat="mean"), "std": stats.sel(stat="std")}
    assert "leaves q" in repr(more.xloader.window(time=5).inputs("q", "t").normalize(**apart))
    renamed = ds.rename(t="u", r="v").xloader.window(time=5)
    with pytest.raises(OptionError, match="of other variables than the samples"):
        renamed.normalize(stats)
    # Statistics of the training years normalise the test years of the same source.
    opened = ds.xloader.window(time=5)
    train = opened.select(np.arange(100)).inputs("t", "r").stats(progress=False)
    assert "normalize" in repr(opened.inputs("t", "r").normalize(train))
    # Tendencies are of something else.
    tendencies = windows(ds.xloader).stats(leads=1, progress=False)
    with pytest.raises(OptionError, match=r"does not fit the variable.*'lead'"):
        windows(ds.xloader).normalize(tendencies)
    steps = tendencies.isel(lead=0, drop=True)
    assert "normalize" in repr(windows(ds.xloader).normalize(steps))


def region(lat: Any = None, num_times: int = 40, units: str = "m s**-1") -> xr.Dataset:
    lat = np.linspace(-75.1, 74.3, 7) if lat is None else np.asarray(lat)
    u10 = np.random.default_rng(num_times).normal(3, 5, (num_times, len(lat), 4)).astype("f4")
    ds = xr.Dataset({"u10": (("time", "lat", "lon"), u10, {"units": units})}, {"lat": lat})
    return ds.assign_coords(time=xr.date_range(f"20{num_times}-01-01", periods=num_times))


def opened(ds: Any, **sizes: int) -> Samples:
    return xloader.open(ds).window(time=2, **sizes).inputs("u10")


@pytest.mark.parametrize("make", [Samples.stats, statistics_of_batches])
def test_statistics_of_the_training_years_are_right_for_other_years(
    make: Callable[[Samples], xr.Dataset], tmp_path: Path
) -> None:
    train, later = region(), region(num_times=30)
    stats = make(opened(train))
    later.to_netcdf(tmp_path / "later.nc")
    more = xloader.concat([tmp_path / "later.nc", region(num_times=31)]).window(time=3)
    north = xloader.open(train).sel(lat=slice(0, 90)).window(time=2).inputs("u10")
    right = {
        "another file": opened(tmp_path / "later.nc").normalize(stats),
        "several files": more.inputs("u10").normalize(stats),
        "more variables": opened(later.assign(q=later.u10)).normalize(stats),
        "patches": opened(later, lat=3, lon=2).normalize(stats),
        "of patches": opened(later).normalize(make(opened(train, lat=7, lon=2))),
        "a region": xloader.open(later).sel(lat=slice(0, 90)).window(time=2).normalize(stats),
        "of a region": opened(later.sel(lat=slice(0, 90))).normalize(make(north)),
        "of a region of the same data": opened(train).normalize(make(north)),
        "south first": opened(later.isel(lat=slice(None, None, -1))).normalize(stats),
        "in float32": opened(later.assign_coords(lat=later.lat.astype("f4"))).normalize(stats),
        "in other words": opened(region(units="m s-1")).normalize(stats),
        "with a slash": opened(region(units="m/s")).normalize(stats),
    }
    mean, std = stats.u10.sel(stat=["mean", "std"]).values
    found, wanted = right["another file"][3][0][0], (later.u10[6:8] - mean) / std
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [Samples.stats, statistics_of_batches])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (region(units="knots"), r"u10 was in 'm s\*\*-1', and is in 'knots'"),
        (region(lat=np.linspace(-75, 75, 7)), "the grid along lat was another one"),
        (region(lat=np.linspace(-75.1, 74.3, 14)), "the grid along lat was another one"),
        (region().isel(lon=slice(2)), "the grid along lon was another one"),
    ],
    ids=["units", "labels", "resolution", "size"],
)
def test_other_units_and_grids_give_a_warning(
    make: Callable[[Samples], xr.Dataset], other: xr.Dataset, told: str
) -> None:
    stats = make(opened(region()))
    with pytest.warns(StatisticsWarning, match=told) as caught:
        opened(other).normalize(stats)
    assert caught[0].filename == __file__
    # Statistics that do not know their grid are compared by their units alone.
    stats.attrs.pop("xloader_grid")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        opened(other).normalize(stats)
    assert len(seen) == ("knots" in told)


def test_cells_are_found_by_labels_equal_to_float32() -> None:
    train = region()
    stats = opened(train).stats(dim="time", progress=False)
    mean, std = stats.u10.sel(stat="mean"), stats.u10.sel(stat="std")
    for turn, own, given in ((1, "f4", "f8"), (-1, "f4", "f8"), (1, "f8", "f4")):
        later = region(num_times=30).isel(lat=slice(None, None, turn))
        rounded = later.assign_coords(lat=later.lat.astype(own))
        as_given = stats.assign_coords(lat=stats.lat.astype(given))
        for chosen in (slice(None), slice(1, 4), 2):
            samples = xloader.open(rounded).isel(lat=chosen).window(time=2).inputs("u10")
            wanted = ((later.u10 - mean) / std).isel(time=slice(6, 8), lat=chosen)
            wanted = wanted.transpose("time", ...)
            np.testing.assert_allclose(samples.normalize(as_given)[3][0][0], wanted, atol=1e-5)
    with pytest.raises(OptionError, match="does not fit the variable"):
        opened(region(lat=train.lat + 0.01)).normalize(stats)
