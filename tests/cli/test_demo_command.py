"""``xloader demo``: its options and its errors."""

from __future__ import annotations

import json
from importlib.util import find_spec

import click
import click.testing
import pytest

from xloader import cli
from xloader.core import messages as libraries

needs_libraries = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "matplotlib", "tqdm"))), reason="needs the demo's libraries"
)


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0"], "0.0 is not in the range"),
        (["--speed", "9"], "No such option"),
    ],
)
def test_options_out_of_range_are_refused(arguments, words):
    result = run("demo", *arguments)
    assert result.exit_code == 2
    assert words in result.output


@needs_libraries
def test_with_json_the_text_of_the_run_goes_to_standard_error(monkeypatch, tmp_path):
    from xloader.demo import run as demo_run

    class Result:
        def to_dict(self):
            return {"picture": str(tmp_path)}

    def run_demo(**options):
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
