"""The JSON of every command has the shape in the table, and helps and options are alike."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import click.testing
import pytest

import xloader
from tests.cli.json_shapes import SHAPES, check
from tests.cli.test_job_commands import ROOT, write_era5
from xloader import cli

HERE = ("doctor", "inspect", "explain", "bench", "stats", "advise", "materialize", "merge", "demo")

LINES = {
    "inspect": "inspect era5.zarr --nan=1",
    "explain": "explain era5.zarr --window time=3",
    "explain --compare": "explain era5.zarr --window time=3 --compare 64KiB,4MiB",
    "stats": "stats era5.zarr",
    "stats --part": "stats era5.zarr --out parts.nc --part 0/2",
    "advise": "advise era5.zarr --window time=1 --memory 64KiB --batch-size 2",
    "materialize": "materialize era5.zarr target.zarr --window time=1 --chunks time=24",
    "merge": "merge stats.nc",
    "merge of a mosaic": "merge forecast.zarr",
}


def run(line: str):
    return click.testing.CliRunner().invoke(cli.main, shlex.split(line))


@pytest.fixture
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_era5(tmp_path / "era5.zarr")


def write_parts() -> None:
    """Write the two halves of a mosaic, and all parts of statistics."""
    assert run("stats era5.zarr --out stats.nc --part 0/1").exit_code == 0
    samples = xloader.open("era5.zarr").window(time=1).select([0, 1]).targets("t2m")
    # The rank that ends first leaves the merge to others.
    for rank in range(2):
        out = samples.mosaic("forecast.zarr", world=xloader.World(rank, 2))
        out.write([rank], samples[[rank]].targets)
        out.flush()


def test_the_json_of_a_command_has_its_shape(store):
    write_parts()
    for name, line in LINES.items():
        result = run(f"{line} --json")
        assert result.exit_code == 0, f"{name}: {result.output} {result.exception!r}"
        check(json.loads(result.stdout), SHAPES[name])


@pytest.mark.parametrize("name", HERE)
def test_the_help_has_exit_codes_and_examples_that_work(name, store):
    result = run(f"{name} --help")
    assert result.exit_code == 0
    lines = [line.strip() for line in cli.main.commands[name].help.splitlines()]
    examples = [line for line in lines if line.startswith(f"xloader {name}")]
    assert len(examples) >= 2
    # Each has a line of its own.
    assert {f"    {example}" for example in examples} <= {*result.stdout.splitlines()}
    assert "Exit codes: 0 " in result.stdout
    words = " ".join(result.stdout.split()).partition("Exit codes")[2]
    assert ", 2 an error" in words
    assert ", 130 interrupted" in words
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text("utf-8")
    assert f"xloader {name}" in page
    if name == "merge":
        write_parts()
    # Those of demo and bench train and time.
    for example in examples if name not in ("bench", "demo", "doctor") else ():
        result = run(example.removeprefix("xloader "))
        assert result.exit_code == 0, f"{example}: {result.output}"


def test_every_command_with_json_is_in_the_table():
    found = {
        name
        for name, command in cli.main.commands.items()
        if any(param.name == "is_json" for param in command.params)
    }
    assert found == set(HERE)
    assert found <= SHAPES.keys()
    assert cli.main.commands.keys() == found


def test_the_help_lists_every_command_once_under_headings():
    lines = run("--help").stdout.splitlines()
    listed = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in HERE]
    assert listed == [
        *("doctor", "inspect", "explain", "bench"),
        *("stats", "advise", "materialize", "merge", "demo"),
    ]
    assert "Before a training:" in lines
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("value", "shape"), [({"a": 1}, {}), ({"a": True}, {"a": int}), ([1, "2"], [int])]
)
def test_a_wrong_shape_is_found(value, shape):
    with pytest.raises(AssertionError):
        check(value, shape)


def test_the_helps_import_no_heavy_library():
    code = (
        "import sys\n"
        "from xloader.cli import main\n"
        "for line in (['--help'], ['demo', '--help']):\n"
        "    main(line, standalone_mode=False)\n"
        "heavy = {'torch', 'dask', 'matplotlib', 'xbatcher', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
