"""Statistics by month, day of the year and cell: the values are those of xarray's own anomalies."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import xloader
from xloader import Samples
from xloader.errors import OptionError
from xloader.recipe.layout import make_layouts
from xloader.testing import write_store
from xloader.transforms.packed_fields import normalized_packings, packed_fields

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

CHUNKS = {"t": (37, 2, 3, 5), "r": (50, 6, 3), "oro": (6, 8)}


def weather(calendar: str = "standard", num_times: int = 800) -> xr.Dataset:
    """Two years of days and more, so that each month and each day of the year occurs."""
    rng = np.random.default_rng(4)
    times = xr.date_range(
        "2000-01-01", periods=num_times, calendar=calendar, use_cftime=calendar != "standard"
    )
    return xr.Dataset(
        {
            "t": (("time", "level", "lat", "lon"), rng.normal(280, 9, (num_times, 2, 6, 8))),
            "r": (("time", "lat", "lon"), rng.gamma(0.4, 2, (num_times, 6, 8))),
            "oro": (("lat", "lon"), rng.random((6, 8))),
        },
        {
            "time": times,
            "level": [500, 850],
            "lat": np.linspace(50, -50, 6),
            "lon": np.arange(8) * 45.0,
        },
    )


def both(groups: Any, dims: Any) -> tuple[xr.Dataset, xr.Dataset]:
    return groups.mean(dims), groups.std(dims) + 0.1


def by(clock: str, *dims: str) -> Callable[[xr.Dataset], tuple[xr.Dataset, xr.Dataset]]:
    return lambda ds: both(ds[["t", "r"]].groupby(f"time.{clock}"), ["time", *dims])


STATISTICS: dict[str, Callable[[xr.Dataset], tuple[xr.Dataset, xr.Dataset]]] = {
    "month": by("month", "level", "lat", "lon"),
    "month and level": lambda ds: both(ds[["t"]].groupby("time.month"), ["time", "lat", "lon"]),
    "dayofyear": by("dayofyear", "level", "lat", "lon"),
    "season": by("season", "level", "lat", "lon"),
    "hour": by("hour", "level", "lat", "lon"),
    "cell": lambda ds: both(ds[["t", "r"]], "time"),
    "latitude": lambda ds: both(ds[["t", "r"]], ["time", "level", "lon"]),
    "month and cell": by("month"),
    "dayofyear and cell": by("dayofyear"),
    "mean by month, std by cell": lambda ds: (
        ds[["t", "r"]].groupby("time.month").mean(["time", "level", "lat", "lon"]),
        ds[["t", "r"]].std("time") + 0.1,
    ),
}

WINDOWS: dict[str, Callable[[Samples], Samples]] = {
    "maps": lambda s: s.window(time=3, stride=2),
    "patches": lambda s: s.window(time=2, lat=3, lon=4, stride={"time": 5, "lat": 1, "lon": 2}),
    "patches of all times": lambda s: s.isel(time=slice(340, 400)).window(lat=2, lon=2),
    "one time": lambda s: s.isel(time=75).window(lat=2),
    "leads": lambda s: (
        s.window(time=4, lat=2, lon=2)
        .inputs("t", "r", "oro", time=slice(0, 3))
        .targets("r", "t", time=3)
        .field("late", "t", time="+45")
    ),
    "unequal leads": lambda s: (
        s.window(time=1, lat=2, lon=2)
        .inputs("t", "r", "oro", time=0)
        .targets("r", "t", time=["+45", "+1", "+2"], lat=[1, 0])
    ),
    "in another order": lambda s: s.isel(
        lat=slice(None, None, -1), level=[1, 0], time=slice(400, 100, -2)
    ).window(time=3, lat=3, lon=2),
    "dilated": lambda s: s.window(time=3, stride=1, dilation=20),
    "one level": lambda s: s.sel(level=850).window(time=2, lon=8),
    "gaps": lambda s: s.isel(time=[*range(50), *range(60, 300), *range(340, 800)]).window(
        time=6, lat=3
    ),
    "wrapped": lambda s: s.window(time=1, lon=5, stride={"time": 7, "lon": 3}, wrap="lon"),
    "padded": lambda s: s.window(lat=5, time=10, stride={"lat": 2}, pad={"lat": "reflect"}),
    "subset": lambda s: s.window(time=2, lat=3, lon=4).select(np.arange(600, 0, -7)),
    "points": lambda s: s.window(time=3, lat=2, lon=2).at_points(
        pd.DataFrame(
            {
                "time": pd.to_datetime(["2000-02-29", "2001-12-31", "2000-03-01"]),
                "lat": [50.0, -30.0, 10.0],
                "lon": [90.0, 0.0, 270.0],
            }
        ),
        at="start",
        method="nearest",
        outside="drop",
    ),
}


def normalized(ds: xr.Dataset, mean: xr.Dataset, std: xr.Dataset) -> xr.Dataset:
    """Normalise a Dataset as xarray does it."""
    made = {}
    for name in mean.data_vars:
        numbers = []
        for own in (mean[name], std[name]):
            for clock in set(own.dims) & {"month", "dayofyear", "season", "hour"}:
                labels = getattr(ds["time"].dt, clock)
                own = own.sel({clock: labels}).drop_vars(clock)
            numbers.append(own)
        made[name] = ((ds[name] - numbers[0]) / numbers[1]).transpose(*ds[name].dims)
    return ds.assign(made)


@cache
def made(statistics: str) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset, xr.Dataset]:
    """Return a Dataset, its statistics, and the Dataset as xarray normalises it with them."""
    ds = weather()
    mean, std = STATISTICS[statistics](ds)
    return ds, mean, std, normalized(ds, mean, std)


def some_ids(samples: Samples) -> np.ndarray:
    return np.random.default_rng(1).integers(0, len(samples), min(len(samples), 40))


@pytest.mark.ends(every=4)
@pytest.mark.parametrize(
    ("statistics", "windows"),
    [
        *(("dayofyear and cell", windows) for windows in WINDOWS),
        *itertools.product(STATISTICS, ("leads", "patches of all times")),
    ],
)
def test_values_are_those_of_xarray(statistics: str, windows: str) -> None:
    ds, mean, std, wanted_values = made(statistics)
    plain = WINDOWS[windows](ds.xloader)
    samples, wanted = plain.normalize(mean, std), WINDOWS[windows](wanted_values.xloader)
    ids = some_ids(samples)
    given = samples[ids]
    for name, array, other in zip(samples.fields, given, wanted[ids], strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-9, atol=1e-9, err_msg=name)
    for name, raw, array in zip(samples.fields, plain[ids], given, strict=True):
        if name in ds and name not in mean:
            continue
        found = samples.denormalize(array, name, ids)
        np.testing.assert_allclose(found, raw, rtol=1e-9, atol=1e-9, err_msg=name)
        one = samples.denormalize(array[3 % len(ids)], name, ids[3 % len(ids)])
        np.testing.assert_array_equal(one, found[3 % len(ids)])


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap"])
@pytest.mark.parametrize("clock", ["season", "dayofyear"])
def test_anomalies_are_those_of_groupby(clock: str, calendar: str) -> None:
    ds = weather(calendar)[["r"]]
    mean = ds.groupby(f"time.{clock}").mean()
    wanted = (ds.groupby(f"time.{clock}") - mean).r.transpose("time", "lat", "lon")
    samples = ds.xloader.window(time=1, stride=1).normalize(mean, xr.ones_like(mean))
    np.testing.assert_allclose(samples[:].r[:, 0], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"processes": 2}, {"shuffle": False}], ids=str)
def test_batches_are_those_of_single_samples(options: dict[str, Any], tmp_path: Any) -> None:
    ds = weather()
    mean, std = STATISTICS["month and cell"](ds)
    path = tmp_path / "weather.zarr"
    write_store(ds, CHUNKS, path)
    samples = WINDOWS["leads"](xloader.open(path)).normalize(mean, std)
    single = pickle.loads(pickle.dumps(samples))
    assert single.recipe == samples.recipe
    num_seen = 0
    with samples.loader(batch_size=64, seed=3, output="numpy", **options) as loader:
        for batch in loader:
            wanted = single[batch.ids]
            for name in samples.fields:
                array = batch[name]
                np.testing.assert_array_equal(array, wanted[name])
                if name != "oro":
                    back = samples.denormalize(array, name, ids=batch.ids)
                    assert back.shape == array.shape
            num_seen += int((~batch.is_padding).sum())
            if num_seen > 300:
                break
    assert num_seen > 300


def test_slabs_have_their_own_part() -> None:
    ds = weather()
    for statistics in ("dayofyear and cell", "month and level", "cell"):
        mean, std = STATISTICS[statistics](ds)
        plain = ds.xloader.window(time=3).inputs(*mean.data_vars)
        whole = plain.normalize(mean, std)
        ids = np.array([5, 200, 11])
        for samples in (
            plain.normalize(mean, std).slab("lat", 1, 2),
            plain.slab("lat", 1, 2).normalize(mean, std),
        ):
            np.testing.assert_array_equal(samples[ids][0], whole[ids][0][..., 3:, :])
            found = samples.denormalize(samples[ids][0], "inputs", ids)
            np.testing.assert_allclose(found, plain[ids][0][..., 3:, :], rtol=1e-9)


def test_large_samples_are_looked_up_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = weather()
    mean, std = STATISTICS["dayofyear and cell"](ds)
    samples = ds.xloader.window(time=30, lat=3).inputs("t", "r").normalize(mean, std)
    wanted = samples[[3, 40]][0]
    largest = []
    from xloader.transforms import normalize

    change = normalize._change

    def recording(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
        largest.append(mean.size)
        change(values, mean, std)

    monkeypatch.setattr(normalize, "_change", recording)
    monkeypatch.setattr(normalize, "_MOST_AT_ONCE", 200)
    monkeypatch.setattr(normalize, "_FEW", 50)
    np.testing.assert_array_equal(samples[[3, 40]][0], wanted)
    assert max(largest) <= 200
    assert len(largest) > 10


def test_recorded_methods_after_it() -> None:
    ds = weather()
    mean, std = STATISTICS["month"](ds)
    plain = ds.xloader.window(time=4).inputs("r")
    samples = plain.normalize(mean, std)
    ids = np.array([100, 7, 7])
    smooth = samples.coarsen(lat=2).mean()
    found = smooth.denormalize(smooth[ids].inputs, "inputs", ids)
    np.testing.assert_allclose(found, plain.coarsen(lat=2).mean()[ids].inputs, rtol=1e-9)
    for changed in (
        samples.mean("time"),
        samples.map(lambda d: d.isel(time=slice(None, None, -1))),
    ):
        with pytest.raises(OptionError, match="after normalize has changed 'time'"):
            changed.denormalize(changed[ids].inputs, "inputs", ids)


def test_tensors_and_ids() -> None:
    torch = pytest.importorskip("torch")
    ds = weather()
    mean, std = STATISTICS["month"](ds)
    samples = ds.xloader.window(time=4).inputs("r").normalize(mean, std)
    given = torch.from_numpy(samples[[4, 100]].inputs.copy())
    wanted = samples.denormalize(given.numpy(), "inputs", [4, 100])
    for ids in ([4, 100], np.array([4, 100], np.int32), torch.tensor([4, 100])):
        np.testing.assert_array_equal(samples.denormalize(given, "inputs", ids), wanted)
    for ids, told in ((None, "no ids"), ([4], r"shape \(1,\)"), ([0.5, 1.5], r"shape \(2,\)")):
        with pytest.raises(OptionError, match=f"vary from sample to sample.*{told}.*batch.ids"):
            samples.denormalize(given, "inputs", ids)
    with pytest.raises(OptionError, match="vary from sample to sample"):
        samples.denormalize(given[0], "inputs")


def test_packed_variables() -> None:
    whole = weather()
    ds = whole[["r"]].astype("f4")
    encoding = {"r": {"dtype": "i2", "scale_factor": 0.001, "add_offset": 3.0, "_FillValue": -9}}
    store = zarr.storage.MemoryStore()
    ds.to_zarr(store, encoding=encoding, consolidated=False, zarr_format=3)
    read = xr.open_zarr(store, consolidated=False, chunks=None).load()
    for statistics in ("month", "month and cell"):
        mean, std = (
            own[["r"]].astype("f4") for own in STATISTICS[statistics](read.assign(t=whole.t))
        )
        samples = xloader.open(store).window(time=5).inputs("r").normalize(mean, std)
        wanted = normalized(read, mean, std).xloader.window(time=5).inputs("r")
        np.testing.assert_allclose(samples[[7, 0]][0], wanted[[7, 0]][0], rtol=1e-5, atol=1e-5)
        # One look-up for all samples, and a device that knows one number a channel, cannot do it.
        layouts = make_layouts(samples.recipe)
        assert packed_fields(samples.recipe, layouts) == ()
        assert normalized_packings(samples.recipe, layouts) == {}


def test_what_is_said_and_compared() -> None:
    ds = weather()
    mean, std = STATISTICS["month and cell"](ds)
    opened = ds.xloader.window(time=2)
    samples = opened.normalize(mean, std)
    assert "normalize(t by month, level, lat, lon; r by month, lat, lon)" in repr(samples)
    assert opened.normalize(mean, std).recipe == samples.recipe
    assert opened.normalize(mean + 1, std).recipe != samples.recipe
    assert opened.normalize(mean, std).recipe.fingerprint == samples.recipe.fingerprint
    assert opened.normalize(mean + 1, std).recipe.fingerprint != samples.recipe.fingerprint


# Statistics with holes


def test_a_missing_month_is_named_at_once_if_samples_need_it() -> None:
    ds = weather()
    mean, std = STATISTICS["month"](ds)
    std.r[3] = 0.0
    with pytest.raises(OptionError, match=r"std of 'r' cannot.*Given: 0.0 for month 4. .*> 0"):
        ds.xloader.window(time=2).normalize(mean, std)
    summer = ds.isel(time=ds.time.dt.month.isin([6, 7, 8]))
    mean, std = STATISTICS["month"](summer)
    for samples in (ds.xloader.window(time=2), ds.xloader.isel(time=slice(0, 200)).window(time=2)):
        with pytest.raises(OptionError, match=r"mean of 't' cannot.*nan for month 1, 2, 3, 4, 5"):
            samples.normalize(mean, std)
    whole = mean.reindex(month=range(1, 13))
    with pytest.raises(OptionError, match="nan for month 1, 2, 3, 4, 5, 9, 10, 11, 12"):
        ds.xloader.window(time=2).normalize(whole, std.reindex(month=range(1, 13)))
    # Samples of summers alone need no other month, whether they are selected or a subset.
    plain = ds.xloader.window(time=3, stride=1)
    ids = np.flatnonzero(ds.time.dt.month.isin([6, 7]).to_numpy())
    for chosen in (summer.xloader.window(time=3), plain.select(ids)):
        samples = chosen.normalize(mean, std)
        assert np.isfinite(samples[[0, 40]].r).all()
    with pytest.raises(OptionError, match="nan for month 5"):
        plain.select(ids - 1).normalize(mean, std)


def test_a_lead_that_comes_later_and_needs_a_missing_month() -> None:
    ds = weather()
    mean, std = STATISTICS["month"](ds.isel(time=ds.time.dt.month < 11))
    early = ds.xloader.window(time=2, stride=400).inputs("r", time=0).normalize(mean, std)
    assert np.isfinite(early[:].inputs).all()
    late = early.targets("r", time="+310")
    with pytest.raises(OptionError, match=r"needs statistics that are missing.*month 11"):
        late[0]
    with (
        late.loader(batch_size=1, output="numpy", shuffle=False) as loader,
        pytest.raises(OptionError, match=r"needs statistics that are missing.*month 11"),
    ):
        list(loader)


def test_holes_of_a_map() -> None:
    ds = weather()
    land = ds.lat > 20
    sea = ds[["r"]].where(~land)
    with warnings.catch_warnings():
        # NumPy says that a cell has no values.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, std = sea.mean("time"), sea.std("time")
    samples = sea.xloader.window(time=1, lat=2, stride=1)
    with pytest.raises(OptionError, match=r"if a map has gaps.*mean.fillna\(0\)"):
        samples.normalize(mean, std)
    found = samples.normalize(mean.fillna(0), std.where(std > 0, 1))[[0]].r
    assert np.isnan(found).all()
    # Patches in the south do not need the north.
    south = sea.xloader.isel(lat=slice(3, 6)).window(time=1, lat=2)
    assert np.isfinite(south.normalize(mean, std)[[3]].r).all()


BAD: dict[str, tuple[Callable[[xr.Dataset], Any], str]] = {
    "labels": (lambda m: m.assign_coords(month=range(12)), "other labels than those of xarray"),
    "no labels": (lambda m: m.drop_vars("month"), "no labels.*each of 1 to 12"),
    "two clocks": (lambda m: m.expand_dims(hour=range(24)), "does not fit the variable"),
    "time and clock": (lambda m: m.expand_dims(time=range(800)), "does not fit the variable"),
    "latitudes": (lambda m: m.expand_dims(lat=[1.0, 2]), "does not fit the variable.*labels"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_statistics(case: str) -> None:
    ds = weather()
    mean, std = STATISTICS["month"](ds)
    change, message = BAD[case]
    with pytest.raises(OptionError, match=message):
        ds.xloader.window(time=2).normalize(change(mean), std)


def test_a_variable_without_times_has_no_month() -> None:
    ds = weather()
    mean = xr.Dataset({"oro": ("month", np.arange(12.0))}, {"month": range(1, 13)})
    samples = ds.xloader.window(time=2, lat=2).field("oro", "oro")
    with pytest.raises(OptionError, match=r"mean of 'oro' does not fit.*times along \[\]"):
        samples.normalize(mean, mean + 1)
