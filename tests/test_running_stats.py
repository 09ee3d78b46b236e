"""Running statistics against NumPy in float64: fields, channels, padding, NaN, merging, states."""

from __future__ import annotations

import json
import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Batch, RunningStats, Samples
from xloader.errors import OptionError, StateError, StatisticsWarning, UnsupportedDataError

STATS = ["count", "mean", "std", "min", "max"]


def weather() -> xr.Dataset:
    rng = np.random.default_rng(9)
    z = rng.normal(5e4, 900, (40, 3, 4, 6)).astype("f4")
    z[3, 1, :2] = np.nan
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat", "lon"),
                rng.normal(280, 20, (40, 4, 6)).astype("f4"),
                {"units": "K", "long_name": "temperature", "other": 1},
            ),
            "z": (("time", "level", "lat", "lon"), z),
            "oro": (("lat", "lon"), rng.random((4, 6))),
        },
        {"time": np.arange(40), "level": [500, 700, 850]},
    )


def stacked(ds: xr.Dataset | None = None) -> Samples:
    samples = (weather() if ds is None else ds).xloader.window(time=3, stride=2)
    return samples.inputs("t2m", "z", "oro", time=slice(0, 2)).targets("z", time=2)


def wanted_of(arrays: list[np.ndarray]) -> np.ndarray:
    values = np.concatenate([array.astype("f8").ravel() for array in arrays])
    values = values[~np.isnan(values)]
    return np.array([values.size, values.mean(), values.std(), values.min(), values.max()])


def check(dataset: xr.Dataset, name: str, arrays: list[np.ndarray], **at: Any) -> None:
    """Compare the statistics of a variable with those of arrays."""
    found = dataset[name].sel(at)
    assert found.stat.values.tolist() == STATS
    np.testing.assert_allclose(found, wanted_of(arrays), rtol=1e-12)


def run_over(samples: Samples, running: RunningStats, **options: Any) -> RunningStats:
    with samples.loader(batch_size=4, on_nan="ignore", **options) as loader:
        for batch in loader:
            running.update(batch)
    return running


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("is_given", [True, False])
def test_names_are_those_of_the_store(output: str, is_given: bool) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    samples = stacked()
    running = run_over(samples, RunningStats(samples if is_given else None), output=output)
    dataset = running.to_dataset()
    inputs, targets = samples[:]
    check(dataset, "t2m", [inputs[:, 0]])
    check(dataset, "oro", [inputs[:, 4]])
    for number, level in enumerate([500, 700, 850]):
        # A variable of two fields counts in both.
        check(dataset, "z", [inputs[:, 1 + number], targets[:, number]], level=level)
    assert dataset.z.dims == ("stat", "level")
    assert dataset.t2m.attrs == {"units": "K", "long_name": "temperature"}
    assert dataset.attrs["xloader_fingerprint"] == samples.recipe.source.fingerprint
    assert running.num_samples == len(samples)
    by_channel = running["inputs"]
    assert by_channel.mean.shape == (5,)
    np.testing.assert_allclose(by_channel.mean[2], np.nanmean(inputs[:, 2].astype("f8")))


def test_normalize_takes_the_result(tmp_path: Path) -> None:
    samples = stacked()
    dataset = run_over(samples, RunningStats(samples), output="numpy").to_dataset()
    normal = samples.normalize(dataset)
    whole = run_over(normal, RunningStats(normal), output="numpy").to_dataset()
    for name in ("t2m", "z", "oro"):
        np.testing.assert_allclose(whole[name].sel(stat="mean"), 0, atol=1e-5)
        np.testing.assert_allclose(whole[name].sel(stat="std"), 1, atol=1e-5)
    assert "units" not in whole.t2m.attrs
    dataset.to_netcdf(tmp_path / "stats.nc")
    with xr.open_dataset(tmp_path / "stats.nc") as loaded:
        assert samples.normalize(loaded).recipe == normal.recipe


def test_unstacked_fields_and_slabs() -> None:
    samples = weather().xloader.window(time=2)
    dataset = run_over(samples, RunningStats(samples), output="numpy").to_dataset()
    assert dataset.z.dims == ("stat",)
    check(dataset, "z", [samples[:].z])
    both = samples.field("z", "z").inputs("z", time=0)
    dataset = run_over(both, RunningStats(both), output="numpy").to_dataset()
    field, inputs = both[:]
    for number, level in enumerate([500, 700, 850]):
        check(dataset, "z", [field[:, number], inputs[:, number]], level=level)
    part = stacked().slab("lat", 1, 2)
    dataset = run_over(part, RunningStats(part), output="numpy").to_dataset()
    check(dataset, "t2m", [part[:][0][:, 0]])


def test_padded_rows_do_not_count() -> None:
    samples = stacked()
    assert len(samples) % 4
    running = RunningStats(samples)
    for rank in range(3):
        run_over(samples, running, output="numpy", world=xloader.World(rank, 3))
    assert running.num_padding > 0
    assert f"{running.num_padding} padded rows left out" in repr(running)
    check(running.to_dataset(), "t2m", [samples[:][0][:, 0]])
    plain = RunningStats()
    plain.update((np.array([1.0, 5.0, 100.0]),), is_padding=[False, False, True])
    assert plain.to_dataset()["0"].values.tolist() == [2, 3, 2, 1, 5]


def test_batches_that_a_function_has_made() -> None:
    samples = stacked().map(lambda ds: ds.assign(speed=ds.inputs.isel(inputs_channel=0) * 2))
    dataset = run_over(samples, RunningStats(samples), output="numpy").to_dataset()
    inputs, _, speed = samples[:]
    assert dataset.inputs.dims == ("stat", "inputs_channel")
    assert dataset.inputs_channel.values.tolist() == ["t2m", "z_500", "z_700", "z_850", "oro"]
    check(dataset, "inputs", [inputs[:, 2]], inputs_channel="z_700")
    check(dataset, "speed", [speed])


@pytest.mark.parametrize("form", ["tuple", "dict", "Dataset", "Batch"])
def test_arrays_of_unknown_samples(form: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 3, 5)), rng.integers(0, 9, 7)
    batch: Any = {"x": x, "y": y}
    if form == "tuple":
        batch = (x, y)
    elif form == "Dataset":
        batch = xr.Dataset({"x": (("sample", "channel", "lat"), x), "y": ("sample", y)})
    elif form == "Batch":
        batch = Batch([x, y], ["x", "y"], np.arange(7))
    running = RunningStats(channel_axis=1)
    running.update(batch)
    running.update(batch)
    dataset = running.to_dataset()
    names = ("0", "1") if form == "tuple" else ("x", "y")
    assert dataset[names[0]].dims == ("stat", f"{names[0]}_channel")
    for channel in range(3):
        found = dataset[names[0]].isel({f"{names[0]}_channel": channel})
        np.testing.assert_allclose(found, wanted_of([x[:, channel]] * 2), rtol=1e-12)
    check(dataset, names[1], [y, y])
    whole = RunningStats()
    whole.update({"x": x})
    check(whole.to_dataset(), "x", [x])


def test_labelled_batches() -> None:
    samples = stacked()
    running, labelled = RunningStats(samples), RunningStats(samples)
    running.update(samples[[1, 4]])
    labelled.update(samples.to_xarray([1, 4]))
    assert labelled.to_dataset().identical(running.to_dataset())


def test_merging() -> None:
    samples = stacked()
    parts = []
    for rank in range(3):
        part = RunningStats(samples)
        parts.append(run_over(samples, part, output="numpy", world=xloader.World(rank, 3)))
    before = [part.state_dict() for part in parts]
    merged = reduce(RunningStats.merge, parts, RunningStats(samples))
    check(merged.to_dataset(), "t2m", [samples[:][0][:, 0]])
    assert merged.num_samples == len(samples)
    assert [part.state_dict() for part in parts] == before
    sent = [pickle.loads(pickle.dumps(part)) for part in parts]
    again = reduce(RunningStats.merge, sent, RunningStats())
    assert again.to_dataset().identical(merged.to_dataset())
    other = RunningStats()
    other.update({"x": np.ones(3)})
    with pytest.raises(OptionError, match="different fields cannot be merged"):
        merged.merge(other)
    shorter = RunningStats(channel_axis=1)
    shorter.update({"x": np.ones((3, 2))})
    with pytest.raises(OptionError, match="another number of channels"):
        shorter.merge(other)


@pytest.mark.parametrize("is_named", [True, False])
def test_states(is_named: bool) -> None:
    samples = stacked()

    def make() -> RunningStats:
        return RunningStats(samples) if is_named else RunningStats(channel_axis=1)

    def give(running: RunningStats, ids: list[int]) -> None:
        batch = samples[ids]
        running.update(batch if is_named else tuple(batch))

    whole, first, second = make(), make(), make()
    give(whole, [0, 1])
    give(first, [0, 1])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for running in (whole, second):
        give(running, [5])
    assert second.to_dataset().identical(whole.to_dataset())
    assert second.state_dict() == whole.state_dict()
    for bad in ({}, 3, {**first.state_dict(), "version": 7}, {**first.state_dict(), "series": 1}):
        with pytest.raises(StateError, match="damaged"):
            make().load_state_dict(bad)  # type: ignore[arg-type]
    other = RunningStats(weather().xloader.window(time=2))
    with pytest.raises(StateError, match="other fields"):
        other.load_state_dict(first.state_dict())
    if is_named:
        with pytest.raises(StateError, match=r"RunningStats\(samples\)"):
            RunningStats().load_state_dict(first.state_dict())


def test_bad_batches() -> None:
    samples = stacked()
    running = RunningStats(samples)
    inputs, targets = samples[[0, 1]]
    for batch, message in (
        ({"inputs": inputs}, "other fields than the samples"),
        ((inputs,), "other fields than the samples"),
        ((inputs[:, 1:], targets), "other fields than the samples"),
        ((inputs, targets[:1]), "the parts of a batch do not match"),
        ((), "other fields than the samples"),
    ):
        with pytest.raises(OptionError, match=message):
            running.update(batch)
    for batch in (3.0, inputs, "x", {"inputs": np.array(["a"]), "targets": targets}):
        with pytest.raises(UnsupportedDataError):
            running.update(batch)
    with pytest.raises(OptionError, match="parts of a batch do not match"):
        running.update((inputs, targets), is_padding=[True])
    with pytest.raises(OptionError, match="no batch of the field 'inputs'"):
        running["inputs"]
    assert running.num_samples == 0
    assert list(running.to_dataset().data_vars) == []
    unknown = RunningStats()
    with pytest.raises(OptionError, match="parts of a batch do not match"):
        unknown.update({"x": np.ones(3), "y": np.ones(2)})
    unknown.update({"z": np.ones(3)})
    assert list(unknown.to_dataset().data_vars) == ["z"]
    with pytest.raises(OptionError, match="not an axis of channels"):
        RunningStats(channel_axis=0)


# Statistics of others


def statistics(samples: Samples) -> xr.Dataset:
    return run_over(samples, RunningStats(samples), output="numpy").to_dataset()


def test_statistics_that_lack_variables_are_refused_but_for_chosen_ones() -> None:
    ds = weather()
    stats = statistics(stacked(ds))
    stats.attrs.pop("xloader_fingerprint")
    more = ds.assign(q=ds.t2m + 1).xloader.window(time=3)
    with pytest.raises(OptionError, match=r"lack variables that the samples use.*'q'"):
        more.inputs("t2m", "q").normalize(stats)
    chosen = more.inputs("t2m", "q").normalize(stats[["t2m"]])
    assert "normalize(t2m (mean 279.093, std 20.0822))" in repr(chosen)
    # Orography is noted and masks are not, and statistics of more variables do no harm.
    told = repr(more.inputs("t2m", "oro").normalize(stats[["t2m", "z"]]))
    assert "normalize leaves oro of inputs unchanged" in told
    opened = xloader.open(ds, variables=["t2m"]).window(time=3)
    assert "normalize(t2m (mean " in repr(opened.normalize(stats))


def test_statistics_of_copies_and_with_forcings_are_of_the_same_data() -> None:
    ds = weather().assign_coords(time=xr.date_range("2000-01-01", periods=40, freq="6h"))
    stats = statistics(stacked(ds))
    other = ds.assign(t2m=ds.t2m.assign_attrs(units="degC"))
    with pytest.warns(StatisticsWarning):
        stacked(other).normalize(stats.sel(stat="mean"), stats.sel(stat="std"))
    # A copy that xloader has written says what it is a copy of.
    origin = {"xloader_origin_fingerprint": stats.attrs["xloader_fingerprint"]}
    stacked(other.assign_attrs(origin)).normalize(stats)
    forced = ds.xloader.forcing("sin_day_of_year").window(time=3)
    names = [name for name in forced.recipe.variables if name not in ds]
    forced.inputs("t2m", "z", *names).normalize(stats)
    stats.attrs.pop("xloader_fingerprint")
    stacked(other).normalize(stats)
