"""The benchmark of learning: its forecast task, from data of users too, and its network."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from benchmarks.learning.forecast import is_periodic, make_task
from xloader.errors import (
    EmptySamplesError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
)


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


def test_statistics_of_long_records_come_from_blocks_all_over_the_training_part(monkeypatch):
    monkeypatch.setattr("benchmarks.learning.forecast._MOST_STEPS", 32)
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


def make_net(num_rows, num_columns, *, is_periodic=True):
    torch = pytest.importorskip("torch")
    from benchmarks.learning.network import ForecastNet

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


def test_a_periodic_map_is_padded_with_its_other_side() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.learning.network import pad_columns

    row = torch.arange(3.0).reshape(1, 1, 1, 3)
    assert pad_columns(row, 1, 1, is_periodic=True).tolist() == [[[[2.0, 0.0, 1.0, 2.0, 0.0]]]]
