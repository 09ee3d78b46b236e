"""Forcings: their values against published ones, and that nothing is read for them."""

from __future__ import annotations

import itertools
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from xloader import Samples, forcings
from xloader.errors import (
    OptionError,
    TransformError,
    UnknownNameError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.forcings.coordinates import find_coordinate
from xloader.recipe.recipe import Recipe
from xloader.sources.combined import computed_source
from xloader.testing import CountingStore, SourceRecorder, write_store

SUNLIGHT = [
    ("1950-03-21T12:00", 0, 0, 1370.32),
    ("1965-06-21T18:30", 45.5, -73.6, 1151.03),
    ("1979-12-21T02:00", -33.9, 151.2, 1382.27),
    ("1985-06-30T21:00", 71.3, -156.8, 848.17),
    ("1990-11-15T06:00", -90, 0, 439.57),
    ("1995-04-30T15:00", 90, 10, 341.44),
    ("1999-08-11T11:00", 51.5, 0, 1037.39),
    ("2000-01-01T03:00", 35.7, 139.7, 727.44),
    ("2003-02-14T14:45", -22.9, -43.2, 1369.18),
    ("2006-09-23T13:00", 64.1, -21.9, 585.04),
    ("2010-05-05T23:15", 0, 0, 0.0),
    ("2012-02-29T17:00", 45.5, -73.6, 831.5),
    ("2015-01-03T00:30", -33.9, 151.2, 1300.89),
    ("2018-07-06T23:00", 71.3, -156.8, 866.28),
    ("2020-12-20T18:00", -90, 0, 559.25),
    ("2021-06-21T00:00", 90, 10, 524.14),
    ("2023-10-28T16:00", 51.5, 0, 119.6),
    ("2024-03-20T04:00", 35.7, 139.7, 1060.97),
    ("2040-06-01T12:00", -22.9, -43.2, 635.45),
    ("2060-01-15T13:30", 64.1, -21.9, 117.41),
]
"""Time in UTC, latitude, longitude, and sunlight in W/m2 by pvlib 0.16.1.

``get_extra_radiation(time, solar_constant=1361, method="nrel")`` times the cosine of ``zenith`` by
``spa_python(time, lat, lon, delta_t=67)``, which is NREL's Solar Position Algorithm."""


def weather(num_steps: int = 60) -> xr.Dataset:
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), rng.random((num_steps, 12, 24)).astype("f4"))},
        {
            "time": np.datetime64("2000-01-30", "ns")
            + np.arange(num_steps) * np.timedelta64(6, "h"),
            "lat": np.linspace(85, -85, 12),
            "lon": np.arange(24) * 15.0,
        },
    )


def counted(chunks: tuple[int, ...] = (7, 6, 8), num_steps: int = 60) -> CountingStore:
    return CountingStore(write_store(weather(num_steps), {"t2m": chunks}))


def num_chunks(store: CountingStore) -> int:
    """Return the number of reads of chunks, without those of labels."""
    return sum(num for key, num in store.reads.items() if key.startswith("t2m/"))


def test_insolation_is_that_of_pvlib() -> None:
    times, *places, expected = map(np.array, zip(*SUNLIGHT, strict=True))
    lat, lon = places
    for same in (lon, lon + 360):
        found = forcings.insolation(times.astype("M8[s]"), lat, same)
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("mean", ["1h", "6h", "1D", "3D", "30h"])
def test_means_are_those_of_many_instants(mean: str) -> None:
    end = np.datetime64("2003-04-18T05:00", "s")
    size = int(pd.Timedelta(mean).total_seconds())
    instants = end - np.arange(15, size, 30).astype("m8[s]")
    for lat, lon in itertools.product((-90.0, -66.0, 0.0, 51.0, 78.0), (0.0, 100.0, 250.0)):
        expected = float(forcings.insolation(instants, lat, lon).mean())
        assert abs(float(forcings.insolation(end, lat, lon, mean=mean)) - expected) <= 0.1


def test_a_year_of_the_globe_gets_a_quarter_of_the_solar_constant() -> None:
    time = xr.DataArray(np.arange("2001-01-02", "2002-01-02", dtype="M8[D]"), dims="time")
    lat = xr.DataArray(np.arange(-89.5, 90), dims="lat")
    daily = forcings.insolation(time, lat, 0.0, mean="1D")
    found = float(daily.weighted(np.cos(np.deg2rad(lat))).mean())
    # The mean of 1 / distance ** 2 over a year is 1 / sqrt(1 - eccentricity ** 2).
    assert abs(found - 1361 / 4 / np.sqrt(1 - 0.0167**2)) < 0.05


def test_cycles_of_the_year_and_of_the_day() -> None:
    time = np.array(["2001-01-01T00", "2001-07-02T12", "2004-04-01T12", "2003-12-31T18"], "M8[h]")
    np.testing.assert_allclose(
        forcings.cos_day_of_year(time), [1, -1, 0, np.cos(np.pi / 730)], atol=1e-12
    )
    np.testing.assert_allclose(
        forcings.sin_day_of_year(time), [0, 0, 1, -np.sin(np.pi / 730)], atol=1e-12
    )
    np.testing.assert_allclose(
        forcings.cos_local_time(time, np.array([180, 0, -180, -90])), [-1, -1, 1, -1], atol=1e-12
    )
    np.testing.assert_allclose(
        forcings.sin_local_time(time, np.array([90, 90, 270, 0])), [1, -1, 1, -1], atol=1e-12
    )
    np.testing.assert_allclose(forcings.cos_longitude([0, 60, -60, 300]), [1, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(forcings.sin_longitude([30, -90, 270]), [0.5, -1, -1])


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap"])
def test_idealised_calendars_have_a_year_of_their_own(calendar: str) -> None:
    size = {"noleap": 365, "360_day": 360, "all_leap": 366}[calendar]
    begin = cftime.datetime(2001, 1, 1, calendar=calendar)
    days = np.array([0, size / 4, size / 2, size - 1 / 24])
    time = cftime.num2date(days, "days since 2001-01-01", calendar=calendar)
    assert time[0] == begin
    np.testing.assert_allclose(
        forcings.cos_day_of_year(time), np.cos(2 * np.pi * days / size), atol=1e-9
    )
    # The place of the Earth is that of the same part of a real year; the clock is the calendar's.
    real = np.datetime64("2001-01-01", "us") + (days / size * 365 * 86400e6).astype("m8[us]")
    noon = forcings.insolation(real, 20.0, -360 * (days / size * 365 % 1))
    mine = forcings.insolation(time, 20.0, -360 * (days % 1))
    np.testing.assert_allclose(mine, noon, atol=1e-6)


@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian"])
def test_real_calendars_of_cftime_are_real(calendar: str) -> None:
    time = np.arange("1999-11-30T03", "2001-03-05T03", 31, dtype="M8[h]")
    same = cftime.num2date(np.arange(len(time)) * 31, "hours since 1999-11-30T03:00", calendar)
    for name in ("cos_day_of_year", "sin_day_of_year"):
        fn = getattr(forcings, name)
        np.testing.assert_allclose(fn(same), fn(time), atol=1e-12)
    expected = forcings.insolation(time, 40.0, 7.0)
    np.testing.assert_allclose(forcings.insolation(same, 40.0, 7.0), expected, atol=1e-4)


def coords(**given: tuple[str, dict[str, str]]) -> xr.Dataset:
    made = {
        name: xr.DataArray(np.arange(3.0), dims=dim, attrs=attrs)
        for name, (dim, attrs) in given.items()
    }
    return xr.Dataset(coords=made)


@pytest.mark.parametrize(
    ("found", "given"),
    [
        ("lat", {"lat": ("lat", {})}),
        ("Latitude", {"Latitude": ("y", {})}),
        ("nav_lat", {"nav_lat": ("y", {}), "y": ("y", {})}),
        ("y", {"y": ("y", {"units": "degrees_north"})}),
        ("b", {"a": ("y", {}), "b": ("y", {"standard_name": "latitude"})}),
        # A rotated grid: the standard name tells the two apart.
        (
            "lat",
            {
                "rlat": ("rlat", {"standard_name": "grid_latitude", "units": "degrees"}),
                "lat": ("rlat", {"standard_name": "latitude"}),
            },
        ),
        # The standard name counts more than the name.
        ("yc", {"lat": ("a", {}), "yc": ("b", {"standard_name": "latitude"})}),
        (
            "lat",
            {"lat": ("lat", {"units": "degrees_north"}), "lat_2": ("s", {"units": "degrees_N"})},
        ),
    ],
)
def test_latitudes_are_found(found: str, given: dict[str, tuple[str, dict[str, str]]]) -> None:
    assert find_coordinate(coords(**given), "lat") == found


def test_times_are_found() -> None:
    times = weather().time.values[:3]
    frame = xr.Dataset(
        coords={"step": ("time", [1, 2, 3]), "when": ("time", times), "time": [0.0, 1.0, 2.0]}
    )
    assert find_coordinate(frame, "time") == "when"
    frame = frame.assign_coords(base=("x", times)).drop_vars("time")
    with pytest.raises(OptionError, match=r"several coordinates could be 'time'.*'when', 'base'"):
        find_coordinate(frame, "time")


def plain(ds: xr.Dataset, lead: int) -> xr.DataArray:
    return forcings.insolation(ds.time, ds.lat, ds.lon).astype("f4")[lead:]


def make_samples(source: Any) -> Samples:
    samples = xloader.open(source).forcing(
        "insolation", "cos_day_of_year", squared=lambda lat: lat**2
    )
    samples = samples.window(time=6, stride=1)
    samples = samples.inputs("t2m", "insolation", time=slice(0, 2))
    return samples.field("forcings", "insolation", "cos_day_of_year", "squared", time=5)


@pytest.mark.parametrize(
    "options", [{}, {"processes": 2}, {"shuffle": False, "plan": xloader.PlanRules(lanes=2)}]
)
def test_nothing_is_read_for_forcings(options: dict[str, Any], tmp_path: Path) -> None:
    store = CountingStore(write_store(weather(), {"t2m": (7, 6, 8)}), log=tmp_path / "log")
    ds, samples, seen = weather(), make_samples(store), []
    with samples.loader(batch_size=8, memory="4MiB", output="numpy", seed=1, **options) as loader:
        expected = loader.explain()
        assert not num_chunks(store)
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                seen.append(number)
                sun = plain(ds, number)
                np.testing.assert_array_equal(batch.inputs[row, 0], ds.t2m[number : number + 2])
                np.testing.assert_allclose(batch.inputs[row, 1], sun[:2], atol=1e-3)
                np.testing.assert_allclose(batch.forcings[row, 0], sun[5], atol=1e-3)
                angle = forcings.cos_day_of_year(ds.time)[number + 5]
                np.testing.assert_allclose(batch.forcings[row, 1], angle, rtol=1e-6)
                squared = np.broadcast_to((ds.lat.values**2)[:, None], (12, 24))
                np.testing.assert_allclose(batch.forcings[row, 2], squared, rtol=1e-6)
        report = loader.report()
        assert sorted(seen) == list(range(55))
        assert report.num_reads == expected.num_reads == num_chunks(store)
        assert report.read_nbytes == expected.read_nbytes
        if not options:
            assert report.num_reads == 8 * 2 * 3
            assert report.read_amplification == expected.read_amplification == 1.0
            assert report.read_nbytes == weather(56).t2m.nbytes
        assert report.peak_nbytes <= expected.peak_nbytes
    assert "insolation: computed from time, lat, lon; nothing is read" in str(expected)


@pytest.mark.parametrize("window", [{"time": 2, "lat": 6, "lon": 8}, {"lat": 3}])
def test_the_plan_follows_what_is_stored(window: dict[str, int]) -> None:
    """A wide forcing beside a narrow variable changes neither tiles nor mixing."""
    ds = weather(64)
    ds["t2m"] = ds.t2m.astype("i1")
    store = CountingStore(write_store(ds, {"t2m": (8, 6, 8)}))
    opened = xloader.open(store)
    alone = opened.window(window, stride=1).inputs("t2m").explain(batch_size=8)
    names = ("insolation", "cos_day_of_year", "latitude", "cos_local_time")
    added = opened.forcing(*names, dtype="f8").window(window, stride=1)
    added = added.inputs("t2m")
    for name in names:
        added = added.field(name, name)
    both = added.explain(batch_size=8)
    for name in ("tile", "run", "mixing", "full_mixing", "num_reads", "read_amplification"):
        assert getattr(both, name) == getattr(alone, name), name


def test_a_forcing_on_another_grid_is_no_neighbour() -> None:
    """Chunks that are computed may be shared by tiles, so nothing need be searched for."""
    ds = weather(64)
    ds["wide"] = ds.t2m.astype("f8")
    store = CountingStore(write_store(ds, {"t2m": (8, 12, 24), "wide": (12, 12, 24)}))
    opened = xloader.open(store)
    samples = opened.forcing("insolation", dtype="f8")
    variables = samples.recipe.source.variables
    assert variables["insolation"].chunks == variables["wide"].chunks
    samples = samples.window(time=1).inputs("t2m").field("sun", "insolation")
    alone = opened.window(time=1).inputs("t2m").explain(batch_size=4)
    assert samples.explain(batch_size=4).tile == alone.tile == {"time": 8}
    # There is room for four tiles, so a plan has to be made.
    scarce = samples.explain(batch_size=4, memory="260KiB")
    assert (scarce.tile, scarce.run, scarce.streams) == (alone.tile, 1, 1)
    assert scarce.read_amplification == 1.0
    with samples.loader(batch_size=4, memory="1MiB", output="numpy") as loader:
        expected = loader.explain()
        assert sum(len(batch.ids) for batch in loader) == 64
        assert loader.report().num_reads == expected.num_reads == num_chunks(store) == 8
        assert loader.report().read_amplification == 1.0


@settings(max_examples=max(settings().max_examples // 3, 4))
@given(st.data())
def test_predicted_reads_are_counted(data: st.DataObject) -> None:
    """Law 3 beside forcings of every kind, on any grid, window and budget."""
    ds = weather(30)
    chunks = tuple(data.draw(st.integers(1, size), label="chunk") for size in (12, 12, 24))
    dims = data.draw(st.sets(st.sampled_from(["time", "lat", "lon"]), min_size=1), label="dims")
    window = {dim: data.draw(st.integers(1, 4), label=dim) for dim in sorted(dims)}
    stride = data.draw(st.integers(1, 3), label="stride")
    names = data.draw(
        st.lists(st.sampled_from(forcings.__all__), min_size=1, max_size=3, unique=True)
    )
    chunked = ds.chunk(dict(zip(ds.t2m.dims, chunks, strict=True)))
    recorder = SourceRecorder(chunked.xloader.recipe.source)
    samples = Samples(Recipe(recorder)).forcing(*names).window(window, stride=stride)
    for name in ("t2m", *names):
        samples = samples.field(name, name)
    with samples.loader(
        batch_size=4,
        memory=data.draw(st.sampled_from(["3MiB", "16MiB"]), label="memory"),
        plan=xloader.PlanRules(lanes=data.draw(st.sampled_from([1, 2]), label="lanes")),
        shuffle=data.draw(st.booleans(), label="shuffle"),
        output="numpy",
        on_nan="ignore",
    ) as loader:
        told = loader.explain()
        ids = [number for batch in loader for number in batch.ids.tolist()]
        report = loader.report()
    assert sorted(ids) == list(range(len(samples)))
    assert told.num_reads == report.num_reads == recorder.num_reads
    assert told.read_nbytes == report.read_nbytes
    assert report.peak_nbytes <= told.peak_nbytes
    assert {name for name, _ in recorder.reads} == {"t2m"}


def test_single_samples_and_caches_read_as_predicted() -> None:
    store = counted()
    samples = make_samples(store)
    order = np.random.default_rng(0).permutation(55)
    told = samples.explain(order=order, cache="lru", memory="1MiB", batch_size=5)
    alone = xloader.open(store).window(time=6, stride=1).inputs("t2m", time=slice(0, 2))
    plainly = alone.explain(order=order, cache="lru", memory="8MiB", batch_size=5)
    assert told.num_reads == plainly.num_reads
    inputs, sun = samples[17]
    np.testing.assert_allclose(inputs[1], plain(weather(), 17)[:2], atol=1e-3)
    np.testing.assert_allclose(sun[0], plain(weather(), 22)[0], atol=1e-3)


def test_wrap_pad_points_and_selections() -> None:
    ds = weather()
    opened = ds.xloader.sel(lat=slice(60, -60)).forcing("insolation")
    sun = plain(ds, 0).sel(lat=slice(60, -60))
    flat = opened.isel(time=5)
    wrapped = flat.window(lon=6, stride=3, wrap="lon").inputs("insolation")
    np.testing.assert_allclose(
        wrapped[7][0][0], xr.concat([sun[5, :, 21:], sun[5, :, :3]], "lon"), atol=1e-3
    )
    padded = flat.window(lat=3, stride=1, pad={"lat": "edge"}).inputs("insolation")
    expected = sun[5].pad(lat=1, mode="edge")[:3]
    np.testing.assert_allclose(padded[0][0][0], expected, atol=1e-3)
    table = {"time": ds.time.values[[9, 3]], "lon": np.array([45.0, 300.0])}
    points = opened.window(time=3, lon=2).inputs("insolation").at_points(table)
    np.testing.assert_allclose(points[1][0][0], sun[2:5, :, 19:21], atol=1e-3)
    scaled = opened.window(time=1).inputs("insolation").normalize({"insolation": (340.0, 2.0)})
    np.testing.assert_allclose(scaled[5][0][0], (sun[5:6] - 340) / 2, atol=1e-3)
    assert scaled.recipe.variable("insolation").attrs["units"] == "W m-2"
    slab = opened.window(time=3, stride=1).inputs("insolation").slab("lat", rank=1, size=2)
    np.testing.assert_allclose(slab[5][0][0], sun[5:8, 4:], atol=1e-3)


def test_what_is_computed_does_not_leak() -> None:
    samples = weather().xloader.forcing("latitude", "insolation").window(time=3, stride=1)
    parts = samples.inputs("t2m", "latitude", "insolation").split(time={"a": 0.5, "b": 0.5})
    assert xloader.overlap(parts["a"], parts["b"]) == 0
    assert xloader.overlap(parts["a"], parts["a"]) == 30 * 12 * 24


def test_chunks_that_ranks_share() -> None:
    """Computed chunks count among neither the shared reads nor the shared chunks."""
    store = counted((8, 12, 24))
    samples = xloader.open(store).forcing("cos_day_of_year", "insolation")
    samples = samples.window(time=3, stride=1).inputs("t2m", "insolation", "cos_day_of_year")
    loader = samples.loader(
        batch_size=4, world=xloader.World(0, 2), plan=xloader.PlanRules(lanes=2), output="numpy"
    )
    told = loader.explain(scope="world")
    assert told.num_shared_reads > 0
    assert {name for name, _ in told.shared_chunks} == {"t2m"}
    assert len(told.shared_chunks) == told.num_shared_reads
    loader.close()


def test_selection_of_scattered_elements() -> None:
    ds = weather()
    samples = ds.xloader.forcing("insolation").isel(
        time=[3, 4, 9, 30], lon=slice(1, None, 5), lat=2
    )
    got = samples.window(time=4).inputs("insolation")[0][0][0]
    expected = plain(ds, 0).isel(time=[3, 4, 9, 30], lon=slice(1, None, 5), lat=2)
    np.testing.assert_allclose(got, expected, atol=1e-3)


def test_grids_with_two_dimensions() -> None:
    rng = np.random.default_rng(1)
    lat, lon = rng.uniform(-80, 80, (4, 5)), rng.uniform(-170, 170, (4, 5))
    ds = xr.Dataset(
        {"t": (("time", "y", "x"), rng.random((8, 4, 5)).astype("f4"))},
        {"time": weather().time.values[:8], "lat": (("y", "x"), lat), "lon": (("y", "x"), lon)},
    )
    for grid, unit in ((ds, "degrees"), (ds.copy(), "radians")):
        if unit == "radians":
            for name in ("lat", "lon"):
                grid[name] = (("y", "x"), np.deg2rad(grid[name].values), {"units": "radians"})
        samples = grid.xloader.forcing("insolation").window(time=2).inputs("t", "insolation")
        assert samples.recipe.variable("insolation").dims == ("time", "y", "x")
        expected = forcings.insolation(ds.time, ds.lat, ds.lon)[2:4]
        np.testing.assert_allclose(samples[1][0][1], expected, atol=1e-3)


def test_functions_of_ones_own(tmp_path: Path) -> None:
    def tide(time: xr.DataArray, lon: xr.DataArray) -> xr.DataArray:
        high = np.cos(2 * np.pi * time.dt.hour / 12.42) * np.sin(np.deg2rad(lon))
        return high.assign_attrs(units="m")

    ds = weather()
    samples = ds.xloader.forcing(tide, moon=lambda time: time.dt.day.values, dtype="f8")
    samples = samples.forcing(mean_sun=partial(forcings.insolation, mean="1D", lon=0.0))
    samples = samples.window(time=4, stride=1).inputs("t2m", "tide", "moon", "mean_sun")
    copy = pickle.loads(pickle.dumps(samples))
    for own in (samples, copy):
        array = own[9][0]
        part = ds.isel(time=slice(9, 13))
        expected = tide(part.time, part.lon).expand_dims(lat=part.lat)
        np.testing.assert_allclose(array[1], expected.transpose("time", "lat", "lon"))
        np.testing.assert_array_equal(array[2, :, 0, 0], part.time.dt.day)
        sun = forcings.insolation(part.time, part.lat, 0.0, mean="1D")
        np.testing.assert_allclose(array[3, ..., 4], sun, rtol=1e-6)
    assert samples.recipe.variable("tide").attrs == {"units": "m"}
    assert samples.recipe.variable("tide").dims == ("time", "lon")
    assert copy.recipe == samples.recipe
    write_store(ds, {"t2m": (7, 6, 8)}, tmp_path / "a.zarr")
    assert len(pickle.dumps(xloader.open(tmp_path / "a.zarr").forcing("insolation"))) < 8000


def test_masks_look_at_what_is_stored(tmp_path: Path) -> None:
    ds = weather()
    ds["t2m"][:, 3, 5] = np.nan
    store = CountingStore(write_store(ds, {"t2m": (7, 6, 8)}))
    samples = xloader.open(store).forcing(holes=lambda lat: np.sqrt(lat), north="latitude")
    samples = samples.window(time=2, lat=4, lon=4).inputs("t2m", "holes", "north")
    alone = xloader.open(store).window(time=2, lat=4, lon=4).inputs("t2m")
    assert num_chunks(store) == 0
    mask = samples.is_valid(cache=False)
    assert mask.num_reads == num_chunks(store) == 9 * 2 * 3
    np.testing.assert_array_equal(np.asarray(mask), np.asarray(alone.is_valid(cache=False)))
    # A function may change without changing its name, so nothing is kept of it.
    north = xloader.open(store).forcing(mask=lambda lat: lat > 0, dtype=bool)
    north = north.window(time=2, lat=4, lon=4).inputs("t2m")
    kept = [north.is_valid(mask="mask", cache=tmp_path / name) for name in "ab"]
    assert not list(tmp_path.rglob("*.mask"))
    plainly = alone.is_valid(mask=ds.lat > 0, cache=False)
    np.testing.assert_array_equal(np.asarray(kept[0]), np.asarray(plainly))


def test_fingerprints_tell_functions_apart() -> None:
    def of(**functions: Any) -> str:
        return weather().xloader.forcing(**functions).recipe.fingerprint

    mean = [partial(forcings.insolation, mean=mean) for mean in ("1h", "1D")]
    prints = [of(a="insolation"), of(a=mean[0]), of(a=mean[1]), of(b=mean[1]), of(a="latitude")]
    assert len(set(prints)) == len(prints)
    assert of(a=partial(forcings.insolation, mean="1h")) == prints[1]


def test_large_chunks_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_source, "_MOST_AT_ONCE", 50)
    sizes = []

    def area(time: xr.DataArray, lat: xr.DataArray, lon: xr.DataArray) -> xr.DataArray:
        sizes.append(time.size * lat.size * lon.size)
        return (time - np.datetime64("2000-01-01")) / np.timedelta64(1, "D") + 1000 * lat + lon

    ds = weather(4)
    got = ds.xloader.forcing(area).window(time=4).inputs("area")[0][0][0]
    assert max(sizes) <= 50
    days = (ds.time - np.datetime64("2000-01-01")) / np.timedelta64(1, "D")
    np.testing.assert_allclose(got, days + 1000 * ds.lat + ds.lon, rtol=1e-6)


def late(time: xr.DataArray) -> xr.DataArray:
    if (time > np.datetime64("2000-02-03")).any():
        raise ValueError("no tide table")
    return time.dt.day


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_function_that_fails_later(on_error: str) -> None:
    """An error of a function is a mistake, not a damaged chunk: it is never skipped."""
    samples = xloader.open(counted()).forcing(late).window(time=1).inputs("t2m", "late")
    with (
        samples.loader(batch_size=4, on_error=on_error, shuffle=False, output="numpy") as loader,
        pytest.raises(TransformError, match="'late' raised ValueError: no tide table"),
    ):
        list(loader)


NO_TIME = {"time": np.arange(60)}


@pytest.mark.parametrize(
    ("error", "text", "make"),
    [
        (UnknownNameError, "did you mean 'insolation'", lambda s: s.forcing("insolatio")),
        (OptionError, "no forcing is named", lambda s: s.forcing()),
        (OptionError, "without a name", lambda s: s.forcing(lambda lat: lat)),
        (OptionError, "is no function", lambda s: s.forcing(a=3)),
        (OptionError, "two forcings", lambda s: s.forcing("latitude", latitude="insolation")),
        (OptionError, "a variable named 't2m'", lambda s: s.forcing(t2m="insolation")),
        (OptionError, "dimension named 'lat'", lambda s: s.forcing(lat="latitude")),
        (OptionError, "takes no labels", lambda s: s.forcing(a=lambda: 1.0)),
        (UnknownNameError, "the parameter 'level'", lambda s: s.forcing(a=lambda level: level)),
        (UnknownNameError, "no parameter", lambda s: s.forcing("latitude", coords={"lta": "lat"})),
        (UnknownNameError, "'lon'", lambda s: s.forcing("latitude", coords={"lat": "la"})),
        (
            UnsupportedDataError,
            "no times",
            lambda s: s.forcing("insolation", coords={"time": "lon"}),
        ),
        (OptionError, "no latitudes", lambda s: s.forcing("latitude", coords={"lat": "lon"})),
        (UnsupportedDataError, "this dtype", lambda s: s.forcing("latitude", dtype="U3")),
        (OptionError, "wrong shape", lambda s: s.forcing(a=lambda time, lat: np.zeros(3))),
        (OptionError, "wrong shape", lambda s: s.forcing(a=lambda lat: lat.rename(lat="y"))),
        (UnsupportedDataError, "no numbers", lambda s: s.forcing(a=lambda lat: lat.astype(str))),
        (
            UnsupportedDataError,
            "Dataset",
            lambda s: s.forcing(a=lambda lat: xr.Dataset({"a": lat})),
        ),
        (UnsupportedDataError, "no numbers", lambda s: s.forcing(a=lambda lat: [[1], [1, 2]])),
        (OptionError, "parameters .* not known", lambda s: s.forcing(max)),
        (OptionError, "coords=.'lat'.", lambda s: s.forcing("latitude", coords=["lat"])),
        (TransformError, "raised ZeroDivisionError", lambda s: s.forcing(a=lambda lat: 1 // 0)),
        (OptionError, "comes too late", lambda s: s.window(time=1).forcing("latitude")),
        (OptionError, "no duration", lambda s: s.forcing(a=partial(forcings.insolation, mean=6))),
        (
            OptionError,
            "not above 0",
            lambda s: s.forcing(a=partial(forcings.insolation, solar_constant=0)),
        ),
    ],
)
def test_refusals(error: type[XloaderError], text: str, make: Any) -> None:
    with pytest.raises(error, match=text):
        make(weather().xloader)


def test_what_a_function_masks_is_nan() -> None:
    samples = weather().xloader.forcing(north=lambda lat: np.ma.masked_less(lat.values, 0.0))
    lat = weather().lat.values
    (north,) = samples.window(lat=len(lat)).inputs("north")[0]
    np.testing.assert_array_equal(north[0], np.where(lat < 0, np.nan, lat).astype("f4"))


def test_a_coordinate_that_is_missing() -> None:
    with pytest.raises(UnknownNameError, match="no coordinate for 'lon'"):
        weather().drop_vars("lon").xloader.forcing("insolation")
    with pytest.raises(UnsupportedDataError, match=r"no times.*decode_times"):
        weather().assign_coords(NO_TIME).xloader.forcing("cos_day_of_year")
