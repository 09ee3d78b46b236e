"""Every recorded method gives each sample what xarray's own method gives it."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from xloader import Samples
from xloader.errors import OptionError, UnknownNameError
from xloader.transforms.xarray_methods import OF_WINDOWS, RECORDED, REFUSED, WINDOWED

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def weather() -> xr.Dataset:
    rng = np.random.default_rng(5)
    t2m = rng.normal(280, 10, (16, 4, 6)).astype("f4")
    t2m[rng.random(t2m.shape) < 0.15] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "z": (("time", "level", "lat", "lon"), rng.random((16, 1, 4, 6))),
            "co2": (("time",), np.arange(16, dtype="i4"), {"units": "ppm"}),
        },
        {
            "time": pd.date_range("2000-01-01", periods=16, freq="6h"),
            "level": [500],
            "lat": [-60.0, -10.0, 20.0, 60.0],
            "lon": np.arange(6) * 60.0,
        },
    )


ALONG_LON = xr.DataArray(np.linspace(270, 290, 6), dims="lon")

Call = Callable[[Any], Any]
"""Works on samples and on a Dataset alike."""

ROWS: dict[str, list[Call]] = {
    "all": [lambda s: s.all("lon")],
    "any": [lambda s: s.any(("lat", "lon"))],
    "assign": [lambda s: s.assign(warm=lambda d: d.t2m - d.co2)],
    "astype": [lambda s: s.astype("f8")],
    "bfill": [lambda s: s.bfill("time"), lambda s: s.bfill("lat", limit=1)],
    "clip": [lambda s: s.clip(1, 280), lambda s: s.clip(max=ALONG_LON, keep_attrs=True)],
    "count": [lambda s: s.count("time")],
    "cumprod": [lambda s: s.cumprod("time")],
    "cumsum": [lambda s: s.cumsum("lat"), lambda s: s.cumsum("time", skipna=False)],
    "diff": [lambda s: s.diff("time"), lambda s: s.diff("lat", n=2, label="lower")],
    "differentiate": [lambda s: s.differentiate("lat"), lambda s: s.differentiate("lon", 2)],
    "drop_vars": [lambda s: s.drop_vars("z"), lambda s: s.drop_vars("lat")],
    "expand_dims": [lambda s: s.expand_dims("member"), lambda s: s.expand_dims(run=[3, 4])],
    "ffill": [lambda s: s.ffill("time"), lambda s: s.ffill("lon", limit=1)],
    "fillna": [lambda s: s.round(1).fillna(3), lambda s: s.round(1).fillna({"t2m": 3})],
    "integrate": [lambda s: s.integrate("lat"), lambda s: s.integrate(["lat", "lon"])],
    "interp": [
        lambda s: s.interp(lat=[0.0, 45.0]),
        lambda s: s.interp(lat=[0.0], lon=[10.0, 70.0], method="nearest"),
        lambda s: s.interp({"lon": [-5.0, 130.0]}, kwargs={"fill_value": "extrapolate"}),
        lambda s: s.interp(lat=xr.DataArray([0, 5], dims="p"), lon=xr.DataArray([0, 9], dims="p")),
    ],
    "interpolate_na": [
        lambda s: s.interpolate_na("lat"),
        lambda s: s.interpolate_na("lon", fill_value="extrapolate"),
        lambda s: s.interpolate_na("time", use_coordinate=False),
    ],
    "isin": [lambda s: s.isin([3, 4, 9])],
    "isnull": [lambda s: s.isnull()],
    "max": [lambda s: s.max("lon"), lambda s: s.max(...)],
    "mean": [lambda s: s.mean("time"), lambda s: s.mean(), lambda s: s.mean(["lat"], skipna=False)],
    "median": [lambda s: s.median("lat"), lambda s: s.median(dim=None)],
    "min": [lambda s: s.min(dim="time")],
    "notnull": [lambda s: s.notnull()],
    "pad": [
        lambda s: s.pad(lon=2, mode="wrap"),
        lambda s: s.pad({"time": (1, 0)}),
        lambda s: s.pad(time=1, lat=(0, 2), mode="edge"),
        lambda s: s.drop_vars("co2").pad(lat=1, constant_values=-1.0),
    ],
    "prod": [lambda s: s.prod("time"), lambda s: s.clip(0.9, 1.1).prod()],
    "quantile": [lambda s: s.quantile(0.5), lambda s: s.quantile([0.1, 0.9], dim="lat")],
    "rank": [lambda s: s.rank("time"), lambda s: s.rank("lon", pct=True)],
    "reindex": [
        lambda s: s.reindex(lat=[60.0, 5.0, -60.0]),
        lambda s: s.reindex({"lon": [59.0, 121.0]}, method="nearest", tolerance=2.0),
    ],
    "rename": [lambda s: s.rename(t2m="t", lat="y"), lambda s: s.rename(level="height")],
    "roll": [lambda s: s.roll(lon=2), lambda s: s.roll(lon=2, roll_coords=True)],
    "round": [lambda s: s.round(1)],
    "shift": [lambda s: s.shift(time=1), lambda s: s.shift({"lat": -1}, fill_value=0)],
    "sortby": [
        lambda s: s.sortby("lat", ascending=False),
        lambda s: s.sortby(["lon", "lat"], ascending=False),
    ],
    "squeeze": [lambda s: s.squeeze(), lambda s: s.squeeze("level", drop=True)],
    "std": [lambda s: s.drop_vars("co2").std("lat", ddof=1)],
    "sum": [lambda s: s.sum("time", min_count=4)],
    "transpose": [lambda s: s.transpose("lon", ...)],
    "var": [lambda s: s.var("lon")],
    "where": [
        lambda s: s.where(lambda d: d.t2m > 280, 0),
        lambda s: s.where(ALONG_LON > 280),
        lambda s: s.where(ALONG_LON.assign_coords(lon=weather().lon) > 280, drop=True),
    ],
    "rolling.argmax": [lambda s: s.rolling(lon=3).argmax()],
    "rolling.argmin": [lambda s: s.fillna(0).rolling(time=2).argmin()],
    "rolling.construct": [lambda s: s.rolling(time=3).construct("lag", stride=2)],
    "rolling.count": [lambda s: s.rolling(time=3, min_periods=1).count()],
    "rolling.max": [lambda s: s.rolling(time=2, lat=3).max()],
    "rolling.mean": [
        lambda s: s.rolling(time=3).mean(),
        lambda s: s.rolling(time=3, center=True, min_periods=1).mean(),
        lambda s: s.rolling({"lat": 3, "lon": 2}, center={"lat": True, "lon": False}).mean(),
        lambda s: s.mean("lat").rolling(time=2).mean(keep_attrs=False),
    ],
    "rolling.median": [lambda s: s.rolling(lon=3, min_periods=2).median()],
    "rolling.min": [lambda s: s.rolling(time=2, min_periods=1).min()],
    "rolling.prod": [lambda s: s.rolling(time=2).prod()],
    "rolling.reduce": [lambda s: s.rolling(time=2).reduce(np.nanmax)],
    "rolling.std": [lambda s: s.rolling(time=3).std(ddof=1)],
    "rolling.sum": [lambda s: s.rolling(lat=2, center=True).sum()],
    "rolling.var": [lambda s: s.rolling(time=3, min_periods=2).var()],
    "coarsen.all": [lambda s: s.coarsen(lat=2).all()],
    "coarsen.any": [lambda s: s.coarsen(lat=2, lon=3).any()],
    "coarsen.construct": [lambda s: s.coarsen(lat=2).construct(lat=("pair", "half"))],
    "coarsen.count": [lambda s: s.coarsen(lat=3, boundary="pad").count()],
    "coarsen.max": [lambda s: s.coarsen(time=2, side="right").max()],
    "coarsen.mean": [
        lambda s: s.coarsen(lat=2, lon=2, boundary="trim").mean(),
        lambda s: s.coarsen(time=3, boundary="trim", side="right").mean(),
        lambda s: s.coarsen(time=3, boundary="pad", coord_func="min").mean(),
        lambda s: s.coarsen(time=2, lat=2, coord_func={"time": "max", "lat": "min"}).mean(),
        lambda s: s.coarsen({"lon": 4}, boundary={"lon": "trim"}).mean(),
    ],
    "coarsen.median": [lambda s: s.coarsen(lon=3).median()],
    "coarsen.min": [lambda s: s.coarsen(time=4).min()],
    "coarsen.prod": [lambda s: s.coarsen(time=2).prod()],
    "coarsen.reduce": [lambda s: s.coarsen(lat=2).reduce(np.nanmax)],
    "coarsen.std": [lambda s: s.coarsen(lat=2).std()],
    "coarsen.sum": [lambda s: s.coarsen(lat=4, lon=6).sum()],
    "coarsen.var": [lambda s: s.coarsen(time=2).var()],
}

NEED_BOTTLENECK = {"bfill", "ffill", "rank"}

CASES = [
    pytest.param(
        call,
        id=f"{name}-{number}",
        marks=pytest.mark.skipif(
            name in NEED_BOTTLENECK and importlib.util.find_spec("bottleneck") is None,
            reason="xarray needs bottleneck for it",
        ),
    )
    for name, calls in ROWS.items()
    for number, call in enumerate(calls)
]


def test_every_recorded_method_has_a_row() -> None:
    windows = {
        f"{name}.{method}"
        for name in WINDOWED
        for method in OF_WINDOWS
        if hasattr(getattr(weather(), name)(time=2), method)
    }
    # After another recorded method, fillna is recorded as one of xarray's.
    assert {*ROWS} == {*RECORDED, "fillna"} - {*WINDOWED} | windows
    assert not {*RECORDED} & {*REFUSED}


@pytest.mark.parametrize("call", CASES)
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
def test_each_sample_is_as_xarray_makes_it(call: Call) -> None:
    samples = weather().xloader.window(time=4, stride=3)
    recorded = call(samples)
    assert isinstance(recorded, Samples)
    ids = [4, 0]
    batch = recorded[ids]
    for row, index in enumerate(ids):
        expected = call(samples.to_xarray(index))
        assert isinstance(expected, xr.Dataset)
        actual = recorded.to_xarray(index)
        xr.testing.assert_allclose(actual, expected, rtol=1e-6)
        assert {*actual.indexes} == {*expected.indexes}
        assert batch.names == tuple(expected)
        for name, wanted in expected.items():
            assert actual[name].dims == wanted.dims
            assert batch[name].dtype == wanted.dtype
            assert recorded.shapes[str(name)] == wanted.shape
            assert actual[name].attrs == wanted.attrs
            np.testing.assert_allclose(batch[name][row], wanted, rtol=1e-6)
    xr.testing.assert_identical(batch.to_xarray(), recorded.to_xarray(ids))


def test_loaders_and_copies_run_them() -> None:
    samples = weather()[["t2m"]].xloader.window(time=4).fillna(0.0)
    recorded = samples.rolling(time=2).reduce(lambda a, axis: a.max(axis=axis))
    recorded = recorded.coarsen(lat=2).mean().interp(lon=[30.0]).pad(time=1, mode="edge")
    again = pickle.loads(pickle.dumps(recorded))
    with again.loader(batch_size=2, output="numpy", on_nan="ignore") as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.t2m, recorded[batch.ids].t2m)
    steps = [step.describe() for step in recorded.recipe.steps[1:]]
    assert steps[1:] == [
        "coarsen(lat=2).mean()",
        "interp(lon=(30.0))",
        "pad(mode='edge', time=1)",
    ]
    assert steps[0].startswith("rolling(time=2).reduce(tests.test_recorded_methods.")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.interp(time=["2000-01-01"]),
            r"interp needs labels along 'time'.*per=\"sample",
        ),
        (lambda s: s.interp({"time": [1]}, method="nearest"), "interp needs labels along 'time'"),
        (lambda s: s.reindex(time=[1]), "reindex needs labels along 'time'"),
        (lambda s: s.sortby(["lat", "time"]), "sortby needs labels along 'time'"),
        (lambda s: s.sortby(lambda d: d.lat), "sortby takes names here. Given: function"),
        (lambda s: s.differentiate("time"), "differentiate needs labels along 'time'"),
        (lambda s: s.integrate(["lat", "time"]), "integrate needs labels along 'time'"),
        (lambda s: s.interpolate_na("time"), "interpolate_na needs labels along 'time'"),
        (lambda s: s.interp(lat="north"), "interp failed on a sample of zeros"),
        (lambda s: s.interp(sample=[1]), "interp would work across the samples"),
        (lambda s: s.rolling({"sample": 2}), "rolling would work across the samples"),
        (lambda s: s.coarsen(sample=2), "coarsen would work across the samples"),
        (lambda s: s.pad(sample=2), "pad would work across the samples"),
        (lambda s: s.rolling(time=3).construct("sample"), "construct would work across"),
        (lambda s: s.where(xr.DataArray([True], dims="sample")), "where would work across"),
        (lambda s: s.rolling(depth=3), "rolling failed on a sample of zeros.*depth"),
        (lambda s: s.coarsen(lat=3).mean(), "coarsen failed on a sample of zeros.*boundary"),
        (lambda s: s.coarsen(lat=2).argmax(), "coarsen has no method 'argmax'.*mean"),
        (lambda s: s.rolling(time=2).all(), "rolling has no method 'all'"),
        (lambda s: s.rolling(time=2).reduce(), "DatasetRolling.reduce does not take"),
        (lambda s: s.squeeze(axis=1), "squeeze cannot count axes"),
    ],
)
def test_refused_when_recorded(call: Call, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(weather().xloader.window(time=4))


def test_unknown_names() -> None:
    samples = weather().xloader.window(time=4)
    with pytest.raises(UnknownNameError, match=r"'latt'.*did you mean 'lat'"):
        samples.interp(latt=[1.0])
    with pytest.raises(AttributeError, match=r"rolling\(...\) has no method 'mode'.*mean"):
        samples.rolling(time=2).mode()
    with pytest.raises(OptionError, match="windows are not set"):
        weather().xloader.rolling(time=2)


def test_windows_show_what_they_are() -> None:
    windows = weather().xloader.window(time=4).rolling(time=3, center=True)
    assert repr(windows) == (
        "<xloader windows: rolling(center=True, time=3); call a method such as .mean()>"
    )


def test_dimensions_without_labels() -> None:
    samples = weather().drop_vars(["time", "lat"]).xloader.window(time=4)
    for call in (
        lambda s: s.interp(lat=[0.5, 2.5]),
        lambda s: s.sortby("time"),
        lambda s: s.interpolate_na("time"),
    ):
        with pytest.raises(OptionError, match=r"needs labels along .*, which has none"):
            call(samples)
    filled = samples.interpolate_na("time", use_coordinate=False)
    expected = samples.to_xarray(2).interpolate_na("time", use_coordinate=False)
    xr.testing.assert_equal(filled.to_xarray(2), expected)


def test_a_transform_before_windows_comes_too_early() -> None:
    for record in (lambda s: s.rename(t2m="x"), lambda s: s.map(abs), lambda s: s.fillna(0.0)):
        with pytest.raises(OptionError, match=r"(rename|map|fillna) comes too early.*call .window"):
            record(weather().xloader)
