"""The command line: its commands, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import click.testing
import numpy as np
import pytest
import xarray as xr

from xloader import cli
from xloader.core import messages as libraries


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, arguments)


def test_help_names_the_demo_and_its_options():
    assert "demo" in run("--help").output
    result = run("demo", "--help")
    assert result.exit_code == 0
    for option in ("--store", "--variables", "--time-dim", "--lead", "--memory", "--picture"):
        assert option in result.output


def test_help_loads_no_heavy_library():
    script = (
        "import sys\n"
        "from xloader.cli import main\n"
        "main(['demo', '--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'dask', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lead", "0"], "0 is not in the range"),
        (["--batch-size", "-1"], "-1 is not in the range"),
        (["--seconds", "0"], "0.0 is not in the range"),
        (["--speed", "9"], "No such option"),
    ],
)
def test_options_out_of_range_are_refused(arguments, words):
    result = run("demo", *arguments)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "too few time steps"),
        (["--variables", "sst, salt"], "do not have this variable. Given: 'salt'. Allowed: 'sst'"),
        (["--time-dim", "month"], "do not have this time dimension"),
    ],
)
def test_data_that_will_not_do_is_one_clean_message(tmp_path, arguments, words):
    for name in ("torch", "matplotlib", "tqdm"):
        pytest.importorskip(name)
    path = tmp_path / "short.zarr"
    steps = xr.Dataset({"sst": (("time", "lat", "lon"), np.zeros((5, 4, 6)))})
    steps.to_zarr(path, zarr_format=3, consolidated=False)
    result = run("demo", "--store", str(path), *arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert result.output.startswith("Error: ")
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_a_store_that_is_not_there(tmp_path):
    for name in ("torch", "matplotlib", "tqdm"):
        pytest.importorskip(name)
    result = run("demo", "--store", str(tmp_path / "nothing.zarr"))
    assert result.exit_code == 2
    assert "no store or file to open" in result.output


def test_with_json_the_text_of_the_run_goes_to_standard_error(monkeypatch, tmp_path):
    for name in ("torch", "matplotlib", "tqdm"):
        pytest.importorskip(name)
    from xloader.demo import run as demo_run

    class Result:
        def to_dict(self):
            return {"picture": str(tmp_path)}

    def run_demo(options):
        click.echo("Trained 3 steps")
        return Result()

    monkeypatch.setattr(demo_run, "run_demo", run_demo)
    result = run("demo", "--json")
    assert json.loads(result.stdout) == {"picture": str(tmp_path)}
    assert result.stderr == "Trained 3 steps\n"
    assert run("demo").stdout == "Trained 3 steps\n"


def test_a_missing_library_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(
        libraries, "find_spec", lambda name: None if name == "matplotlib" else object()
    )
    result = run("demo")
    assert result.exit_code == 2
    assert "the demo needs matplotlib" in result.output
    assert 'pip install ".[torch,viz]"' in result.output
