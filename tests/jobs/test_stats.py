"""Statistics of samples: those of NumPy in float64, over the elements that samples need."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import event, given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from tests.jobs.needed_elements import needed
from xloader.errors import (
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    UnknownNameError,
    XloaderError,
)
from xloader.jobs import swept_job
from xloader.recipe.layout import make_layouts
from xloader.testing import CountingStore, write_store


def of_numpy(values: np.ndarray, is_needed: np.ndarray, kept: tuple[int, ...]) -> np.ndarray:
    """Count, mean, std, least and greatest in float64, along the axes that are not kept."""
    masked = np.where(is_needed, values.astype("f8"), np.nan)
    axes = tuple(axis for axis in range(values.ndim) if axis not in kept)
    count = (~np.isnan(masked)).sum(axis=axes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(masked, axis=axes, keepdims=True)
        std = np.sqrt(np.nanmean((masked - mean) ** 2, axis=axes))
        least, most = np.nanmin(masked, axis=axes), np.nanmax(masked, axis=axes)
    return np.stack([count, mean.reshape(count.shape), std, least, most])


def assert_close(found: np.ndarray, wanted: np.ndarray, values: np.ndarray) -> None:
    """Within 1e-12 of the size of the values; counts, minima and maxima to the last bit."""
    for row in (0, 3, 4):
        np.testing.assert_array_equal(found[row], wanted[row])
    size = float(np.nanmax(np.abs(values.astype("f8")), initial=1.0))
    np.testing.assert_allclose(found[1:3], wanted[1:3], rtol=1e-12, atol=1e-12 * size)


@given(case=cases(has_nan=True), data=st.data())
def test_those_of_numpy(case: Case, data: st.DataObject) -> None:
    """Any shapes, chunks, windows, fields and subsets, and any dimensions that are kept."""
    dims = list(case.dataset["v0"].isel(case.selection).dims)
    reduced = data.draw(st.none() | st.lists(st.sampled_from(dims), unique=True, min_size=1))
    threads = data.draw(st.sampled_from([1, 3]))
    case.store.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swept_job, "_WAVE_CHUNKS", data.draw(st.sampled_from([1, 4096])))
        stats = case.samples.stats(dim=reduced, threads=threads)
    reads = {k: n for k, n in case.store.reads.items() if k.split("/")[0] in case.dataset.data_vars}
    assert set(reads.values()) <= {1}
    layouts = make_layouts(case.samples.recipe)
    names = {part.variable for own in layouts for part in own.parts}
    assert set(stats.data_vars) == names
    for name in names:
        array = case.dataset[name].isel(
            {d: s for d, s in case.selection.items() if d in case.dataset[name].dims}
        )
        gone = set(reduced or ())
        if reduced is None:
            is_flat = any(
                own.channels is not None and part.variable == name
                for own in layouts
                for part in own.parts
            )
            flat = set(case.samples.recipe.channel_dims(name)) if is_flat else set()
            gone = set(array.dims) - flat
        kept = tuple(axis for axis, dim in enumerate(array.dims) if dim not in gone)
        values = array.to_numpy()
        found = stats[name]
        assert found.dims == ("stat", *(array.dims[axis] for axis in kept))
        assert_close(found.to_numpy(), of_numpy(values, needed(case, name), kept), values)
        event(f"{len(kept)} dims kept")


@given(case=cases(has_nan=True, may_be_weighted=False))
def test_the_chunks_that_are_read_are_those_of_an_epoch(case: Case) -> None:
    with case.loader(
        memory=1 << 30, world_size=1, lanes=None, batch_size=1, drop_last=False, on_nan="ignore"
    ) as loader:
        case.store.reset()
        for _ in loader:
            pass
        wanted = {key for key in case.store.reads if key.split("/")[0] in case.dataset.data_vars}
    case.store.reset()
    case.samples.stats()
    assert {
        key for key in case.store.reads if key.split("/")[0] in case.dataset.data_vars
    } == wanted


def climate(chunks: dict[str, tuple[int, ...]] | None = None) -> tuple[xr.Dataset, CountingStore]:
    """A year and a half of two variables with gaps, a packed one, and a static one."""
    rng = np.random.default_rng(3)
    time = pd.date_range("2001-01-01", periods=1100, freq="12h")
    t2m = rng.normal(280, 10, (1100, 6, 5)).astype("f4")
    t2m[rng.random(t2m.shape) < 0.05] = np.nan
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K", "long_name": "2 m temperature"}),
            "z": (("time", "level", "lat", "lon"), rng.normal(50, 9, (1100, 3, 6, 5))),
            "rain": (("time", "lat", "lon"), rng.random((1100, 6, 5)).round(2)),
            "orog": (("lat", "lon"), rng.random((6, 5)).astype("f4")),
        },
        {
            "time": time,
            "lat": ("lat", np.linspace(75, -75, 6), {"units": "degrees_north"}),
            "lon": np.arange(5) * 72.0,
            "level": [850, 700, 500],
        },
    )
    chunks = chunks or {"t2m": (90, 4, 3), "z": (64, 1, 6, 5), "rain": (90, 6, 5), "orog": (6, 5)}
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 0.5, "_FillValue": -999}
    return ds, CountingStore(write_store(ds, chunks, encoding={"rain": packing}))


def open_climate() -> tuple[xr.Dataset, xloader.Samples]:
    """The climate as xarray decodes it, and samples of its first year."""
    _, store = climate()
    part = {"time": slice("2001-02-01", "2002-01-31")}
    samples = xloader.open(store, dtype=None).sel(part).window(time=3, stride=1)
    decoded = xr.open_zarr(store, consolidated=False).load().sel(part)
    return decoded, samples.inputs("t2m", "z", "rain", "orog")


def test_channels_have_their_own_numbers() -> None:
    ds, samples = open_climate()
    stats = samples.stats()
    assert stats["z"].dims == ("stat", "level")
    assert stats["t2m"].dims == stats["orog"].dims == stats["rain"].dims == ("stat",)
    assert stats["stat"].values.tolist() == ["count", "mean", "std", "min", "max"]
    assert stats["level"].values.tolist() == [850, 700, 500]
    assert stats["t2m"].attrs == {"units": "K", "long_name": "2 m temperature"}
    assert stats.attrs["xloader_fingerprint"] == samples.recipe.source.fingerprint
    for name in ("t2m", "rain", "orog"):
        values = ds[name].to_numpy()
        wanted = of_numpy(values, np.ones_like(values, bool), ())
        assert_close(stats[name].to_numpy(), wanted, values)
    normal = samples.normalize(stats)[[0]]["inputs"]
    t2m = stats["t2m"].sel(stat=["mean", "std"]).values
    np.testing.assert_allclose(normal[0, 0], (ds["t2m"][:3] - t2m[0]) / t2m[1], atol=1e-5)


@pytest.mark.parametrize("by", ["month", "dayofyear", "hour", "season"])
@pytest.mark.parametrize("dim", [None, "time"])
def test_by_label_as_groupby(by: str, dim: str | None) -> None:
    ds, samples = open_climate()
    stats = samples.stats(by=by, dim=dim)
    assert stats.attrs["xloader_clock_dim"] == "time"
    assert by not in stats["orog"].dims
    for name in ("t2m", "rain", "z"):
        array = ds[name].astype("f8")
        over = ["time"] if dim else [d for d in array.dims if d != "level"]
        groups = array.groupby(f"time.{by}")
        found = stats[name]
        for stat in ("count", "mean", "min", "max"):
            wanted = getattr(groups, stat)(over).reindex({by: found[by]})
            np.testing.assert_allclose(
                found.sel(stat=stat), wanted.transpose(*found.dims[1:]), rtol=1e-12
            )
        with warnings.catch_warnings():
            # NumPy says that a cell has no values.
            warnings.simplefilter("ignore", RuntimeWarning)
            wanted = groups.std(over).reindex({by: found[by]}).transpose(*found.dims[1:])
        np.testing.assert_allclose(found.sel(stat="std"), wanted, rtol=1e-12, atol=1e-12)


def test_a_calendar_of_360_days() -> None:
    time = xr.date_range("2001-01-01", periods=720, calendar="360_day", use_cftime=True)
    ds = xr.Dataset({"t": (("time", "x"), np.arange(1440.0).reshape(720, 2))}, {"time": time})
    stats = xloader.stats(ds, by="dayofyear", dim="time")
    wanted = ds.t.groupby("time.dayofyear").mean("time")
    xr.testing.assert_allclose(stats.t.sel(stat="mean", drop=True), wanted)
    assert stats.sizes["dayofyear"] == 360


@given(case=cases(has_nan=True), data=st.data())
def test_differences_of_numpy(case: Case, data: st.DataObject) -> None:
    """Any shapes, chunks, windows, fields and subsets: pairs of which samples need both."""
    kept = case.dataset.isel(case.selection)
    numbers = st.integers(0, max(kept.sizes["time"] - 1, 0))
    leads = data.draw(st.lists(numbers, unique=True, min_size=1, max_size=3))
    dim = data.draw(st.sampled_from(["time", ...]))
    case.store.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swept_job, "_WAVE_CHUNKS", data.draw(st.sampled_from([1, 3, 4096])))
        stats = case.samples.stats(dim=dim, leads=leads, threads=data.draw(st.sampled_from([1, 3])))
    reads = {k: n for k, n in case.store.reads.items() if k.split("/")[0] in case.dataset.data_vars}
    assert set(reads.values()) <= {1}
    for name in stats.data_vars:
        array, is_needed = kept[name], needed(case, name)
        if "time" not in array.dims:
            assert "lead" not in stats[name].dims
            continue
        values, along = array.to_numpy().astype("f8"), array.get_axis_num("time")
        if "time" in array.indexes and array.indexes["time"].is_monotonic_decreasing:
            # The later element of a pair is the one with the later label.
            values, is_needed = np.flip(values, along), np.flip(is_needed, along)
        kept_axes = () if dim is ... else tuple(a for a in range(array.ndim) if a != along)
        for row, lead in enumerate(leads):
            pairs = [np.arange(array.sizes["time"] - lead) + begin for begin in (0, lead)]
            first, second = (values.take(own, along) for own in pairs)
            both = is_needed.take(pairs[0], along) & is_needed.take(pairs[1], along)
            wanted = of_numpy(second - first if lead else values, both, kept_axes)
            assert_close(stats[name].isel(lead=row).to_numpy(), wanted, values)


def test_differences_skip_gaps_and_elements_that_no_sample_needs() -> None:
    days = np.delete(np.arange("2001-01-01", "2001-03-01", dtype="M8[D]"), [9, 10, 30])
    values = np.random.default_rng(0).random(len(days))
    ds = xr.Dataset({"t": ("time", values)}, {"time": days.astype("M8[ns]")})
    store = CountingStore(write_store(ds, {"t": (4,)}))
    samples = xloader.open(store).window(time=2, stride=7, gaps="allow")
    needs = np.zeros(len(days), bool)
    for start in range(0, len(days) - 1, 7):
        needs[start : start + 2] = True
    for lead in (1, 6, 8):
        pairs = [
            values[j] - values[i]
            for i in range(len(days))
            for j in range(len(days))
            if needs[i] and needs[j] and days[j] - days[i] == np.timedelta64(lead, "D")
        ]
        store.reset()
        found = samples.stats(leads=lead).t.values[:, 0]
        assert {n for key, n in store.reads.items() if key.startswith("t/")} <= {1}
        assert found[0] == len(pairs)
        np.testing.assert_allclose(
            found[1:], [np.mean(pairs), np.std(pairs), min(pairs), max(pairs)]
        )


def test_differences_by_month_count_at_the_earlier_time() -> None:
    ds, samples = open_climate()
    stats = samples.stats(leads="1D", by="month")
    diff = ds.t2m.astype("f8").shift(time=-2) - ds.t2m.astype("f8")
    wanted = diff.groupby("time.month").mean(...)
    np.testing.assert_allclose(stats.t2m.sel(stat="mean").values[:, 0], wanted, atol=1e-12)


def test_area_weights() -> None:
    ds, samples = open_climate()
    stats = samples.stats(weights="area")
    areas = np.cos(np.deg2rad(ds.lat))
    for name in ("t2m", "z"):
        weighted = ds[name].astype("f8").weighted(areas)
        dims = [d for d in ds[name].dims if d != "level"]
        np.testing.assert_allclose(stats[name].sel(stat="mean"), weighted.mean(dims), rtol=1e-12)
        np.testing.assert_allclose(stats[name].sel(stat="std"), weighted.std(dims), rtol=1e-10)
    np.testing.assert_array_equal(stats.t2m.sel(stat="count"), ds.t2m.count())
    per_time = xr.DataArray(np.linspace(0, 1, ds.sizes["time"]), dims="time")
    weighted = ds.t2m.astype("f8").weighted(per_time)
    found = samples.stats(weights=per_time, dim="time").t2m
    np.testing.assert_allclose(found.sel(stat="mean"), weighted.mean("time"), rtol=1e-12)
    np.testing.assert_allclose(found.sel(stat="std"), weighted.std("time"), rtol=1e-10)


def test_quantiles_lie_within_the_error_of_their_sketch() -> None:
    pytest.importorskip("crick")
    ds, samples = open_climate()
    stats = samples.stats(quantiles=[0.99, 0.5, 0.01])
    assert stats.stat.values.tolist()[5:] == ["q0.01", "q0.5", "q0.99"]
    for name, own in (("t2m", ds.t2m), ("rain", ds.rain), ("z", ds.z.isel(level=1))):
        line = np.sort(own.values[~np.isnan(own.values)].ravel())
        found = stats[name] if name != "z" else stats[name].isel(level=1)
        for q in (0.01, 0.5, 0.99):
            error = xloader.jobs.statistics.quantile_sketch.QuantileSketch.rank_error(q)
            lo, hi = np.quantile(line, [max(q - error, 0), min(q + error, 1)])
            assert lo <= found.sel(stat=f"q{q}").item() <= hi
    by_cell = samples.stats(quantiles=0.5, dim="time", by="season").t2m.sel(stat="q0.5")
    wanted = ds.t2m.groupby("time.season").median("time").reindex(season=by_cell.season)
    np.testing.assert_allclose(by_cell, wanted, atol=0.5)


def test_a_test_year_cannot_leak() -> None:
    """Values that only test samples need change no bit, whatever they are."""
    ds, _ = climate()
    ds = ds[["t2m"]].fillna(280.0)
    poisoned = ds.copy(deep=True)
    poisoned["t2m"][ds.time.values > np.datetime64("2001-12-31T12")] = 1e30
    year = {"time": slice("2001-01-01", "2001-12-31")}
    found = []
    for data in (ds, poisoned):
        whole = xloader.open(data).window(time=4, stride=1)
        num = 730 - 3
        first = np.where(np.arange(len(whole)) < num, 1.0, 0.0)
        for train in (
            xloader.open(data).sel(year).window(time=4, stride=1),
            whole.select(slice(0, num)),
            whole.weighted(first),
            whole.split(time={"train": slice("2001-01-01", "2001-12-31")})["train"],
        ):
            found.append(train.stats())
            assert len(found) > 4 or found[-1].t2m.sel(stat="count") == 730 * 30
    for own in found[1:]:
        xr.testing.assert_equal(own, found[0])
    assert whole.stats().t2m.sel(stat="max") > 1e29


def test_the_mean_of_a_constant_is_the_constant() -> None:
    value = np.float32(273.15)
    ds = xr.Dataset({"t": (("time", "x"), np.full((1000, 1000), value))}).chunk(time=100)
    stats = xloader.stats(ds).t
    assert abs(stats.sel(stat="mean").item() - float(value)) < 1e-9
    assert stats.sel(stat="std").item() < 1e-9
    assert stats.sel(stat="count").item() == 10**6


def test_a_whole_dataset_with_all_kinds_of_variables() -> None:
    ds = xr.Dataset(
        {
            "flag": (("x", "y"), np.eye(4, 3) > 0),
            "number": ("x", np.arange(4, dtype="u1")),
            "alone": ((), 3.5),
            "name": ("x", np.array(list("abcd"))),
            "lost": ("y", np.full(3, np.nan, "f4")),
        }
    )
    stats = xloader.stats(ds)
    assert set(stats.data_vars) == {"flag", "number", "alone", "lost"}
    assert stats.flag.values.tolist()[:2] == [12.0, 0.25]
    assert stats.alone.values.tolist() == [1.0, 3.5, 0.0, 3.5, 3.5]
    assert stats.lost.values[0] == 0
    assert np.isnan(stats.lost.values[1:]).all()
    assert xloader.stats(ds, variables="number", dim=...).number.values[3:].tolist() == [0, 3]


def test_memory_is_asked_for_by_its_minimum() -> None:
    _, samples = open_climate()
    whole = samples.stats(dim="time")
    with pytest.raises(MemoryBudgetError) as caught:
        samples.stats(dim="time", memory=1000)
    xr.testing.assert_identical(
        samples.stats(dim="time", memory=caught.value.minimum_nbytes), whole
    )


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"dim": "tme"}, UnknownNameError),
        ({"dim": 3}, OptionError),
        ({"by": "year"}, OptionError),
        ({"by": ["month"]}, OptionError),
        ({"by": "month", "dim": "lat"}, OptionError),
        ({"quantiles": [50]}, OptionError),
        ({"quantiles": ["median"]}, OptionError),
        ({"quantiles": None}, OptionError),
        ({"quantiles": True}, OptionError),
        ({"leads": -1}, OptionError),
        ({"leads": [1, "12h"]}, OptionError),
        ({"leads": 10_000}, OptionError),
        ({"leads": "7h"}, OptionError),
        ({"leads": 1.5}, OptionError),
        ({"leads": True}, OptionError),
        ({"leads": 10**30}, OptionError),
        ({"weights": "areas"}, OptionError),
        ({"weights": 3}, OptionError),
        ({"weights": xr.DataArray([-1.0] * 6, dims="lat")}, OptionError),
        ({"weights": xr.DataArray([1.0] * 7, dims="lat")}, OptionError),
        ({"threads": 0}, OptionError),
        ({"memory": "lots"}, OptionError),
        ({"part": (3, 3)}, OptionError),
        ({"part": 3}, OptionError),
        ({"progress": "yes"}, OptionError),
        ({"path": "stats.txt"}, OptionError),
        ({"path": "s3://bucket/stats.nc"}, OptionError),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], kind: type[XloaderError]) -> None:
    _, samples = open_climate()
    with pytest.raises(kind):
        samples.stats(**options)


def test_names_that_the_result_needs() -> None:
    """They are refused before anything is read: nothing of a long job is lost."""
    time = pd.date_range("2001-01-01", periods=4)
    for name, options in (("stat", {}), ("lead", {"leads": 1}), ("month", {"by": "month"})):
        for ds in (
            xr.Dataset({"t": (("time", name), np.eye(4, 3))}, {"time": time}),
            xr.Dataset({name: ("time", np.zeros(4))}, {"time": time}),
            xr.Dataset(
                {"t": (("time", "x"), np.eye(4, 3))}, {"time": time, name: ("x", [4, 5, 6])}
            ),
        ):
            store = CountingStore(write_store(ds, {n: a.shape for n, a in ds.items()}))
            samples = xloader.open(store)
            store.reset()
            with pytest.raises(OptionError, match="dimensions of their own"):
                samples.stats(dim="time", **options)
            assert not any("/c" in key for key in store.reads if not key.startswith("time"))
    ds = xr.Dataset({"t": (("time", "lead"), np.eye(4, 3))}, {"time": time})
    assert xloader.stats(ds, dim="time").t.dims == ("stat", "lead")


def test_quantiles_of_one_label_are_one() -> None:
    pytest.importorskip("crick")
    ds = xr.Dataset({"t": ("x", np.arange(9.0))})
    stats = xloader.stats(ds, quantiles=[0.1, np.nextafter(0.1, 1)])
    assert stats.stat.values.tolist()[5:] == ["q0.1"]


def test_labels_are_read_once_for_all_leads() -> None:
    _, store = climate()
    samples = xloader.open(store, variables=["t2m"])
    samples.stats(leads=1)
    store.reset()
    samples.stats(leads=[1, 2, 3, 4, 5])
    assert sum(n for key, n in store.reads.items() if key.startswith("time/c")) == 1


def test_no_times_and_no_numbers() -> None:
    ds = xr.Dataset({"t": ("x", np.zeros(4)), "name": ("x", np.array(list("abcd")))})
    with pytest.raises(UnknownNameError):
        xloader.stats(ds, by="month")
    with pytest.raises(UnknownNameError):
        xloader.stats(ds, weights="area")
    with pytest.raises(XloaderError):
        xloader.stats(ds, variables="name")
    with pytest.raises(EmptySamplesError):
        xloader.stats(ds.isel(x=slice(0, 0)))
    with pytest.raises(OptionError):
        xloader.stats(ds.xloader, variables="t")


@pytest.mark.parametrize("by", [None, "month"])
def test_quantiles_of_values_and_of_differences_in_one_pass(by: Any) -> None:
    pytest.importorskip("crick")
    days = np.arange("2001-01-01", "2001-04-11", dtype="M8[D]").astype("M8[ns]")
    ds = xr.Dataset({"t": ("time", np.arange(100.0) ** 2)}, {"time": days})
    options: dict[str, Any] = {"by": by, "quantiles": [0.5]}
    # In most chunks some lead has no pairs.
    found = xloader.stats(ds.chunk(time=10), leads=[0, 1, 40], **options).t
    for row, lead in enumerate([0, 1, 40]):
        alone = xloader.stats(ds, leads=lead, **options).t.isel(lead=0)
        np.testing.assert_allclose(found.isel(lead=row), alone, rtol=0.01)
