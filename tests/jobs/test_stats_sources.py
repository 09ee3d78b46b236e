"""Statistics of any source: joined, sharded, computed, in other calendars, and of odd windows."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xloader
from xloader.errors import OptionError
from xloader.jobs.statistics.chunk_reduction import LeadPieces
from xloader.jobs.statistics.stats_options import find_pairs
from xloader.testing import CountingStore, write_store


def make(num: int = 60, first: int = 0) -> xr.Dataset:
    """Some six-hourly fields."""
    rng = np.random.default_rng(num)
    time = pd.date_range("2000-01-01", periods=num, freq="6h") + pd.Timedelta(hours=6 * first)
    values = rng.normal(280, 5, (num, 6, 8)).astype("f4")
    return xr.Dataset(
        {"a": (("time", "lat", "lon"), values)},
        {"time": time, "lat": np.linspace(75, -75, 6), "lon": np.arange(8) * 45.0},
    )


def assert_means(found: xr.DataArray, values: Any, rtol: float = 1e-12) -> None:
    """Mean and standard deviation of all values that are not NaN."""
    own = np.asarray(values, "f8")
    own = own[~np.isnan(own)]
    assert found.sel(stat="count") == own.size
    np.testing.assert_allclose(found.sel(stat=["mean", "std"]), [own.mean(), own.std()], rtol=rtol)


def test_sources_that_follow_each_other() -> None:
    first, second = make(60), make(41, 60)
    stores = [write_store(first, {"a": (7, 3, 8)}), write_store(second, {"a": (10, 3, 8)})]
    samples = xloader.concat(stores, dim="time").window(time=4, stride=1)
    whole = xr.concat([first, second], "time").a
    assert_means(samples.stats().a, whole)
    diff = whole.astype("f8").diff("time", n=1)
    assert_means(samples.stats(leads="6h").a.isel(lead=0), diff, rtol=1e-10)


def test_joined_sources_have_their_own_numbers(tmp_path: Path) -> None:
    other = make(50).rename(a="b")
    stores = {
        "era": write_store(make(), {"a": (7, 3, 8)}),
        "radar": write_store(other, {"b": (10, 6, 4)}),
    }
    samples = xloader.join(stores).window(time=3, stride=1)
    stats = samples.stats()
    assert_means(stats["era/a"], make().a[:50])
    assert_means(stats["radar/b"], other.b)
    with pytest.raises(OptionError, match="joined"):
        samples.stats(path=tmp_path / "stats.nc")


def test_each_shard_is_read_once() -> None:
    encoding = {"a": {"shards": (20, 6, 8)}}
    store = CountingStore(write_store(make(), {"a": (5, 3, 8)}, encoding=encoding))
    samples = xloader.open(store)
    store.reset()
    assert_means(samples.stats().a, make().a)
    assert {n for key, n in store.reads.items() if key.startswith("a/c/")} == {1}
    by_cell = samples.stats(dim="time").a
    wanted = make().a.astype("f8").mean("time")
    np.testing.assert_allclose(by_cell.sel(stat="mean"), wanted, rtol=1e-12)


def test_computed_variables_count_too() -> None:
    samples = xloader.open(make()).forcing("insolation").window(time=3).inputs("a", "insolation")
    delivered = samples[list(range(len(samples)))]["inputs"]
    stats = samples.stats()
    assert_means(stats.a, make().a)
    np.testing.assert_allclose(
        stats.insolation.sel(stat="mean"), delivered[:, 1].astype("f8").mean(), rtol=1e-5
    )


def test_months_of_a_calendar_without_leap_days() -> None:
    time = xr.date_range("2001-01-01", periods=48, freq="MS", calendar="noleap", use_cftime=True)
    values = np.random.default_rng(0).random(48)
    ds = xr.Dataset({"a": ("time", values)}, {"time": time})
    stats = xloader.stats(ds, leads=[1, 12], by="month").a
    assert stats.lead.values.tolist() == [1, 12]
    assert stats.sel(stat="count", lead=12).values.tolist() == [3] * 12
    assert stats.sel(stat="count", lead=1, month=12) == 3
    year = (values[12:] - values[:-12]).reshape(3, 12)
    np.testing.assert_allclose(stats.sel(stat="mean", lead=12), year.mean(axis=0))


def test_numbers_as_times() -> None:
    values = np.random.default_rng(0).random((20, 3))
    for coords in ({}, {"time": np.arange(20) * 0.1}):
        ds = xr.Dataset({"a": (("time", "x"), values)}, coords)
        found = xloader.stats(ds, leads=[2]).a
        assert found.lead.values.tolist() == [2]
        assert_means(found.isel(lead=0), values[2:] - values[:-2])


def test_points_and_slabs() -> None:
    ds = make()
    samples = xloader.open(ds).window({"time": 1, "lat": 1, "lon": 1})
    table = {"time": ds.time[[0, 5, 5]].values, "lat": ds.lat[[0, 1, 1]].values}
    points = samples.at_points({**table, "lon": ds.lon[[2, 3, 3]].values})
    assert_means(points.stats().a, [ds.a.values[0, 0, 2], ds.a.values[5, 1, 3]])
    # All ranks that share samples get the numbers of the whole.
    slabs = [xloader.open(ds).window(time=2).slab("lat", rank, 2) for rank in range(2)]
    for slab in slabs:
        assert_means(slab.stats().a, ds.a)


def test_latitudes_in_two_dimensions() -> None:
    rng = np.random.default_rng(0)
    lat = (("y", "x"), rng.random((4, 5)) * 80, {"standard_name": "latitude"})
    ds = xr.Dataset(
        {"a": (("y", "x"), rng.random((4, 5))), "b": ("x", rng.random(5))}, {"lat": lat}
    )
    stats = xloader.stats(ds, weights="area")
    wanted = ds.a.weighted(np.cos(np.deg2rad(ds.lat))).mean()
    np.testing.assert_allclose(stats.a.sel(stat="mean"), wanted, rtol=1e-12)
    assert_means(stats.b, ds.b)


def test_infinite_values_are_not_hidden() -> None:
    ds = make()
    ds.a[0, 0, 0] = np.inf
    stats = xloader.stats(ds).a
    assert np.isinf(stats.sel(stat=["mean", "max"])).all()
    assert np.isnan(stats.sel(stat="std"))
    assert stats.sel(stat="count") == ds.a.size


def test_many_leads_take_no_more_memory_than_one() -> None:
    recipe = xloader.open(write_store(make(), {"a": (10, 6, 8)})).recipe
    leads = find_pairs(recipe, "time", [3])
    pieces = LeadPieces(leads * 2000, recipe.axes_of("a")[0])
    tracemalloc.start()
    try:
        assert [delta for delta, _ in pieces.deltas()] == [0, 1]
        assert pieces.longest_slab() == 3
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
