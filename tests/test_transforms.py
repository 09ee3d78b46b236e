"""Recorded steps equal the same arithmetic in plain NumPy and xarray."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import (
    EmptySamplesError,
    OptionError,
    TransformError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.recipe.layout import make_layouts
from xloader.transforms import xarray_methods as recorded
from xloader.transforms.fillna import BLOCK_SIZE
from xloader.transforms.outputs import finish
from xloader.transforms.steps import Map
from xloader.transforms.xarray_methods import make_method


def _dataset() -> xr.Dataset:
    rng = np.random.default_rng(1)
    t2m = rng.normal(280, 10, (12, 4, 6)).astype(np.float32)
    t2m[3, 1] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K", "long_name": "temperature"}),
            "z": (("time", "level", "lat", "lon"), rng.normal(5, 2, (12, 3, 4, 6))),
            "oro": (("lat", "lon"), rng.random((4, 6))),
            "count": (("time", "lat", "lon"), rng.integers(0, 9, (12, 4, 6), np.int16)),
        },
        coords={"level": [500, 850, 1000], "lat": [60.0, 50.0, 40.0, 30.0], "time": np.arange(12)},
    )


@pytest.fixture
def ds() -> xr.Dataset:
    return _dataset()


LEVEL_MEAN = xr.DataArray(
    [1000.0, 5.0, 7.0, 9.0], dims="level", coords={"level": [300, 1000, 850, 500]}
)
LEVEL_STD = LEVEL_MEAN + 1


@pytest.mark.parametrize(
    "stats",
    [
        {"t2m": (280, 10), "z": (5, 2)},
        {"t2m": {"mean": 280, "std": 10}, "z": {"mean": 5, "std": 2}},
        {"mean": {"t2m": 280, "z": 5}, "std": {"t2m": 10, "z": 2}},
        {"mean": xr.Dataset({"t2m": 280, "z": 5}), "std": xr.Dataset({"t2m": 10, "z": 2})},
        xr.Dataset({"t2m_mean": 280, "t2m_std": 10, "z_mean": 5, "z_std": 2, "other": 3}),
        xr.Dataset(
            {"t2m": ("stat", [10.0, 280.0]), "z": ("stat", [2.0, 5.0])}, {"stat": ["std", "mean"]}
        ),
    ],
    ids=["pairs", "mappings", "mean and std", "two Datasets", "suffixes", "a stat dimension"],
)
def test_every_form_of_statistics(ds: xr.Dataset, stats: Any) -> None:
    samples = ds.xloader.window(time=2).inputs("t2m", "oro").targets("z", time=1)
    both = isinstance(stats, dict) and "mean" in stats
    normal = samples.normalize(**stats) if both else samples.normalize(stats)
    inputs, targets = normal[2]
    raw_inputs, raw_targets = samples[2]
    np.testing.assert_array_equal(inputs[0], (raw_inputs[0] - 280) / 10)
    np.testing.assert_array_equal(inputs[1], raw_inputs[1])
    np.testing.assert_array_equal(targets, (raw_targets - 5) / 2)
    assert inputs.dtype == raw_inputs.dtype
    if both:
        # By position, too.
        assert samples.normalize(stats["mean"], stats["std"]).recipe == normal.recipe


@pytest.mark.parametrize(
    ("level", "expected"), [([0, 1, 2], [9, 7, 5]), ([0, 2], [9, 5]), (1, [7])]
)
def test_statistics_by_level_follow_the_labels(
    ds: xr.Dataset, level: Any, expected: list[float]
) -> None:
    samples = ds.xloader.isel(level=level).window(time=1).inputs("t2m", "z")
    raw, normal = samples[5][0], samples.normalize({"z": (LEVEL_MEAN, LEVEL_STD)})[5][0]
    np.testing.assert_array_equal(normal[0], raw[0])
    for channel, mean in enumerate(expected, start=1):
        np.testing.assert_allclose(normal[channel], (raw[channel] - mean) / (mean + 1), rtol=1e-14)


def test_statistics_by_level_without_labels_count_positions(ds: xr.Dataset) -> None:
    samples = ds.xloader.isel(level=[0, 2]).window(time=1).inputs("z")
    raw = samples[5][0]
    stored = samples.normalize({"z": (np.array([1.0, 2, 3]), [4, 5, 6])})[5][0]
    selected = samples.normalize({"z": (np.array([1.0, 3]), [4, 6])})[5][0]
    np.testing.assert_allclose(stored[1], (raw[1] - 3) / 6, rtol=1e-14)
    np.testing.assert_array_equal(stored, selected)


def test_integers_become_floats(ds: xr.Dataset) -> None:
    samples = ds.assign(wide=ds["count"].astype("i8")).xloader.window(time=1)
    normal = samples.normalize({"count": (1, 2), "wide": (1, 2)})
    assert samples.dtypes["count"] == np.int16
    assert (normal.dtypes["count"], normal.dtypes["wide"]) == (np.float32, np.float64)
    actual = dict(zip(normal.fields, normal[4], strict=True))["count"]
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual[0], (ds["count"][4].astype("f4") - 1) / 2)


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ({"t2m": (0, 0)}, "std of 't2m' cannot.*Given: 0.0. Allowed: finite numbers > 0"),
        ({"t2m": (0, np.nan)}, "std of 't2m' cannot be used to normalise"),
        ({"t2m": (np.nan, 1)}, "mean of 't2m' cannot.*Allowed: finite numbers"),
        ({"t2n": (0, 1)}, "did you mean 't2m'"),
        ({"t2m": 3}, "statistics of 't2m' are not a pair of mean and std. Given: 3"),
        ({"t2m": {"mean": 3}}, "statistics of 't2m' are not a pair"),
        ({"t2m": ("a", "b")}, "mean of 't2m' does not fit"),
        ({"t2m": ([1, 2], 1)}, "mean of 't2m' does not fit"),
        ({"z": (0, [1, 2])}, "std of 'z' does not fit.*2 values along 'level'"),
        ({"z": (LEVEL_MEAN[:2], 1)}, "mean of 'z' does not fit.*labels"),
        (
            {"t2m": (xr.DataArray([0.0] * 11, dims="time"), 1)},
            "11 values along 'time'",
        ),
        ({"t2m": (xr.DataArray([0.0] * 2, dims="x"), 1)}, r"does not fit.*dimensions \('x',\)"),
        (xr.Dataset({"a": 1}), "does not hold a mean and a standard deviation"),
        (3, "do not say which variable they belong to"),
    ],
)
def test_bad_statistics(ds: xr.Dataset, stats: Any, message: str) -> None:
    kind = UnknownNameError if "did you mean" in message else OptionError
    with pytest.raises(kind, match=message):
        ds.xloader.window(time=1).normalize(stats)


def test_statistics_are_given_once_and_of_the_same_variables(ds: xr.Dataset) -> None:
    samples = ds.xloader.window(time=1)
    for given, mean in (((), None), (({},), {}), (({}, {}), {})):
        with pytest.raises(OptionError, match="statistics are missing or given twice"):
            samples.normalize(*given, mean=mean)
    with pytest.raises(OptionError, match="do not name the same variables"):
        samples.normalize(mean={"t2m": 1}, std={"z": 1})


def test_fillna_by_variable_and_in_order(ds: xr.Dataset) -> None:
    samples = ds.xloader.window(time=1).inputs("t2m", "z")
    hole = samples.normalize({"t2m": (280, 10)}).fillna(0)[3][0]
    first = samples.fillna({"t2m": 280, "z": 7}).normalize({"t2m": (270, 10)})[3][0]
    assert (hole[0, 0, 1] == 0).all()
    assert (first[0, 0, 1] == 1).all()
    # What is filled in one variable leaves the others alone.
    assert np.isnan(samples[3][0]).sum() == np.isnan(samples.fillna({"z": 4})[3][0]).sum() == 6


def test_fillna_of_arrays_longer_than_a_block() -> None:
    values = np.zeros((2, BLOCK_SIZE + 3), np.float32)
    values[:, -2:] = np.nan
    ds = xr.Dataset({"a": (("time", "x"), values)})
    (filled,) = ds.xloader.window(time=1).fillna(5.0)[1]
    np.testing.assert_array_equal(filled[0, -3:], [0, 5, 5])


def test_bad_fillna(ds: xr.Dataset) -> None:
    samples = ds.xloader.window(time=1)
    with pytest.raises(OptionError, match=r"not a number. Given: 'a'.*map"):
        samples.fillna("a")
    with pytest.raises(UnknownNameError, match=r"no variable with this name"):
        samples.fillna({"t2": 0})


def test_map_per_sample_has_the_labels_as_indexes(ds: xr.Dataset) -> None:
    def warm(one: xr.Dataset) -> xr.Dataset:
        assert "sample" not in one.dims
        last = one["time"].values[-1]
        return one[["t2m"]].sel(lat=slice(50, 40), time=last).assign(end=one["time"].max())

    samples = ds[["t2m"]].xloader.window(time=2, stride=1).map(warm, per="sample")
    batch = samples[[3, 7, 5]]
    np.testing.assert_array_equal(batch.t2m, ds["t2m"].isel(time=[4, 8, 6], lat=[1, 2]))
    assert batch.end.tolist() == [4, 8, 6]
    expected = ds["t2m"].isel(time=8, lat=[1, 2])
    xr.testing.assert_identical(samples.to_xarray(7)["t2m"], expected)


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_channels_keep_their_names(ds: xr.Dataset, per: Any) -> None:
    samples = ds.xloader.window(time=2).inputs("z", "t2m").map(lambda d: d * 2, per=per)
    assert samples.channels("inputs") == ("z_500", "z_850", "z_1000", "t2m")
    more = samples.map(lambda d: d.pad(channel=(0, 1)).assign_coords(channel=[*"abcde"]))
    assert more.channels("inputs") == (*"abcde",)
    lost = samples.map(lambda d: d.mean("channel"))
    with pytest.raises(OptionError, match="'inputs' has no channels"):
        lost.channels("inputs")


def test_labels_follow_what_a_function_does(ds: xr.Dataset) -> None:
    """Labels follow a flipped dimension, whose size does not change."""
    flipped = ds[["t2m"]].xloader.window(time=3).map(lambda b: b.isel(lat=slice(None, None, -1)))
    after = flipped.map(lambda one: one.sel(lat=[30.0]), per="sample")
    assert flipped.to_xarray(0)["lat"].values.tolist() == [30.0, 40.0, 50.0, 60.0]
    np.testing.assert_array_equal(after[1][0][:, 0], ds["t2m"][3:6, 3])


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_fields_keep_their_order_and_new_ones_come_last(ds: xr.Dataset, per: Any) -> None:
    """Existing fields keep their order, so that ``inputs, targets = batch`` stays correct."""

    def rebuild(frame: xr.Dataset) -> xr.Dataset:
        new = {"b": frame["targets"] * 2, "targets": frame["targets"], "a": frame["inputs"]}
        return xr.Dataset({**new, "inputs": frame["inputs"]})

    samples = ds.xloader.window(time=2).inputs("t2m", time=0).targets("t2m", time=1)
    rebuilt = samples.map(rebuild, per=per)
    assert rebuilt.fields == ("inputs", "targets", "b", "a")
    np.testing.assert_array_equal(rebuilt[3][1], samples[3][1])
    assert rebuilt.channels("inputs") == ("t2m",)
    added = samples.map(lambda frame: frame.assign(extra=frame["inputs"]), per=per)
    assert added.fields == ("inputs", "targets", "extra")


def test_batches_align_by_labels_that_all_samples_share(ds: xr.Dataset) -> None:
    """Only labels that all samples share are indexes; windowed labels differ between samples."""

    def hour(batch: xr.Dataset) -> xr.Dataset:
        assert set(batch.indexes) == {"lat"}
        assert batch["lat"].values.tolist() == [60.0, 50.0, 40.0, 30.0]
        north = batch["t2m"].sel(lat=slice(60, 50))
        return batch.assign(when=batch["time_label"] * 2, north=north.mean(["lat", "lon"]))

    samples = ds[["t2m"]].xloader.window(time=2).map(hour)
    batch = samples[[4, 1]]
    np.testing.assert_array_equal(batch.when, [[16, 18], [4, 6]])
    north = ds["t2m"].values[[[8, 9], [2, 3]], :2]
    np.testing.assert_allclose(batch.north, np.nanmean(north, (2, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("targets", "dim"),
    [
        pytest.param(("t2m", "z"), "channel", id="the same channels in both fields"),
        pytest.param(("t2m",), "inputs_channel", id="other channels in another field"),
    ],
)
def test_channels_are_chosen_by_name(ds: xr.Dataset, targets: tuple[str, ...], dim: str) -> None:
    samples = ds.xloader.window(time=2).inputs("t2m", "z", time=0).targets(*targets, time=1)
    chosen = samples.map(lambda b: xr.Dataset({"x": b["inputs"].sel({dim: "z_850"})}))
    np.testing.assert_array_equal(chosen[[3, 1]].x, ds["z"][[6, 2], 1])


def test_a_selected_label_is_one_for_all_samples(ds: xr.Dataset) -> None:
    samples = ds[["z"]].xloader.sel(level=850).window(time=1)
    scaled = samples.map(lambda b: b / b["level"])
    np.testing.assert_array_equal(scaled[5][0], ds["z"][5:6, 1] / 850)
    # A field may have the name of a dimension, and keeps it.
    named = samples.field("level", "z").map(lambda b: b / b["level_label"])
    np.testing.assert_array_equal(named[5][0][0], ds["z"][5:6, 1] / 850)


def test_samples_may_be_mixed_with_each_other(ds: xr.Dataset) -> None:
    """Sample ids are no index. If they were, alignment would mix each sample with itself."""
    samples = ds[["z"]].xloader.window(time=2)
    mixed = samples.map(lambda b: b + b.isel(sample=slice(None, None, -1)))
    keyed = mixed.map(lambda b: b.assign(id=b["sample"]))
    batch = keyed[[4, 1]]
    np.testing.assert_array_equal(batch.z, samples[[4, 1]].z + samples[[1, 4]].z)
    assert batch.id.tolist() == [4, 1]


def test_labels_that_a_function_gives_each_sample_are_kept_apart(ds: xr.Dataset) -> None:
    def crop(one: xr.Dataset) -> xr.Dataset:
        begin = int(one["sample"]) % 2
        return one.isel(lat=slice(begin, begin + 2)).assign_coords(lon=np.arange(6))

    def check(batch: xr.Dataset) -> xr.Dataset:
        assert batch["lon"].dims == ("lon",)
        latitude = batch["lat_label"] if batch.sizes["sample"] > 1 else batch["lat"]
        return batch.assign(north=latitude.isel(lat=0) + 0 * batch["sample"])

    samples = ds[["t2m"]].xloader.window(time=2).map(crop, per="sample").map(check)
    assert samples[[2, 3, 5]].north.tolist() == [60.0, 50.0, 50.0]


def test_recorded_methods_are_declared_and_documented() -> None:
    assert sorted(recorded.RECORDED) == sorted(set(recorded.RecordedMethods.__annotations__))
    # The whole first sentence, which xarray may break into several lines.
    first_line = xr.Dataset.clip.__doc__.strip().splitlines()[0]
    assert recorded.RecordedMethods.clip.__doc__.splitlines()[0].startswith(first_line)


def test_methods_that_need_more_than_a_batch_are_refused(ds: xr.Dataset) -> None:
    samples = ds.xloader.window(time=3)
    for name in recorded.REFUSED:
        with pytest.raises(OptionError, match=rf'{name} cannot run on whole batches.*per="sample"'):
            getattr(samples, name)(time=3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda s: s.mean("sample"), "mean would work across the samples"),
        (lambda s: s.mean(dim=["sample", "lat"]), "mean would work across the samples"),
        (lambda s: s.diff(), "does not take these arguments: missing a required argument"),
        (lambda s: s.clip(0, 1, foo=2), "does not take these arguments"),
        (lambda s: s.map(3), "map cannot take these arguments"),
        (lambda s: s.map(len, per="epoch"), "map cannot take these arguments.*per='epoch'"),
    ],
)
def test_bad_recordings(ds: xr.Dataset, record: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        record(ds.xloader.window(time=3))


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda b: b["t2m"], OptionError, "did not return a Dataset. Given: DataArray"),
        (lambda b: b.mean(), OptionError, "changed the samples of 't2m'.*size 1"),
        (lambda b: b.drop_vars("t2m"), OptionError, "left no field"),
        (lambda b: b.astype(str), UnsupportedDataError, "no real numbers in 't2m'"),
        (
            lambda b: b.isel(depth=0),
            OptionError,
            r"failed on a sample of zeros.*\(ValueError: .*depth.*on samples.to_xarray\(0\)",
        ),
        (
            lambda b: b.isel(lat=[0]) - b.isel(lat=[1]),
            EmptySamplesError,
            "left no elements in 't2m'.*'lat': 0.*arrays by label",
        ),
    ],
)
def test_functions_that_break_the_rules(
    ds: xr.Dataset, fn: Any, error: type[Exception], message: str
) -> None:
    samples = ds[["t2m"]].xloader.window(time=3).map(fn)
    with pytest.raises(error, match=message):
        _ = samples.fields
    assert "none: " in repr(samples)
    if "depth" in message:
        with pytest.raises(TransformError, match=r"lambda.*recorded on samples.*depth") as caught:
            samples[0]
        assert isinstance(caught.value.__cause__, ValueError)


def stops(batch: xr.Dataset) -> xr.Dataset:
    """Raise StopIteration, as a function with an iterator of its own may do."""
    if 2 in batch["sample"].values:
        next(iter(()))
    return batch


def test_a_function_that_stops_an_iterator_does_not_end_the_epoch(ds: xr.Dataset) -> None:
    samples = ds[["t2m"]].xloader.window(time=1)
    options = {"batch_size": 2, "shuffle": False, "output": "numpy"}
    with samples.map(stops).loader(**options) as loader:
        came = []
        with pytest.raises(TransformError, match=r"map\(.*stops.*StopIteration") as caught:
            came += [batch.ids.tolist() for batch in loader]
        assert isinstance(caught.value.__cause__, StopIteration)
        assert isinstance(caught.value, RuntimeError)
    collated = samples.loader(**options, collate_fn=lambda rows: next(iter(())))
    with collated, pytest.raises(TransformError, match=r"collate_fn on a batch of 2 samples"):
        list(collated)


def some(one: xr.Dataset, lucky: int) -> xr.Dataset:
    return one.assign(extra=one["t2m"]) if one["sample"] == lucky else one


@pytest.mark.parametrize(
    ("fn", "field"),
    [
        (lambda one: one.isel(lat=slice(0, 1 + int(one["time"][0]) % 2)), "'t2m'"),
        (partial(some, lucky=0), "'extra'.*None"),
        (partial(some, lucky=1), "'extra'.*None"),
    ],
)
def test_samples_of_unequal_shapes_or_fields_are_named(ds: xr.Dataset, fn: Any, field: str) -> None:
    samples = ds[["t2m"]].xloader.window(time=3).map(fn, per="sample")
    with pytest.raises(OptionError, match=f"samples differ in the dimensions or sizes of {field}"):
        samples[[0, 1]]


def test_in_place_steps_return_the_arrays_they_were_given(ds: xr.Dataset) -> None:
    samples = ds[["t2m"]].xloader.window(time=3).fillna(0).normalize({"t2m": (1, 2)})
    layouts = make_layouts(samples.recipe)
    arrays = {layout.name: np.ones((2, *layout.shape), layout.dtype) for layout in layouts}
    finished = finish(samples.recipe, layouts, arrays, np.array([0, 1]))
    assert finished["t2m"] is arrays["t2m"]
    assert (arrays["t2m"] == 0).all()


def test_units_go_where_values_are_no_longer_in_them(ds: xr.Dataset) -> None:
    samples = ds[["t2m"]].xloader.window(time=3)
    assert samples.to_xarray(0)["t2m"].attrs == {"units": "K", "long_name": "temperature"}
    normal = samples.normalize({"t2m": (1, 2)})
    assert normal.to_xarray(0)["t2m"].attrs == {"long_name": "temperature"}


def test_a_dimension_called_sample_is_refused_where_it_clashes() -> None:
    ds = xr.Dataset({"a": (("sample", "x"), np.zeros((4, 3)))})
    samples = ds.xloader.window(sample=1)
    assert samples[2][0].shape == (1, 3)
    with pytest.raises(xloader.errors.OptionError, match=r"called 'sample'"):
        samples.map(lambda b: b)[0]


def _scaled(frame: xr.Dataset, by: float) -> xr.Dataset:
    return frame * by


def test_a_description_tells_what_was_given_and_not_where_it_lies() -> None:
    values = np.arange(5000.0)
    other = values.copy()
    # NumPy prints both arrays alike.
    other[2500] = -1.0

    def array(own: np.ndarray, dim: str = "x") -> xr.DataArray:
        return xr.DataArray(own.copy(), dims=dim)

    def told(own: Any, dim: str = "x") -> list[str]:
        return [
            make_method("clip", (), {"min": {"a": array(own, dim)}}).describe(),
            make_method("where", (array(own, dim) > 0,), {}).describe(),
            Map(partial(_scaled, by=array(own, dim))).describe(),
        ]

    assert told(values) == told(values)
    for different in (told(other), told(values, "y")):
        assert not set(told(values)) & set(different)
    dropped = make_method("drop_vars", ({"b", "a"},), {}).describe()
    assert dropped == make_method("drop_vars", ({"a", "b"},), {}).describe()
    assert "'a', 'b'" in dropped


def test_an_array_among_the_arguments_is_no_name_of_a_dimension() -> None:
    make_method("assign", (), {"more": ("lat", np.arange(7.0))})
    with pytest.raises(OptionError, match="samples of a batch"):
        make_method("assign", (), {"more": ("sample", np.arange(7.0))})
