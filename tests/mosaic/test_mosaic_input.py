"""Bad input of mosaics: named errors that say what to do. Predictions of any library are taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Batch, Samples, cli
from xloader.errors import (
    ClosedError,
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    SampleIndexError,
    SourceNotFoundError,
    TargetError,
    UnknownNameError,
    UnsupportedDataError,
)

pytestmark = pytest.mark.filterwarnings("ignore:the mosaic has holes")


def weather() -> xr.Dataset:
    values = np.random.default_rng(0).normal(size=(8, 4, 6)).astype("f4")
    static = values[0].copy()
    return xr.Dataset({"t": (("time", "lat", "lon"), values), "land": (("lat", "lon"), static)})


def windows() -> Samples:
    return weather().xloader.window(time=2, lat=2).targets("t")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"field": "inputs"}, UnknownNameError, "no field"),
        ({"blend": "max"}, OptionError, "blend"),
        ({"leads": ("level",)}, UnknownNameError, "dimension of windows"),
        ({"leads": "lon"}, UnknownNameError, "dimension of windows"),
        ({"chunks": {"level": 2}}, UnknownNameError, "dimension"),
        ({"chunks": {"time": 0}}, OptionError, "chunks of 'time'"),
        ({"chunks": "auto"}, OptionError, "by dimension"),
        ({"leads": True}, OptionError, "names of dimensions"),
        ({"memory": "lots"}, OptionError, "memory"),
        ({"target": "s3://bucket/a.zarr"}, OptionError, "not a local path"),
        ({"target": 3}, OptionError, "not a local path"),
        ({"target": "."}, OptionError, "name of its own"),
        ({"target": "/"}, OptionError, "name of its own"),
        ({"world": xloader.World(0, 2)}, OptionError, "in memory"),
        (
            {"overwrite": True, "world": xloader.World(0, 2), "target": "a"},
            OptionError,
            "other rank",
        ),
    ],
)
def test_bad_options_are_named(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        windows().mosaic(**options)


@pytest.mark.parametrize(
    ("ids", "predictions", "error", "words"),
    [
        ([0], np.zeros((1, 2, 2, 6)), TargetError, "shape of the field 'targets'"),
        ([0, 1], np.zeros((1, 1, 2, 2, 6)), TargetError, "shape"),
        ([8], np.zeros((1, 1, 2, 2, 6)), SampleIndexError, "out of range"),
        ([-1], np.zeros((1, 1, 2, 2, 6)), SampleIndexError, "out of range"),
        ([0.0], np.zeros((1, 1, 2, 2, 6)), SampleIndexError, "not sample ids"),
        (0, np.zeros((1, 1, 2, 2, 6)), SampleIndexError, "not sample ids"),
        ([0, 0], np.zeros((2, 1, 2, 2, 6)), TargetError, "written before"),
        ([3], np.zeros((1, 1, 2, 2, 6)), TargetError, "written before"),
        ([0], np.zeros((1, 1, 2, 2, 6), complex), UnsupportedDataError, "real numbers"),
        ([0], np.full((1, 1, 2, 2, 6), "a"), UnsupportedDataError, "real numbers"),
        ([0], np.zeros((1, 1, 2, 2, 6), object), UnsupportedDataError, "real numbers"),
    ],
)
def test_bad_predictions_are_named_and_nothing_of_them_is_kept(
    ids: Any, predictions: Any, error: type[Exception], words: str
) -> None:
    with windows().mosaic() as out:
        out.write([3], np.ones((1, 1, 2, 2, 6)))
        with pytest.raises(error, match=words):
            out.write(ids, predictions)
        assert out.done_ids.tolist() == [3]
    assert int(out.dataset.t.notnull().sum()) == 24


def test_a_closed_mosaic_takes_nothing() -> None:
    out = windows().mosaic()
    with pytest.raises(TargetError, match="not merged yet"):
        _ = out.dataset
    out.close()
    out.close()
    with pytest.raises(ClosedError):
        out.write([0], np.zeros((1, 1, 2, 2, 6)))
    with pytest.raises(ClosedError):
        out.flush()


def test_fields_without_a_place_are_refused() -> None:
    samples = weather().xloader.window(time=2, lat=2).inputs("t").field("land", "land")
    with pytest.raises(OptionError, match="lacks the dimension 'time', along which there are 4"):
        samples.mosaic(field="land")
    by_time = weather().xloader.window(time=2).inputs("t").field("land", "land")
    with pytest.raises(OptionError, match="no windowed dimension"):
        by_time.mosaic(field="land")
    # At a single time, windows along latitude place it.
    one = weather().xloader.window(time=8, lat=2).field("land", "land")
    with one.mosaic(field="land") as out:
        out.write([0, 1], one[:].land)
    assert out.dataset.land.equals(weather().land)


def test_transforms_may_change_values_but_not_shapes() -> None:
    samples = windows()
    with pytest.raises(OptionError, match="changes the shape of the field 'targets'"):
        samples.mean("lon").mosaic()
    with pytest.raises(OptionError, match="changes the shape"):
        samples.map(lambda ds: ds.isel(lon=slice(0, 3))).mosaic()
    with pytest.raises(OptionError, match="changes the shape"):
        samples.inputs("t").map(lambda ds: ds.drop_vars("targets")).mosaic(field="targets")
    square = weather().xloader.window(time=2, lat=2).targets("t")
    with pytest.raises(OptionError, match="changes the shape"):
        square.transpose("sample", "channel", "lat", "time", "lon").mosaic()
    # Both fields have leads, which a transform sees as `inputs_time` and `targets_time`.
    two = weather().xloader.window(time=4).inputs("t", time=slice(0, 2)).targets("t", time=3)
    assert two.map(lambda ds: ds).mosaic(field="inputs").num_done == 0
    # It may give the dimension its own name back.
    slices = weather().xloader.window(time=4).inputs("t", time=slice(0, 2))
    both = slices.targets("t", time=slice(3, 4)).map(lambda ds: ds.rename(targets_time="time"))
    assert both.mosaic(field="targets").num_done == 0
    # A dimension of the data may begin like a field.
    named = weather().rename(lon="targets_lon").xloader.window(time=2, lat=2).targets("t")
    assert named.mosaic().num_done == 0
    doubled = samples.map(lambda ds: 2 * ds)
    with doubled.mosaic() as out:
        out.write(range(8), doubled[:].targets)
    assert out.dataset.t.equals(2 * weather().t)


TABLE = {"time": [2, 5], "storm": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda ds: ds.xloader, None, "windows are not set"),
        (lambda ds: windows().slab("lon", 0, 2), "targets", "slabs"),
        (
            lambda ds: ds.rename(lon="lead").xloader.window(time=4).targets("t", time=slice(2, 4)),
            "targets",
            "'lead' already",
        ),
        (
            lambda ds: ds.assign_coords(time=range(8)).xloader.window(time=1).at_points(TABLE),
            "storm",
            "no windowed dimension",
        ),
    ],
    ids=["no windows", "slab", "lead", "label of points"],
)
def test_samples_that_make_no_mosaic(make: Any, field: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make(weather()).mosaic(**({} if field is None else {"field": field}))


@pytest.mark.parametrize("name", ["_coverage", "_coverage/a", "valid_time"])
def test_variables_with_the_name_of_a_part_of_the_mosaic_are_refused(name: str) -> None:
    ds = weather()
    samples = ds.assign({name: ds.t}).xloader.window(time=4)
    with pytest.raises(OptionError, match="already, which is the name of a part"):
        samples.targets(name, time=slice(2, 4)).mosaic()
    # What the mosaic does not hold may have any name.
    with samples.targets("t", time=slice(2, 4)).mosaic() as out:
        out.write(range(2), samples.targets("t", time=slice(2, 4))[:].targets)
    assert list(out.dataset) == ["t"]


def test_a_mosaic_of_other_samples_is_refused(tmp_path: Path) -> None:
    samples, path = windows(), tmp_path / "a.zarr"
    out = samples.mosaic(path)
    out.write([0], np.zeros((1, 1, 2, 2, 6)))
    out.flush()
    other = weather().xloader.window(time=2, lat=2, stride=1).targets("t")
    with pytest.raises(TargetError, match="other windows"):
        other.mosaic(path)
    with pytest.raises(TargetError, match="other blend"):
        samples.mosaic(path, blend="crop")
    assert samples.mosaic(path).num_done == 1
    # To begin anew is allowed, if it is asked for.
    with other.mosaic(path, overwrite=True) as out:
        assert out.num_done == 0
        out.write(np.arange(len(other)), other[:].targets)
    with pytest.raises(TargetError, match="predictions of other"):
        samples.mosaic(path)
    with other.mosaic(path) as out, pytest.raises(TargetError, match="is complete"):
        out.write([0], other[:1].targets)
    with samples.mosaic(path, overwrite=True) as out:
        out.write(range(8), samples[:].targets + 1)
    assert xr.open_zarr(path).t.load().equals(weather().t + 1)


def test_something_else_at_the_target_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    weather().to_zarr(path, consolidated=False)
    with pytest.raises(TargetError, match=r"something else lies at .* no predictions"):
        windows().mosaic(path)
    file = tmp_path / "a.nc"
    file.write_text("mine")
    with pytest.raises(TargetError, match="something else"):
        windows().mosaic(file)
    assert file.read_text() == "mine"
    with windows().mosaic(file, overwrite=True) as out:
        out.write(range(8), windows()[:].targets)
    assert sorted(own.name for own in tmp_path.iterdir()) == ["a.nc", "a.zarr"]
    xr.testing.assert_equal(xr.open_zarr(file).t.load(), weather().t)


def test_parts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    windows().mosaic(path)
    grid = tmp_path / "a.zarr.parts" / "form" / "mosaic.json"
    text = grid.read_text()
    for damaged in ("{", "[]", text.replace('"version": 2', '"version": 1')):
        grid.write_text(damaged)
        with pytest.raises(TargetError, match="can read"):
            windows().mosaic(path)


def test_a_process_killed_as_it_began_left_nothing(tmp_path: Path) -> None:
    half = tmp_path / "a.zarr.parts" / "3f2a.partial"
    half.mkdir(parents=True)
    (half / "mosaic.json").write_text("{")
    with pytest.raises(SourceNotFoundError, match="no parts in"):
        xloader.merge(tmp_path / "a.zarr")
    with windows().mosaic(tmp_path / "a.zarr") as out:
        out.write(range(8), windows()[:].targets)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr"]


def test_too_little_memory_names_the_minimum(tmp_path: Path) -> None:
    ids, path = np.arange(8), tmp_path / "a.zarr"
    with (
        pytest.raises(MemoryBudgetError, match="too small to merge a chunk of 't'") as caught,
        windows().mosaic(path, memory="1MiB") as out,
    ):
        out.write(ids, windows()[:].targets)
    assert xloader.merge(path, memory=caught.value.minimum_nbytes).is_complete


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("?", "f4"), ("i2", "f4"), ("i4", "f8")],
)
def test_whole_numbers_become_floats(dtype: str, expected: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (8, 1, 2, 2, 6)).astype(dtype)
    with windows().mosaic() as out:
        out.write(range(8), values)
    assert out.dataset.t.dtype == expected
    assert out.dataset.t.values.sum() == values.astype("f8").sum()


def test_dtypes_may_differ_between_writes() -> None:
    samples = windows()
    values = samples[:].targets
    with samples.mosaic() as out:
        out.write(range(4), values[:4])
        out.write(range(4, 8), values[4:].astype("f8"))
    assert out.dataset.t.dtype == "f8"
    xr.testing.assert_equal(out.dataset.t, weather().t)


def test_tensors_are_taken_with_and_without_gradient() -> None:
    torch = pytest.importorskip("torch")
    samples = windows()
    values = torch.from_numpy(samples[:].targets)
    for own in (values.clone().requires_grad_(), values.flip(0).flip(0), values.double()):
        with samples.mosaic() as out:
            out.write(torch.arange(8), own)
        xr.testing.assert_equal(out.dataset.t, weather().t)
    with samples.mosaic() as out:
        out.write(torch.arange(8), values.bfloat16())
    assert out.dataset.t.dtype == "f4"
    expected = values.bfloat16().float().numpy()
    with samples.mosaic() as plain:
        plain.write(range(8), expected)
    xr.testing.assert_identical(out.dataset, plain.dataset)


def test_predictions_may_be_overwritten_after_write() -> None:
    samples = windows()
    buffer = np.empty((1, 1, 2, 2, 6), "f4")
    with samples.mosaic() as out:
        for number in range(8):
            buffer[...] = samples[[number]].targets
            out.write([number], buffer)
    xr.testing.assert_equal(out.dataset.t, weather().t)


def test_padding_rows_are_left_out() -> None:
    samples = windows()
    arrays = samples[:].targets
    padded = Batch(
        [np.concatenate([arrays, arrays[:1] + 5])],
        ["targets"],
        np.array([*range(8), 0]),
        np.array([False] * 8 + [True]),
    )
    with samples.mosaic() as out:
        out.write(padded, padded.targets)
        assert out.num_skipped == 0
        assert out.is_done(padded).all()
    xr.testing.assert_equal(out.dataset.t, weather().t)


def run(*arguments: str) -> Any:
    return click.testing.CliRunner().invoke(cli.main, ["merge", *arguments])


def test_the_command_merges_and_says_what_is_missing(tmp_path: Path) -> None:
    samples, path = windows(), tmp_path / "a.zarr"
    result = run(str(path))
    assert result.exit_code == 2
    assert "no predictions or partial statistics to merge" in result.output
    out = samples.mosaic(path, world=xloader.World(0, 2))
    out.write(range(7), samples[:7].targets)
    out.flush()
    result = run(str(path))
    assert result.exit_code == 1, result.output
    assert "7 of 8 windows; 168 of 192 cells covered" in result.output
    assert "1 sample missing; " in result.output
    out.write([7], samples[[7]].targets)
    out.flush()
    result = run(str(path), "--memory", "20MiB")
    assert result.exit_code == 0, result.output
    assert "8 of 8 windows; 192 of 192 cells covered" in result.output
    xr.testing.assert_equal(xr.open_zarr(path).t.load(), weather().t)
    with pytest.raises(SourceNotFoundError):
        xloader.merge(path)
    with pytest.raises(UnsupportedDataError, match="cannot be merged"):
        xloader.merge([path])  # type: ignore[arg-type]
    result = run("/")
    assert result.exit_code == 2
    assert "a name of its own" in result.output


@pytest.mark.parametrize("name", ["../up", "..", "a//b", "/a", "a/", "", "zarr.json", "a\\b"])
def test_names_that_are_no_parts_of_paths_are_refused(name: str, tmp_path: Path) -> None:
    odd = weather().rename(t=name)
    samples = odd.xloader.window(time=2, lat=2).targets(name)
    # Nothing is stored in memory.
    with samples.mosaic() as out:
        out.write(range(8), samples[:].targets)
    assert out.dataset[name].equals(odd[name])
    jobs: list[Callable[[Path], object]] = [
        samples.mosaic,
        samples.materialize,
        lambda path: samples.stats(path=path),
        weather().assign_coords({name: 1.0}).xloader.window(time=2).targets("t").mosaic,
    ]
    for job in jobs:
        with pytest.raises(UnsupportedDataError, match="cannot be stored under its name"):
            job(tmp_path / "a.zarr")
    assert list(tmp_path.iterdir()) == []


def test_only_ids_that_a_mosaic_lacks_may_be_none() -> None:
    samples = windows()
    with samples.mosaic() as out:
        out.write(range(8), samples[:].targets)
    left = out.remaining_ids
    every = ({}, {"shuffle": False}, {"world": xloader.World(1, 2)}, {"processes": 2})
    for none, some in ((left, every), (left[1::2], every[:1])):
        empty = samples.weighted(np.ones(8)).select(none)
        assert len(empty) == 0
        assert "0 samples" in repr(empty)
        for options in some:
            loader = empty.loader(batch_size=4, output="numpy", **options)
            assert len(loader) == len(list(loader)) == 0
            assert "0 in 0 batches" in str(loader.explain())
    for mistake in ([], np.asarray(left), np.zeros(8, bool), slice(0)):
        with pytest.raises(EmptySamplesError):
            samples.select(mistake)


def test_batches_of_other_samples_are_refused() -> None:
    samples = windows()
    left = np.array([2, 5, 6])
    split = samples.split(time={"first": slice(0, 4), "last": slice(4, 8)})
    others = {
        "a batch of 3 samples": samples.select(left),
        "a batch of 4 samples": split["last"],
        "another selection": weather().isel(time=slice(0, 6)).xloader.window(time=2, lat=2),
        "other windows": weather().xloader.window(time=2, lat=2, stride={"time": 1}),
    }
    with samples.mosaic() as out:
        for words, other in others.items():
            batch = next(iter(other.loader(batch_size=2, output="numpy")))
            with pytest.raises(TargetError, match=words):
                out.write(batch, np.zeros((2, 1, 2, 2, 6)))
            with pytest.raises(TargetError, match="other samples"):
                out.is_done(batch)
        batch = next(iter(others["a batch of 3 samples"].loader(batch_size=3, output="numpy")))
        with pytest.raises(TargetError, match="that selected= names"):
            out.write(batch, batch.targets, selected=left[::-1])
        assert out.num_done == 0
        out.write(batch, batch.targets, selected=left)
    assert out.done_ids.tolist() == left.tolist()
    covered = out.dataset.t.notnull()
    assert covered.any()
    assert (out.dataset.t == weather().t).where(covered, True).all()


@pytest.mark.parametrize("kind", ["weighted", "other fields", "slab", "by hand"])
def test_batches_of_the_same_samples_are_taken(kind: str) -> None:
    samples = windows()
    same = {
        "weighted": samples.weighted(np.arange(1.0, len(samples) + 1)),
        "other fields": weather().xloader.window(time=2, lat=2).inputs("land").map(lambda ds: -ds),
        "slab": samples.slab("lon", 1, 2),
        "by hand": samples,
    }[kind]
    batch = next(iter(same.loader(batch_size=4, output="numpy", world=xloader.World())))
    if kind == "by hand":
        batch = Batch(batch, batch.names, batch.ids)
    with samples.mosaic() as out:
        out.write(batch.ids[:1], samples[batch.ids[:1]].targets)
        assert out.is_done(batch)[0]


def test_batches_of_several_sets_are_refused() -> None:
    samples = windows()
    both = xloader.interleave({"one": (samples, 1), "two": (windows(), 1)})
    batch = next(iter(both.loader(batch_size=4, output="numpy")))
    with samples.mosaic() as out, pytest.raises(TargetError, match="rows of one, two"):
        out.write(batch, batch.targets)
    assert out.num_done == 0
