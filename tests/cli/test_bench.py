"""``xloader bench``: all loaders deliver the same samples, and each has its turn."""

from __future__ import annotations

import json
import multiprocessing
import time
from importlib.util import find_spec

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from tests.cli.json_shapes import SHAPES, check
from xloader import cli
from xloader.bench import comparison
from xloader.bench.plain_samples import (
    IselSamples,
    PlainOpener,
    XbatcherSamples,
    extra_of_xbatcher,
    why_not_plain,
    why_not_xbatcher,
)
from xloader.bench.turns import NUM_TURNS, BatchSize, measure_in_turns
from xloader.errors import EmptySamplesError

needs_xbatcher = pytest.mark.skipif(find_spec("xbatcher") is None, reason="needs xbatcher")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.normal(280, 9, (40, 4, 6)).astype("f4")),
            "z": (("time", "level", "lat", "lon"), rng.normal(0, 9, (40, 2, 4, 6)).astype("f4")),
            "mask": (("lat", "lon"), rng.normal(0, 1, (4, 6)).astype("f4")),
        },
        {"time": np.arange(40), "lat": [60.0, 50.0, 40.0, 30.0]},
    )
    encoding = {"t2m": {"chunks": (10, 4, 3)}, "z": {"chunks": (8, 2, 4, 6)}}
    path = tmp_path_factory.mktemp("bench") / "s.zarr"
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
    return str(path)


def ways(store):
    """Samples of several kinds, by name."""
    every = xloader.open(store)
    return {
        "whole": every.window(time=3, stride=1),
        "fields": every.window(time=5, lat=2, stride={"time": 2, "lat": 1})
        .inputs("t2m", "z", "mask", time=slice(0, 3))
        .targets("t2m", time=4),
        "selected": every.isel(time=slice(3, 30), level=1, lat=[0, 1, 3]).window(time=4),
        "dilated": every.window(time=3, dilation=4, stride=3).targets("t2m", time=[0, 2]),
        "lead": every.window(time=3).inputs("t2m").targets("t2m", time="+6"),
        "strided": every.isel(time=slice(1, 39, 2)).window(time=2, stride=3),
    }


@pytest.mark.parametrize("name", ["whole", "fields", "selected", "dilated", "lead", "strided"])
def test_plain_samples_are_ours(store, name):
    samples = ways(store)[name]
    assert why_not_plain(samples.recipe) == ""
    plain = IselSamples(samples.recipe, PlainOpener(store, selection=samples.recipe.selection))
    assert len(plain) == len(samples)
    # Reading by isel is slow.
    for index in {0, 1, len(samples) // 2, len(samples) - 1}:
        for ours, theirs in zip(samples[index], plain[index], strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


@needs_xbatcher
@pytest.mark.parametrize("name", ["whole", "fields", "selected"])
def test_samples_of_xbatcher_are_ours(store, name):
    samples = ways(store)[name]
    assert why_not_xbatcher(samples.recipe) == ""
    theirs = XbatcherSamples(samples.recipe, PlainOpener(store, selection=samples.recipe.selection))
    assert len(theirs) == len(samples)
    ours = {b"".join(field.tobytes() for field in samples[n]) for n in range(len(samples))}
    assert {b"".join(field.tobytes() for field in theirs[n]) for n in range(len(theirs))} == ours


def test_samples_that_others_cannot_make_say_why(store):
    every = ways(store)
    assert "dilation" in why_not_xbatcher(every["dilated"].recipe)
    assert "leads" in why_not_xbatcher(every["lead"].recipe)
    assert "strides" in why_not_xbatcher(every["strided"].recipe)
    padded = xloader.open(store).window(time=3, lat=3, pad={"lat": "edge"})
    assert "padded" in why_not_plain(padded.recipe)
    assert "padded" in why_not_xbatcher(padded.recipe)


@needs_xbatcher
@pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning")
def test_windows_that_xbatcher_takes_beside_ours_are_counted(tmp_path):
    time = np.r_[0:20, 25:45] * np.timedelta64(1, "D") + np.datetime64("2001-01-01", "ns")
    values = np.ones((40, 2), "f4")
    values[3] = np.nan
    ds = xr.Dataset({"a": (("time", "x"), values)}, {"time": time})
    path = str(tmp_path / "gap.zarr")
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding={"a": {"chunks": (8, 2)}})
    every = xloader.open(path).window(time=3, stride=1)
    for samples, expected in (
        (every, {"gap": 2}),
        (every.dropna(), {"gap": 2, "dropped": 3}),
        (xloader.open(path).window(time=3, stride=1, gaps="allow"), {}),
    ):
        assert extra_of_xbatcher(samples.recipe) == expected
        theirs = XbatcherSamples(samples.recipe, PlainOpener(path))
        assert len(theirs) == len(samples) + sum(expected.values())
    result = run(path, *BRIEF, "--stride", "1")
    assert "DataLoader over xbatcher takes 38 samples an epoch, with 2 windows across gaps" in (
        result.stdout
    )
    told = json.loads(run(path, *BRIEF, "--stride", "1", "--json").stdout)
    check(told, SHAPES["bench"])
    assert told["extra"] == {"DataLoader over xbatcher": {"gap": 2}}


# --- turns


class Clock:
    """A clock that batches put forward."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def fake(clock, calls, name, seconds, num_batches=5):
    """A loader whose batches take some time."""

    def epoch():
        calls.append(name)
        for _ in range(num_batches):
            clock.now += seconds
            yield BatchSize(4, 100)

    return epoch


def test_loaders_are_measured_in_turns():
    clock, calls = Clock(), []
    passes = {name: fake(clock, calls, name, s) for name, s in (("a", 0.25), ("b", 1.0))}
    speeds, failed = measure_in_turns(passes, 6.0, must="a", clock=clock)
    assert failed == {}
    # One batch each to warm up; then turns of 2 seconds, in which a begins a second epoch.
    assert calls == ["a", "b"] + ["a", "a", "b"] * NUM_TURNS
    fast, slow = speeds
    assert (fast.name, fast.num_batches, fast.seconds) == ("a", 24, 6.0)
    assert (fast.batches_per_second, fast.samples_per_second) == (4.0, 16.0)
    assert fast.gb_per_second == pytest.approx(400e-9)
    assert (slow.num_batches, slow.seconds, slow.first_seconds) == (6, 6.0, 1.0)


def test_a_loader_that_fails_is_left_out_and_ours_is_not():
    clock = Clock()

    def fail():
        raise RuntimeError("first line\nworker exited unexpectedly")
        yield

    passes = {"a": fake(clock, [], "a", 1.0), "b": fail}
    speeds, failed = measure_in_turns(passes, 1.0, must="a", clock=clock)
    assert [own.name for own in speeds] == ["a"]
    assert failed == {"b": "it fails (RuntimeError: worker exited unexpectedly)"}
    with pytest.raises(RuntimeError, match="exited"):
        measure_in_turns(passes, 1.0, must="b", clock=clock)


def test_an_epoch_without_batches_is_an_error():
    with pytest.raises(EmptySamplesError, match="no batch"):
        measure_in_turns({"a": lambda: iter(())}, 1.0, must="a")


class Counted:
    """A dataset of 18 samples that counts how many were made, in all processes."""

    def __init__(self):
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self.num_made = context.Value("q", 0)

    def __len__(self):
        return 18

    def __getitem__(self, index):
        # Longer than it takes to close an epoch that waits for nobody.
        time.sleep(0.02)
        with self.num_made:
            self.num_made.value += 1
        return (np.full(3, index),)


@needs_torch
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataloader_that_is_closed_early_rests_and_begins_anew(num_workers):
    from xloader.bench.torch_loaders import DataLoaderPass

    dataset = Counted()
    epochs = DataLoaderPass(
        dataset, num_workers=num_workers, batch_size=4, shuffle=True, seed=0, drop_last=False
    )
    try:
        early = epochs()
        assert next(early) == (4, 4 * 3 * 8)
        early.close()
        # A worker has made the batch, and the two that it was asked for ahead; then it rests.
        assert dataset.num_made.value == (4 if not num_workers else 12)
        sizes = [own.num_samples for own in epochs()]
    finally:
        epochs.close()
    assert sizes == [4, 4, 4, 4, 2]


# --- the command


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, ["bench", *arguments])


BRIEF = ("--window", "time=3", "--batch-size", "8", "--seconds", "0.1", "--workers", "0")


@needs_torch
@needs_xbatcher
def test_the_table_and_the_json(store):
    result = run(store, *BRIEF)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "13 samples in batches of 8; 0 workers a DataLoader"
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "xloader",
        "DataLoader over isel",
        "DataLoader over xbatcher",
    ]
    told = json.loads(run(store, *BRIEF, "--json").stdout)
    check(told, SHAPES["bench"])
    assert [own["name"] for own in told["loaders"]] == [
        comparison.OURS,
        comparison.PLAIN,
        comparison.XBATCHER,
    ]
    assert told["loaders"][0]["xloader_is_times_as_fast"] == 1.0
    assert told["left_out"] == {}
    nbytes = {own["nbytes"] / own["num_samples"] for own in told["loaders"]}
    assert len(nbytes) == 1


def test_without_the_others_ours_is_measured_alone(store, monkeypatch):
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    told = json.loads(run(store, *BRIEF, "--json").stdout)
    check(told, SHAPES["bench"])
    assert [own["name"] for own in told["loaders"]] == [comparison.OURS]
    assert told["left_out"].keys() == {comparison.PLAIN, comparison.XBATCHER}
    text = run(store, *BRIEF).stdout
    assert "DataLoader over isel is left out: PyTorch is not installed" in text


def test_options_that_do_not_fit_are_an_error(store):
    result = run(store, "--window", "time=3", "--batch-size", "8", "--memory", "1KiB")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
