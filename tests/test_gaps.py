"""Windows do not cross gaps in time, and durations are whole numbers of steps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import EmptySamplesError, OptionError, UnsupportedDataError
from xloader.recipe.label_steps import find_steps, show_label
from xloader.testing import CountingStore, write_store

HOURS = np.datetime64("2001-01-01", "ns") + np.arange(400) * np.timedelta64(6, "h")
MONTHS = np.arange("1990-01", "2010-01", dtype="M8[M]").astype("M8[ns]")


def series(time: Any) -> xr.Dataset:
    time = np.asarray(time)
    values = np.arange(len(time), dtype=np.float64)
    return xr.Dataset({"sst": ("time", values)}, {"time": time})


def month_numbers(time: xr.DataArray) -> np.ndarray:
    return (time.dt.year * 12 + time.dt.month).values


def of_calendar(calendar: str) -> np.ndarray:
    return xr.date_range(
        "1990-01-01", periods=240, freq="MS", calendar=calendar, use_cftime=True
    ).values


def rising_windows(ds: xr.Dataset, reach: int, stride: int = 1) -> list[int]:
    """Return the first elements of windows whose month number rises by 1 throughout."""
    months = month_numbers(ds["time"])
    return [
        first
        for first in range(0, len(months) - reach + 1, stride)
        if (np.diff(months[first : first + reach]) == 1).all()
    ]


def monthly(name: str, data_folder: Path) -> xr.Dataset:
    if name == "standard":
        return series(MONTHS)
    if name != "NOAA ERSST":
        return series(of_calendar(name))
    path = data_folder / "sst.mnmean.nc"
    if not path.is_file():
        pytest.skip(f"no real data: {path} is not there")
    return xr.open_dataset(path)[["sst"]]


CALENDARS = ["standard", "noleap", "360_day", "NOAA ERSST"]


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("name", CALENDARS)
def test_months_that_were_taken_out(name: str, data_folder: Path) -> None:
    whole = monthly(name, data_folder)
    samples = xloader.open(whole).window(time=12, stride=1)
    assert len(samples) == whole.sizes["time"] - 11
    assert samples.explain(batch_size=4).dropped_windows == {}
    ds = whole.isel(time=np.delete(np.arange(whole.sizes["time"]), [7, 50, 51, 52, 90, 110, 111]))
    for size, stride in [(12, 1), (3, 3), (1, 1)]:
        samples = xloader.open(ds).window(time=size, stride=stride)
        starts = rising_windows(ds, size, stride)
        assert samples.positions(np.arange(len(samples)))["time"].values.tolist() == starts
        every = (ds.sizes["time"] - size) // stride + 1
        told = samples.explain(batch_size=4)
        assert told.dropped_windows.get("gap", 0) == every - len(starts)
        assert told.num_dropped_windows >= every - len(starts)
    # A lead of a year, as a duration: from the first to the last element counts.
    samples = xloader.open(ds).window(time=2, stride=1).inputs("sst").targets("sst", time="+12M")
    starts = rising_windows(ds, 13)
    assert samples.positions(np.arange(len(samples)))["time"].values.tolist() == starts
    inputs, targets = samples[5]
    np.testing.assert_array_equal(inputs[0], ds["sst"].values[starts[5] : starts[5] + 2])
    np.testing.assert_array_equal(targets[0], ds["sst"].values[starts[5] + 12])
    same = xloader.open(ds).window(time="2M", stride="1M").inputs("sst").targets("sst", time="+1Y")
    assert same.recipe == samples.recipe


def test_reads_and_values_across_gaps() -> None:
    """Chunks that only windows across gaps would need are not read."""
    time = np.delete(HOURS, np.r_[100, 103, 200:240])
    ds = xr.Dataset(
        {"t2m": (("time", "x"), np.arange(4.0 * len(time)).reshape(-1, 4))}, {"time": time}
    )
    store = CountingStore(write_store(ds, {"t2m": (2, 4)}))
    samples = xloader.open(store).window(time="1D", stride="6h")
    # Between the first two gaps lie two elements, which is one chunk.
    is_odd = np.diff(time) != np.timedelta64(6, "h")
    starts = [s for s in range(len(time) - 3) if not is_odd[s : s + 3].any()]
    store.reset()
    for shuffle in (True, False):
        with samples.loader(
            batch_size=16, shuffle=shuffle, output="numpy", memory="8MiB"
        ) as loader:
            told = loader.explain()
            assert told.num_samples == len(starts)
            for batch in loader:
                for number, values in zip(batch.ids, batch.t2m, strict=True):
                    first = starts[number]
                    np.testing.assert_array_equal(values, ds.t2m.values[first : first + 4])
            assert told.num_reads == loader.report().num_reads == len(time) // 2 - 1
            assert loader.report().dropped_windows == {"gap": len(time) - 3 - len(starts)}
    assert "3 of 357 are not 6 hours" in str(told)
    assert f"{len(time) - 3 - len(starts)} windows that cross a gap along time" in repr(samples)


def test_choices() -> None:
    ds = series(np.delete(HOURS, 50))
    opened = xloader.open(ds)
    assert len(opened.window(time=4, stride=1)) == 393
    assert len(opened.window(time=4, stride=1, gaps="allow")) == 396
    assert len(opened.window(time=4, stride=1, gaps={"time": "allow"})) == 396
    assert len(xloader.open(series(HOURS)).window(time=4, stride=1, gaps="raise")) == 397
    with pytest.raises(
        OptionError, match=r"'time' have gaps.*1 of 398 are not 6 hours.*fill the gaps"
    ):
        opened.window(time=4, gaps="raise")
    with pytest.raises(OptionError, match=r"'never'.*'drop' or 'raise' or 'allow'"):
        opened.window(time=4, gaps="never")  # type: ignore[arg-type]
    with pytest.raises(xloader.errors.UnknownNameError, match=r"gaps= is given for a dim.*'lat'"):
        opened.window(time=4, gaps={"lat": "drop"})


def test_irregular_times_lose_nothing() -> None:
    """Below 90 % of equal steps nothing is dropped, and it is said."""
    time = np.sort(np.delete(HOURS, np.arange(5, 400, 8)))
    samples = xloader.open(series(time)).window(time=4, stride=1)
    assert len(samples) == len(time) - 3
    assert "steps are irregular" in str(samples.explain(memory="1MiB"))
    with pytest.raises(OptionError, match=r"gaps along 'time' cannot be found"):
        xloader.open(series(time)).window(time=4, gaps={"time": "drop"})


def test_gaps_between_numbers_only_where_asked() -> None:
    ds = xr.Dataset({"z": ("depth", np.zeros(40))}, {"depth": np.delete(np.arange(41), 20)})
    opened = xloader.open(ds)
    assert len(opened.window(depth=4, stride=1)) == 37
    assert len(opened.window(depth=4, stride=1, gaps="drop")) == 37
    assert len(opened.window(depth=4, stride=1, gaps={"depth": "drop"})) == 34
    # Now the steps of the labels are known, which must change nothing.
    assert len(opened.window(depth=4, stride=1)) == 37
    unlabelled = xloader.open(ds.drop_vars("depth"))
    with pytest.raises(OptionError, match=r"no labels that are numbers or times"):
        unlabelled.window(depth=4, gaps={"depth": "drop"})


def test_every_window_crosses_a_gap() -> None:
    time = np.delete(HOURS[:50], [12, 24, 36])
    with pytest.raises(EmptySamplesError, match=r"every window crosses a gap along 'time'"):
        xloader.open(series(time)).window(time=20)


DURATIONS: list[tuple[Any, int]] = [
    ("3D", 12),
    ("18h", 3),
    ("1W", 28),
    ("720m", 2),
    ("21600s", 1),
    (np.timedelta64(2, "D"), 8),
    (dt.timedelta(days=1), 4),
    ("+5", 5),
]


@pytest.mark.parametrize(("given", "steps"), DURATIONS)
def test_durations(given: Any, steps: int) -> None:
    opened = xloader.open(series(HOURS))
    assert opened.window(time=given).recipe == opened.window(time=steps).recipe
    assert opened.window({"time": given}, stride=given).recipe == opened.window(time=steps).recipe
    lead = opened.window(time=2, stride=1).inputs("sst").targets("sst", time=given)
    assert lead[0][1].tolist() == [float(steps)]
    assert len(lead) == 400 - max(steps, 1)


def test_leads_as_slices_and_lists() -> None:
    opened = xloader.open(series(HOURS)).window(time=4, stride=1)
    assert opened.inputs("sst", time=slice("6h", "1D"))[0][0].tolist() == [[1.0, 2.0, 3.0]]
    assert opened.inputs("sst", time=slice("12h", None))[0][0].tolist() == [[2.0, 3.0]]
    assert opened.inputs("sst", time=slice(None, "2D", "12h"))[0][0].tolist() == [[0, 2, 4, 6]]
    assert opened.inputs("sst", time=["+1D", "+2D"])[0][0].tolist() == [[4.0, 8.0]]
    dilated = xloader.open(series(HOURS)).window(time=3, dilation="12h", stride=1)
    assert dilated.inputs("sst").targets("sst", time="+3D")[1][1].tolist() == [13.0]
    with pytest.raises(OptionError, match=r"falls between two elements.*a multiple of 2 steps"):
        dilated.inputs("sst", time="+18h")


BAD: list[tuple[str, Callable[[Samples], Samples]]] = [
    (
        "window along 'time' is no whole number of steps.*'7h', with steps of 6 hours.*multiple",
        lambda s: s.window(time="7h"),
    ),
    ("no whole number.*Y and M only where steps are months", lambda s: s.window(time="1M")),
    ("not a duration.*'6'.*Y, M", lambda s: s.window(time="6")),
    ("not a duration", lambda s: s.window(time="6min")),
    ("lead along 'time' is not a duration", lambda s: s.window(time=2).targets("sst", time="-6h")),
    (
        "lead beyond the window leaves .*'time'.*801 elements.*at most 400",
        lambda s: s.window(time=2).targets("sst", time="+200D"),
    ),
    (
        r"does not fit the window.*a lead such as time=\"\+2\"",
        lambda s: s.window(time=2).targets("sst", time=5),
    ),
    (
        "changes what ids mean.*first, then .select",
        lambda s: s.window(time=2).select([3]).targets("sst", time="+5D"),
    ),
    (
        "beside durations, an offset along 'time'.*Given: -2",
        lambda s: s.window(time=4).inputs("sst", time=slice(-2, "+4D")),
    ),
    (
        "beside durations, an offset along 'time'.*Given: 5.5",
        lambda s: s.window(time=4).inputs("sst", time=["+1D", 5.5]),
    ),
    ("too small", lambda s: s.window(time="0D")),
]


@pytest.mark.parametrize(("text", "make"), BAD)
def test_durations_that_do_not_fit(text: str, make: Callable[[Samples], Samples]) -> None:
    with pytest.raises(OptionError, match=text):
        make(xloader.open(series(HOURS)))


def test_durations_need_regular_ascending_times() -> None:
    for time, text in [
        (HOURS[::-1], "labels that descend"),
        (np.arange(20.0), "without labels that are times"),
        (HOURS[np.cumsum([0, 1, 3, 1, 5, 2, 2])], "irregular steps"),
    ]:
        with pytest.raises(OptionError, match=rf"labels have no common step.*{text}"):
            xloader.open(series(time)).window(time="1D")
    with pytest.raises(OptionError, match=r"no whole number of steps.*in Y and M only"):
        xloader.open(series(MONTHS)).window(time="30D")
    assert len(xloader.open(series(of_calendar("360_day"))).window(time="60D")) == 120


def test_times_of_several_calendars() -> None:
    time = np.concatenate([of_calendar("noleap")[:20], of_calendar("360_day")[20:40]])
    ds = xr.Dataset({"sst": ("time", np.zeros(40))}).assign_coords(time=xr.Variable("time", time))
    with pytest.raises(UnsupportedDataError, match=r"several calendars.*360_day, noleap"):
        xloader.open(ds).window(time=3)


def test_cftime_is_not_sent_through_pandas() -> None:
    """Years that pandas cannot hold are times like any other."""
    time = cftime.num2date(np.delete(np.arange(60), 30), "days since 9000-01-01", "noleap")
    samples = xloader.open(series(time)).window(time="2D", stride=1)
    assert len(samples) == 57


def test_xbatcher_runs_across_gaps() -> None:
    xbatcher = pytest.importorskip("xbatcher")
    ds = series(np.delete(HOURS, 50))
    generator = xbatcher.BatchGenerator(ds, {"time": 4}, {"time": 3})
    assert len(xloader.from_xbatcher(generator)) == len(list(generator)) == 396


@pytest.mark.parametrize("months", [1, 3, 12, 24])
def test_steps_of_several_months(months: int) -> None:
    first = np.arange(0, 40 * months, months).astype("M8[M]")
    time = np.delete(first, 20).astype("M8[s]")
    assert len(xloader.open(series(time)).window(time=4, stride=1)) == 17 + 16
    assert len(xloader.open(series(time)).window(time=f"{4 * months}M", stride=1)) == 17 + 16


def test_steps_between_labels_and_the_gaps_among_them() -> None:
    series = xr.DataArray(np.zeros(5), {"time": [0, 1, 2, 7, 8]}, name="sst")
    steps = find_steps(series.to_dataset().xloader.recipe, "time")
    assert (steps.span, steps.gaps.tolist()) == (1.0, [3])
    assert steps.describe() == "1 of 4 are not 1 (first after 2)"


def test_labels_are_shown_in_the_coarsest_unit_that_tells_them() -> None:
    assert show_label(np.timedelta64(360, "m")) == "6 hours"
    assert show_label(np.datetime64("2001-01-01T06:00:00")) == "2001-01-01T06:00"
