"""Samples equal plain xarray: a table of expressions, and the texts of errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import OptionError, SampleIndexError, UnknownNameError


def _dataset() -> xr.Dataset:
    rng = np.random.default_rng(2)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.random((16, 6, 8), np.float32), {"units": "K"}),
            "z": (("time", "level", "lat", "lon"), rng.random((16, 3, 6, 8)), {"units": "m"}),
            "co2": (("time",), np.arange(16.0), {"units": "ppm"}),
            "oro": (("lat", "lon"), rng.random((6, 8)), {"units": "m"}),
        },
        coords={
            "time": np.arange("2000-01-01", "2000-01-17", dtype="datetime64[D]").astype("M8[ns]"),
            "level": ("level", [500, 850, 1000], {"units": "hPa"}),
            "lat": ("lat", np.linspace(75, -75, 6), {"units": "degrees_north"}),
            "area": (("lat", "lon"), rng.random((6, 8)), {"units": "m2"}),
            "season": ("time", np.repeat([1, 2], 8)),
            "model": 7,
        },
    )


@pytest.fixture(params=["in memory", "Zarr"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "in memory":
        return _dataset()
    chunks = {"t2m": (5, 4, 3), "z": (4, 1, 6, 8), "co2": (7,), "oro": (6, 8)}
    encoding = {name: {"chunks": chunk} for name, chunk in chunks.items()}
    path = tmp_path / "toy.zarr"
    _dataset().to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
    return path


Row = tuple[Callable[[Samples], Samples], int, Callable[[xr.Dataset], xr.Dataset]]

DEFAULT_FIELDS: dict[str, Row] = {
    "patches": (
        lambda s: s.window(time=2, lat=4, lon=3, stride={"lat": 2, "lon": 2}),
        2 * 6 + 1 * 3 + 2,
        lambda d: d.isel(time=slice(4, 6), lat=slice(2, 6), lon=slice(4, 7)),
    ),
    "a label that drops its dim": (
        lambda s: s.sel(level=850).window(time=2),
        1,
        lambda d: d.isel(time=slice(2, 4), level=1),
    ),
    "unequal positions": (
        lambda s: s.isel(time=[0, 1, 5, 6, 13], lon=[1, 4, 5]).window(time=2, stride=1),
        1,
        lambda d: d.isel(time=[1, 5], lon=[1, 4, 5]),
    ),
}


@pytest.mark.parametrize(("make", "index", "plain"), DEFAULT_FIELDS.values(), ids=DEFAULT_FIELDS)
def test_default_fields_equal_isel(source: Any, make: Any, index: int, plain: Any) -> None:
    """Values, dims, coordinates and attributes of all windowed variables equal xarray's."""
    samples = make(xloader.open(source))
    expected = plain(_dataset())[list(samples.fields)]
    actual = samples.to_xarray(index)
    xr.testing.assert_identical(actual, expected)
    for array, name in zip(samples[index], samples.fields, strict=True):
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype
        assert array.shape == samples.shapes[name]


@pytest.mark.parametrize("together", [["t2m", "z"], ("t2m", "z")])
def test_variables_may_come_as_one_sequence(together: Any) -> None:
    samples = _dataset().xloader.window(time=2)
    assert samples.inputs(together).recipe == samples.inputs("t2m", "z").recipe
    mixed = samples.field("x", "co2", together)
    assert mixed.recipe.fields[0].variables == ("co2", "t2m", "z")


def test_completion_offers_what_can_be_used() -> None:
    assert dir(xloader) == sorted(xloader.__all__)
    offered = dir(_dataset().xloader)
    assert {"window", "clip", "loader", "fillna", "rolling"} <= set(offered)
    assert not {"groupby", "resample", "stack"} & set(offered)


def test_a_lead_has_its_own_labels() -> None:
    samples = _dataset().xloader.window(time=6, stride=1)
    samples = samples.inputs("t2m", "z", time=slice(0, 2)).targets("t2m", time=5)
    one = samples.to_xarray(3)
    times = _dataset()["time"]
    assert one["inputs"].dims == ("inputs_channel", "time", "lat", "lon")
    assert one["targets"].dims == ("targets_channel", "lat", "lon")
    assert one["inputs_channel"].values.tolist() == ["t2m", "z_500", "z_850", "z_1000"]
    np.testing.assert_array_equal(one["time"], times[3:5])
    assert one["targets_time"].item() == times[8].item()
    assert one["targets"].attrs == {"units": "K"}
    assert one["inputs"].attrs == {}
    xr.testing.assert_equal(one["area"].variable, _dataset()["area"].variable)
    assert one["lat"].attrs == {"units": "degrees_north"}


def test_a_field_named_like_a_coordinate_is_kept() -> None:
    ds = xr.Dataset({"t": ("time", np.arange(6.0))}, {"run": 5, "time": np.arange(6)})
    samples = xloader.open(ds).window(time=2).field("run", "t").field("t", "t")
    assert samples.to_xarray(1)["run"].values.tolist() == [[2.0, 3.0]]
    assert samples.to_xarray(1)["t"].values.tolist() == [[2.0, 3.0]]


def test_a_dropped_dim_keeps_its_name_where_no_field_says_otherwise() -> None:
    samples = _dataset().xloader.window(time=2).inputs("t2m", time=1).targets("z", time=1)
    one = samples.to_xarray(3)
    assert one["time"].item() == _dataset()["time"][7].item()
    assert one["season"].item() == 1


def test_positions_map_ids_to_the_store() -> None:
    samples = (
        _dataset().xloader.isel(time=slice(3, None, 2)).window(time=2, lat=3, stride={"time": 1})
    )
    positions = samples.positions([0, 5, -1])
    assert positions["time"].values.tolist() == [3, 7, 13]
    assert positions["lat"].values.tolist() == [0, 3, 3]
    np.testing.assert_array_equal(positions["time_label"], _dataset()["time"][[3, 7, 13]])
    assert positions["sample"].values.tolist() == [0, 5, len(samples) - 1]


def test_what_there_is() -> None:
    samples = _dataset().xloader.isel(time=slice(0, 8, 2), level=0, lon=[0, 3, 4])
    assert samples.dims == ("time", "lat", "lon")
    assert samples.sizes == {"time": 4, "lat": 6, "lon": 3}
    expected = (
        _dataset()
        .isel(time=slice(0, 8, 2), level=0, lon=[0, 3, 4])
        .drop_vars(["t2m", "z", "co2", "oro"])
    )
    xr.testing.assert_identical(samples.coords.to_dataset(), expected)
    windowed = samples.window(time=2)
    assert windowed.fields == ("t2m", "z", "co2")
    assert windowed.shapes == {"t2m": (2, 6, 3), "z": (2, 6, 3), "co2": (2,)}
    assert windowed.dtypes["z"] == np.float64
    assert len(list(windowed)) == len(windowed) == 2


def test_several_at_once() -> None:
    samples = _dataset().xloader.window(time=2).inputs("co2")
    mask = np.zeros(8, bool)
    mask[[6, 7]] = True
    for key, ids in [(slice(6, None), [6, 7]), ([6, -1], [6, 7]), (mask, [6, 7]), ([], [])]:
        batch = samples[key]
        assert batch.ids.tolist() == ids
        assert batch.inputs.shape == (len(ids), 1, 2)
        assert batch.inputs[:, 0, 0].tolist() == [2.0 * sample_id for sample_id in ids]
    assert samples[np.int64(3)][0].tolist() == [[6.0, 7.0]]


def test_repr_says_what_there_is() -> None:
    samples = _dataset().xloader.window(time=3, stride=2, dilation=2).inputs("t2m", "z").fillna(0)
    text = repr(samples)
    for part in (
        "<xloader.Samples, 6 samples>",
        "time: 16, lat: 6, lon: 8, level: 3",
        "3, stride 2, dilation 2: 6 positions",
        "dropped      1 window that leaves the array",
        "inputs       (channel: 4, time: 3, lat: 6, lon: 8) float64",
        "then         fillna(0.0)",
    ):
        assert part in text
    assert "no windows yet" in repr(_dataset().xloader)
    assert "window time</th><td>3, stride 2, dilation 2: 6 positions<" in samples._repr_html_()
    broken = _dataset().xloader.window(time=3).inputs("oro")
    assert "no field has a variable along a windowed dimension" in repr(broken)


REFUSALS: dict[type[Exception], list[tuple[Callable[[Samples], Any], str]]] = {
    OptionError: [
        (len, r"windows are not set.*call .window.*'time'"),
        (lambda s: s.inputs("t2m"), "call .window"),
        (lambda s: s.fillna(0), "call .window"),
        (lambda s: s.window(), "no dimension has a window.*'time'"),
        (lambda s: s.window(time=True), "not a whole number. Given: True"),
        (lambda s: s.window(time=2).window(lat=2), "window comes too late"),
        (
            lambda s: s.window(time=2).sel(lat=0),
            "sel comes too late. Given: after window.*first sel, isel and forcing",
        ),
        (
            lambda s: s.window(time=2).map(lambda d: d).inputs("t2m"),
            "field comes too late. Given: after map",
        ),
        (
            lambda s: s.window(time=2).clip(0, 1).normalize({"t2m": (0, 1)}),
            "normalize comes too late. Given: after clip",
        ),
        (
            lambda s: s.window(time=4).inputs("t2m", time=4),
            r"'inputs' does not fit the window along 'time'. Given: 4.*\[-4, 4\)",
        ),
        (lambda s: s.window(time=4).inputs("t2m", time=-5), "Given: -5"),
        (lambda s: s.window(time=4).inputs("t2m", time=slice(2, 2)), "does not fit the window"),
        (
            lambda s: s.window(time=4).inputs("t2m", time=[0, 1, -4]),
            "does not fit the window.*sequence of different ints.*several fields",
        ),
        (
            lambda s: s.window(time=4).inputs("t2m", time=slice(2, 9)),
            r"does not fit the window along 'time'. Given: slice\(2, 9, None\).*a lead",
        ),
        (
            lambda s: s.window(time=4).inputs("t2m", time="2000"),
            "lead along 'time' is not a duration. Given: '2000'",
        ),
        (
            lambda s: s.window(time=4).inputs("t2m", lat=0),
            "offsets along a dimension without windows. Given: lat",
        ),
        (
            lambda s: s.window(time=4, lat=2).inputs("co2", lat=0),
            "the field 'inputs' has offsets along a dimension that its variables do not have",
        ),
        (
            lambda s: s.window(time=4).inputs("t2m").inputs("z"),
            "field name is already in use. Given: 'inputs'",
        ),
        (lambda s: s.window(time=4).field("lat", "t2m"), "Given: 'lat'"),
        (lambda s: s.window(time=4).channels("z"), "'z' has no channels"),
    ],
    UnknownNameError: [
        (
            lambda s: s.window(time=4).inputs("area"),
            r"'area' is a coordinate: call ds.reset_coords\('area'\)",
        ),
        (
            lambda s: s.window(time=4).inputs("nothing"),
            "variables of text, dates or objects cannot be used, and neither can those",
        ),
        (lambda s: s.window(time=4).inputs("t2m", x=0), "'x'"),
        (lambda s: s.window(time=4).channels("x"), "no field"),
    ],
    SampleIndexError: [
        (lambda s: s.window(time=4)[4], r"Given: 4. Allowed: \[-4, 4\)"),
        (lambda s: s.window(time=4)[-5], "Given: -5"),
        (lambda s: s.window(time=4)[1.5], "not sample ids. Given: float64"),
        (lambda s: s.window(time=4)[[[1]]], "not sample ids"),
        (lambda s: s.window(time=4).positions([0, 9]), "Given: 9"),
        (lambda s: s.window(time=4).to_xarray(9), "Given: 9"),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in REFUSALS.items() for act, message in rows],
)
def test_bad_input_says_what_is_wrong(error: type[Exception], act: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        act(_dataset().xloader)
    assert type(caught.value) is error
