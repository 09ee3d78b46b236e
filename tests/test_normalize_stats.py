"""What `samples.stats` makes, `normalize` takes: each group has mean 0 and standard deviation 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.test_normalize_clocks import CHUNKS, weather
from xloader import Samples
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["memory", "nc", "zarr"])
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
    with pytest.warns(StatisticsWarning, match="made of other data"):
        more.xloader.window(time=5).inputs("q", "t").normalize(**apart)
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


@pytest.mark.parametrize(("own", "given"), [("f8", "f4"), ("f4", "f8")])
def test_labels_of_statistics_may_differ_by_rounding(own: str, given: str) -> None:
    grid, means = np.arange(6) * 0.1, np.arange(6.0)
    ds = xr.Dataset({"t": (("time", "lat"), np.tile(means, (4, 1)))}, {"lat": grid.astype(own)})
    table = xr.DataArray(means[::-1], {"lat": grid[::-1].astype(given)})
    mean = table.to_dataset(name="t")
    for taken in (slice(None), slice(1, 4), 2):
        samples = ds.xloader.isel(lat=taken).window(time=1).normalize(mean=mean, std={"t": 1.0})
        assert (samples[:].t == 0).all()
    moved = mean.assign_coords(lat=mean.lat + 0.002)
    with pytest.raises(OptionError, match="does not fit"):
        ds.xloader.window(time=1).normalize(mean=moved, std={"t": 1.0})
