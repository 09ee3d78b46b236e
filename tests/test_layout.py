"""Layouts: the shape of a field's array, and the views that chunks are copied into."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import EmptySamplesError, OptionError, UnsupportedDataError
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.testing import SourceRecorder

SIZES = {"time": 8, "level": 3, "lat": 4, "lon": 5, "member": 2}


def _variable(*dims: str, dtype: str = "float32") -> tuple[tuple[str, ...], np.ndarray]:
    shape = [SIZES[dim] for dim in dims]
    return dims, np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def _dataset() -> xr.Dataset:
    return xr.Dataset(
        {
            "t2m": _variable("time", "lat", "lon"),
            "z": _variable("time", "level", "lat", "lon"),
            "ens": _variable("member", "time", "level", "lat", "lon"),
            "oro": _variable("lat", "lon", dtype="float64"),
            "co2": _variable("time"),
            "swapped": _variable("time", "lon", "lat"),
            "mask": _variable("lat", "lon", dtype="int8"),
            "soil": _variable("time", "level", "lat"),
            "born": (("time",), np.zeros(8, "datetime64[ns]")),
        },
        coords={"level": [500.0, 850.0, 0.5]},
    )


def _layout(*variables: str, dims: Any = None, **offsets: Any) -> FieldLayout:
    samples = _dataset().drop_vars("born").xloader.window(dims or {"time": 3})
    return make_layouts(samples.inputs(*variables, **offsets).recipe)[0]


def test_channels_are_named_variable_by_variable() -> None:
    assert _layout("z", "t2m").channels == ("z_500", "z_850", "z_0.5", "t2m")
    assert _layout("ens").channels[:4] == ("ens_0_500", "ens_0_850", "ens_0_0.5", "ens_1_500")


def test_channels_of_a_selection() -> None:
    samples = _dataset()[["z"]].xloader.isel(level=[0, 2]).window(time=1).inputs("z")
    assert samples.channels("inputs") == ("z_500", "z_0.5")
    one = _dataset()[["z"]].xloader.sel(level=850).window(time=1).inputs("z")
    assert one.channels("inputs") == ("z",)


def test_dates_as_channels_are_short() -> None:
    ds = xr.Dataset(
        {"t": (("time", "step", "y", "x"), np.zeros((4, 2, 3, 3)))},
        coords={"step": np.array(["2000-01-01", "2000-01-01T06"], "datetime64[ns]")},
    )
    channels = ds.xloader.window(time=1).inputs("t").channels("inputs")
    assert channels == ("t_2000-01-01", "t_2000-01-01T06:00:00")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (np.array([1, 6, 24], "m8[h]").astype("m8[ns]"), ("t_1h", "t_6h", "t_24h")),
        (np.array([0, 1, 2], "m8[D]").astype("m8[us]"), ("t_0D", "t_1D", "t_2D")),
        (np.array([90, 120], "m8[s]"), ("t_90s", "t_120s")),
        (np.array([1, 2], "m8[ns]"), ("t_1 nanoseconds", "t_2 nanoseconds")),
        (np.array([1, "NaT"], "m8[s]"), ("t_1 seconds", "t_NaT")),
    ],
    ids=["hours", "days", "seconds", "nanoseconds", "one is missing"],
)
def test_leads_as_channels_are_short(steps: Any, expected: tuple[str, ...]) -> None:
    dims, values = ("time", "step", "y", "x"), np.zeros((4, len(steps), 3, 3))
    ds = xr.Dataset({"t": (dims, values)}, coords={"step": steps})
    assert ds.xloader.window(time=1).inputs("t").channels("inputs") == expected


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda s: s.inputs("t2m", "swapped"),
            OptionError,
            r"cannot share one array.*'t2m' with \('time', 'lat', 'lon'\).*'swapped' with",
        ),
        (lambda s: s.inputs("soil", "t2m"), OptionError, "'soil' with .*'t2m' with|'t2m'.*'soil'"),
        (lambda s: s.inputs("t2m", "t2m"), OptionError, "names a variable twice"),
        (lambda s: s.inputs(), OptionError, "has no variables"),
        (lambda s: s.inputs("oro").shapes, EmptySamplesError, "no field has a variable along"),
    ],
)
def test_what_cannot_be_laid_out(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(_dataset().xloader.window(time=3))


def test_a_dimension_called_channel_that_is_kept() -> None:
    ds = xr.Dataset({"s": (("time", "y", "channel"), np.zeros((4, 3, 2)))})
    with pytest.raises(OptionError, match=r"two dimensions called 'channel'"):
        ds.xloader.window(time=1).inputs("s")
    flattened = ds.transpose("time", "channel", "y").expand_dims(x=1, axis=-1)
    assert flattened.xloader.window(time=1).inputs("s").channels("inputs") == ("s_0", "s_1")


class Dates(SourceRecorder):
    """A source that offers dates, unlike any source of xloader."""

    @property
    def variables(self) -> Any:
        offered = super().variables.items()
        return {name: replace(v, dtype=np.dtype("datetime64[ns]")) for name, v in offered}


def test_dates_are_no_numbers() -> None:
    source = Dates(xloader.open(_dataset()[["co2"]]).recipe.source)
    samples = xloader.Samples(Recipe(source)).window(time=3)
    with pytest.raises(UnsupportedDataError, match=r"'co2' does not hold real numbers.*datetime64"):
        samples.inputs("co2")
