"""The commands of jobs do what the verbs do, and their examples work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import cli
from xloader.cli.sample_description import SampleOption
from xloader.samples.samples import Samples

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def succeed(*arguments) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return result.stdout


def write_era5(path: Path) -> None:
    """A year and a half of maps, each chunk over all times."""
    time = np.arange("1978-10-01", "1980-04-01", np.timedelta64(1, "D"), "M8[ns]")
    rng = np.random.default_rng(0)
    shape = (len(time), 6, 8)
    ds = xr.Dataset(
        {
            name: (("time", "lat", "lon"), rng.normal(280, 9, shape).astype("f4"), {"units": "K"})
            for name in ("t2m", "u10")
        },
        {"time": time, "lat": np.linspace(75, -75, 6), "lon": np.arange(0.0, 360.0, 45.0)},
    )
    encoding = {name: {"chunks": (len(time), 3, 4)} for name in ds}
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_era5(tmp_path / "era5.zarr")
    return tmp_path / "era5.zarr"


# --- examples


def test_examples_of_the_page_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "reference" / "command_line.md").read_text("utf-8")
    num_run = 0
    for kind, block in FENCE.findall(text):
        if kind == "python":
            exec(compile(block, "command_line.md", "exec"), {})
        lines = block.replace("\\\n", "").splitlines() if kind == "console" else []
        for line in lines:
            prompt, _, *arguments = shlex.split(line)
            assert prompt == "$"
            said = succeed(*arguments)
            num_run += 1
            if "--json" in arguments:
                json.loads(said)
    assert num_run >= 10


def test_every_option_of_samples_is_on_the_page():
    text = (ROOT / "docs" / "reference" / "command_line.md").read_text("utf-8")
    options = [p for p in cli.main.commands["stats"].params if type(p) is SampleOption]
    assert len(options) > 10
    assert all(option.opts[0] in text for option in options)


# --- statistics


def test_stats_are_those_of_the_verb(store):
    options = ("--sel", "time=1979", "--window", "time=4", "--dim", "time", "--json")
    given = json.loads(succeed("stats", store, *options))
    samples = xloader.open(store).sel(time="1979").window(time=4)
    expected = samples.stats(dim="time")
    found = xr.Dataset.from_dict(given["stats"])
    for name in ("t2m", "u10"):
        np.testing.assert_array_equal(found[name], expected[name].transpose(*found[name].dims))
    assert given["path"] is None


def test_stats_without_windows_count_everything_that_is_selected(store):
    ds = xr.open_zarr(store, consolidated=False)
    given = json.loads(succeed("stats", store, "--sel", "time=1979,lat=75:-20", "--json"))
    found = xr.Dataset.from_dict(given["stats"])
    selected = ds.sel(time="1979", lat=slice(75, -20))
    for name, values in selected.data_vars.items():
        count, mean, std = (float(found[name].sel(stat=s)) for s in ("count", "mean", "std"))
        assert count == values.size
        assert mean == pytest.approx(float(values.astype(float).mean()), rel=1e-12)
        assert std == pytest.approx(float(values.astype(float).std()), rel=1e-12)


def test_parts_that_are_merged_are_the_whole(store):
    succeed("stats", store, "--out", "whole.nc", "--by", "month")
    for number in (2, 0, 1):
        part = ("--by", "month", "--part", f"{number}/3")
        said = succeed("stats", store, "--out", "parts.nc", *part)
        assert f"Part {number} of 3" in said
        assert "xloader merge parts.nc" in said
    told = json.loads(succeed("merge", "parts.nc", "--json"))
    assert told["path"] == "parts.nc"
    with xr.open_dataset("whole.nc") as whole, xr.open_dataset("parts.nc") as parts:
        for name in ("t2m", "u10"):
            np.testing.assert_array_equal(whole[name], parts[name])


def test_large_results_in_a_file_are_described_only(store):
    short = succeed("stats", store, "--out", "short.nc")
    assert "280" in short
    assert "Written to short.nc" in short
    long = succeed("stats", store, "--dim", "lon", "--out", "long.nc")
    assert "numbers of 2 variables" in long
    assert len(long.splitlines()) == 2
    told = json.loads(succeed("stats", store, "--dim", "lon", "--out", "other.nc", "--json"))
    assert told["stats"] is None


def test_a_part_without_a_path_is_refused(store):
    result = run("stats", store, "--part", "0/2")
    assert result.exit_code == 2
    assert "--out stats.nc" in result.stderr


def test_leads_are_printed_as_they_are_given(store):
    described = ("--variables", "t2m", "--leads", "1D,7D")
    result = run("stats", store, *described)
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["1D", "7D"]


# --- advice, and stores with other chunks


def test_advice_is_that_of_the_verb(store):
    options = ("--window", "time=1", "--batch-size", "4", "--memory", "1MiB", "--world-size", "2")
    samples = xloader.open(store).window(time=1)
    expected = samples.advise(batch_size=4, memory="1MiB", world=xloader.World(0, 2))
    told = json.loads(succeed("advise", store, *options, "--json"))
    assert told == json.loads(json.dumps(expected.to_dict()))
    assert succeed("advise", store, *options) == f"{expected}\n"


def test_materialize_writes_what_the_verb_writes(store):
    described = ("--sel", "time=1979", "--window", "time=4", "--chunks", "time=30,lat=3")
    described += ("--pack", "u10=int16,0.01")
    told = json.loads(succeed("materialize", store, "target.zarr", *described, "--json"))
    assert told["target"] == "target.zarr"
    selected = xloader.open(store).sel(time="1979")
    there = xloader.open("target.zarr").window(time=4)
    here = selected.window(time=4)
    assert len(there) == len(here)
    np.testing.assert_array_equal(there[7][0], here[7][0])
    ds = xr.open_zarr("target.zarr", consolidated=False)
    assert ds.t2m.encoding["chunks"] == (30, 3, 8)
    assert ds.u10.encoding["dtype"] == np.int16


def test_loader_options_beside_chunks_are_refused(store):
    line = ("materialize", store, "target.zarr", "--window", "time=1", "--chunks", "time=24")
    result = run(*line, "--batch-size", "8")
    assert result.exit_code == 2
    assert "leave one of them out" in result.stderr


def test_loader_options_choose_the_chunks(store, monkeypatch):
    asked = []
    advise = Samples.advise

    def record(samples, **options):
        asked.append(options)
        return advise(samples, **options)

    monkeypatch.setattr(Samples, "advise", record)
    line = ("materialize", store, "target.zarr", "--window", "time=1", "--dry-run")
    succeed(*line, "--batch-size", "4", "--loader-memory", "1MiB", "--memory", "64MiB")
    assert {"batch_size": 4, "memory": "1MiB"} in asked


# --- errors


WINDOWED = ("target.zarr", "--window", "time=1")


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("stats", ["--variables", "t2n"], "did you mean 't2m'"),
        ("advise", ["--window", "tiem=2"], "did you mean 'time'"),
        ("materialize", ["target.zarr", "--sel", "time=1850"], "time"),
        ("materialize", [*WINDOWED, "--pack", "t2m=int16,x"], "pack= does not say"),
        ("materialize", [*WINDOWED, "--chunks", "time=x"], "--chunks cannot be read"),
        ("stats", ["--quantiles", "0.1,x"], "--quantiles cannot be read"),
    ],
)
def test_an_error_of_the_library_is_one_line(store, command, options, words):
    result = run(command, store, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_ctrl_c_names_the_parts(store, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Samples, "stats", interrupt)
    result = run("stats", store, "--window", "time=1", "--out", "stats.nc")
    assert result.exit_code == 130
    assert "stats.nc.parts" in result.stderr
    assert "run the same command again" in result.stderr
