"""``inspect`` and ``explain`` tell the truth about a store that is broken in many ways, and about
real files; and no command shows a traceback of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click.testing
import numpy as np
import pytest
import xarray as xr

from tests.cli.json_shapes import SHAPES, check
from tests.cli.test_inspect import dataset
from xloader import cli

NAMES = ("whole", "absent", "short", "codec", "nojson", "sizes", "empty")
TIME = np.r_[0:25, 30:45] * np.timedelta64(1, "D") + np.datetime64("2001-01-01", "ns")


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, list(map(str, arguments)))


def told(command: str, *arguments) -> dict:
    found = json.loads(run(command, *arguments, "--json").stdout)
    check(found, SHAPES[command])
    return found


def write(path: Path, names: tuple[str, ...]) -> Path:
    ds = xr.Dataset({name: dataset()["a"].variable for name in names}, dataset().coords)
    ds = ds.assign_coords(time=TIME)
    encoding = {name: {"chunks": (10, 4, 3)} for name in names}
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
    return path


def break_values(store: Path) -> None:
    os.remove(store / "absent/c/1/0/0")
    chunk = store / "short/c/2/0/1"
    chunk.write_bytes(chunk.read_bytes()[:40])


@pytest.fixture
def broken(tmp_path) -> Path:
    """A store with five broken arrays, one without bytes, a whole one, and a gap in time."""
    store = write(tmp_path / "broken.zarr", NAMES)
    break_values(store)
    for name, change in (
        ("codec", lambda own: own["codecs"].append({"name": "wibble"})),
        ("sizes", lambda own: own.update(shape=[45, 4, 6])),
    ):
        path = store / name / "zarr.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    (store / "nojson/zarr.json").write_text('{"zarr_format": 3, ')
    (store / "empty/c/0/0/0").write_bytes(b"")
    return store


def test_inspect_finds_all_faults_of_a_store_at_once(broken):
    found = told("inspect", broken, "--nan")
    words = {
        ("absent", "problem"): "1 of 8 chunks absent, so their values are the fill value",
        ("short", "problem"): "1 chunk cannot be read; the first: ",
        ("codec", "problem"): "'wibble'",
        ("nojson", "problem"): "zarr.json is not JSON",
        ("sizes", "problem"): "it has 45 elements along 'time', where the others have 40",
        ("empty", "problem"): "1 chunk of 0 bytes: empty/c/0/0/0",
        ("time", "note"): "1 of 39 are not 1 day (first after 2001-01-25)",
    }
    for (subject, level), text in words.items():
        own = [one for one in found["findings"] if one["subject"] == subject]
        assert any(one["level"] == level and text in one["found"] for one in own), subject
        assert all(one["remedy"] for one in own)
    assert {one["subject"] for one in found["findings"]} == {name for name, _ in words}
    # Messages name the store, and not the wrapper in which it was opened.
    assert "wrapping" not in json.dumps(found)
    whole = next(own for own in found["variables"] if own["name"] == "whole")
    assert whole["nans"]["share"] == 0
    result = run("inspect", broken)
    assert result.exit_code == 1
    assert result.stderr == "Broken: codec, nojson, sizes, absent, empty.\n"


def test_explain_of_metadata_that_cannot_be_opened_names_the_next_step(broken):
    result = run("explain", broken, "--window", "time=3")
    assert (result.exit_code, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    # zarr opens arrays at the same time, and any of the broken ones may be the first to fail.
    assert error.startswith("Error: ")
    assert str(broken) in error
    assert hint == f"xloader inspect {broken} shows what is broken."


def test_no_traceback_is_shown_when_the_process_ends(broken):
    done = subprocess.run(
        [sys.executable, "-m", "xloader", "explain", str(broken), "--window", "time=3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2, done.stderr


def test_work_beside_an_error_is_not_told_when_the_process_ends():
    # What zarr leaves of a group that it opens depends on which array fails first.
    code = """
import asyncio
from xloader.cli.endings import plain_endings
from xloader.errors import XloaderError

async def fail():
    raise OSError

async def leave():
    asyncio.create_task(fail())
    await asyncio.sleep(0)
    asyncio.create_task(asyncio.sleep(9))
    raise XloaderError("The first error")

loop = asyncio.new_event_loop()
with plain_endings():
    loop.run_until_complete(leave())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: The first error.\n")


def test_explain_of_broken_values_predicts_the_reads_and_a_job_names_the_chunk(tmp_path):
    store = write(tmp_path / "values.zarr", ("absent", "short", "whole"))
    break_values(store)
    found = told("explain", store, "--window", "time=3", "--stride", "1", "--batch-size", "4")
    # Of 38 windows, two cross the gap.
    assert (found["num_samples"], found["dropped_windows"]) == (36, {"gap": 2})
    assert found["num_reads"] == 3 * 8
    assert found["read_nbytes"] == 3 * 40 * 4 * 6 * 4
    assert any("(first after 2001-01-25)" in note for note in found["notes"])
    result = run("stats", store, "--variables", "short")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'short', chunk (2, 0, 1)" in result.stderr
