"""The demo: its waves, store, climatology, scores and network, and a whole run."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.cli.json_shapes import SHAPES, check
from xloader.cli.endings import to_json
from xloader.demo import store as demo_store
from xloader.demo.climate import measure_climate
from xloader.demo.store import ensure_store, store_path, write_waves
from xloader.demo.task import (
    channel_variables,
    find_task,
    is_latitude,
    is_periodic,
    lead_label,
    open_dataset,
    row_weights,
    stack_channels,
)
from xloader.demo.training import ErrorSums, Score, format_scores, make_scores
from xloader.demo.waves import VARIABLE_ATTRS, Waves, WaveSpec
from xloader.errors import (
    EmptySamplesError,
    MissingDependencyError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.samples.samples import Samples

SMALL = WaveSpec(num_steps=40, num_lats=13, num_lons=24, chunk_steps=16, seed=3)


# ---------------------------------------------------------------- waves and store


def test_waves_are_the_same_whenever_made():
    first, again = Waves(SMALL), Waves(SMALL)
    again.block(0, 16)
    for name in VARIABLE_ATTRS:
        np.testing.assert_array_equal(
            first.block(16, 32)[name], again.block(16, 32)[name], err_msg=name
        )


def test_another_seed_makes_other_waves():
    other = Waves(WaveSpec(num_steps=40, num_lats=13, num_lons=24, seed=4))
    assert np.abs(other.block(0, 16)["z500"] - Waves(SMALL).block(0, 16)["z500"]).max() > 10


def test_waves_can_be_forecast_for_hours_and_not_for_months():
    spec = WaveSpec(num_steps=600, num_lats=19, num_lons=36)
    waves = Waves(spec)
    height = np.concatenate([waves.block(s, s + 100)["z500"] for s in range(0, 600, 100)])
    anomaly = height - height.mean(axis=0)

    def correlation(lag):
        now, then = anomaly[:-lag], anomaly[lag:]
        return (now * then).mean() / np.sqrt((now**2).mean() * (then**2).mean())

    assert correlation(1) > 0.8
    assert abs(correlation(240)) < 0.2


def test_wind_blows_along_the_height_lines():
    """Height rising eastwards gives a positive v in the north and a negative v in the south.

    This holds in the storm track of each hemisphere.
    """
    spec = WaveSpec(num_steps=64, num_lats=37, num_lons=72)
    block = Waves(spec).block(0, 64)
    slope = np.roll(block["z500"], -1, axis=2) - np.roll(block["z500"], 1, axis=2)
    for row, sign in ((9, 1), (27, -1)):
        assert abs(spec.lats[row]) == 45
        found = np.corrcoef(slope[:, row].ravel(), block["v10"][:, row].ravel())[0, 1]
        assert sign * found > 0.8


@pytest.mark.parametrize("name", ["num_steps", "num_lats", "num_lons", "chunk_steps"])
def test_sizes_too_small_are_refused(name):
    with pytest.raises(OptionError, match=f"{name} is too small"):
        WaveSpec(**{name: 0})


def test_store_holds_the_waves_in_chunks_of_whole_maps(tmp_path):
    path = ensure_store(tmp_path, SMALL)
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    for name in VARIABLE_ATTRS:
        array = group[name]
        assert array.shape == (40, 13, 24)
        assert array.chunks == (16, 13, 24)
        assert array.dtype == np.float32
    with open_dataset(str(path)) as dataset:
        assert set(dataset.data_vars) == set(VARIABLE_ATTRS)
        assert dataset["time"].values[4] == np.datetime64("2000-01-02T00:00")
        assert dataset["t2m"].attrs["units"] == "K"
        # The last chunk is shorter, and its noise is keyed by its first step.
        block = Waves(SMALL).block(32, 40)
        for name in VARIABLE_ATTRS:
            np.testing.assert_array_equal(dataset[name].values[32:], block[name])


def test_store_is_made_once(tmp_path):
    path = ensure_store(tmp_path, SMALL)
    stamp = (path / "zarr.json").stat().st_mtime_ns
    calls = []
    again = ensure_store(tmp_path, SMALL, on_progress=lambda *done: calls.append(done))
    assert again == path
    assert calls == []
    assert (path / "zarr.json").stat().st_mtime_ns == stamp
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_run_cut_short_leaves_no_store(tmp_path):
    def stop(done, _total):
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_store(tmp_path, SMALL, on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_end_with_one_store(tmp_path):
    def other_run(done, _total):
        if done == 40:
            write_waves(store_path(tmp_path, SMALL), SMALL)

    path = ensure_store(tmp_path, SMALL, on_progress=other_run)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_only_old_leftovers_are_cleared(tmp_path):
    old, young = tmp_path / "waves-v1-x.partial-old", tmp_path / "waves-v1-x.partial-young"
    old.mkdir()
    young.mkdir()
    past = time.time() - 2 * demo_store._STALE_SECONDS
    os.utime(old, (past, past))
    ensure_store(tmp_path, SMALL)
    assert young.exists()
    assert not old.exists()


def test_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "xloader"


# ---------------------------------------------------------------- task


def make_dataset(num_steps=50, **more):
    rng = np.random.default_rng(0)
    data = {
        "sst": (("time", "lat", "lon"), rng.standard_normal((num_steps, 4, 6)) + 5.0),
        "wind": (("time", "level", "lat", "lon"), rng.standard_normal((num_steps, 3, 4, 6))),
        "count": (("time", "lat", "lon"), np.zeros((num_steps, 4, 6), dtype=np.int32)),
        "series": (("time",), np.zeros(num_steps)),
        **more,
    }
    lats, lons = [60.0, 20.0, -20.0, -60.0], np.arange(0.0, 360.0, 60.0)
    return xr.Dataset(data, coords={"lat": ("lat", lats), "lon": ("lon", lons)})


def test_task_takes_the_float_maps_over_time():
    dataset = make_dataset()
    task = find_task(dataset, lead=3)
    assert task.variables == ("sst", "wind")
    assert task.space_dims == ("lat", "lon")
    assert (task.num_train, task.num_train_samples, task.num_test_samples) == (40, 37, 7)
    assert channel_variables(dataset, task) == ("sst", "wind", "wind", "wind")


def test_channels_are_variable_major():
    dataset = make_dataset()
    stacked = stack_channels(dataset.isel(time=slice(5, 7)), find_task(dataset))
    assert stacked.shape == (2, 4, 4, 6)
    np.testing.assert_array_equal(stacked[:, 0], dataset["sst"].values[5:7])
    np.testing.assert_array_equal(stacked[:, 1:], dataset["wind"].values[5:7])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"time_dim": "month"}, UnknownNameError, "do not have this time dimension.*month.*lat"),
        ({"variables": ["salt"]}, UnknownNameError, "do not have this variable.*salt.*sst"),
        ({"variables": ["sst", "series"]}, OptionError, "'series' is not a map over time"),
        ({"variables": ["sst", "turned"]}, OptionError, "'turned' is not a map over time"),
        ({"lead": 0}, OptionError, "lead is too small"),
        ({"lead": 40}, EmptySamplesError, "too few time steps.*50 steps.*>= 201 steps"),
    ],
)
def test_a_task_that_cannot_be_says_why(options, error, words):
    turned = (("time", "lon", "lat"), np.zeros((50, 6, 4)))
    with pytest.raises(error, match=words):
        find_task(make_dataset(turned=turned), **options)


def test_the_fewest_steps_named_are_enough_and_one_less_is_not():
    assert find_task(make_dataset(31), lead=6).num_test_samples == 1
    with pytest.raises(EmptySamplesError, match=">= 31 steps"):
        find_task(make_dataset(30), lead=6)


def test_a_dataset_without_maps_is_refused():
    with pytest.raises(UnsupportedDataError, match="no float variable is a map over time"):
        find_task(make_dataset()[["series", "count"]])


def test_opening_what_is_not_there_or_no_data(tmp_path):
    with pytest.raises(SourceNotFoundError, match="no store or file"):
        open_dataset(str(tmp_path / "nothing.zarr"))
    text = tmp_path / "notes.txt"
    text.write_text("no data")
    with pytest.raises(UnsupportedDataError, match="cannot be opened") as caught:
        open_dataset(str(text))
    assert "https://" not in str(caught.value)


def test_netcdf_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "sst.nc"
    path.write_bytes(b"not netCDF at all")
    monkeypatch.setattr("xloader.demo.task.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install netCDF4"):
        open_dataset(str(path))


# ---------------------------------------------------------------- climate


def test_climate_is_that_of_the_training_part_alone():
    dataset = make_dataset()
    dataset["sst"][40:] = 1e6
    climate = measure_climate(dataset, find_task(dataset, variables=["sst"]))
    values = dataset["sst"].values[:40]
    assert climate.num_steps == 40
    assert climate.mean["sst"] == pytest.approx(values.mean())
    assert climate.std["sst"] == pytest.approx(values.std())
    np.testing.assert_allclose(climate.cycle[0, 0], values.mean(axis=0), rtol=1e-6)
    assert climate.spread[0] == pytest.approx(np.sqrt(values.var(axis=0).mean()))
    assert climate.mask.all()


def test_missing_points_are_masked_and_counted():
    dataset = make_dataset()
    dataset["sst"][:, 1, :3] = np.nan
    dataset["sst"][7, 2, 5] = np.nan
    climate = measure_climate(dataset, find_task(dataset, variables=["sst"]))
    assert climate.nan_share["sst"] == pytest.approx((40 * 3 + 1) / (40 * 24))
    assert (~climate.mask[0]).sum() == 4
    assert climate.mean["sst"] == pytest.approx(np.nanmean(dataset["sst"].values[:40]))
    np.testing.assert_allclose(climate.cycle[0, 0, 1, :3], climate.mean["sst"], rtol=1e-6)


def test_monthly_data_have_a_mean_for_each_month():
    dataset = make_dataset(60).assign_coords(
        time=np.arange("2000-01", "2005-01", dtype="datetime64[M]").astype("datetime64[ns]")
    )
    month = np.arange(60) % 12
    dataset["sst"] = dataset["sst"] + xr.DataArray(10.0 * month, dims="time")
    climate = measure_climate(dataset, find_task(dataset, variables=["sst"]))
    assert climate.cycle.shape == (12, 1, 4, 6)
    np.testing.assert_array_equal(climate.phases, month)
    june = dataset["sst"].values[:48][month[:48] == 5]
    np.testing.assert_allclose(climate.cycle[5, 0], june.mean(axis=0), rtol=1e-6)
    assert climate.spread[0] < 1.5
    assert climate.std["sst"] > 10


@pytest.mark.parametrize(
    ("values", "words"),
    [(np.nan, "no grid point with values"), (280.0, "does not change with time")],
)
def test_a_variable_with_nothing_to_learn_is_refused(values, words):
    dataset = make_dataset()
    dataset["sst"][:] = values
    with pytest.raises(UnsupportedDataError, match=words):
        measure_climate(dataset, find_task(dataset, variables=["sst"]))


# ---------------------------------------------------------------- maps and scores


def test_rows_weigh_as_the_cosine_of_latitude():
    weights = row_weights(make_dataset(), "lat")
    assert weights.mean() == pytest.approx(1)
    assert weights[1] / weights[0] == pytest.approx(np.cos(np.deg2rad(20)) / 0.5)
    np.testing.assert_array_equal(row_weights(make_dataset(), "lon"), np.ones(6))


def test_columns_round_the_earth_are_periodic():
    dataset = make_dataset()
    assert is_periodic(dataset, "lon")
    assert not is_periodic(dataset.isel(lon=slice(0, 5)), "lon")


def test_lead_is_told_in_hours_where_time_says_so():
    hours = make_dataset().assign_coords(
        time=np.datetime64("2000-01-01", "ns") + np.arange(50) * np.timedelta64(6, "h")
    )
    assert lead_label(hours, find_task(hours, lead=6)) == "36 h"
    assert lead_label(make_dataset(), find_task(make_dataset(), lead=1)) == "1 step"


def test_scores_by_hand():
    dataset = make_dataset()
    climate = measure_climate(dataset, find_task(dataset, variables=["sst"]))
    weights = np.zeros((1, 4, 6))
    weights[0, 0, 0], weights[0, 0, 1] = 3.0, 1.0
    truth = np.zeros((2, 1, 4, 6), dtype=np.float32)
    forecast, persistence = truth.copy(), truth.copy()
    forecast[0, 0, 0, 0] = 2.0  # 3 * 4 of a weight of 2 * 4
    persistence[:, 0, 0, 1] = 4.0  # 2 * 16
    persistence[:, 0, 3, 3] = 99.0  # not scored
    sums = ErrorSums(weights)
    for rows in (slice(0, 1), slice(1, 2)):
        sums.add(
            truth[rows],
            forecast=forecast[rows],
            persistence=persistence[rows],
            climatology=truth[rows] + 1,
        )
    score, overall = make_scores(sums, climate, {"sst": "degC"})
    assert sums.num_samples == 2
    assert score == Score("sst", "degC", pytest.approx(1.5**0.5), 2.0, 1.0)
    assert score.gain == pytest.approx(1 - 1.5**0.5 / 2)
    assert overall.persistence == pytest.approx(2.0 / climate.spread[0])
    assert "39 %" in format_scores((score,))


# ---------------------------------------------------------------- network


def make_net(num_rows, num_columns, *, is_periodic=True, num_phases=1):
    torch = pytest.importorskip("torch")
    from xloader.demo.model import ForecastNet

    torch.manual_seed(0)
    shape = (2, num_rows, num_columns)
    return ForecastNet(
        np.zeros((num_phases, *shape), dtype=np.float32),
        np.ones(2, dtype=np.float32),
        np.ones(shape, dtype=bool),
        is_periodic=is_periodic,
        num_hidden=8,
    )


@pytest.mark.parametrize("size", [(12, 16), (13, 17), (3, 5)], ids=["even", "odd", "tiny"])
@pytest.mark.parametrize("is_round", [True, False], ids=["round", "flat"])
def test_network_keeps_the_shape_and_starts_at_persistence(size, is_round):
    torch = pytest.importorskip("torch")
    net = make_net(*size, is_periodic=is_round)
    maps = torch.randn(3, 2, *size)
    phases = torch.zeros(3, dtype=torch.int64)
    out = net(maps, phases, phases)
    assert out.shape == maps.shape
    torch.testing.assert_close(out, maps)


def test_network_starts_from_the_climatology_of_the_target():
    torch = pytest.importorskip("torch")
    net = make_net(4, 6, num_phases=2)
    net.climatology[1] = 7.0
    maps = torch.randn(1, 2, 4, 6)
    out = net(maps, torch.tensor([0]), torch.tensor([1]))
    torch.testing.assert_close(out, maps + 7.0)


def test_a_periodic_network_has_no_seam():
    """Rotating the input in longitude rotates the forecast, if features of points are zero."""
    torch = pytest.importorskip("torch")
    net = make_net(8, 16)
    torch.nn.init.normal_(net.head.conv.weight)
    torch.nn.init.zeros_(net.point_features)
    maps = torch.randn(1, 2, 8, 16)
    phase = torch.zeros(1, dtype=torch.int64)
    turned = net(maps.roll(6, dims=-1), phase, phase)
    expected = net(maps, phase, phase).roll(6, dims=-1)
    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-4)


def test_masked_points_do_not_reach_the_network():
    torch = pytest.importorskip("torch")
    net = make_net(8, 16)
    torch.nn.init.normal_(net.head.conv.weight)
    net.mask[:, 2, 3] = 0.0
    phase = torch.zeros(1, dtype=torch.int64)
    maps = torch.randn(1, 2, 8, 16)
    other = maps.clone()
    other[..., 2, 3] += 5.0
    change = net(maps, phase, phase) - maps
    torch.testing.assert_close(net(other, phase, phase) - other, change, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- baseline and picture


def test_plain_dataset_gives_the_two_steps():
    pytest.importorskip("torch")
    from xloader.demo.run import PlainDataset, measure_plain

    dataset = make_dataset().astype(np.float32)
    task = find_task(dataset, variables=["sst", "wind"], lead=3)
    plain = PlainDataset(dataset, task)
    inputs, targets = plain[8]
    np.testing.assert_array_equal(inputs[0], dataset["sst"].values[8])
    np.testing.assert_array_equal(targets[1:], dataset["wind"].values[11])
    speed = measure_plain(dataset, task, batch_size=5, seed=0, seconds=60)
    assert speed.is_whole_epoch
    assert speed.num_batches == 8
    assert speed.delivered_nbytes == 37 * 2 * 4 * 4 * 6 * 4


def test_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    pytest.importorskip("tqdm")
    from xloader.demo.run import Panels, draw
    from xloader.show.canvas import PlotAxis

    truth = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    truth[1, 2] = np.nan
    weights = np.where(np.isnan(truth), 0.0, 1.0)
    panels = Panels(
        "sst", "degC", truth, truth + 1, truth - 2, weights,
        PlotAxis("lat", np.arange(4.0)), PlotAxis("lon", np.arange(6.0)),
    )  # fmt: skip
    assert panels.rmse(panels.forecast) == pytest.approx(1)
    path = tmp_path / "new" / "map.png"
    draw(panels, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# --- the whole demo


@pytest.mark.xfail(
    not hasattr(Samples, "loader"), reason="Samples has no loader yet", raises=AttributeError
)
def test_the_whole_demo_on_a_small_world(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    from xloader.demo.run import DemoOptions, run_demo

    result = run_demo(
        DemoOptions(
            spec=WaveSpec(num_steps=160, num_lats=19, num_lons=36),
            cache=tmp_path / "cache",
            picture=tmp_path / "map.png",
            memory="8MiB",
            batch_size=8,
            steps=35,
            # The steps bound this run: a busy machine takes longer but trains as well.
            seconds=3600.0,
            plain_seconds=0.5,
        )
    )
    assert [score.name for score in result.scores] == [*VARIABLE_ATTRS, "all, normalised"]
    assert result.scores[-1].gain > 0.1
    training = result.training
    # An epoch has 16 batches.
    assert (training.num_steps, training.num_epochs, training.num_cut) == (35, 2, 3)
    assert training.explanation.num_reads == training.report.num_reads
    assert result.speed.is_whole_epoch
    assert result.speed.delivered_nbytes == 122 * 2 * 4 * 19 * 36 * 4
    assert result.picture.stat().st_size > 10_000
    check(to_json(result), SHAPES["demo"])
    printed = capsys.readouterr().out
    assert "Time ran out" not in printed
    for words in (
        "35 of 35 steps",
        "2 whole epochs, and 3 of the 16 batches",
        "last whole training",
    ):
        assert words in printed
    for words in ("The plan", "RMSE 36 h ahead on 26 of 26", "measured", "x as fast", "Picture"):
        assert words in printed


class Clock:
    """A clock that advances by a fixed number of seconds each time a training looks at it."""

    def __init__(self, seconds: float) -> None:
        self._now, self._seconds = 0.0, seconds

    def perf_counter(self) -> float:
        self._now += self._seconds
        return self._now


@pytest.mark.parametrize(
    ("seconds", "num_steps", "words"),
    [
        (
            1000.0,
            7,
            ["Trained 7 of 7 steps", "1 whole epoch, and 2 of the 5 batches of an unfinished"],
        ),
        (5.0, 5, ["Trained 5 of 7 steps", "1 whole epoch\n", "Time ran out", "more --seconds"]),
        (3.0, 3, ["Trained 3 of 7 steps", "0 whole epochs, and 3 of the 5", "Time ran out"]),
    ],
    ids=["all steps", "time for an epoch", "time for a part of one"],
)
def test_training_counts_steps_and_says_where_time_ran_out(
    monkeypatch, capsys, seconds, num_steps, words
):
    torch = pytest.importorskip("torch")
    from xloader.demo import run, training
    from xloader.demo.training import make_net

    monkeypatch.setattr(training, "time", Clock(1.0))
    dataset = make_dataset(50)
    task = find_task(dataset, variables=["sst"], lead=1)
    climate = measure_climate(dataset, task)
    net, spread = make_net(dataset, task, climate, seed=0)
    samples = dataset[["sst"]].isel(time=slice(0, 41)).astype("float32").xloader
    samples = samples.window(time=2, stride=1).inputs("sst", time=0).targets("sst", time=1)
    with samples.loader(batch_size=8, memory="8MiB") as loader:
        trained = training.train(
            net,
            loader,
            calendar=training.Calendar(torch.zeros(50, dtype=torch.int64), lead=1),
            weights=np.ones((1, 4, 6)),
            spread=spread,
            steps=7,
            seconds=seconds,
            on_progress=lambda progress: None,
        )
    assert trained.num_steps == num_steps
    for word in words:
        assert word in trained.describe()
    assert ("Time ran out" in trained.describe()) == (num_steps < 7)
    is_cut = "3 of 5 batches of an unfinished epoch"
    assert (is_cut in run._measured(trained)) == (num_steps < 5)


def test_a_latitude_is_known_by_its_units() -> None:
    data = xr.Dataset(coords={"y": ("y", [1.0], {"units": "degrees_north"}), "x": ("x", [1.0])})
    assert is_latitude(data, "y")
    assert not is_latitude(data, "x")


def test_a_periodic_map_is_padded_with_its_other_side() -> None:
    torch = pytest.importorskip("torch")
    from xloader.demo.model import pad_columns

    row = torch.arange(3.0).reshape(1, 1, 1, 3)
    assert pad_columns(row, 1, 1, is_periodic=True).tolist() == [[[[2.0, 0.0, 1.0, 2.0, 0.0]]]]
