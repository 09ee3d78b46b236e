"""The values of mosaics: identity gives the input back, and blends equal a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

import xloader
from tests.mosaic.oracle import OUTSIDE, blended, numbered
from xloader import Mosaic, Samples
from xloader.errors import OptionError
from xloader.mosaic.target_grid import PlacedAxis
from xloader.recipe.layout import window_offsets
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore:the mosaic has holes"),
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
]


def arrays_of(samples: Samples, field: str) -> Any:
    return samples[:][field]


def on_all_cells(samples: Samples, out: Mosaic) -> tuple[Any, Any]:
    """Values and counts of all cells: the mosaic of a subset lacks what lies around it."""
    labels = samples.coords.to_dataset()
    values = out.dataset["cell"].reindex_like(labels)
    counts = out.coverage["cell"].reindex_like(labels, fill_value=0)
    assert values.shape == counts.shape == tuple(samples.recipe.dim_sizes.values())
    return values.values.ravel(), counts.values.ravel()


@given(
    size=st.integers(1, 12),
    count=st.integers(1, 5),
    step=st.integers(1, 3),
    start=st.integers(-6, 11),
    wraps=st.booleans(),
    box=st.tuples(st.integers(0, 11), st.integers(1, 12)),
)
def test_pieces_are_the_elements_of_a_window_that_lie_in_a_box(
    size: int, count: int, step: int, start: int, wraps: bool, box: tuple[int, int]
) -> None:
    axis = PlacedAxis("x", size, count, step, wraps)
    if wraps:
        # No window is longer than the circle, and each starts within its first turn.
        assume(axis.reach <= size)
        start %= size
    begin, end = min(box[0], size - 1), min(box[0] + box[1], size)
    cells = window_offsets(start, range(0, step * count, step))
    cells = cells % size if wraps else cells
    expected = {(j, c - begin) for j, c in enumerate(cells.tolist()) if begin <= c < end}
    found = [
        pair
        for elements, own in axis.pieces(start, begin, end)
        for pair in zip(
            range(elements.start, elements.stop),
            range(own.start, own.stop, own.step),
            strict=True,
        )
    ]
    assert sorted(found) == sorted(expected)


@st.composite
def windowed(draw: st.DrawFn) -> tuple[Samples, int, int]:
    """Draw samples of cell numbers, with their number of cells and dilation."""
    sizes = draw(st.tuples(st.integers(4, 8), st.integers(3, 6), st.integers(3, 7)))
    window = {d: draw(st.integers(1, min(n, 4))) for d, n in zip(_DIMS, sizes, strict=True)}
    window.pop("lat") if draw(st.booleans()) else None
    stride = {dim: draw(st.integers(1, 3)) for dim in window}
    options: dict[str, Any] = {}
    if "lat" in window and draw(st.booleans()):
        options["pad"] = {"lat": OUTSIDE}
    if draw(st.booleans()):
        options["wrap"] = ("lon",)
    fits = all(2 * own - 1 <= sizes[_DIMS.index(dim)] for dim, own in window.items())
    options["dilation"] = 2 if fits and "pad" not in options and draw(st.booleans()) else 1
    chunks = draw(st.tuples(*(st.integers(1, n) for n in sizes)))
    ds = numbered(*sizes)
    if draw(st.booleans()):
        ds = ds.assign_coords({dim: np.arange(ds.sizes[dim]) for dim in _DIMS[1:]})
    store = write_store(ds, {"cell": chunks})
    samples = xloader.open(store, dtype=None).window(window, stride=stride, **options)
    if draw(st.booleans()):
        ids = draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=12))
        samples = samples.select(sorted(ids))
    return samples, int(np.prod(sizes)), options["dilation"]


_DIMS = ("time", "lat", "lon")


@pytest.mark.parametrize("blend", ["mean", "linear", "crop"])
@given(drawn=windowed(), seed=st.integers(0, 9))
def test_blends_equal_a_loop_over_cells(
    blend: Any, drawn: tuple[Samples, int, int], seed: int
) -> None:
    samples, size, step = drawn
    cells = arrays_of(samples, "cell")
    rng = np.random.default_rng(seed)
    predictions = rng.normal(size=cells.shape)
    predictions[rng.random(cells.shape) < 0.02] = np.nan
    # Distances and weights along a dimension that is not windowed must not count.
    whole = [d + 1 for d, dim in enumerate(_DIMS) if dim not in samples.recipe.windows.dims]
    expected_values, expected_counts = _by_plane(cells, predictions, size, blend, step, whole)
    # Boxes of one chunk of 8 cells, or all cells in one box.
    boxes: dict[str, Any] = {"chunks": dict.fromkeys(_DIMS, 2), "memory": (12 << 20) + 32 * 8}
    boxes = boxes if seed % 2 else {}
    with samples.mosaic(blend=blend, **boxes) as out:
        for ids in np.array_split(rng.permutation(len(samples)), 3):
            out.write(ids, predictions[ids])
    assert out.coverage["cell"].dtype == np.int32
    found, counts = on_all_cells(samples, out)
    np.testing.assert_array_equal(counts, expected_counts)
    np.testing.assert_allclose(found, expected_values, rtol=1e-12, atol=1e-14)
    left_out = size - out.coverage["cell"].size
    assert out.num_uncovered == (expected_counts == 0).sum() - left_out


def _by_plane(
    cells: Any, predictions: Any, size: int, blend: str, step: int, whole: list[int]
) -> tuple[Any, Any]:
    """Blend each plane along a dimension that windows take whole by itself."""
    if not whole:
        return blended(cells, predictions, size, blend, step)
    values, counts = np.full(size, np.nan), np.zeros(size, int)
    for plane in range(cells.shape[whole[0]]):
        taken = [np.take(own, plane, whole[0]) for own in (cells, predictions)]
        own_values, own_counts = blended(*taken, size, blend, step)
        values = np.where(own_counts > 0, own_values, values)
        counts += own_counts
    return values, counts


@given(drawn=windowed(), blend=st.sampled_from(["mean", "linear", "crop"]))
def test_identity_gives_every_covered_cell_back(
    drawn: tuple[Samples, int, int], blend: Any
) -> None:
    samples, size, _ = drawn
    cells = arrays_of(samples, "cell")
    with samples.mosaic(blend=blend) as out:
        # A number that no fraction of weights leaves as it is.
        out.write(np.arange(len(samples)), np.where(cells == OUTSIDE, 9, cells / 3))
    found, counts = on_all_cells(samples, out)
    is_covered = counts > 0
    assert is_covered.sum() == len(np.setdiff1d(cells, [OUTSIDE]))
    np.testing.assert_array_equal(found[is_covered], (np.arange(size) / 3)[is_covered])
    assert np.isnan(found[~is_covered]).all()


@pytest.mark.parametrize("blend", ["mean", "linear", "crop"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_odd_numbers_come_back_with_the_same_bits(blend: Any, dtype: str) -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 0.1, 7.3], dtype)
    samples = xr.Dataset({"a": ("x", values)}).xloader.window(x=3, stride=1)
    with samples.mosaic(blend=blend) as out:
        out.write(np.arange(len(samples)), samples[:].a)
    assert out.dataset.a.dtype == dtype
    np.testing.assert_array_equal(out.dataset.a.values.view("u1"), values.view("u1"))


def test_windows_are_blended_in_the_order_of_their_ids() -> None:
    samples = xr.Dataset({"a": (("y", "x"), np.zeros((3, 7)))}).xloader.window(y=2, x=2, stride=1)
    # Both have the middle cell, equally near. Along the longer dimension, the second lies first.
    samples = samples.select([1, 6])
    for ids in ([0, 1], [1, 0]):
        with samples.mosaic(blend="crop") as out:
            out.write(ids, np.ones((2, 2, 2)) * np.array(ids)[:, None, None])
        assert out.dataset.a.values[1, 1] == 0
        assert out.coverage.a.values[1, 1] == 2


def test_infinity_outweighs_numbers_in_any_order() -> None:
    samples = xr.Dataset({"a": ("x", np.zeros(3))}).xloader.window(x=2, stride=1)
    for first, second in [(np.inf, 1.0), (1.0, np.inf)]:
        with samples.mosaic() as out:
            out.write([0, 1], np.array([[0.0, first], [second, 0.0]]))
        assert out.dataset.a.values.tolist() == [0.0, np.inf, 0.0]


@given(
    taken=st.tuples(st.integers(0, 3), st.integers(1, 4)),
    stride=st.integers(1, 3),
    step=st.integers(1, 2),
    seed=st.integers(0, 5),
)
def test_leads_are_kept_apart(taken: tuple[int, int], stride: int, step: int, seed: int) -> None:
    offsets = slice(taken[0], min(taken[0] + taken[1] + 1, 6), step)
    leads = range(*offsets.indices(6))
    samples = (
        numbered(20, 3)
        .xloader.window(time=6, lat=2, stride={"time": stride, "lat": 1})
        .targets("cell", time=offsets)
    )
    cells = arrays_of(samples, "targets")[:, 0]
    predictions = np.random.default_rng(seed).normal(size=(len(cells), 1, *cells.shape[1:]))
    with samples.mosaic() as out:
        out.write(np.arange(len(samples)), predictions)
    found = out.dataset["cell"]
    starts = np.arange(0, 15, stride)
    if len(leads) == 1:
        # A single lead lies at its own label.
        assert found.dims == ("time", "lat")
        assert (found.time.values == numbered(20).time.values[starts + leads[0]]).all()
        return
    assert found.dims == ("time", "lead", "lat")
    assert (found.lead.values == np.array(leads) * np.timedelta64(6, "h")).all()
    times = numbered(20).time.values
    assert (found.time.values == times[starts]).all()
    assert (found.valid_time.values == times[starts[:, None] + np.array(leads)]).all()
    for number, start in enumerate(starts):
        for k, lead in enumerate(leads):
            own = cells // 3 == start + lead
            at = np.argwhere(own[:, k].any(axis=1) & (cells[:, 0, 0] // 3 == start + leads[0]))
            for lat in range(3):
                covering = [
                    predictions[i, 0, k][cells[i, k] % 3 == lat]
                    for i in at[:, 0]
                    if (cells[i, k] % 3 == lat).any()
                ]
                expected = np.mean(covering)
                assert found.values[number, k, lat] == pytest.approx(expected, rel=1e-12)


def test_which_parts_of_windows_are_leads() -> None:
    ds = numbered(20, 4, labels=False).assign_coords(lat=[60.0, 50.0, 40.0, 30.0])
    samples = ds.xloader.window(time=4, lat=3, stride=1).targets(
        "cell", time=slice(2, 4), lat=slice(0, 2)
    )

    def dims(**options: Any) -> tuple[str, ...]:
        with samples.mosaic(**options) as out:
            out.write(np.arange(len(samples)), samples[:].targets)
        return out.dataset["cell"].dims

    # Without labels, leads are counted in elements. Parts along latitudes are parts of patches.
    assert dims() == ("time", "lead", "lat")
    assert dims(leads=()) == ("time", "lat")
    assert dims(leads="lat") == ("time", "lat", "lead")
    assert dims(leads=("time", "lat")) == ("time", "time_lead", "lat", "lat_lead")
    with samples.mosaic(leads=("time", "lat")) as out:
        out.write(np.arange(len(samples)), samples[:].targets)
    assert out.dataset["time_lead"].values.tolist() == [2, 3]
    assert out.dataset["valid_lat"].values.tolist() == [[60, 50], [50, 40]]


def test_unequal_leads_are_kept_apart() -> None:
    ds = numbered(20, 4).assign_coords(lat=[60.0, 50.0, 40.0, 30.0])
    samples = ds.xloader.window(time=1, lat=2, stride=1).targets("cell", time=["+1D", "+6h", "+2D"])
    with samples.mosaic() as out:
        out.write(np.arange(len(samples)), samples[:].targets)
    found = out.dataset["cell"]
    assert found.dims == ("time", "lead", "lat")
    assert (found.lead.values == np.array([24, 6, 48], "m8[h]")).all()
    expected = ds["cell"].values[np.arange(12)[:, None] + np.array([4, 1, 8])]
    assert (found.values == expected).all()
    assert (found.valid_time.values[0] == ds.time.values[[4, 1, 8]]).all()
    with pytest.raises(OptionError, match=r"cannot be blended.*\[4, 1, 8\].*leads=\('time',\)"):
        samples.mosaic(leads=())


def test_leads_of_months_are_counted_in_steps() -> None:
    time = np.arange("2001-01", "2002-01", dtype="M8[M]").astype("M8[ns]")
    ds = numbered(12, labels=False).assign_coords(time=time)
    samples = ds.xloader.window(time=4, stride=1).targets("cell", time=slice(2, 4))
    with samples.mosaic() as out:
        out.write(np.arange(len(samples)), samples[:].targets)
    assert out.dataset["lead"].values.tolist() == [2, 3]
    assert out.dataset["valid_time"].values[1].tolist() == time[[3, 4]].tolist()


def test_a_gap_keeps_labels_and_leads_right() -> None:
    ds = numbered(30).isel(time=[*range(12), *range(15, 30)])
    samples = ds.xloader.window(time=4, stride=1).targets("cell", time=slice(2, 4))
    with samples.mosaic() as out:
        out.write(np.arange(len(samples)), samples[:].targets)
    found = out.dataset
    assert found.sizes["time"] == len(samples) == 9 + 12
    by_label = ds["cell"].sel(time=found["valid_time"])
    np.testing.assert_array_equal(found["cell"].values, by_label.values)


def channels() -> xr.Dataset:
    rng = np.random.default_rng(0)
    shape = (12, 3, 4, 6)
    return xr.Dataset(
        {
            "z": (("time", "level", "lat", "lon"), rng.normal(size=shape), {"units": "m2 s-2"}),
            "t": (("time", "lat", "lon"), rng.normal(size=(12, 4, 6)), {"units": "K", "n": 1}),
            "orography": (("lat", "lon"), rng.normal(size=(4, 6))),
        },
        {
            "time": np.arange("2001-01-01", "2001-01-13", dtype="M8[D]").astype("M8[ns]"),
            "level": [850, 500, 250],
            "lat": [60.0, 50, 40, 30],
            "area": (("lat", "lon"), rng.normal(size=(4, 6))),
            "height": 2.0,
        },
    )


def test_channels_become_variables_with_their_own_dims_and_coordinates() -> None:
    ds = channels()
    store = write_store(ds, {"z": (4, 1, 4, 6), "t": (4, 4, 6), "orography": (4, 6)})
    samples = (
        xloader.open(store, dtype=None)
        .sel(level=slice(850, 500))
        .isel(lat=slice(1, None))
        .window(time=3, lat=2, stride=1)
        .inputs("t", time=0)
        .targets("z", "t")
    )
    with samples.mosaic() as out:
        for batch in samples.loader(batch_size=3, output="numpy"):
            out.write(batch, batch.targets)
    expected = ds[["z", "t"]].sel(level=slice(850, 500)).isel(lat=slice(1, None))
    xr.testing.assert_identical(out.dataset, expected)


def test_a_variable_without_time_is_predicted_at_each_time() -> None:
    ds = channels()
    samples = ds.xloader.window(time=2, stride=1).targets("t", "orography", time=1)
    with samples.mosaic() as out:
        out.write(np.arange(len(samples)), samples[:].targets)
    found = out.dataset["orography"]
    assert found.dims == ("time", "lat", "lon")
    assert (found == ds["orography"]).all()
    assert found.sizes["time"] == 11
    xr.testing.assert_equal(out.dataset["t"], ds["t"].isel(time=slice(1, None)))


def test_a_dropped_level_leaves_its_label() -> None:
    ds = channels()
    samples = ds.xloader.sel(level=500).window(time=2).field("z", "z")
    with samples.mosaic(field="z") as out:
        out.write(np.arange(len(samples)), samples[:]["z"])
    xr.testing.assert_identical(out.dataset, ds[["z"]].sel(level=500))


def test_samples_around_points_lie_where_they_are() -> None:
    ds = numbered(6, 8, 8).assign_coords(lat=np.arange(8.0), lon=np.arange(8.0))
    table = {"time": ds.time.values[[1, 4]], "lat": [3.0, 4.0], "lon": [2.0, 5.0]}
    samples = ds.xloader.window(time=1, lat=3, lon=3).at_points(pd.DataFrame(table))
    with samples.mosaic(field="cell") as out:
        out.write(np.arange(len(samples)), samples[:]["cell"])
    found = out.dataset["cell"]
    assert dict(found.sizes) == {"time": 4, "lat": 4, "lon": 6}
    assert out.num_uncovered == 4 * 4 * 6 - 18
    whole = found.reindex_like(ds)
    xr.testing.assert_identical(whole, ds["cell"].where(whole.notnull()))
    assert whole.isel(time=1, lat=slice(2, 5), lon=slice(1, 4)).notnull().all()


def test_the_mosaic_of_a_part_has_the_cells_of_the_part() -> None:
    ds = numbered(40, 6, 7)
    ds = ds.assign_coords(time=np.arange(40) * np.timedelta64(6, "h") + np.datetime64("2001-01-01"))
    samples = ds.xloader.window(time=4, lat=2, stride={"time": 1, "lat": 3})
    parts = samples.split(
        time={"train": slice(None, "2001-01-06"), "test": slice("2001-01-07", None)}
    )
    test = parts["test"]
    for field, first, num_cells in [("whole", 24, 16), ("last", 27, 13), ("leads", 24, 13)]:
        taken = {"whole": slice(None), "last": 3, "leads": slice(1, 3)}[field]
        with test.field(field, "cell", time=taken).mosaic() as out:
            out.write(np.arange(len(test)), test.field(field, "cell", time=taken)[:][field])
        found = out.dataset["cell"]
        # Along lat, the part has the first and the last window: the border stays as it is.
        assert found.sizes["lat"] == 6
        assert found.time.values.tolist() == ds.time.values[first : first + num_cells].tolist()
        assert out.num_uncovered == found.isnull().sum() == found[..., 2::3, :].size
        date = found.valid_time if field == "leads" else found.time
        wanted = ds["cell"].sel(time=date).transpose(*found.dims)
        np.testing.assert_array_equal(found, wanted.where(found.notnull()))


def test_units_go_with_normalized_values_unless_they_are_kept() -> None:
    samples = channels().xloader.window(time=2).targets("t").normalize({"t": (280.0, 10.0)})
    for keep_units, expected in [(False, {"n": 1}), (True, {"units": "K", "n": 1})]:
        with samples.mosaic(keep_units=keep_units) as out:
            out.write(np.arange(len(samples)), samples[:].targets)
        assert out.dataset["t"].attrs == expected


def test_labels_that_zarr_has_no_words_for_are_stored(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(6, 4)
    days = xr.date_range("2001-01-01", periods=6, calendar="noleap", use_cftime=True)
    pairs = pd.MultiIndex.from_product([[1, 2], [1, 2, 3]], names=["p", "q"])
    stations: list[dict[str, Any]] = [
        {"time": days},
        {"time": ["a", "bc", "d", "e", "f", "g"]},
        {"season": ("time", pd.Categorical(list("abcabc")))},
        dict(xr.Coordinates.from_pandas_multiindex(pairs, "time")),
    ]
    for number, coords in enumerate(stations):
        ds = xr.Dataset({"a": (("time", "x"), values)}, coords)
        samples = ds.xloader.window(x=2)
        with samples.mosaic(tmp_path / f"{number}.zarr") as out:
            out.write(range(2), samples[:].a)
        expected = ds.reset_index("time") if number == 3 else ds
        xr.testing.assert_equal(
            out.dataset.load().drop_vars("season", errors="ignore"),
            expected.drop_vars("season", errors="ignore"),
        )
        if "season" in coords:
            assert out.dataset.season.values.tolist() == list("abcabc")
        with samples.mosaic() as out:
            out.write(range(2), samples[:].a)
        xr.testing.assert_identical(out.dataset, ds)


def test_names_that_are_paths_become_groups(tmp_path: Path) -> None:
    """The names of joined samples."""
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "radar/rain": (("time", "radar/y", "lon"), rng.normal(size=(6, 5, 4))),
            "era5/rain": (("time", "era5/y", "lon"), rng.normal(size=(6, 5, 4))),
        },
        {
            "time": range(6),
            "radar/y": np.arange(5.0),
            "radar/height": ("radar/y", np.ones(5)),
            "lon": np.arange(4.0),
        },
    )
    both = ds.xloader.window(time=2)
    for name in ds.data_vars:
        samples = both.field("rain", name)
        path = tmp_path / f"{str(name)[:4]}.zarr"
        with samples.mosaic(path) as out:
            out.write(range(3), samples[:].rain)
        with samples.mosaic() as in_memory:
            in_memory.write(range(3), samples[:].rain)
        expected = ds[[name]]
        xr.testing.assert_identical(in_memory.dataset, expected)
        xr.testing.assert_identical(out.dataset.load(), expected)
        xr.testing.assert_identical(out.coverage.load().drop_attrs(), in_memory.coverage)
        group = str(name).partition("/")[0]
        assert "rain" in xr.open_zarr(path, group=group)
        found = xr.open_datatree(path, engine="zarr")[group]
        assert found["rain"].dims == ("time", "y", "lon")
        assert (found["rain"].values == ds[name].values).all()
        tree = xr.open_datatree(path, engine="zarr")
        assert (tree["_coverage"][group]["rain"] == 1).all()


def test_variables_of_several_groups_lie_in_one_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            name: (("time", "x"), rng.normal(size=(6, 5)))
            for name in ("era5/t2m", "radar/rain", "z")
        },
        {"time": range(6), "x": np.arange(5.0)},
    )
    samples = ds.xloader.window(time=2).targets(*map(str, ds.data_vars))
    with samples.mosaic(tmp_path / "a.zarr") as out:
        out.write(range(3), samples[:].targets)
    xr.testing.assert_identical(out.dataset.load(), ds)
    tree = xr.open_datatree(tmp_path / "a.zarr", engine="zarr")
    assert set(tree.children) == {"era5", "radar", "_coverage"}
    assert set(tree.data_vars) == {"z"}


def test_a_field_of_joined_sources_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = [numbered(40).time.values[::step] for step in (4, 1)]
    coarse = xr.Dataset({"t2m": (("time", "lat"), rng.normal(size=(10, 4)))}, {"time": times[0]})
    fine = xr.Dataset({"rain": (("time", "lat"), rng.normal(size=(40, 6)))}, {"time": times[1]})
    samples = (
        xloader.join({"era5": coarse, "radar": fine})
        .window(time=2, stride=1)
        .inputs("era5/t2m", time=0)
        .targets("radar/rain", time=1)
    )
    with samples.mosaic(tmp_path / "a.zarr") as out:
        for batch in samples.loader(batch_size=4, output="numpy"):
            out.write(batch, batch.targets)
    found = xr.open_zarr(tmp_path / "a.zarr", group="radar").rain
    expected = fine.rain.sel(time=times[0][1:])
    assert (found.values == expected.values).all()
    xr.testing.assert_equal(found.time, expected.time)
