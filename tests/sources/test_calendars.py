"""Times, calendars and coordinates equal those of xarray, whichever format holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader


def write_calendar(folder: Path, calendar: str, kind: str) -> Path:
    time = xr.date_range(
        "2001-01-25", periods=20, freq="12h", calendar=calendar, use_cftime=calendar != "standard"
    )
    dataset = xr.Dataset(
        {
            "t2m": (("time", "x"), np.arange(60.0).reshape(20, 3) * 0.5, {"units": "K"}),
            "days_of_frost": (("time",), np.arange(20.0), {"units": "d"}),
        },
        coords={
            "time": time,
            "x": ("x", [1.0, 2.0, 4.0], {"units": "degrees_east"}),
            "valid_time": ("time", time + (time[1] - time[0])),
            "lead": ("time", np.arange(20) * np.timedelta64(6, "h").astype("m8[ns]")),
            "height": ((), 2.0, {"units": "m"}),
        },
    )
    encoding: dict[str, Any] = {
        "t2m": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1},
        "days_of_frost": {"_FillValue": -1.0},
        "time": {"units": "hours since 2000-02-01", "calendar": calendar},
        "valid_time": {"units": "hours since 2000-02-01", "calendar": calendar},
    }
    path = folder / ("a.nc" if kind == "netcdf" else "a.zarr")
    if kind == "netcdf":
        dataset.to_netcdf(path, encoding=encoding)
    else:
        for name in ("t2m", "days_of_frost"):
            encoding[name]["chunks"] = (7, 3)[: dataset[name].ndim]
        version = 2 if kind == "zarr-v2" else 3
        dataset.to_zarr(path, zarr_format=version, consolidated=False, encoding=encoding)
    return path


@pytest.mark.parametrize("kind", ["netcdf", "zarr-v2", "zarr-v3"])
@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_times_and_coordinates_are_xarrays_own(tmp_path: Path, calendar: str, kind: str):
    path = write_calendar(tmp_path, calendar, kind)
    kwargs = {} if kind == "netcdf" else {"engine": "zarr", "consolidated": False}
    # This option decodes a lead with units of time to a timedelta again.
    options = {"decode_timedelta": True}
    opened = xloader.open(path, dtype=None, **options)
    with xr.open_dataset(path, chunks=None, **kwargs, **options) as dataset:
        whole = dataset.load()
    assert whole["time"].dt.calendar == {"standard": "proleptic_gregorian"}.get(calendar, calendar)
    xr.testing.assert_identical(opened.coords.to_dataset(), whole.coords.to_dataset())
    for wanted in (slice(whole["time"].values[9], None), slice("2001-01-27", "2001-02-02")):
        samples = opened.sel(time=wanted).window(time=4, stride=3)
        expected = whole.sel(time=wanted)
        assert len(samples) == (expected.sizes["time"] - 4) // 3 + 1
        for i in range(len(samples)):
            actual = samples.to_xarray(i)
            part = expected.isel(time=slice(3 * i, 3 * i + 4))
            xr.testing.assert_identical(actual["t2m"].variable, part["t2m"].variable)
            for name in ("time", "valid_time", "lead", "x", "height"):
                xr.testing.assert_identical(actual[name].variable, part[name].variable)
        labels = samples.positions(np.arange(len(samples)))["time_label"]
        np.testing.assert_array_equal(labels, expected["time"][: 3 * len(samples) : 3])
        assert labels.dtype == whole["time"].dtype
