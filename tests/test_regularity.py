"""Gaps between labels that windows run across are reported; calendar steps are no gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.testing import CountingStore, write_store

DAYS = np.arange("2001-01-01", "2002-01-01", dtype="M8[D]").astype("M8[ns]")


def samples_along(labels: Any, size: int = 3) -> Samples:
    labels = np.asarray(labels)
    ds = xr.Dataset({"t": ("time", np.zeros(len(labels)))}, {"time": labels})
    return xloader.open(ds).window(time=size, stride=1, gaps="allow")


def noleap(*counts: int, unit: str = "days") -> Any:
    return cftime.num2date(counts, f"{unit} since 2001-01-01", calendar="noleap")


def monthly(step: int, count: int = 40, day: int = 1) -> Any:
    first = np.datetime64("1990-01", "M") + step * np.arange(count)
    return first.astype("M8[D]").astype("M8[ns]") + np.timedelta64(day - 1, "D")


IRREGULAR: dict[str, tuple[Any, str]] = {
    "days left out": (
        np.delete(DAYS, [64, 100, 101, 300]),
        "3 of 360 are not 1 day (first after 2001-03-05)",
    ),
    "hours": (
        DAYS[0] + np.array([0, 6, 12, 24, 30]) * np.timedelta64(1, "h"),
        "1 of 4 are not 6 hours (first after 2001-01-01T12:00)",
    ),
    "a time twice": (DAYS[[0, 1, 2, 2, 3, 4]], "1 of 5 are not 1 day (first after 2001-01-03)"),
    "a missing time": (
        np.array([*DAYS[:3], np.datetime64("NaT"), *DAYS[4:8]]),
        "2 of 7 are not 1 day (first after 2001-01-03)",
    ),
    "times that turn round": (
        DAYS[[0, 1, 2, 3, 0, 1, 2]],
        (
            "1 of 6 are not 1 day (first after 2001-01-04), "
            "1 go back: the labels are not in order of time"
        ),
    ),
    "a month left out": (
        np.delete(monthly(1), 7),
        "1 of 38 are not 1 month (first after 1990-07-01)",
    ),
    "a year left out": (
        np.delete(monthly(12), 7),
        "1 of 38 are not 1 year (first after 1996-01-01)",
    ),
    "months that turn back": (
        np.r_[monthly(1)[:20], monthly(1)[5:25]],
        (
            "1 of 39 are not 1 month (first after 1991-08-01), "
            "1 go back: the labels are not in order of time"
        ),
    ),
    "months of another calendar": (
        noleap(0, 31, 59, 120, 151, 181),
        "1 of 5 are not 1 month (first after 2001-03-01)",
    ),
    "whole numbers": ([3, 4, 5, 9, 10], "1 of 4 are not 1 (first after 5)"),
    "unsigned numbers that fall": (
        np.array([9, 8, 7, 3, 2], "u1"),
        "1 of 4 are not -1 (first after 7)",
    ),
    "numbers": ([0.0, 0.25, 0.5, 1.0, 1.25], "1 of 4 are not 0.25 (first after 0.5)"),
    "spans of time": (
        np.array([0, 6, 12, 24, 30]) * np.timedelta64(1, "h").astype("m8[ns]"),
        "1 of 4 are not 6 hours (first after 12 hours)",
    ),
}

REGULAR: dict[str, Any] = {
    "days": DAYS,
    "months": monthly(1),
    "middles of months": monthly(1, day=15) + np.arange(40) % 2 * np.timedelta64(12, "h"),
    "last days of months": monthly(1) - np.timedelta64(1, "D"),
    "seasons": monthly(3),
    "years": monthly(12),
    "thirty days": DAYS[::30],
    "days of another calendar": noleap(*range(100)),
    "months of another calendar": noleap(0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334),
    "rounded numbers": np.linspace(-90, 90, 721, dtype=np.float32),
    "Gaussian latitudes": np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(64)[0])),
    "all alike": np.zeros(9),
    "words": [f"member {number}" for number in (1, 2, 5, 9)],
    "two labels": [0, 7],
}


@pytest.mark.parametrize("case", IRREGULAR)
def test_irregular_steps_are_told(case: str) -> None:
    labels, text = IRREGULAR[case]
    told = samples_along(labels, 2).explain()
    assert told.irregular_steps == {"time": text}
    line = f"time: steps are irregular: {text}; windows run across them"
    assert line in str(told)
    assert line in told._repr_html_()


@pytest.mark.parametrize("case", REGULAR)
def test_regular_steps_are_not(case: str) -> None:
    told = samples_along(REGULAR[case], 2).explain()
    assert told.irregular_steps == {}
    assert "irregular" not in str(told)


def as_float32(labels: Any) -> Any:
    """Times as they come back from float32 days: some minutes off."""
    days = (labels - np.datetime64("1900-01-01", "ns")) / np.timedelta64(1, "D")
    units = {"units": "days since 1900-01-01"}
    coords = {"time": ("time", days.astype("f4"), units)}
    return xr.decode_cf(xr.Dataset(coords=coords))["time"].values


HOURS = np.datetime64("2000-06-01", "ns") + np.arange(400) * np.timedelta64(1, "h")
WITH_A_HOLE = np.r_[0:200, 248:400]


@pytest.mark.parametrize(
    ("labels", "step", "uneven"),
    [
        (as_float32(HOURS[WITH_A_HOLE]), "about 1 hour", ""),
        (HOURS[WITH_A_HOLE] + np.arange(352) % 6 * np.timedelta64(1, "m"), "about 1 hour", ""),
        (
            as_float32(HOURS[0] + (HOURS - HOURS[0])[WITH_A_HOLE] // 2),
            "about 30 minutes",
            "116 of 351 differ from about 30 minutes by over a tenth",
        ),
    ],
    ids=["hours as float32", "minutes off", "half hours as float32"],
)
def test_a_hole_in_times_that_jitter_is_a_gap(labels: Any, step: str, uneven: str) -> None:
    ds = xr.Dataset({"t": ("time", np.zeros(len(labels)))}, {"time": labels})
    samples = ds.xloader.window(time=3, stride=1)
    assert len(samples) == 352 - 2 - 2
    assert f"1 of 351 are not {step} (first after" in repr(samples)
    told = samples.explain(memory="1MiB")
    assert told.dropped_windows == {"gap": 2}
    assert told.irregular_steps == ({"time": uneven} if uneven else {})
    assert ("steps are irregular" in repr(samples)) == bool(uneven)


@pytest.mark.parametrize(
    "labels",
    [
        as_float32(HOURS),
        DAYS + np.random.default_rng(0).integers(-60, 60, 365) * np.timedelta64(1, "m"),
        DAYS + (np.arange(365) > 90) * np.timedelta64(1, "h"),
    ],
    ids=["float32", "an hour off", "daylight saving"],
)
def test_jitter_is_no_gap(labels: Any) -> None:
    assert samples_along(labels).explain().irregular_steps == {}
    ds = xr.Dataset({"t": ("time", np.zeros(len(labels), "f4"))}, {"time": labels})
    samples = ds.xloader.window(time=3, stride=1)
    assert len(samples) == len(labels) - 2
    assert "note" not in repr(samples)


def test_durations_count_jittering_steps() -> None:
    ds = xr.Dataset({"t": ("time", np.zeros(400))}, {"time": as_float32(HOURS)})
    assert ds.xloader.window(time="1D", stride="6h").recipe.require_windows().window_sizes == (24,)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (DAYS[::-1], "runs backwards: its labels descend"),
        (monthly(1)[::-1], "runs backwards: its labels descend"),
        (noleap(*range(100))[::-1], "runs backwards: its labels descend"),
        (as_float32(HOURS)[::-1], "runs backwards: its labels descend"),
        (np.random.default_rng(1).permutation(DAYS), "go back: the labels are not in order"),
        (np.repeat(DAYS[:9], 2), "9 of 17 are 0: labels occur more than once"),
        (np.full(9, DAYS[0]), "8 of 8 are 0: labels occur more than once"),
        (np.full(9, np.datetime64("NaT", "ns")), "8 of 8 lie beside missing labels"),
        (np.where(np.arange(9) > 3, np.datetime64("NaT"), DAYS[:9]), "beside missing labels"),
    ],
    ids=[
        *("days", "months", "cftime", "float32", "shuffled", "each twice"),
        *("all alike", "all missing", "most missing"),
    ],
)
def test_times_that_do_not_rise_are_told(labels: Any, told: str) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((len(labels), 2)))}, {"time": labels})
    for gaps in ("drop", "allow"):
        samples = ds.xloader.window(time=2, stride=1, gaps=gaps)
        assert len(samples) == len(labels) - 1
        for text in (repr(samples), samples._repr_html_(), str(samples.explain(memory="1MiB"))):
            assert told in text
    # Windows of one element have no order, and other labels may fall.
    assert told not in repr(ds.xloader.window(time=1))
    assert told not in repr(ds.xloader.window(x=2))


@pytest.mark.parametrize(
    "labels",
    [np.append(DAYS[:60], DAYS[0]), np.insert(DAYS, 30, DAYS[29]), np.r_[DAYS[:9], DAYS[4:99]]],
    ids=["the first one again at the end", "one twice", "some twice"],
)
def test_windows_over_times_that_jump_back_are_left_out(labels: Any) -> None:
    ds = xr.Dataset({"t": ("time", np.zeros(len(labels)))}, {"time": labels})
    samples = ds.xloader.window(time=3, stride=1)
    rises = np.diff(labels) == np.timedelta64(1, "D")
    assert len(samples) == (rises[1:] & rises[:-1]).sum()
    assert "dropped" in repr(samples)


def test_nothing_is_said_without_labels_or_of_windows_of_one() -> None:
    unlabelled = xloader.open(xr.Dataset({"t": ("time", np.zeros(9))})).window(time=2)
    assert unlabelled.explain().irregular_steps == {}
    assert samples_along([0, 1, 2, 9], 1).explain().irregular_steps == {}


def test_labels_count_as_they_were_selected() -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((365, 4)))}, {"time": DAYS, "x": [0, 1, 2, 7]})
    opened = xloader.open(ds)
    assert opened.isel(time=slice(0, 200, 7)).window(time=2).explain().irregular_steps == {}
    is_winter = ds["time"].dt.month.isin([1, 2, 12]).values
    winter = opened.isel(time=is_winter).window(time=2, gaps="allow")
    assert winter.explain().irregular_steps == {
        "time": "1 of 89 are not 1 day (first after 2001-02-28)"
    }
    assert opened.isel(x=[0, 1, 2]).window(time=2, x=2).explain().irregular_steps == {}
    both = opened.window(time=2, x=2).explain().irregular_steps
    assert list(both) == ["x"]


def test_labels_are_read_once_and_variables_never() -> None:
    labels = np.delete(DAYS, 50)
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((364, 5)))}, {"time": labels})
    store = CountingStore(write_store(ds, {"t": (16, 5)}))
    samples = xloader.open(store).window(time=6, stride=1, gaps="allow")
    store.reset()
    with samples.loader(batch_size=16, output="numpy") as loader:
        assert "time" in loader.explain().irregular_steps
        assert {key.split("/")[0] for key in store.reads} == {"time"}
        store.reset()
        assert "time" in loader.explain("world").irregular_steps
        assert "time" in samples.select(range(9)).explain(memory="1MiB").irregular_steps
        assert store.reads == {}
        for _ in loader:
            pass
        assert {key.split("/")[0] for key in store.reads} == {"t"}


def test_labels_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((365, 5)))}, {"time": np.arange(365.0)})
    path = tmp_path / "a.zarr"
    write_store(ds, {"t": (16, 5), "time": (365,)}, path)
    samples = xloader.open(path).window(time=6)
    for chunk in (path / "time" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"damaged")
    assert samples.explain().irregular_steps == {}


def test_the_doors_and_orders_of_ones_own_tell_it_as_well() -> None:
    doors = pytest.importorskip("xloader.torch")
    pytest.importorskip("torch")
    samples = samples_along(np.delete(DAYS, 50))
    for door in (doors.ChunkSampler, doors.data_loader, doors.IterableDataset):
        assert list(door(samples, 16).explain().irregular_steps) == ["time"]
    for cache in (None, "lru"):
        assert list(samples.explain(np.arange(9), cache=cache).irregular_steps) == ["time"]


def test_a_million_labels_take_no_objects() -> None:
    """Steps are compared as arrays; single labels are made into objects for the text only."""
    labels = np.datetime64("1900-01-01", "ns") + np.arange(10**6) * np.timedelta64(1, "h")
    labels[700_000:] += np.timedelta64(1, "h")
    told = samples_along(labels).explain(batch_size=512).irregular_steps["time"]
    assert told == "1 of 999,999 are not 1 hour (first after 1979-11-09T15:00)"
