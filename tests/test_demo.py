"""The demo: its waves, store, task, scores and network, and a whole run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.cli.json_shapes import SHAPES, check
from xloader.cli.endings import to_json
from xloader.demo.task import is_periodic, make_task
from xloader.errors import (
    EmptySamplesError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.testing import waves as demo_store
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store, make_waves

SMALL = WaveSpec(num_steps=40, num_lats=13, num_lons=24, chunk_steps=16, seed=3)


# ---------------------------------------------------------------- waves and store


def test_the_seed_makes_the_waves():
    first = make_waves(SMALL)
    xr.testing.assert_identical(first, make_waves(SMALL))
    other = make_waves(dataclasses.replace(SMALL, seed=4))
    assert np.abs(other["z500"] - first["z500"]).max() > 10


def test_waves_can_be_forecast_for_hours_and_not_for_months():
    height = make_waves(WaveSpec(num_steps=600, num_lats=19, num_lons=36))["z500"].values
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
    waves = make_waves(WaveSpec(num_steps=64, num_lats=37, num_lons=72))
    slope = waves["z500"].roll(lon=-1) - waves["z500"].roll(lon=1)
    for lat, sign in ((45.0, 1), (-45.0, -1)):
        pair = xr.corr(slope.sel(lat=lat), waves["v10"].sel(lat=lat))
        assert sign * pair > 0.8


def test_store_holds_the_waves_in_chunks_of_whole_maps_and_is_made_once(tmp_path, monkeypatch):
    path = tmp_path / "waves.zarr"
    ensure_store(path, SMALL)
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    for name in VARIABLE_ATTRS:
        assert (group[name].shape, group[name].chunks) == ((40, 13, 24), (16, 13, 24))
    with xr.open_zarr(path, consolidated=False, chunks=None) as dataset:
        xr.testing.assert_identical(dataset.load(), make_waves(SMALL))
        assert dataset["time"].values[4] == np.datetime64("2000-01-02T00:00")
        assert dataset["t2m"].attrs["units"] == "K"
    monkeypatch.setattr(demo_store, "make_waves", pytest.fail)
    ensure_store(path, SMALL)
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_cut_short_leaves_no_store(tmp_path, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(xr.Dataset, "to_zarr", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure_store(tmp_path / "waves.zarr", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_end_with_one_store(tmp_path, monkeypatch):
    path = tmp_path / "waves.zarr"

    def make_beside_another(spec):
        monkeypatch.setattr(demo_store, "make_waves", make_waves)
        ensure_store(path, spec)
        return make_waves(spec)

    monkeypatch.setattr(demo_store, "make_waves", make_beside_another)
    ensure_store(path, SMALL)
    assert list(tmp_path.iterdir()) == [path]


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


def test_task_takes_the_float_maps_over_time_and_normalises_them():
    dataset = make_dataset()
    dataset["sst"][40:] = 1e6  # The held-out part must not count.
    task = make_task(dataset, lead=3)
    assert (task.variables, task.grid) == (("sst", "wind"), ("lat", "lon"))
    assert (len(task.training), len(task.held_out)) == (37, 7)
    assert task.training.channels("inputs") == ("sst", "wind_0", "wind_1", "wind_2")
    fields = [dataset[name].values[:40] for name in task.variables]
    spreads = [np.sqrt(values.var(axis=0).mean(axis=(-2, -1), keepdims=True)) for values in fields]
    parts = [
        (field - field.mean(axis=0)) / spread for field, spread in zip(fields, spreads, strict=True)
    ]
    expected = np.concatenate([parts[0][:, None], parts[1]], axis=1)
    inputs, targets = task.training[8]
    np.testing.assert_allclose(inputs, expected[8], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(targets, expected[11], rtol=1e-5, atol=1e-6)
    assert task.weights.mean() == pytest.approx(1)
    # Rows weigh as the cosine of latitude.
    assert task.weights[2, 1, 0] / task.weights[2, 0, 0] == pytest.approx(
        np.cos(np.deg2rad(20)) / 0.5
    )
    no_labels = make_task(dataset.drop_vars("lat"), variables=["sst"])
    np.testing.assert_array_equal(no_labels.weights, 1)


def test_missing_points_are_filled_counted_and_not_scored():
    dataset = make_dataset()
    dataset["sst"][:, 1, :3] = np.nan
    dataset["sst"][7, 2, 5] = np.nan
    task = make_task(dataset, variables=["sst"])
    assert task.nan_share["sst"] == pytest.approx((40 * 3 + 1) / (40 * 24))
    assert np.argwhere(task.weights[0] == 0).tolist() == [[1, 0], [1, 1], [1, 2], [2, 5]]
    inputs, _ = task.training[7]
    assert (inputs[0][1, :3] == 0).all()
    assert inputs[0][2, 5] == 0


def test_a_cell_without_values_in_the_training_never_counts():
    dataset = make_dataset()
    dataset["sst"][:40, 0, 0] = np.nan
    dataset["sst"][40:, 0, 0] = -1000.0
    task = make_task(dataset, variables=["sst", "sst"], lead=1)
    assert task.variables == ("sst",)
    inputs, targets = task.held_out[3]
    assert (abs(inputs[0, 0, 0]), abs(targets[0, 0, 0])) < (1e-20, 1e-20)
    assert abs(inputs[0, 0, 1:]).min() > 1e-4


def test_monthly_data_are_departures_from_the_mean_of_each_month():
    dataset = make_dataset(60).assign_coords(
        time=np.arange("2000-01", "2005-01", dtype="datetime64[M]").astype("datetime64[ns]")
    )
    month = np.arange(60) % 12
    dataset["sst"] = dataset["sst"] + xr.DataArray(10.0 * month, dims="time")
    task = make_task(dataset, variables=["sst"])
    june = dataset["sst"].values[:48][month[:48] == 5]
    np.testing.assert_allclose(task.mean["sst"].sel(month=6), june.mean(axis=0), rtol=1e-6)
    assert 0.5 < task.spread["sst"] < 1.5
    inputs, _ = task.held_out[1]  # January, and February as its second.
    february = dataset["sst"].values[1:48:12].mean(axis=0)
    expected = (dataset["sst"].values[49] - february) / float(task.spread["sst"])
    np.testing.assert_allclose(inputs[0], expected, rtol=1e-4, atol=1e-5)
    assert task.lead_text == "6 months"
    assert make_task(make_dataset(), lead=1).lead_text == "1 step"


def test_statistics_of_long_records_come_from_blocks_all_over_the_training_part(monkeypatch):
    monkeypatch.setattr("xloader.demo.task._MOST_STEPS", 32)
    dataset = make_dataset(200)
    task = make_task(dataset, variables=["sst"])
    steps = [*range(16), *range(144, 160)]
    expected = dataset["sst"].values[steps].mean(axis=0)
    np.testing.assert_allclose(task.mean["sst"], expected, rtol=1e-6)


TURNED = (("time", "lon", "lat"), np.zeros((50, 6, 4)))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"time_dim": "month"}, UnknownNameError, "do not have this time dimension.*month.*lat"),
        ({"variables": ["salt"]}, UnknownNameError, "salt.*sst"),
        ({"variables": ["sst", "series"]}, UnsupportedDataError, r"series\('time',\)"),
        ({"variables": ["sst", "turned"]}, UnsupportedDataError, "all on one grid"),
        ({"variables": ["count", "series"]}, UnsupportedDataError, "all on one grid"),
        ({"time_dim": "lon"}, UnsupportedDataError, "float variables that are maps over time"),
        ({"lead": 0}, OptionError, "lead is too small"),
        ({"lead": 40}, EmptySamplesError, "too few time steps.*50 steps.*>= 201 steps"),
    ],
)
def test_a_task_that_cannot_be_says_why(options, error, words):
    with pytest.raises(error, match=words):
        make_task(make_dataset(turned=TURNED), **options)


@pytest.mark.parametrize("values", [np.nan, 280.0])
def test_a_variable_with_nothing_to_learn_is_refused(values):
    dataset = make_dataset()
    dataset["sst"][:] = values
    with pytest.raises(UnsupportedDataError, match="'sst' has no place with values"):
        make_task(dataset, variables=["sst"])


def test_the_fewest_steps_named_are_enough_and_one_less_is_not():
    assert len(make_task(make_dataset(31), lead=6).held_out) == 1
    with pytest.raises(EmptySamplesError, match=">= 31 steps"):
        make_task(make_dataset(30), lead=6)


def test_opening_what_is_not_there(tmp_path):
    with pytest.raises(SourceNotFoundError):
        make_task(str(tmp_path / "nothing.zarr"))


def test_columns_round_the_earth_are_periodic():
    coords = make_dataset().coords
    assert is_periodic(coords, "lon")
    assert not is_periodic(make_dataset().isel(lon=slice(0, 5)).coords, "lon")
    assert not is_periodic(coords, "level")


# ---------------------------------------------------------------- network and scores


def make_net(num_rows, num_columns, *, is_periodic=True):
    torch = pytest.importorskip("torch")
    from xloader.demo.training import ForecastNet

    torch.manual_seed(0)
    return ForecastNet((2, num_rows, num_columns), is_periodic=is_periodic, num_hidden=8)


@pytest.mark.parametrize("size", [(12, 16), (13, 17), (3, 5)], ids=["even", "odd", "tiny"])
@pytest.mark.parametrize("is_round", [True, False], ids=["round", "flat"])
def test_network_keeps_the_shape_and_starts_at_persistence(size, is_round):
    torch = pytest.importorskip("torch")
    maps = torch.randn(3, 2, *size)
    torch.testing.assert_close(make_net(*size, is_periodic=is_round)(maps), maps)


def test_a_periodic_network_has_no_seam():
    """Rotating the input in longitude rotates the forecast, if features of points are zero."""
    torch = pytest.importorskip("torch")
    net = make_net(8, 16)
    torch.nn.init.normal_(net.head.conv.weight)
    torch.nn.init.zeros_(net.point_features)
    maps = torch.randn(1, 2, 8, 16)
    turned, expected = net(maps.roll(6, dims=-1)), net(maps).roll(6, dims=-1)
    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-4)


def test_scores_by_hand():
    torch = pytest.importorskip("torch")
    from xloader.demo.training import Score, format_scores, score

    dataset = make_dataset()
    dataset["sst"].attrs["units"] = "degC"
    weights = np.zeros((1, 4, 6), np.float32)
    weights[0, 0, 0], weights[0, 0, 1] = 3.0, 1.0
    task = dataclasses.replace(make_task(dataset, variables=["sst"]), weights=weights)
    task.spread["sst"] = xr.DataArray(2.0)
    inputs, targets = torch.zeros(2, 2, 1, 4, 6)
    inputs[:, 0, 0, 1] = 4.0  # 2 * 16 of a weight of 2 * 4
    inputs[:, 0, 3, 3] = 99.0  # not scored
    targets[:, 0, 0, 0] = 1.0  # 2 * 3, and 3 * 4 where the network says 3

    class Net(torch.nn.Linear):
        def forward(self, maps):
            forecast = torch.zeros_like(maps)
            forecast[0, 0, 0, 0], forecast[1, 0, 0, 0] = 3.0, 1.0
            return forecast

    batch = (inputs, targets)
    # The time is up after the first batch.
    number, (sst, overall) = score(Net(1, 1), [batch, (batch[0] + 9, batch[1])], task, seconds=0)
    assert number == 2
    errors = {"forecast": 12 / 8, "persistence": 38 / 8, "climatology": 6 / 8}
    expected = {name: pytest.approx(2 * square**0.5) for name, square in errors.items()}
    assert sst == Score("sst", "degC", **expected)
    assert overall.persistence == pytest.approx((38 / 8) ** 0.5)
    assert sst.gain == pytest.approx(1 - (12 / 38) ** 0.5)
    assert "44 %" in format_scores((sst,))


# ---------------------------------------------------------------- the whole demo


def test_the_whole_demo_on_a_small_world(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    from xloader.demo.run import run_demo

    result = run_demo(
        spec=WaveSpec(num_steps=160, num_lats=19, num_lons=36),
        cache=tmp_path / "cache",
        picture=tmp_path / "new" / "map.png",
        memory="8MiB",
        batch_size=8,
        steps=35,
    )
    assert [score.name for score in result.scores] == [*VARIABLE_ATTRS, "all, normalised"]
    assert result.scores[-1].gain > 0.1
    training = result.training
    # An epoch has 16 batches.
    assert (training.num_steps, training.epoch_size) == (35, 16)
    assert training.explanation.num_reads == training.report.num_reads
    assert result.picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert result.picture.stat().st_size > 10_000
    check(to_json(result), SHAPES["demo"])
    printed = capsys.readouterr().out
    for words in (
        "The plan, before the first read",
        "Trained 35 steps",
        "2 whole epochs, and 3 of the 16 batches",
        "The last whole epoch, as measured",
        "RMSE 6 steps (36 hours) ahead, on 26 of 26 held-out samples, weighted by latitude;",
        "Picture",
    ):
        assert words in printed


def test_a_short_training_on_data_with_missing_values_says_what_it_did(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    from xloader.demo.run import run_demo

    dataset = make_dataset()[["sst", "wind"]]
    dataset["sst"][:, 1, :3] = np.nan
    path = tmp_path / "sst.zarr"
    dataset.to_zarr(path, zarr_format=3, consolidated=False)
    result = run_demo(
        str(path), variables=["sst"], picture=tmp_path / "map.png", steps=2, batch_size=5, lead=1
    )
    assert np.isfinite([vars(score)["forecast"] for score in result.scores]).all()
    printed = capsys.readouterr().out
    for words in (
        "NaN       12 % of sst; filled with the mean",
        "0 whole epochs, and 2 of the 8 batches of an unfinished one",
        "The unfinished epoch, as measured",
        "RMSE 1 step ahead, on 9 of 9",
    ):
        assert words in printed


def test_a_training_ends_when_the_time_is_up_and_refuses_infinite_values(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    from xloader.demo import task as demo_task
    from xloader.demo.run import run_demo

    dataset = make_dataset(1600)[["sst"]]
    path, picture = str(tmp_path / "a sst.zarr"), tmp_path / "map.png"
    dataset.to_zarr(path, zarr_format=3, consolidated=False)
    result = run_demo(path, picture=picture, seconds=1e-6)
    assert result.training.num_steps == 1
    printed = capsys.readouterr().out
    assert "Time was up before all 180 steps" in printed
    assert "on 314 of 314 held-out samples" in printed
    # Statistics come from blocks of the training part.
    between = np.setdiff1d(np.arange(1280), demo_task._spread_steps(1280))
    dataset["sst"][between[0], 1, 1] = np.inf
    dataset.to_zarr(path, mode="w", zarr_format=3, consolidated=False)
    with pytest.raises(UnsupportedDataError, match=r"the loss is not finite.*infinite values"):
        run_demo(path, picture=picture, steps=90, lead=1)


def test_a_periodic_map_is_padded_with_its_other_side() -> None:
    torch = pytest.importorskip("torch")
    from xloader.demo.training import pad_columns

    row = torch.arange(3.0).reshape(1, 1, 1, 3)
    assert pad_columns(row, 1, 1, is_periodic=True).tolist() == [[[[2.0, 0.0, 1.0, 2.0, 0.0]]]]
