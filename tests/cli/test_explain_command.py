"""``xloader explain`` says what `Samples.explain` says."""

from __future__ import annotations

import html
import json
import re

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import cli
from xloader.cli.endings import to_json


@pytest.fixture
def store(tmp_path):
    values = np.ones((60, 4, 6), "f4")
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, {"time": np.arange(60)})
    encoding = {"t2m": {"chunks": (6, 4, 6)}}
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False, encoding=encoding)
    return str(tmp_path / "s.zarr")


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, ["explain", *map(str, arguments)])


OPTIONS = {
    "plain": ([], {}),
    "sizes": (["--batch-size", "8", "--memory", "64KiB"], {"batch_size": 8, "memory": "64KiB"}),
    "ascending": (["--no-shuffle", "--drop-last"], {"shuffle": False, "drop_last": True}),
    "steps": (["--steps", "5", "--batch-size", "8"], {"steps": 5, "batch_size": 8}),
    "ranks": (
        ["--world-size", "2", "--lanes", "4"],
        {"world": xloader.World(0, 2), "plan": xloader.PlanRules(lanes=4)},
    ),
    "processes": (["--processes", "2", "--seed", "5"], {"processes": 2, "seed": 5}),
    "spread": (
        ["--spread", "2", "--prefetch", "0", "--threads", "1", "--max-amplification", "2"],
        {"prefetch": 0, "threads": 1, "plan": xloader.PlanRules(max_amplification=2.0, spread=2)},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_the_explanation_of_the_verb(store, name):
    texts, options = OPTIONS[name]
    samples = xloader.open(store).window(time=3, stride=1)
    expected = samples.explain(output="numpy", **options)
    described = (store, "--window", "time=3", "--stride", "1", *texts)
    result = run(*described)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{expected}\n"
    assert json.loads(run(*described, "--json").stdout) == to_json(expected)


def test_nothing_but_metadata_and_labels_is_needed(store, tmp_path):
    for path in (tmp_path / "s.zarr/t2m/c").rglob("*"):
        if path.is_file():
            path.write_bytes(b"broken")
    assert run(store, "--window", "time=3").exit_code == 0


def test_samples_without_windows_are_refused(store):
    result = run(store)
    assert result.exit_code == 2
    assert "windows are not set" in result.stderr
    assert "add --window, for example time=6," in result.stderr


# --- a page


def test_the_page_holds_the_samples_and_the_plan(store, tmp_path):
    described = (store, "--window", "time=3", "--stride", "1", "--batch-size", "8")
    plain = run(*described)
    result = run(*described, "--html", tmp_path / "plan.html")
    assert result.exit_code == 0, result.output
    assert result.stdout == plain.stdout
    assert result.stderr.splitlines() == [f"Written to {tmp_path / 'plan.html'}."]
    text = (tmp_path / "plan.html").read_text("utf-8")
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    # Tests of pages look at how tags are closed.
    words = html.unescape(re.sub(r"<[^>]+>", "", text))
    assert f"An epoch of {store}" in words
    assert "58 samples" in words
    for line in plain.stdout.splitlines()[1:]:
        assert line.split("  ")[-1].strip() in words
    assert "<svg" in text


def test_a_page_that_cannot_be_written_is_an_error(store, tmp_path):
    result = run(store, "--window", "time=3", "--html", tmp_path / "none" / "plan.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path / 'none' / 'plan.html'} cannot be written to" in result.stderr
    assert "To mend it: check that its folder is there" in result.stderr
    assert run(store, "--window", "time=3", "--html", tmp_path).exit_code == 2


# --- several memories


def test_compared_plans_are_those_of_the_verb(store, tmp_path):
    samples = xloader.open(store).window(time=3, stride=1)
    described = (store, "--window", "time=3", "--stride", "1", "--batch-size", "8")
    memory = ["1KiB", "16KiB", "64KiB"]
    expected = samples.compare_plans(memory=memory, output="numpy", batch_size=8)
    assert None in [plan.explanation for plan in expected.plans]
    result = run(*described, "--compare", ",".join(memory))
    assert (result.exit_code, result.stdout) == (0, f"{expected}\n")
    told = json.loads(run(*described, "--compare", ",".join(memory), "--json").stdout)
    assert told == to_json(expected)
    one = run(*described, "--compare", "64KiB", "--max-amplification", "1.5", "--json")
    assert [plan["max_amplification"] for plan in json.loads(one.stdout)["plans"]] == [1.5]
    page = ("--json", "--html", tmp_path / "p.html")
    json.loads(run(*described, "--compare", "16KiB,64KiB", *page).stdout)
    assert "6 plans" in (tmp_path / "p.html").read_text("utf-8")


def test_memories_that_are_all_too_small_are_told(store):
    described = (store, "--window", "time=3", "--compare", "100B,1KiB")
    result = run(*described)
    assert result.exit_code == 1
    assert result.stdout.count("needs ") == 6
    least = result.stdout.split("needs ")[1].splitlines()[0].strip()
    assert result.stderr.splitlines() == [
        f"None of these memories is large enough for a plan. The smallest that would do is {least}."
    ]


@pytest.mark.parametrize(
    "more", [["--compare", "64KiB", "--memory", "1GiB"], ["--compare", ","], ["--compare", "much"]]
)
def test_memories_that_cannot_be_read_are_an_error(store, more):
    result = run(store, "--window", "time=3", *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
