"""``xloader explain`` says what `Samples.explain` says."""

from __future__ import annotations

import json

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import cli
from xloader.cli.json_output import to_json


@pytest.fixture
def store(tmp_path):
    values = np.ones((60, 4, 6), "f4")
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, {"time": np.arange(60)})
    encoding = {"t2m": {"chunks": (6, 4, 6)}}
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False, encoding=encoding)
    return str(tmp_path / "s.zarr")


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, ["explain", *arguments])


OPTIONS = {
    "plain": ([], {}),
    "sizes": (["--batch-size", "8", "--memory", "64KiB"], {"batch_size": 8, "memory": "64KiB"}),
    "ascending": (["--no-shuffle", "--drop-last"], {"shuffle": False, "drop_last": True}),
    "ranks": (["--world-size", "2", "--lanes", "4"], {"world_size": 2, "rank": 0, "lanes": 4}),
    "processes": (["--processes", "2", "--seed", "5"], {"processes": 2, "seed": 5}),
    "spread": (
        ["--spread", "2", "--prefetch", "0", "--threads", "1", "--max-amplification", "2"],
        {"spread": 2, "prefetch": 0, "threads": 1, "max_amplification": 2.0},
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
