"""Samples around the points of a table: reads, windows, label fields, weights and refusals."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from benchmarks import points
from xloader import Samples
from xloader.errors import (
    EmptySamplesError,
    NanError,
    OptionError,
    StateError,
    UnknownNameError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.testing import CountingStore, FaultyStore, garble, write_store
from xloader.torch import tensor_dataset

NUM_STEPS, NUM_ROWS, NUM_COLUMNS = 60, 40, 50
SKIES = ("clear", "high", "low")


def make_dataset() -> xr.Dataset:
    shape = (NUM_STEPS, NUM_ROWS, NUM_COLUMNS)
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    coords = {
        "time": pd.date_range("2001-01-01", periods=NUM_STEPS, freq="6h"),
        "lat": np.linspace(78.0, 0.0, NUM_ROWS),
        "lon": np.arange(float(NUM_COLUMNS)),
        "level": 850,
        "area": (("lat", "lon"), np.ones((NUM_ROWS, NUM_COLUMNS))),
    }
    return xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, coords)


def make_table(num: int = 200, seed: int = 0) -> pd.DataFrame:
    """Points off the grid lines, whose windows lie in the array, in random order."""
    rng = np.random.default_rng(seed)
    sky = np.array([*SKIES, *rng.choice(SKIES, num, p=[0.7, 0.2, 0.1])])[:num]
    return pd.DataFrame(
        {
            "lon": rng.uniform(8, 40, num),
            "time": make_dataset().time.values[rng.integers(3, NUM_STEPS - 3, num)],
            "lat": rng.uniform(20, 60, num),
            "snow": rng.random(num),
            "sky": sky,
            "hour": rng.integers(0, 24, num).astype("i2"),
            "is_wet": rng.random(num) < 0.1,
        }
    )


NEAREST = {"lat": "nearest", "lon": "nearest"}


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(write_store(make_dataset(), {"t2m": (6, 8, 10)}))


def written(folder: Path) -> Path:
    write_store(make_dataset(), {"t2m": (6, 8, 10)}, folder / "a.zarr")
    return folder / "a.zarr"


def windowed(source: object) -> Samples:
    return xloader.open(source).window(time=2, lat=4, lon=5).inputs("t2m")


def at_table(source: object, table: pd.DataFrame | None = None, **kwargs: Any) -> Samples:
    table = make_table() if table is None else table
    return windowed(source).at_points(table, method=NEAREST, **kwargs)


def starts_of(table: pd.DataFrame) -> np.ndarray:
    """The first element of each point's window, by plain arithmetic."""
    ds = make_dataset()
    time = np.searchsorted(ds.time.values, table.time.to_numpy())
    lat = np.abs(ds.lat.values[:, None] - table.lat.to_numpy()).argmin(axis=0)
    lon = np.abs(ds.lon.values[:, None] - table.lon.to_numpy()).argmin(axis=0)
    return np.stack([time - 1, lat - 2, lon - 2], axis=-1)


def check_batch(batch: Any, table: pd.DataFrame, classes: tuple[str, ...] = SKIES) -> None:
    """Check each row of a batch against the table and the data."""
    snow = np.asarray(batch["snow"])
    t2m, starts = make_dataset().t2m.values, starts_of(table)
    for row, index in enumerate(np.asarray(batch.ids).tolist()):
        time, lat, lon = starts[index]
        wanted = t2m[time : time + 2, lat : lat + 4, lon : lon + 5]
        np.testing.assert_array_equal(np.asarray(batch["inputs"][row, 0]), wanted)
        assert snow[row] == snow.dtype.type(table.snow[index])
        assert classes[int(batch["sky"][row])] == table.sky[index]
        assert int(batch["hour"][row]) == table.hour[index]
        assert bool(batch["is_wet"][row]) == table.is_wet[index]


# Reads


@pytest.mark.parametrize("window", [(1, 1, 1), (2, 4, 5)])
def test_only_needed_chunks_are_read_and_each_once(
    store: CountingStore, window: tuple[int, int, int]
) -> None:
    table = make_table(40)
    samples = xloader.open(store).window(dict(zip(("time", "lat", "lon"), window, strict=True)))
    samples = samples.inputs("t2m").at_points(table, method=NEAREST, at="start")
    starts = starts_of(table) + np.array([1, 2, 2])
    corners = np.stack([starts, starts + np.array(window) - 1])
    first, last = corners // [6, 8, 10]
    needed = {
        f"t2m/c/{t}/{y}/{x}"
        for lo, hi in zip(first.tolist(), last.tolist(), strict=True)
        for t in range(lo[0], hi[0] + 1)
        for y in range(lo[1], hi[1] + 1)
        for x in range(lo[2], hi[2] + 1)
    }
    with samples.loader(batch_size=8, output="numpy") as loader:
        expected = loader.explain()
        assert expected.read_amplification == 1.0
        store.reset()
        assert sorted(i for batch in loader for i in batch.ids) == list(range(40))
    assert set(store.reads) == needed
    assert set(store.reads.values()) == {1}
    assert store.num_reads == expected.num_reads == loader.report().num_reads == len(needed)
    assert len(needed) < 10 * 5 * 5


def test_many_points_are_planned_on_the_chunks_that_they_need() -> None:
    """Predicted reads of 10^4 points are the distinct chunks, counted by plain arithmetic."""
    shape, chunk = (1000, 300, 300), np.array([10, 30, 30])
    ds = xr.Dataset({"a": (("time", "y", "x"), np.broadcast_to(np.float32(0), shape))})
    lazy = ds.chunk(time=10, y=30, x=30)
    rng = np.random.default_rng(4)
    places = np.stack([rng.integers(1, size - 1, 10**4) for size in shape], axis=-1)
    samples = lazy.xloader.window(time=1, y=2, x=2).at_points(
        {**dict(zip(("time", "y", "x"), places.T, strict=True)), "label": places[:, 0] % 7}
    )
    corners = places[:, None] - np.array([[0, i, j] for i in (0, 1) for j in (0, 1)])
    needed = np.unique((corners // chunk).reshape(-1, 3), axis=0)
    expected = samples.explain(memory="8GiB", batch_size=64)
    assert expected.num_samples == 10**4
    assert expected.num_reads == len(needed)
    assert expected.read_amplification == 1.0


def test_the_benchmark_counts_the_chunks_that_are_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["points", "--points", "3000", "--window", "1", "2", "2", "--memory", "64GiB"]
    monkeypatch.setattr("sys.argv", arguments)
    points.main()
    text = capsys.readouterr().out
    predicted = re.search(r"reads +([\d,]+) chunks", text)
    counted = re.search(r"counted plainly: ([\d,]+)", text)
    assert predicted is not None
    assert counted is not None
    assert predicted[1] == counted[1]


# Windows


def test_the_point_lies_where_at_says() -> None:
    ds = xr.Dataset({"a": (("time", "x"), np.arange(200).reshape(20, 10))})
    point = {"time": [9], "x": [4]}
    samples = ds.xloader.window(time=4, x=3)

    def first(at: Any, samples: Samples = samples) -> list[int]:
        placed = samples.at_points(point, at=at)
        return [int(placed.positions([0])[dim][0]) for dim in ("time", "x")]

    assert first("center") == [9 - 2, 4 - 1]
    assert first("start") == [9, 4]
    assert first("end") == [9 - 3, 4 - 2]
    assert first({"time": "end"}) == [9 - 3, 4 - 1]
    spread = ds.xloader.window(time=4, x=3, dilation=2)
    assert first("center", spread) == [9 - 4, 4 - 2]
    assert first({"time": "end", "x": "start"}, spread) == [9 - 6, 4]


def test_points_that_have_no_sample_are_counted() -> None:
    table = make_table(20)
    table.loc[4, "lat"], table.loc[9, "lon"], table.loc[2, "lat"] = 90.0, 49.0, 78.0
    with pytest.raises(UnknownNameError, match=r"1 of 20 points, first row 4: lat=90\.0"):
        at_table(make_dataset(), table)
    with pytest.raises(OptionError, match=r"2 of 20 points, first row 2: .*lat=78.0"):
        at_table(make_dataset(), table.drop(4).reset_index(drop=True).reindex([*range(19), 0]))
    samples = at_table(make_dataset(), table, outside="drop")
    words = "3 of 20 points: 1 match no label, the window of 2 leaves the array or crosses a gap"
    assert len(samples) == 17
    assert words in repr(samples)
    assert words in samples._repr_html_()
    assert f"left out: {words}" in samples.explain().notes
    kept = table.drop([2, 4, 9]).reset_index(drop=True)
    check_batch(samples[:], kept)
    assert "left out" not in repr(at_table(make_dataset(), kept, outside="drop"))


def test_points_whose_windows_cross_a_gap_are_left_out() -> None:
    ds = make_dataset().isel(time=[*range(20), *range(26, 40)])
    times = ds.time.values[[5, 19, 20, 21, 22, 30]]
    table = {"time": times, "row": np.arange(6)}
    samples = ds.xloader.window(time=4)
    with pytest.raises(OptionError, match=r"cross a gap. Given: 3 of 6 points, first row 1"):
        samples.at_points(table)
    kept = samples.at_points(table, outside="drop")
    assert "3 of 6 points: the window of 3 leaves the array or crosses a gap" in repr(kept)
    assert [int(row) for row in kept[:].row] == [0, 4, 5]
    for index in range(3):
        assert kept.to_xarray(index).time.values[2] == times[int(kept[index][1])]
    assert len(ds.xloader.window(time=4, gaps="allow").at_points(table)) == 6


def test_splits_keep_labels_and_take_columns_as_groups() -> None:
    table = make_table(60).assign(station=lambda t: np.array(["x", "y", "z"])[t.index % 3])
    # Windows of one element at distinct places share nothing, so no sample is left out.
    samples = make_dataset().xloader.window(time=1, lat=1, lon=1).inputs("t2m")
    samples = samples.at_points(table, method=NEAREST)
    parts = samples.split({"train": ["x", "z"], "valid": ["y"]}, groups="station")
    assert [len(part) for part in parts.values()] == [40, 20]
    for part, group in (("train", {"x", "z"}), ("valid", {"y"})):
        codes = parts[part][:].station
        assert {parts[part].classes["station"][code] for code in codes} == group
        snow = table.snow[table.station.isin(group)].to_numpy()
        np.testing.assert_array_equal(parts[part][:].snow, snow)
    late = samples.split(time={"early": 0.5, "late": 0.5})["late"]
    wanted = table[np.isin(table.time.to_numpy(), make_dataset().time.values[30:])]
    np.testing.assert_array_equal(late[:].snow, wanted.snow)


def test_the_closest_label_has_a_limit() -> None:
    """Beyond the ends, half a step counts as on the grid, as the last cell extents so far."""
    ds = xr.Dataset({"a": ("x", np.arange(5.0))}, {"x": np.array([8, 6, 4, 2, 0], np.uint8)})
    samples = ds.xloader.window(x=1)
    near = samples.at_points({"x": [8.9, 5.2, -1.0, 3.1]}, method="nearest")
    assert [float(near[i][0][0]) for i in range(4)] == [0.0, 1.0, 4.0, 2.0]
    with pytest.raises(UnknownNameError, match=r"1 of 2 points, first row 1: x=9.1"):
        samples.at_points({"x": [3, 9.1]}, method="nearest")
    far = samples.at_points({"x": [3, 9.1]}, method="nearest", tolerance=1.5)
    assert float(far[1][0][0]) == 0.0


def test_labels_of_points_may_differ_by_rounding() -> None:
    grid = np.arange(50) * 0.1
    for own, asked in (("f8", "f4"), ("f4", "f8")):
        ds = xr.Dataset({"a": ("x", np.arange(50.0))}, {"x": grid.astype(own)})
        found = ds.xloader.window(x=1).at_points({"x": grid[[33, 7]].astype(asked)})
        assert [float(found[i][0][0]) for i in range(2)] == [33, 7]
        with pytest.raises(UnknownNameError, match="2 of 2 points"):
            ds.xloader.window(x=1).at_points({"x": (grid[:2] + 0.002).astype(asked)})


@st.composite
def axes(draw: st.DrawFn) -> np.ndarray:
    """Draw sorted labels of several types, some of them unevenly spaced."""
    steps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    labels = np.cumsum(steps)
    kind = draw(st.sampled_from(["f4", "f8", "i4", "u1", "M8[ns]", "M8[s]"]))
    if kind.startswith("f"):
        labels = (labels * np.float64(0.1)).astype(kind)
    elif kind.startswith("M"):
        labels = np.datetime64("2001-01-01", kind[3:-1]) + labels * np.timedelta64(3, "h")
    labels = labels.astype(kind)
    return labels[::-1] if draw(st.booleans()) else labels


@given(axes(), st.data())
def test_labels_are_found_as_xarray_finds_them(labels: np.ndarray, data: st.DataObject) -> None:
    numbers = xr.DataArray(np.arange(len(labels)), {"x": labels})
    samples = numbers.to_dataset(name="a").xloader.window(x=1)
    rows = np.array(data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1)))
    wanted = labels[rows]
    if labels.dtype.kind == "f" and data.draw(st.booleans()):
        # As in a table of float64, or text that was read from a file.
        wanted = np.array([float(str(value)) for value in wanted])

    def found(samples: Samples) -> list[int]:
        return [int(value) for value in samples[:].a[:, 0]]

    exact = samples.at_points({"x": wanted})
    assert found(exact) == numbers.sel(x=wanted).values.tolist() == rows.tolist()
    shift = data.draw(st.integers(-3, 3), label="tenths of a step, or hours")
    unit = {"f": 0.02, "M": np.timedelta64(1, "h")}.get(labels.dtype.kind, 1)
    near = wanted.astype("f8" if labels.dtype.kind in "iu" else wanted.dtype) + shift * unit
    limit = 2 * unit
    by_xarray = numbers.reindex(x=near, method="nearest", tolerance=limit, fill_value=-1)
    is_there = by_xarray.values >= 0
    if is_there.any():
        kept = samples.at_points({"x": near}, method="nearest", tolerance=limit, outside="drop")
        assert found(kept) == by_xarray.values[is_there].tolist()
        assert found(kept) == numbers.sel(x=near[is_there], method="nearest").values.tolist()


@pytest.mark.parametrize(
    "times",
    [
        ["2001-01-05", "2001-01-03 06:00"],
        pd.DatetimeIndex(["2001-01-05 00:00", "2001-01-03 06:00"]),
        np.array(["2001-01-05", "2001-01-03T06"], "M8[s]"),
    ],
)
def test_times_may_be_text(times: Any) -> None:
    samples = make_dataset().xloader.window(time=1)
    found = samples.at_points({"time": times}).positions([0, 1]).time.values
    assert found.tolist() == [16, 9]


def test_dates_of_other_calendars_and_names_of_stations_are_looked_up() -> None:
    ds = make_dataset().convert_calendar("noleap", use_cftime=True)
    dates = [cftime.DatetimeNoLeap(2001, 1, 3, 7), cftime.DatetimeNoLeap(2001, 1, 1, 6)]
    samples = ds.xloader.window(time=1)
    for tolerance in ("2h", np.timedelta64(2, "h")):
        found = samples.at_points({"time": dates}, method="nearest", tolerance=tolerance)
        assert found.positions([0, 1]).time.values.tolist() == [9, 1]
    exact = [cftime.datetime(2001, 1, 3, 6, calendar="noleap")]
    assert samples.at_points({"time": exact}).positions([0]).time.values.tolist() == [9]
    with pytest.raises(UnknownNameError, match="first row 0"):
        samples.at_points({"time": dates}, method="nearest", tolerance="30min")
    stations = xr.Dataset({"q": ("station", np.arange(3.0))}, {"station": ["c", "a", "b"]})
    named = stations.xloader.window(station=1).at_points({"station": ["b", "c"]})
    assert [float(values[0]) for (values,) in (named[0], named[1])] == [2.0, 0.0]


# Label fields


def test_columns_become_fields_of_their_dtype() -> None:
    table = make_table(6).assign(
        depth=pd.array([1, 2, 3, 4, 5, 6], dtype="Int16"),
        kind=pd.Categorical(["b", "a", "b", "b", "a", "a"], categories=["b", "a", "c"]),
        old=np.arange(6, dtype=">f4"),
    )
    samples = at_table(make_dataset(), table)
    assert samples.fields == ("inputs", *table.columns[3:])
    expected = ["f4", "f8", "i8", "i2", "?", "i2", "i8", "f4"]
    assert list(samples.dtypes.values()) == [np.dtype(text) for text in expected]
    assert samples.shapes["snow"] == ()
    assert samples.classes == {"sky": SKIES, "kind": ("b", "a", "c")}
    assert all(isinstance(array, np.ndarray) for array in samples[3])
    assert [int(samples[i][-2]) for i in range(6)] == [0, 1, 0, 0, 1, 1]


def test_a_later_change_of_the_table_changes_nothing() -> None:
    table = {name: column.to_numpy(copy=True) for name, column in make_table().items()}
    samples = windowed(make_dataset()).at_points(table, method=NEAREST)
    for name in ("snow", "hour", "lat"):
        table[name][...] = 0
    check_batch(samples[:], make_table())


def test_tables_of_other_kinds_give_the_same_samples() -> None:
    table = make_table(12)
    wanted = at_table(make_dataset(), table)
    by_index = table.set_index(["time", "lat"])[["lon", *table.columns[3:]]]
    as_arrays = {name: table[name].to_numpy() for name in table}
    as_dataset = xr.Dataset({name: ("obs", values) for name, values in as_arrays.items()})
    # Columns match by place, also where a user's Series have indices of their own.
    turned = {**as_arrays, "snow": table.snow.set_axis(range(12, 0, -1))}
    for other in (by_index, as_arrays, as_dataset, turned):
        samples = at_table(make_dataset(), other)  # type: ignore[arg-type]
        assert samples.fields == wanted.fields
        xr.testing.assert_identical(samples.to_xarray([5, 0]), wanted.to_xarray([5, 0]))


def test_selected_samples_keep_their_labels() -> None:
    kept = make_table().iloc[[150, 3, 3, 77]].reset_index(drop=True)
    samples = at_table(make_dataset()).select([150, 3, 3, 77])
    check_batch(samples.select([2, 0])[:], kept.iloc[[2, 0]].reset_index(drop=True))
    weighted = samples.weighted(balance="sky")
    assert weighted.recipe.subset.weights[kept.sky == "clear"].sum() == pytest.approx(1.0)
    with weighted.loader(output="numpy") as loader:
        for batch in loader:
            check_batch(batch, kept)


def test_transforms_see_the_labels() -> None:
    table = make_table(20)
    table.loc[3, "snow"] = np.nan
    samples = at_table(make_dataset(), table).normalize({"t2m": (0.0, 2.0)}).fillna(-1.0)
    assert float(samples[3][1]) == -1.0
    assert float(samples[4][1]) == table.snow[4]
    doubled = samples.map(lambda ds: ds.assign(snow=ds.snow * 2, low=ds.sky == 2))
    assert doubled.fields == (*samples.fields, "low")
    assert float(doubled[4][1]) == 2 * table.snow[4]
    plain = at_table(make_dataset(), table)
    with plain.loader(output="numpy", on_nan="raise") as loader, pytest.raises(NanError) as caught:
        list(loader)
    assert (caught.value.field, caught.value.ids) == ("snow", (3,))


def test_slabs_have_the_labels() -> None:
    samples = xloader.open(make_dataset()).window(time=2, lat=4).inputs("t2m")
    samples = samples.at_points(make_table(9).drop(columns="lon"), method={"lat": "nearest"})
    part = samples.slab("lon", 1, 2)
    for index in (0, 8):
        np.testing.assert_array_equal(part[index][0], samples[index][0][..., 25:])
        assert part[index][1:] == samples[index][1:]


@pytest.mark.filterwarnings("ignore::xloader.errors.ChunkWarning")
def test_rows_that_replace_others_have_their_labels() -> None:
    """With on_error="skip", a row has the labels of the sample whose values it has."""
    inner = write_store(make_dataset(), {"t2m": (6, 8, 10)})
    samples = at_table(FaultyStore(inner, {"t2m/c/4/2/2": garble}))
    with samples.loader(batch_size=32, output="numpy", on_error="skip") as loader:
        batches = list(loader)
        assert loader.report().num_skipped_samples > 0
    for batch in batches:
        check_batch(batch, make_table())


def test_pickles_and_fingerprints_hold_the_table(tmp_path: Any) -> None:
    path = written(tmp_path)
    table = make_table()
    samples = at_table(path)
    copy = pickle.loads(pickle.dumps(samples))
    assert copy == samples
    check_batch(copy[:], table)
    plain = len(pickle.dumps(windowed(path)))
    # An int64 for the window, and 8 + 8 + 2 + 1 bytes for the columns of each point.
    assert len(pickle.dumps(samples)) < plain + 200 * (8 + 19) + 2000
    assert at_table(path) == samples
    for other in (table.assign(snow=0.0), table.rename(columns={"snow": "ice"}),
                  table.replace({"sky": {"low": "lower"}})):  # fmt: skip
        assert at_table(path, other) != samples
        with at_table(path, other).loader(output="numpy") as loader:
            state = loader.state_dict()
        with samples.loader(output="numpy") as loader, pytest.raises(StateError, match="subset"):
            loader.load_state_dict(state)


# Doors


@pytest.mark.parametrize(
    "options",
    [{"device": xloader.OnDevice(dtype="float32")}, {"processes": 2, "device": "cpu"}],
    ids=str,
)
def test_every_way_of_making_batches_has_the_labels(tmp_path: Any, options: Any) -> None:
    pytest.importorskip("torch")
    seen: Counter[int] = Counter()
    with at_table(written(tmp_path)).loader(batch_size=16, **options) as loader:
        for batch in loader:
            check_batch(batch, make_table())
            seen.update(np.asarray(batch.ids).tolist())
    assert seen == Counter(range(200))


@pytest.mark.filterwarnings("ignore::xloader.errors.WorkersWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_doors_of_pytorch_have_the_labels(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader, RandomSampler

    from xloader.torch import IterableDataset, MapDataset, collate, data_loader

    samples = at_table(written(tmp_path))
    dataset = MapDataset(samples)
    stream = IterableDataset(samples, batch_size=16)
    loaders = {
        "documented": data_loader(samples, batch_size=16, num_workers=2),
        "random": DataLoader(
            dataset, batch_size=16, sampler=RandomSampler(dataset), collate_fn=collate
        ),
        "stream": DataLoader(stream, batch_size=None, num_workers=0, collate_fn=collate),
    }
    for name, loader in loaders.items():
        seen: Counter[int] = Counter()
        for batch in loader:
            check_batch(batch, make_table())
            seen.update(np.asarray(batch.ids).tolist())
        assert seen == Counter(range(200)), name
    tensors = tensor_dataset(samples, memory="64MiB")
    assert float(tensors[7][1]) == make_table().snow[7]


# Weights


@pytest.mark.parametrize("column", ["sky", "is_wet", "hour", "kind"])
def test_classes_are_drawn_equally_often(column: str) -> None:
    table = make_table(300).assign(kind=lambda t: t.sky.astype("category"))
    samples = at_table(make_dataset(), table).weighted(balance=column, num_samples=600)
    num_classes = table[column].nunique()
    subset = samples.recipe.subset
    counts = pd.Series(0.0, index=sorted(table[column].astype(str).unique()))
    for epoch in range(100):
        drawn = table[column].astype(str).to_numpy()[subset.drawn(3, epoch)]
        share = pd.Series(drawn).value_counts()
        # Systematic draws keep close to the share in each epoch, not only on average.
        assert (share - 600 / num_classes).abs().max() < 0.2 * 600 / num_classes + 3
        counts += share
    np.testing.assert_allclose(counts / 100, 600 / num_classes, rtol=0.03)


GLOBES = {
    "from 0": np.arange(60) * 6.0,
    "from -180": np.arange(60) * 6.0 - 180,
    "float32": np.arange(60, dtype="f4") * 6,
    "whole numbers": np.arange(0, 360, 6),
    "to the west": np.arange(354.0, -1, -6),
    "tenths": np.arange(3600) * 0.1,
}


def around_the_globe(labels: Any, **kwargs: Any) -> Samples:
    """Windows along longitudes, whose values are their labels."""
    ds = xr.Dataset({"lon_of": ("lon", np.asarray(labels, "f8"))}, {"lon": labels})
    return ds.xloader.window(lon=1, **kwargs)


@pytest.mark.parametrize("name", GLOBES)
def test_points_find_the_closest_longitude_of_a_circle(name: str) -> None:
    places = np.array([359.6, -0.4, 365.0, 719.6, -120.0, 0.0, 354.0, 177.1, -180.0, 180.0, 540.0])
    circle = around_the_globe(GLOBES[name], wrap="lon")
    for tolerance in (None, 3.0):
        samples = circle.at_points({"lon": places}, method="nearest", tolerance=tolerance)
        away = np.abs((samples[:].lon_of[:, 0] - places + 180) % 360 - 180)
        assert away.max() <= (0.051 if name == "tenths" else 3.0)
        assert away[0] <= 0.4 + 1e-9
    # Equal ones are found without a method.
    equal = circle.at_points({"lon": [-6.0, 366.0, 714.0]})
    assert np.allclose(equal[:].lon_of[:, 0] % 360, [354, 6, 354])
    with pytest.raises(UnknownNameError, match="off the grid"):
        circle.at_points({"lon": [-6.03]})


def test_windows_of_points_near_the_seam_go_on_at_the_other_end() -> None:
    labels = GLOBES["from 0"]
    ds = xr.Dataset({"lon_of": ("lon", labels)}, {"lon": labels})
    samples = ds.xloader.window(lon=3, wrap="lon").at_points({"lon": [359.6]}, method="nearest")
    assert samples[0][0].tolist() == [354, 0, 6]


@pytest.mark.parametrize("labels", [np.arange(0, 90.0, 6), np.arange(60) * 1000.0])
def test_a_part_of_the_globe_is_no_circle(labels: Any) -> None:
    samples = around_the_globe(labels, wrap="lon")
    with pytest.raises(UnknownNameError, match="off the grid"):
        samples.at_points({"lon": [labels[-1] + 0.7 * labels[1]]}, method="nearest")


@pytest.mark.parametrize(
    ("places", "remedy"),
    [
        ([-120.0, 359.6], r"table\['lon'\] = table\['lon'\] % 360"),
        ([359.6, 12.0, -6.0], r"table\['lon'\] = table\['lon'\] % 360"),
        ([359.6, 3.0], r"pass wrap='lon' to .window"),
    ],
)
def test_points_at_the_seam_alone_need_wrap_and_others_turned_longitudes(
    places: list[float], remedy: str
) -> None:
    with pytest.raises(UnknownNameError, match=remedy):
        around_the_globe(GLOBES["from 0"]).at_points({"lon": places}, method="nearest")


# Refusals


def changed(**columns: Any) -> pd.DataFrame:
    return make_table(3).assign(**columns)


def unsorted() -> Samples:
    return windowed(make_dataset().isel(lat=[*range(20), *range(30, 40), *range(20, 30)]))


def repeated() -> Samples:
    return windowed(make_dataset().isel(lat=[*range(21), *range(20, 40)]))


def placed(table: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: windowed(make_dataset()).at_points(table, **{"method": NEAREST, **kwargs})


REFUSALS: dict[type[XloaderError], list[tuple[Callable[[], Any], str]]] = {
    UnknownNameError: [
        (
            placed(changed(), method=None),
            r"off the grid along 'lat'.*3 of 3 points, first row 0: lat=.*method=\"nearest\"",
        ),
        (
            placed(changed(lat=[30.0, -4.0, 40.0])),
            r"off the grid along 'lat'.*first row 1: lat=-4.0.*from 78.0 to 0.0.*drop the rows",
        ),
        (
            placed(changed(lon=[-340.0, 20.0, 20.0])),
            r"lon=-340.0.*table\['lon'\] = table\['lon'\] % 360",
        ),
        (
            placed(changed(lon=[20.4, 20.0, 20.0]), tolerance={"lon": 0.3}),
            r"lon=20.4.*a larger tolerance, in the unit of 'lon'",
        ),
        (
            placed(changed().rename(columns={"lat": "latitude"})),
            r"no column for the windowed dimension 'lat'.*rename the column 'latitude'.*'lat'",
        ),
        (
            placed(changed().drop(columns="time")),
            r"no column for the windowed dimension 'time'.*leave 'time' out of \.window",
        ),
        (
            lambda: windowed(make_dataset().drop_vars("lon")).at_points(
                changed(lon=[-1, 3, 4]), method={"lat": "nearest"}
            ),
            r"off the grid along 'lon'.*lon=-1.*positions in \[0, 50\)",
        ),
        (
            placed(changed(), method={"height": "nearest"}),
            r"method is given for a dimension without windows. Given: 'height'",
        ),
        (
            lambda: at_table(make_dataset()).weighted(balance="skyy"),
            r"no column of at_points or open_classes with this name.*'snow', 'sky'.*mean 'sky'",
        ),
    ],
    OptionError: [
        (
            placed(changed(lat=[np.nan, 30.0, np.nan])),
            r"missing in the column 'lat'. Given: 2 of 3 rows are NaN, first row 0.*dropna",
        ),
        (
            lambda: unsorted().at_points(changed(), method=NEAREST),
            r"'lat' are not sorted.*0.0, 38.0, 36.0 at the elements 29 to 31.*sortby\('lat'\)",
        ),
        (
            lambda: repeated().at_points(changed(), method=NEAREST),
            r"'lat' occur more than once.*1 repeated labels, first 38.0.*drop_duplicates\('lat'\)",
        ),
        (
            lambda: make_dataset().xloader.window(time=2).at_points(changed()),
            r"column 'lon' names a dimension that has no windows.*add 'lon' to \.window",
        ),
        (placed(changed(inputs=1.0)), r"already in use. Given: 'inputs'.*rename"),
        (placed(changed(area=1.0)), r"already in use. Given: 'area'.*area_at_point"),
        (
            lambda: (
                make_dataset()
                .xloader.window(time=2)
                .at_points({"time": make_dataset().time.values[5:7], "t2m": [1, 2]})
                .fields
            ),
            r"two fields are called 't2m'.*rename the column",
        ),
        (lambda: at_table(make_dataset()).field("snow", "t2m"), r"already in use. Given: 'snow'"),
        (
            placed(changed(sky=["low", None, "high"])),
            r"missing in the column 'sky'. Given: 1 of 3 rows, first row 1.*fillna\(\"unknown\"\)",
        ),
        (
            placed(changed(hour=pd.array([1, None, 2], dtype="Int64"))),
            r"missing in the column 'hour'",
        ),
        (
            placed(changed(lat=[0.0, 30.0, 78.0])),
            r"leave the array.*2 of 3 points, first row 0.*lat=0.0.*outside=\"drop\"",
        ),
        (placed(make_dataset()), r"exactly one dimension.*to_dataframe"),
        (placed({"lat": [1, 2], "lon": [1], "time": [1]}), r"in length.*'lat': 2"),
        (placed({"lat": 3.0, "lon": [1], "time": [1]}), r"'lat' of the table is not"),
        (placed(changed().rename(columns={"snow": 7})), r"no names of their own.*7"),
        (placed(pd.concat([changed(), changed()[["snow"]]], axis=1)), r"have one name"),
        (placed(changed(), method="ffill"), r"method='ffill'.*nearest.*neither"),
        (placed(changed(), method=None, tolerance=1), r"tolerance=1.*nearest.*neither"),
        (
            placed(changed(), method="nearest", tolerance=1),
            r"the tolerance is a number, but the labels are times.*\"time\": \"1h\"",
        ),
        (
            lambda: (
                xr.Dataset({"q": ("name", [1.0])}, {"name": ["x"]})
                .xloader.window(name=1)
                .at_points({"name": ["y"]}, method="nearest")
            ),
            r"'name' are text, of which none is the nearest",
        ),
        (placed(changed(), at="middle"), r"at along.*'middle'.*'center'"),
        (placed(changed(), outside="ignore"), r"outside.*'ignore'.*'drop'"),
        (lambda: make_dataset().xloader.at_points(changed()), r"windows are not set"),
        (lambda: at_table(make_dataset()).at_points(changed()), r"comes too late"),
        (
            lambda: (
                windowed(make_dataset())
                .map(lambda ds: ds[["inputs"]])
                .at_points(changed(), method=NEAREST)
            ),
            r"at_points comes too late. Given: after map",
        ),
        (
            lambda: at_table(make_dataset()).weighted(np.ones(200), balance="sky"),
            r"either weights or balance. Given: both",
        ),
        (lambda: at_table(make_dataset()).weighted(), r"Given: neither"),
        (
            lambda: at_table(make_dataset()).weighted(balance="snow"),
            r"'snow' holds floats, which are not classes.*pd.cut",
        ),
    ],
    UnsupportedDataError: [
        (
            placed(changed(seen=lambda t: t.time)),
            r"column 'seen' cannot become a field. Given: dtype datetime64.*dt.dayofyear",
        ),
        (
            placed(changed(notes=[[1], [2], [3]])),
            r"column 'notes' cannot become a field.*drop\(columns='notes'\)",
        ),
        (
            placed(changed(time=lambda t: t.time.dt.tz_localize("UTC"))),
            r"of another kind than those of the dimension 'time'.*tz_localize\(None\)",
        ),
        (
            placed(changed(time=[1, 2, 3])),
            r"of another kind.*'time'.*pd.to_datetime\(table\['time'\]\)",
        ),
        (
            placed(changed(lat=["a", "b", "c"])),
            r"of another kind.*'lat'.*pd.to_numeric\(table\['lat'\]\)",
        ),
        (
            lambda: windowed(make_dataset().convert_calendar("noleap", use_cftime=True)).at_points(
                changed(), method=NEAREST
            ),
            r"of another kind.*'noleap'.*convert_calendar",
        ),
        (
            lambda: windowed(make_dataset().drop_vars("lon")).at_points(changed(), method=NEAREST),
            r"'lon' has no labels.*whole numbers in \[0, 50\).*assign_coords\(lon=",
        ),
        (placed([1, 2]), r"not a table of points.*builtins.list"),
    ],
    EmptySamplesError: [
        (
            placed(changed(lat=[0.0, 99.0, 78.0]), outside="drop"),
            r"no point of the table has a sample.*1 match no label, the window of 2 leaves",
        ),
        (placed(changed()[:0]), r"has no points.*without rows"),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in REFUSALS.items() for act, message in rows],
)
def test_bad_input_is_refused(error: type[XloaderError], act: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        act()
    assert type(caught.value) is error
    assert caught.value.what
    assert caught.value.given is not None or "windows are not set" in caught.value.what
    assert caught.value.remedy
