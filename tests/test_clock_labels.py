"""Clock labels against those of xarray, in every calendar."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from xloader.errors import OptionError, UnsupportedDataError
from xloader.forcings.calendar import CLOCKS, clock_rows

CALENDARS = ["standard", "noleap", "all_leap", "360_day"]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize(
    ("calendar", "use_cftime"), [("standard", False), *((name, True) for name in CALENDARS)]
)
def test_labels_are_those_of_xarray(clock: str, calendar: str, use_cftime: bool):
    times = xr.date_range(
        "1967-12-30", periods=1500, freq="23h", calendar=calendar, use_cftime=use_cftime
    )
    wanted = getattr(xr.DataArray(times, dims="time").dt, clock).to_numpy()
    found = CLOCKS[clock][clock_rows(times, clock)]
    assert found.tolist() == wanted.tolist()
    square = np.asarray(times)[:60].reshape(3, 20)
    assert (clock_rows(square, clock) == clock_rows(square.ravel(), clock).reshape(3, 20)).all()


@pytest.mark.parametrize("unit", ["D", "h", "s", "ms", "us", "ns"])
def test_any_unit(unit: str):
    times = np.array(["1969-12-31", "1970-01-01", "2024-12-31"], f"M8[{unit}]")
    assert clock_rows(times, "dayofyear").tolist() == [364, 0, 365]
    assert clock_rows(times, "month").tolist() == [11, 0, 11]
    assert clock_rows(times, "hour").tolist() == [0, 0, 0]


def test_other_labels():
    with pytest.raises(UnsupportedDataError, match="no times, and have no month"):
        clock_rows([1.0, 2.0], "month")
    with pytest.raises(OptionError, match="a time is missing"):
        clock_rows(np.array(["2000-01-01", "NaT"], "M8[D]"), "month")
