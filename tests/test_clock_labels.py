"""Clock labels against those of xarray, in every calendar."""

from __future__ import annotations

import numpy as np
import pytest

from xloader.errors import OptionError, UnsupportedDataError
from xloader.forcings.calendar import clock_rows


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
